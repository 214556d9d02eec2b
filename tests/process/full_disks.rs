//! Disks without room for staged files, for files that are brought back, for outputs of maps, and for caches; and disks in memory.

use std::fs;
use std::path::{Path, PathBuf};

use tests::{Pool, Run, SmallDisk, scela, sh, skip};

use crate::host;

fn disk(options: &str) -> Option<SmallDisk> {
    SmallDisk::mount(options).inspect_err(|why| skip(why)).ok()
}

fn names(place: &Path) -> Vec<PathBuf> {
    fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Returns a run that stages its files on the disk.
fn run_on(disk: &SmallDisk) -> Run {
    scela().np(1).env("TMPDIR", disk.path())
}

/// The disk has room for the bytes, and not for so many files.
#[test]
fn a_disk_without_room_for_a_directory_is_named_and_keeps_nothing_of_it() {
    let Some(disk) = disk("nr_inodes=12") else { return };
    let place = tempfile::tempdir().unwrap();
    (0..20).for_each(|number| fs::write(place.path().join(number.to_string()), "x").unwrap());
    let outcome = run_on(&disk).args(["--stage-dir".as_ref(), place.path().as_os_str()]).program(sh("echo ran")).run();
    outcome.has_code(251).says(&format!("error: staging failed on {}: ", host())).wrote("");
    outcome.says(&format!("' cannot be written to {}/scela-stage-", disk.path().display()));
    outcome.says("No space left on device").says("hint: free some space there, or name another directory in TMPDIR");
    assert_eq!(names(disk.path()), Vec::<PathBuf>::new());
}

#[test]
fn a_disk_without_room_for_collected_files_is_named_and_keeps_nothing_of_them() {
    let Some(disk) = disk("size=64k") else { return };
    let work = tempfile::tempdir().unwrap();
    let pattern = format!("*.dat={}", disk.path().display());
    let run = scela().np(2).args(["-wdir".as_ref(), work.path().as_os_str()]).args(["--collect", &pattern]);
    let outcome = run.program(sh("[ $PMI_RANK = 0 ] || head -c 1000000 /dev/zero > r.dat")).run();
    let why = format!("'{}' cannot be written: No space left on device", disk.path().display());
    outcome.has_code(1).says(&format!("files were not collected from {}: {why}", host()));
    assert_eq!(names(disk.path()), Vec::<PathBuf>::new());
}

#[test]
fn a_disk_without_room_for_the_output_is_told_and_has_what_fitted() {
    let Some(disk) = disk("size=64k") else { return };
    let file = disk.path().join("output");
    let run = scela().np(2).agents(2).shell(&format!("exec >'{}'", file.display()));
    let outcome = run.program(sh("head -c 100000 /dev/zero; exec sleep 1000")).run();
    outcome.has_code(1).says("standard output cannot be written: No space left on device");
    assert!(fs::metadata(&file).unwrap().len() >= 60 * 1024);
}

#[test]
fn outputs_of_a_map_that_a_disk_has_no_room_for_are_missed_with_the_reason() {
    let Some(disk) = disk("size=1m") else { return };
    let pool = Pool::start(&["--slots", "1"]);
    for stream in ["", " >&2"] {
        let list = [format!("head -c 3000000 /dev/zero{stream}")];
        let outcome = pool.map(&list).env("TMPDIR", disk.path()).run();
        let why = format!("outputs cannot be stored in {}: No space left on device", disk.path().display());
        outcome.has_code(1).says(&format!("scela: error: {why}"));
    }
    assert_eq!(names(disk.path()), Vec::<PathBuf>::new());
}

#[test]
fn staged_files_in_memory_are_told() {
    let Some(disk) = disk("size=1m") else { return };
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    fs::write(&file, "x").unwrap();
    let outcome = run_on(&disk).args(["-v", "--stage-file"]).arg(&file).program(sh("true")).run();
    let text = format!("staged files are in {}, in the memory of {}", disk.path().display(), host());
    outcome.has_code(0).says(&text);
}

/// Stages a file of so many bytes with a cache, and checks that it is on the disk. Returns the bytes that the cache has afterwards.
#[track_caller]
fn cached(disk: &SmallDisk, bytes: u32, seed: u32) -> u64 {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    let content: Vec<u8> = (0..bytes).map(|number| ((number ^ seed).wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&file, content).unwrap();
    let script = format!("cmp \"$SCELA_STAGE_DIR/file\" {} && echo \"${{SCELA_STAGE_DIR%/*}}\"", file.display());
    let run = run_on(disk).args(["--stage-cache", "1G", "--stage-file"]).arg(&file).program(sh(&script));
    run.run().has_code(0).wrote(&format!("{}\n", disk.path().display()));
    let [cache] = &names(disk.path())[..] else { panic!("only the cache is left: {:?}", names(disk.path())) };
    names(cache).iter().map(|chunk| fs::metadata(chunk).unwrap().len()).sum()
}

#[test]
fn a_cache_keeps_only_what_leaves_the_files_their_room() {
    let Some(disk) = disk("size=4m") else { return };
    assert_eq!(cached(&disk, 3_000_000, 1), 1 << 20, "one of three chunks");
}

#[test]
fn a_cache_makes_room_for_the_files_of_another_job() {
    let Some(disk) = disk("size=6m") else { return };
    assert_eq!(cached(&disk, 3_000_000, 1), 3_000_000);
    // So much is not free.
    assert!((1 << 20..3_000_000).contains(&cached(&disk, 4_000_000, 2)));
}
