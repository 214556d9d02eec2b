//! The script on a host without an attacker.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use sha2::{Digest, Sha256};

use super::*;
use crate::bootstrap::program::tests::install;

pub(super) const MARK: &str = "0123456789abcdef";

/// Runs the script as a remote shell does, with a directory for the program. The file is sent if the script asks
/// for it.
fn run(program: &RemoteProgram, directory: &Path, file: &[u8]) -> Output {
    remote_shell(true, program, directory, file)
}

fn remote_shell(checks_version: bool, program: &RemoteProgram, directory: &Path, file: &[u8]) -> Output {
    let mut command = Command::new(COMMAND[0]);
    command.args(&COMMAND[1..]).env("XDG_RUNTIME_DIR", directory);
    converse(command, &script(program, checks_version, MARK, "a label", "5000"), file, Some("an order"))
}

/// Gives a shell its script, the file if the script asks for it, and an order if there is one.
pub(super) fn converse(mut command: Command, script: &str, file: &[u8], order: Option<&str>) -> Output {
    use std::io::{BufRead, BufReader, Read, Write};
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(script.as_bytes()).unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    output.read_line(&mut said).unwrap();
    if said.ends_with("need\n") {
        input.write_all(file).unwrap();
        if order.is_some() {
            output.read_line(&mut said).unwrap();
        }
    }
    if said.ends_with("here\n") || said.ends_with("here lasts\n") {
        // A shell that fails to execute the program ends without reading.
        let _ = input.write_all(order.unwrap_or_default().as_bytes());
    }
    drop(input);
    output.read_to_string(&mut said).unwrap();
    Output { stdout: said.into_bytes(), ..child.wait_with_output().unwrap() }
}

fn own(path: &Path, file: &[u8]) -> RemoteProgram {
    RemoteProgram::Own { path: path.to_str().unwrap().to_owned(), sent: Some(sent(file)), stores: true }
}

pub(super) fn sent(file: &[u8]) -> Sent {
    Sent { digest: program::hex(Sha256::digest(file)), size: file.len() as u64 }
}

/// The path of a stored program below `directory`, for this user.
fn stored(directory: &Path, file: &[u8]) -> PathBuf {
    let name = format!(".scela-{}/scela-run-{}", nix::unistd::getuid(), sent(file).digest);
    directory.join(name)
}

/// The paths of all files below `directory`, without its own.
pub(super) fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Returns a program that answers as a scela-run of this version, and otherwise prints its arguments and its input.
fn program() -> String {
    format!("#!/bin/sh\nif test \"$1\" = --agent-id; then echo {}; else echo run \"$@\"; cat; fi\n", agent_id())
}

#[test]
fn a_program_that_is_there_is_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it's here");
    install(&path, program().as_bytes());
    let said = format!("{MARK} here\nrun --guard {} a label 5000\nan order", agent_id());
    for checks_version in [false, true] {
        let output = remote_shell(checks_version, &own(&path, b""), directory.path(), b"");
        assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{output:?}");
    }
    let command = RemoteProgram::Command(format!("env A=b '{}'", path.display()).replace("it's", r"it'\''s"));
    let output = run(&command, directory.path(), b"");
    assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{output:?}");
}

#[test]
fn a_remote_shell_lasts_if_logind_kills_what_it_leaves() {
    let directory = tempfile::tempdir().unwrap();
    let (path, file) = (directory.path().join("scela-run"), program());
    install(&path, file.as_bytes());
    let bin = directory.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let cgroup = directory.path().join("cgroup");
    let scope = "0::/user.slice/user-1000.slice/session-3.scope\n";
    let user = "0::/user.slice/user-1000.slice/user@1000.service/app.slice\n";
    // The test machine has no systemd.
    let (yes, no) = ("echo KillUserProcesses=yes", "echo KillUserProcesses=no");
    let stalls = "exec sleep 1000";
    for (cgroups, logind, word) in [
        (scope, yes, "here lasts"),
        (&format!("12:cpu:/\n1:name=systemd:{}", &scope[3..]), yes, "here lasts"),
        (scope, no, "here"),
        (scope, "echo 'Failed to connect to bus' >&2; exit 1", "here"),
        (scope, stalls, "here"),
        (user, yes, "here"),
        ("0::/system.slice/ssh.service\n", yes, "here"),
        ("", yes, "here"),
    ] {
        install(&bin.join("loginctl"), format!("#!/bin/sh\ntest \"$1\" = show-session || exit\n{logind}\n").as_bytes());
        std::fs::write(&cgroup, cgroups).unwrap();
        for path in [&path, Path::new("/nonexistent/scela-run")] {
            let text = script(&own(path, file.as_bytes()), false, MARK, "a label", "5000");
            let text = text.replace("/proc/self/cgroup", cgroup.to_str().unwrap());
            let mut command = Command::new(COMMAND[0]);
            let search = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
            command.args(&COMMAND[1..]).env("XDG_RUNTIME_DIR", directory.path()).env("PATH", search);
            let output = converse(command, &text, file.as_bytes(), Some("an order"));
            let said = String::from_utf8_lossy(&output.stdout);
            let ran = format!("{MARK} {word}\nrun --guard {} a label 5000\nan order", agent_id());
            assert!(said.ends_with(&ran), "{cgroups:?}, {logind}: {output:?}");
        }
    }
}

