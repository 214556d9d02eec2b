//! The spawns of PMI-1, a block of lines per command, and of PMI-2, a list of lists.

use pmi::SpawnRequest;
use pmi::v1::spawn::{SpawnReader, write_spawn};
use pmi::v2::pairs::Pairs;
use pmi::v2::spawn;

/// Checks the bytes as lines of PMI-1 and as a payload of PMI-2.
pub(super) fn check(data: &[u8]) {
    for spawn in read_lines(data) {
        check_spawn(&spawn);
    }
    if let Ok(spawn) = spawn::parse(Pairs::of(data)) {
        check_spawn(&spawn);
    }
}

/// Returns the valid spawns in lines.
fn read_lines(lines: &[u8]) -> Vec<SpawnRequest> {
    let mut spawns = Vec::new();
    let mut reader = SpawnReader::default();
    for line in lines.split(|&byte| byte == b'\n') {
        if let Some(outcome) = reader.read(line) {
            spawns.extend(outcome);
            reader = SpawnReader::default();
        }
    }
    spawns
}

/// A spawn is within its bounds, and is the same after it was written and read in each version.
fn check_spawn(spawn: &SpawnRequest) {
    assert_eq!(spawn.check(), Ok(()));
    let mut payload = Vec::new();
    spawn::write(spawn, &mut payload);
    assert_eq!(spawn::parse(Pairs::of(&payload)).as_ref(), Ok(spawn));
    let mut lines = Vec::new();
    write_spawn(spawn, &mut lines);
    let texts = spawn.commands.iter().flat_map(|command| {
        let infos = command.info.iter().flat_map(|(key, value)| [key, value]);
        std::iter::once(&command.program).chain(&command.args).chain(infos)
    });
    let mut texts = texts.chain(spawn.preputs.iter().flat_map(|(key, value)| [key, value]));
    // A newline can be sent in PMI-2 only.
    if !texts.any(|text| text.contains(&b'\n')) {
        assert_eq!(read_lines(&lines), std::slice::from_ref(spawn));
    }
}
