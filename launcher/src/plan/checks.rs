//! Checks on this machine before anything starts: files, directories and interfaces that options name.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use nix::unistd::{AccessFlags, access};
use nla::core::{CommandPlan, SessionPlan};
use nla::sys;

use crate::plan::elf;
use crate::plan::pattern;
use crate::plan::pool_name::check_pool_name;
use crate::plan::request::{Options, StdinTo};
use crate::refusal::Refusal;

/// Checks the options against this machine. Relative paths begin at `wdir`.
pub(super) fn check(options: &Options, wdir: &Path) -> Result<(), Refusal> {
    if let Some(StdinTo::File(path)) = &options.stdin {
        check_input(&wdir.join(path), path)?;
    }
    for (option, pattern) in patterns(options) {
        let directory = pattern::fixed_directory(pattern);
        if !wdir.join(directory).is_dir() {
            let directory = directory.display();
            let text = format!("option '{option}': directory '{directory}' does not exist");
            return Err(Refusal::new(text, format!("mkdir -p '{directory}'")));
        }
        let path = wdir.join(directory);
        if let Err(error) = access(&path, AccessFlags::W_OK | AccessFlags::X_OK) {
            let text = format!(
                "option '{option}': files cannot be created in '{}': {}",
                path.display(),
                io::Error::from(error)
            );
            return Err(Refusal::new(text, "name a directory that you may write to"));
        }
        if wdir.join(pattern).is_dir() {
            let text = format!("option '{option}': '{}' is a directory", pattern.to_string_lossy());
            return Err(Refusal::new(text, "name files in it, such as out.%r, which has one file for each rank"));
        }
    }
    match &options.launch.iface {
        Some(name) if sys::addresses_of(Some(&name.to_string_lossy())).is_empty() => {
            let name = name.to_string_lossy();
            let text = format!("option '--iface': no interface named '{name}' has an address on this host");
            Err(Refusal::new(text, "'ip -brief address' lists interfaces and their addresses"))
        }
        _ => Ok(()),
    }
}

/// Checks that the input file can be read. Does not open a FIFO: `open` would block until it has a writer.
fn check_input(path: &Path, typed: &Path) -> Result<(), Refusal> {
    let refused = |why: String| {
        let hint = "-stdin takes none, all, ranks such as 0,3-5, or a file that every rank reads";
        Refusal::new(format!("option '-stdin': '{}' {why}", typed.display()), hint)
    };
    let unreadable = |error: io::Error| refused(format!("cannot be read: {error}"));
    let kind = fs::metadata(path).map_err(unreadable)?.file_type();
    if kind.is_dir() {
        return Err(refused("is a directory".to_owned()));
    }
    if kind.is_socket() {
        return Err(refused("is a socket, which cannot be opened".to_owned()));
    }
    if kind.is_fifo() {
        access(path, AccessFlags::R_OK).map_err(|error| unreadable(error.into()))?;
    } else {
        File::open(path).map_err(unreadable)?;
    }
    Ok(())
}

/// Returns a note for each pattern that makes `size` ranks share files.
pub(super) fn shared_files(options: &Options, size: u32) -> Vec<String> {
    let shared = patterns(options).filter(|(_, pattern)| size > 1 && !pattern::has_rank(pattern));
    let line = |(option, pattern): (&str, &OsString)| {
        format!("{option} '{}' has no %r: ranks share files, line by line", pattern.to_string_lossy())
    };
    shared.map(line).collect()
}

/// Returns the typed file patterns with their options.
pub(super) fn patterns(options: &Options) -> impl Iterator<Item = (&'static str, &OsString)> {
    let both = [("-outfile-pattern", &options.outfile_pattern), ("-errfile-pattern", &options.errfile_pattern)];
    both.into_iter().filter_map(|(option, pattern)| Some((option, pattern.as_ref()?)))
}

/// Returns the name of a program in `search`, a value of PATH, that is similar to `program`.
fn similar_program(program: &str, search: &OsStr) -> Option<String> {
    let folders = std::env::split_paths(search);
    let entries = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    // PATH has thousands of names: a typing error keeps the first letter and about the length.
    let is_alike =
        |name: &String| name.chars().next() == program.chars().next() && name.len().abs_diff(program.len()) <= 2;
    let names: std::collections::BTreeSet<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_alike).collect();
    crate::suggest::nearest(program, names.iter().map(String::as_str)).map(str::to_owned)
}

/// Returns why programs cannot be run on this machine, in an agent's words, each once.
pub fn missing_programs(session: &SessionPlan, commands: &[CommandPlan]) -> Vec<String> {
    let why = |command| elf::program_of(session, command).err().map(|error| error.to_string());
    let mut missing: Vec<String> = commands.iter().filter_map(why).collect();
    missing.dedup();
    missing
}

/// Returns how to name a pool, if `program` may be meant as the name of one: it follows `--pool` at once.
pub(crate) fn pool_hint(program: &str, follows_pool: bool) -> Option<String> {
    let is_meant = follows_pool && check_pool_name(program).is_ok();
    is_meant.then(|| format!("a pool is named by '--pool={program}'"))
}