#[test]
fn a_missing_program_is_read_from_the_input_and_stored() {
    let directory = tempfile::tempdir().unwrap();
    let ran = format!("here\nrun --guard {} a label 5000\nan order", agent_id());
    for said in [format!("{MARK} need\n{MARK} {ran}"), format!("{MARK} {ran}")] {
        let file = program();
        let own = own(Path::new("/nonexistent/scela-run"), file.as_bytes());
        let output = run(&own, directory.path(), file.as_bytes());
        assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{output:?}");
    }
    assert_eq!(files(directory.path()), [stored(directory.path(), program().as_bytes())]);
}

#[test]
fn a_program_that_is_not_to_be_stored_is_removed_before_it_starts() {
    let directory = tempfile::tempdir().unwrap();
    let file = program();
    let path = stored(directory.path(), file.as_bytes());
    let own = |stores| {
        let (path, sent) = ("/nonexistent/scela-run".to_owned(), Some(sent(file.as_bytes())));
        RemoteProgram::Own { path, sent, stores }
    };
    let ran = format!("{MARK} here\nrun --guard {} a label 5000\nan order", agent_id());
    let run = |stores, words: &str| {
        let output = run(&own(stores), directory.path(), file.as_bytes());
        assert_eq!(String::from_utf8_lossy(&output.stdout), words.to_owned() + &ran, "{output:?}");
    };
    let sent = format!("{MARK} need\n");
    run(false, &sent);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    run(true, &sent);
    assert!(path.exists());
    run(false, "");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "an earlier session had stored it");
}

#[test]
fn a_stored_program_is_used_only_if_it_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    let (file, other) = (program(), "#!/bin/sh\necho other\n");
    let own = own(Path::new("/nonexistent/scela-run"), file.as_bytes());
    let need = format!("{MARK} need\n{MARK} here\nrun --guard {} a label 5000\nan order", agent_id());
    let here = need.split_once('\n').unwrap().1;
    let path = stored(directory.path(), file.as_bytes());
    for (said, spoil) in [(&*need, None), (here, Some(other)), (&need, None), (here, Some("")), (&need, None)] {
        let output = run(&own, directory.path(), file.as_bytes());
        assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{output:?}");
        assert_eq!(files(directory.path()), [&*path]);
        if let Some(spoil) = spoil {
            install(&path, spoil.as_bytes());
        }
    }
    // Others may write to the file.
    let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    mode(&path, 0o777);
    assert_eq!(String::from_utf8_lossy(&run(&own, directory.path(), file.as_bytes()).stdout), need);
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700);
}

