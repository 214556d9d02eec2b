//! The file of a journal.

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::ops::DerefMut;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use nla::core::printable;
use nla::sys::{OutputMode, open_output};

use super::journal::{HEADER, JOURNAL_BYTES_MAX, Journal, Row};
use super::list::List;
use crate::refusal::Refusal;

/// A journal to which rows are appended. No other map can open it meanwhile.
#[derive(Debug)]
pub(super) struct JournalFile {
    path: PathBuf,
    file: Flock<File>,
}

impl JournalFile {
    /// Opens a journal of this list, and makes it if there is none. Returns for each command whether it has succeeded already. A
    /// journal with rows is refused unless `resumes`.
    pub(super) fn open(path: &Path, resumes: bool, list: &List) -> Result<(Self, Vec<bool>), Refusal> {
        let name = printable(&path.to_string_lossy());
        let failed =
            |error: io::Error| Refusal::new(format!("the journal {name} cannot be used: {error}"), "").of_system();
        let file = open_output(path, OutputMode::Continue).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            return Err(failed(io::Error::other("it is not a regular file")));
        }
        // Whoever writes its rows decides which commands are skipped.
        if ![0, geteuid().as_raw()].contains(&found.uid()) {
            let text = format!("the journal {name} belongs to another user (uid {})", found.uid());
            return Err(Refusal::new(text, "another --journal begins a new one").of_system());
        }
        if found.mode() & 0o002 != 0 && found.len() > 0 {
            let text = format!("other users can write to the journal {name}: its mode is {:o}", found.mode() & 0o777);
            return Err(Refusal::new(text, "another --journal begins a new one").of_system());
        }
        // Another user who can open the journal can lock it.
        if found.uid() == geteuid().as_raw() && found.mode() & 0o077 != 0 {
            file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
        }
        let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((_, Errno::EWOULDBLOCK)) => {
                return Err(Refusal::new(format!("the journal {name} is in use by another process"), "").of_system());
            }
            Err((_, error)) => return Err(failed(error.into())),
        };
        let mut own = Self { path: path.to_owned(), file };
        let mut bytes = Vec::new();
        (&*own.file).take(JOURNAL_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        let refused = |why: &dyn std::fmt::Display, hint: &str| {
            Refusal::new(format!("the journal {name} cannot be continued: {why}"), hint).of_system()
        };
        let other = "--resume needs the list with which the journal was begun; another --journal begins a new one";
        let journal = Journal::parse(&bytes).map_err(|error| refused(&error, "another --journal begins a new one"))?;
        if !resumes && !journal.rows.is_empty() {
            let text = format!("the journal {name} has rows already");
            let hint = "--resume skips the commands that have succeeded; without it, name a new file";
            return Err(Refusal::new(text, hint).of_system());
        }
        let succeeded = journal.succeeded(list).map_err(|error| refused(&error, other))?;
        let whole = journal.whole_bytes;
        if whole < bytes.len() {
            own.file.set_len(whole as u64).map_err(failed)?;
        }
        if whole == 0 {
            own.write(HEADER).map_err(failed)?;
        }
        Ok((own, succeeded))
    }

    /// Appends a row. The error is a text for the user.
    pub(super) fn append(&mut self, row: &Row<'_>) -> Result<(), String> {
        let failed = |error| format!("the journal {} cannot be written: {error}", self.path.to_string_lossy());
        self.file.deref_mut().write_all(&row.line()).map_err(failed)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.deref_mut().write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn row(number: u32, code: u8, command: &[u8]) -> Row<'_> {
        Row { number, start_ms: 0, run_ms: 0, code, attempts: 1, command }
    }

    #[test]
    fn a_journal_is_continued_only_on_request() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let list = List::parse(b"a\nb\n".to_vec()).unwrap();
        let open = |resumes| JournalFile::open(&path, resumes, &list);
        let (mut journal, succeeded) = open(false).unwrap();
        assert_eq!(succeeded, [false, false]);
        let text = open(true).unwrap_err().to_string();
        assert!(text.ends_with("journal is in use by another process"), "{text}");
        journal.append(&row(2, 0, b"b")).unwrap();
        journal.append(&row(1, 3, b"a")).unwrap();
        drop(journal);
        let refusal = open(false).unwrap_err();
        assert!(refusal.to_string().ends_with("journal has rows already") && refusal.hint().contains("--resume"));
        // A map that was killed.
        let whole = fs::read(&path).unwrap();
        fs::write(&path, [&whole[..], b"1\t0.0"].concat()).unwrap();
        assert_eq!(open(true).unwrap().1, [false, true]);
        assert_eq!(fs::read(&path).unwrap(), whole);
        let other = List::parse(b"a\nc\n".to_vec()).unwrap();
        let refusal = JournalFile::open(&path, true, &other).unwrap_err();
        assert!(refusal.to_string().ends_with("it has command 2 as 'b', and the list has 'c'"), "{refusal}");
    }

    #[test]
    fn a_journal_of_another_user_is_not_believed() {
        if !geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let list = List::parse(b"a\n".to_vec()).unwrap();
        let own = |path: &Path| std::os::unix::fs::lchown(path, Some(65_502), None).unwrap();
        let at = |name: &str| directory.path().join(name);
        for path in [at("journal"), at("empty")] {
            let rows = if path.ends_with("journal") { row(1, 0, b"a").line() } else { Vec::new() };
            fs::write(&path, [HEADER, &rows[..]].concat()).unwrap();
            own(&path);
            for resumes in [false, true] {
                let text = JournalFile::open(&path, resumes, &list).unwrap_err().to_string();
                assert!(text.ends_with(" belongs to another user (uid 65502)"), "{text}");
            }
        }
        fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
        std::os::unix::fs::symlink(at("made"), at("link")).unwrap();
        own(&at("link"));
        let text = JournalFile::open(&at("link"), false, &list).unwrap_err().to_string();
        assert!(text.contains("cannot be used: it is a link of another user (uid 65502)"), "{text}");
        assert!(!at("made").exists());
    }

    #[test]
    fn a_journal_is_closed_to_others_and_not_believed_if_all_may_write_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let list = List::parse(b"a\n".to_vec()).unwrap();
        let set = |mode| fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let (mut journal, _) = JournalFile::open(&path, false, &list).unwrap();
        journal.append(&row(1, 0, b"a")).unwrap();
        drop(journal);
        set(0o664);
        assert_eq!(JournalFile::open(&path, true, &list).unwrap().1, [true]);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        set(0o666);
        let text = JournalFile::open(&path, true, &list).unwrap_err().to_string();
        assert!(
            text.starts_with("other users can write to the journal ") && text.ends_with("its mode is 666"),
            "{text}"
        );
    }

    #[test]
    fn other_files_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("text");
        fs::write(&path, "precious").unwrap();
        let list = List::parse(b"a\n".to_vec()).unwrap();
        for resumes in [false, true] {
            let text = JournalFile::open(&path, resumes, &list).unwrap_err().to_string();
            assert!(text.ends_with("cannot be continued: it is not a journal of 'scela pool map'"), "{text}");
        }
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        let text = JournalFile::open(Path::new("/dev/null"), false, &list).unwrap_err().to_string();
        assert_eq!(text, "the journal /dev/null cannot be used: it is not a regular file");
    }
}
