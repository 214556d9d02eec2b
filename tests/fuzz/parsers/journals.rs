//! The files of `scela pool map`: the list of commands and the journal.

use launcher::pool::map::journal::{HEADER, Journal, Row};
use launcher::pool::map::list::List;

/// A journal that is read is the same when written and read again, and fits the list of its own commands. A list has only commands that
/// a shell can be given.
pub(super) fn check(data: &[u8]) {
    match List::parse(data.to_vec()) {
        Ok(list) => {
            for command in (0..list.len()).filter_map(|index| list.command(index)) {
                assert!(!command.trim_ascii_start().is_empty() && !command.contains(&b'\n') && !command.contains(&0));
            }
        }
        Err(error) => super::check_shown(&error.to_string()),
    }
    let journal = match Journal::parse(data) {
        Ok(journal) => journal,
        Err(error) => return super::check_shown(&error.to_string()),
    };
    assert!(journal.whole_bytes <= data.len());
    let lines: Vec<Vec<u8>> = journal.rows.iter().map(Row::line).collect();
    let written = [HEADER, &lines.concat()].concat();
    assert_eq!(Journal::parse(&written).map(|again| again.rows), Ok(journal.rows.clone()));
    // The rows of a list that was run once.
    let is_own = journal.rows.iter().enumerate().all(|(index, row)| row.number as usize == index + 1);
    let commands: Vec<&[u8]> = journal.rows.iter().map(|row| row.command).collect();
    match List::parse(commands.join(&b'\n')) {
        Ok(list) if is_own && list.len() == commands.len() => {
            let succeeded: Vec<bool> = journal.rows.iter().map(|row| row.code == 0).collect();
            assert_eq!(journal.succeeded(&list), Ok(succeeded));
        }
        Ok(list) => {
            if let Err(error) = journal.succeeded(&list) {
                super::check_shown(&error.to_string());
            }
        }
        Err(_) => {}
    }
}