#[test]
fn a_program_that_is_cut_or_changed_on_its_way_is_refused_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let file = program();
    let own = own(Path::new("/nonexistent/scela-run"), file.as_bytes());
    for arrived in [&file[..file.len() - 1], &file.replace("cat;", "tac;")] {
        let mut command = Command::new(COMMAND[0]);
        command.args(&COMMAND[1..]).env("XDG_RUNTIME_DIR", directory.path());
        let script = script(&own, false, MARK, "a label", "5000");
        let output = converse(command, &script, arrived.as_bytes(), None);
        assert_eq!(output.status.code(), Some(126));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.ends_with("and the one that was sent did not arrive whole\n"), "{said}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_program_computes_its_digest_where_there_is_no_sha256sum() {
    let directory = tempfile::tempdir().unwrap();
    let tools = directory.path().join("bin");
    std::fs::create_dir(&tools).unwrap();
    for tool in ["sh", "cat", "chmod", "head", "id", "ls", "mkdir", "mktemp", "mv", "rm", "rmdir"] {
        let path = ["/bin", "/usr/bin"].iter().map(|place| Path::new(place).join(tool)).find(|path| path.exists());
        std::os::unix::fs::symlink(path.unwrap(), tools.join(tool)).unwrap();
    }
    let place = directory.path().join("place");
    std::fs::create_dir(&place).unwrap();
    // Its digest is only known when it is complete: it reads that from a file.
    let digest = directory.path().join("digest");
    let own_digest = format!("test \"$1\" = --agent-digest && exec cat '{}'\n", digest.display());
    let file = program().replacen('\n', &format!("\n{own_digest}"), 1);
    let own = own(Path::new("/nonexistent/scela-run"), file.as_bytes());
    let run = |order| {
        let mut command = Command::new(COMMAND[0]);
        command.args(&COMMAND[1..]).env("PATH", &tools);
        command.env("XDG_RUNTIME_DIR", &place);
        converse(command, &script(&own, true, MARK, "a label", "5000"), file.as_bytes(), order)
    };
    std::fs::write(&digest, "another").unwrap();
    let output = run(None);
    assert!(String::from_utf8_lossy(&output.stderr).ends_with("did not arrive whole\n"), "{output:?}");
    std::fs::write(&digest, sent(file.as_bytes()).digest).unwrap();
    let output = run(Some("an order"));
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("an order"), "{output:?}");
    assert_eq!(files(&place), [stored(&place, file.as_bytes())]);
}

/// The agent's working directory is that of the remote shell, not that of the stored program.
#[test]
fn the_working_directory_stays() {
    let directory = tempfile::tempdir().unwrap();
    let file = program().replace("cat;", "pwd; cat;");
    let own = own(Path::new("/nonexistent/scela-run"), file.as_bytes());
    for _ in 0..2 {
        let output = run(&own, directory.path(), file.as_bytes());
        let here = std::env::current_dir().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.ends_with(&format!(" a label 5000\n{}\nan order", here.display())), "{output:?}");
    }
}

/// An installation that a group shares: its directory may be writable, its file may not.
#[test]
fn a_program_that_others_may_write_to_is_not_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("scela-run");
    install(&path, program().as_bytes());
    let own = RemoteProgram::Own { path: path.to_str().unwrap().to_owned(), sent: None, stores: true };
    let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let ran = format!("{MARK} here\nrun --guard {} a label 5000\nan order", agent_id());
    for shared in [0o755, 0o775, 0o777, 0o1777] {
        mode(directory.path(), shared);
        for checks_version in [false, true] {
            let output = remote_shell(checks_version, &own, directory.path(), b"");
            assert_eq!(String::from_utf8_lossy(&output.stdout), ran, "{shared:o} {output:?}");
        }
    }
    for writable in [0o775, 0o757] {
        mode(&path, writable);
        let output = run(&own, directory.path(), b"");
        assert_eq!(output.status.code(), Some(126));
        let said = format!("scela: {} belongs to another user, or others may write to it\n", path.display());
        assert_eq!(String::from_utf8_lossy(&output.stderr), said);
    }
}