/// Returns a hint if `why` is that a program was not found in PATH: what is meant if it `follows_pool`, or a similar name on this
/// machine, and PATH itself if `shows_path`.
pub(crate) fn missing_program_hint(
    why: &str,
    session: &SessionPlan,
    commands: &[CommandPlan],
    shows_path: bool,
    follows_pool: bool,
) -> Option<String> {
    let is_missing = |command: &CommandPlan| {
        why.contains(&format!("program '{}' was not found in PATH", String::from_utf8_lossy(&command.program)))
    };
    let (at, command) = commands.iter().enumerate().find(|(_, command)| is_missing(command))?;
    let search = elf::variable(session, command, "PATH")?;
    let program = String::from_utf8_lossy(&command.program);
    let similar = || similar_program(&program, search).map(|similar| format!("did you mean '{similar}'?"));
    let meant = pool_hint(&program, follows_pool && at == 0).or_else(similar);
    let path = shows_path.then(|| format!("PATH is {}", search.to_string_lossy()));
    match (meant, path) {
        (Some(meant), Some(path)) => Some(format!("{meant} {path}")),
        (meant, path) => meant.or(path),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn text(result: Result<(), Refusal>) -> String {
        result.map_or_else(|error| error.with_hint(), |()| "fine".to_owned())
    }

    #[test]
    fn an_input_file_must_be_readable() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("input"), "").unwrap();
        let input = |path: &str| Options { stdin: Some(StdinTo::File(path.into())), ..Options::default() };
        let check = |path: &str| text(check(&input(path), directory.path()));
        let hint = "\n  hint: -stdin takes none, all, ranks such as 0,3-5, or a file that every rank reads";
        assert_eq!(check("input"), "fine");
        assert_eq!(check("."), format!("option '-stdin': '.' is a directory{hint}"));
        let missing = "option '-stdin': 'nofile' cannot be read: No such file or directory (os error 2)";
        assert_eq!(check("nofile"), format!("{missing}{hint}"));
        let _socket = std::os::unix::net::UnixListener::bind(directory.path().join("socket")).unwrap();
        assert_eq!(check("socket"), format!("option '-stdin': 'socket' is a socket, which cannot be opened{hint}"));
        nix::unistd::mkfifo(&directory.path().join("fifo"), nix::sys::stat::Mode::S_IWUSR).unwrap();
        // Root may read every file.
        if !nix::unistd::geteuid().is_root() {
            let denied = "option '-stdin': 'fifo' cannot be read: Permission denied (os error 13)";
            assert_eq!(check("fifo"), format!("{denied}{hint}"));
        }
    }

    #[test]
    fn the_directory_of_output_files_must_exist() {
        let directory = tempfile::tempdir().unwrap();
        let output = |pattern: &str| Options { outfile_pattern: Some(pattern.into()), ..Options::default() };
        let check = |pattern: &str| text(check(&output(pattern), directory.path()));
        assert_eq!(check("out.%r"), "fine");
        assert_eq!(check("%h/out.%r"), "fine", "a directory with a placeholder is created");
        let itself = "option '-outfile-pattern': '.' is a directory\n  hint: name files in it, such as out.%r, which has one file for each rank";
        assert_eq!(check("."), itself);
        let missing = "option '-outfile-pattern': directory 'a/b' does not exist\n  hint: mkdir -p 'a/b'";
        assert_eq!(check("a/b/out.%r"), missing);
        fs::create_dir(directory.path().join("full")).unwrap();
        fs::set_permissions(directory.path().join("full"), fs::Permissions::from_mode(0o500)).unwrap();
        // Root may write to every directory.
        if !nix::unistd::geteuid().is_root() {
            let path = directory.path().join("full");
            let denied = format!("files cannot be created in '{}': Permission denied (os error 13)", path.display());
            let hint = "name a directory that you may write to";
            assert_eq!(check("full/out.%r"), format!("option '-outfile-pattern': {denied}\n  hint: {hint}"));
        }
    }

    #[test]
    fn an_interface_must_have_an_address() {
        let mut options = Options::default();
        options.launch.iface = Some("lo".into());
        assert_eq!(text(check(&options, Path::new("/"))), "fine");
        options.launch.iface = Some("eth99".into());
        let missing = "option '--iface': no interface named 'eth99' has an address on this host\n  \
                       hint: 'ip -brief address' lists interfaces and their addresses";
        assert_eq!(text(check(&options, Path::new("/"))), missing);
    }

    #[test]
    fn a_note_says_that_ranks_share_a_file() {
        let options = Options {
            outfile_pattern: Some("out.%h".into()),
            errfile_pattern: Some("err.%r".into()),
            ..Options::default()
        };
        let expected = ["-outfile-pattern 'out.%h' has no %r: ranks share files, line by line"];
        assert_eq!(shared_files(&options, 2), expected);
        assert!(shared_files(&options, 1).is_empty());
    }

    #[test]
    fn a_program_after_the_option_of_a_pool_may_be_meant_as_its_name() {
        assert_eq!(pool_hint("m", true).as_deref(), Some("a pool is named by '--pool=m'"));
        assert_eq!([pool_hint("m", false), pool_hint("./m", true)], [None, None]);
    }

    #[test]
    fn a_program_of_a_similar_name_is_found() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("python3"), "").unwrap();
        let search = std::env::join_paths([Path::new("/no/such/directory"), directory.path()]).unwrap();
        assert_eq!(similar_program("pyhton3", &search), Some("python3".to_owned()));
        assert_eq!(similar_program("gcc", &search), None);
    }
}