#[test]
fn a_program_that_cannot_be_sent_must_be_there() {
    let directory = tempfile::tempdir().unwrap();
    let own = RemoteProgram::Own { path: "/nonexistent/scela-run".to_owned(), sent: None, stores: true };
    let output = run(&own, directory.path(), b"");
    assert_eq!(output.status.code(), Some(126));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "scela: there is no /nonexistent/scela-run\n");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_task_of_a_step_runs_the_program_or_reports_why_not() {
    let directory = tempfile::tempdir().unwrap();
    let run = |program: &RemoteProgram| {
        let mut command = Command::new(STEP_COMMAND[0]);
        command.arg(STEP_COMMAND[1]).arg(step_script(program, None, "a label", "5000"));
        let output = command.env("SLURMD_NODENAME", "n1").stdin(Stdio::null()).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let path = directory.path().join("it's here");
    assert_eq!(run(&own(&path, b"")), format!("scela: n1: there is no {}\n", path.display()));
    install(&path, b"#!/bin/sh\necho scela-0.0.0-1\n");
    assert!(run(&own(&path, b"")).contains("is not of this version"));
    install(&path, program().as_bytes());
    let guard = format!("--guard {} a label 5000\n", agent_id());
    assert_eq!(run(&own(&path, b"")), format!(" here\nrun {guard}"));
    assert_eq!(run(&RemoteProgram::Command("echo it is".into())), format!("it is {guard}"));
}

/// `srun` ends the step on all nodes when a task leaves input unread.
#[test]
fn a_task_that_fails_reads_its_input_to_the_end() {
    use std::io::Write;
    const MORE_THAN_A_PIPE_HOLDS: usize = 1 << 20;
    let mut command = Command::new(STEP_COMMAND[0]);
    let missing = own(Path::new("/nonexistent/scela-run"), b"");
    command.arg(STEP_COMMAND[1]).arg(step_script(&missing, None, "a label", "5000"));
    let mut child = command.env(NODE, "n1").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&[b'x'; MORE_THAN_A_PIPE_HOLDS]).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(126), "{output:?}");
}

#[test]
fn a_task_reads_the_sent_program_or_skips_it() {
    use std::io::Write;
    let directory = tempfile::tempdir().unwrap();
    let file = program();
    let missing = own(Path::new("/nonexistent/scela-run"), b"");
    let sent = sent(file.as_bytes());
    // The first task stores the program, the second one skips it; both read the order behind it.
    for _ in 0..2 {
        let mut command = Command::new(STEP_COMMAND[0]);
        command.arg(STEP_COMMAND[1]).arg(step_script(&missing, Some(&sent), "a label", "5000"));
        command.env("XDG_RUNTIME_DIR", directory.path()).env(NODE, "n1");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(format!("{file}an order").as_bytes()).unwrap();
        let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        assert!(said.ends_with(&format!(" here\nrun --guard {} a label 5000\nan order", agent_id())), "{said}");
        assert_eq!(files(directory.path()), [stored(directory.path(), file.as_bytes())]);
    }
}

#[test]
fn tasks_on_one_host_read_the_program_at_the_same_time() {
    use std::io::Write;
    let directory = tempfile::tempdir().unwrap();
    let file = program();
    let missing = own(Path::new("/nonexistent/scela-run"), b"");
    let script = step_script(&missing, Some(&sent(file.as_bytes())), "a label", "5000");
    let start = || {
        let mut command = Command::new(STEP_COMMAND[0]);
        command.arg(STEP_COMMAND[1]).arg(&script).env("XDG_RUNTIME_DIR", directory.path()).env(NODE, "n1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut tasks: Vec<_> = (0..8).map(|_| start()).collect();
    for task in &mut tasks {
        task.stdin.take().unwrap().write_all(format!("{file}an order").as_bytes()).unwrap();
    }
    for task in tasks {
        let said = String::from_utf8(task.wait_with_output().unwrap().stdout).unwrap();
        assert!(said.ends_with(&format!(" here\nrun --guard {} a label 5000\nan order", agent_id())), "{said}");
    }
    assert_eq!(files(directory.path()), [stored(directory.path(), file.as_bytes())]);
}

#[test]
fn the_script_checks_the_version_only_if_asked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("old");
    install(&path, b"#!/bin/sh\ntest \"$1\" = --agent-id || cat >/dev/null\necho \"$1\"\n");
    let output = remote_shell(false, &own(&path, b""), directory.path(), b"");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{MARK} here\n--guard\n"), "{output:?}");
    let file = program();
    let output = remote_shell(true, &own(&path, file.as_bytes()), directory.path(), file.as_bytes());
    assert!(String::from_utf8_lossy(&output.stdout).starts_with(&format!("{MARK} need\n{MARK} here\n")));
}

#[test]
fn another_version_and_a_broken_program_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("old");
    install(&path, b"#!/bin/sh\necho scela-0.0.0-1\n");
    let other = b"#!/bin/sh\necho no library >&2\necho nor that >&2\n";
    let output = run(&own(&path, other), directory.path(), other);
    assert_eq!(output.status.code(), Some(126));
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{MARK} need\n"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("is not of this version"), "{said}");
    assert!(said.ends_with("and the one that was sent does not run there: no library\n"), "{said}");
    assert_eq!(files(directory.path()), [path]);
}
