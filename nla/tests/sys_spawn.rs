//! Real rank processes: what they inherit at their start, and how their ends are reported.

#![allow(clippy::unwrap_used, reason = "a panic is how a case fails")]

mod sys_support;

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

use nla::sys::{
    self, Child, Descriptors, Ended, Image, ImageError, Masks, PROFILE_FD, ProfileFile, RANK_FILE_FD, RankFile,
    ShellState, SpawnError, SpawnStep, Spawner,
};
use sys_support::{daemon, end_all_children, is_running, sleeper, until};

fn main() -> ExitCode {
    sys_support::run(
        &[
            ("a_rank_has_only_four_descriptors", a_rank_has_only_four_descriptors),
            ("inherited_low_descriptors_are_left_alone", inherited_low_descriptors_are_left_alone),
            ("files_of_later_sessions_have_the_same_descriptors", files_of_later_sessions_have_the_same_descriptors),
            ("a_rank_leads_its_own_group", a_rank_leads_its_own_group),
            ("a_rank_has_the_limits_of_the_shell", a_rank_has_the_limits_of_the_shell),
            ("a_rank_is_bound_before_it_runs", a_rank_is_bound_before_it_runs),
            ("a_rank_has_the_signals_and_umask_of_the_shell", a_rank_has_the_signals_and_umask_of_the_shell),
            ("sigpipe_is_reset_to_its_default", sigpipe_is_reset_to_its_default),
            ("programs_are_found_from_the_working_directory", programs_are_found_from_the_working_directory),
            ("a_ranks_own_variables_replace_the_images", a_ranks_own_variables_replace_the_images),
            ("unusable_commands_have_clear_errors", unusable_commands_have_clear_errors),
            ("exec_errors_are_reported", exec_errors_are_reported),
            ("a_script_without_an_interpreter_line_runs", a_script_without_an_interpreter_line_runs),
            ("ranks_do_not_inherit_the_pipes_of_other_ranks", ranks_do_not_inherit_the_pipes_of_other_ranks),
            ("exits_and_signals_are_distinguished", exits_and_signals_are_distinguished),
            ("a_signal_reaches_the_whole_process_group", a_signal_reaches_the_whole_process_group),
            ("daemons_of_ranks_are_killed", daemons_of_ranks_are_killed),
            ("spared_children_are_not_killed", spared_children_are_not_killed),
        ],
        &[("descriptors", show_descriptors), ("sleeper", sleeper), ("daemon", daemon)],
    )
}

/// Creates a spawner as an agent does.
fn spawner(shell: ShellState) -> Spawner {
    sys::reserve_low().unwrap();
    sys::raise_limit().unwrap();
    sys::become_subreaper().unwrap();
    Spawner::new(shell, &Default::default()).unwrap()
}

fn image_in(wdir: &Path, argv: &[&str], env: &[(&str, &str)]) -> Result<Image, ImageError> {
    let argv: Vec<Vec<u8>> = argv.iter().map(|argument| argument.as_bytes().to_vec()).collect();
    let mut pairs = vec![(b"PATH".to_vec(), b"/usr/bin:/bin".to_vec())];
    pairs.extend(env.iter().map(|(k, v)| (k.as_bytes().to_vec(), v.as_bytes().to_vec())));
    Image::prepare(&argv[0], &argv, &pairs, wdir.as_os_str().as_bytes())
}

fn image(argv: &[&str]) -> Image {
    image_in(Path::new("/"), argv, &[]).unwrap()
}

fn myself(role: &str) -> Image {
    let me = std::env::current_exe().unwrap();
    image(&[me.to_str().unwrap(), "--role", role])
}

struct Running {
    child: Child,
    stdin: File,
    stdout: OwnedFd,
    pmi: OwnedFd,
}

fn start(spawner: &mut Spawner, image: &Image, extra: &[&str]) -> Result<Running, SpawnError> {
    let (input, stdin) = sys::input_pipe().unwrap();
    let (stdout, output) = sys::pipe().unwrap();
    let (pmi, theirs) = sys::socket_pair().unwrap();
    let extra: Vec<CString> = extra.iter().map(|entry| CString::new(*entry).unwrap()).collect();
    let stderr = std::io::stderr();
    let descriptors =
        Descriptors { stdin: input.as_fd(), stdout: output.as_fd(), stderr: stderr.as_fd(), pmi: Some(theirs.as_fd()) };
    let child = spawner.spawn(image, &extra, descriptors, Masks::default())?;
    Ok(Running { child, stdin: File::from(stdin), stdout, pmi })
}

/// Reads until end of file.
fn read_all(fd: OwnedFd) -> String {
    let mut file = File::from(fd);
    let mut text = Vec::new();
    until("the end of the output", || match file.read_to_end(&mut text) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            false
        }
    });
    String::from_utf8(text).unwrap()
}

fn reaped(child: &Child) -> Ended {
    let mut ended = None;
    until("the rank to end", || {
        ended = ended.or_else(|| {
            sys::reap().map(|(pid, how)| {
                assert_eq!(pid, child.pid());
                how
            })
        });
        ended.is_some()
    });
    ended.unwrap()
}

fn output_of(spawner: &mut Spawner, image: &Image, extra: &[&str]) -> String {
    let Running { child, stdin, stdout, pmi } = start(spawner, image, extra).unwrap();
    drop((stdin, pmi));
    let text = read_all(stdout);
    assert_eq!(reaped(&child), Ended::Exited(0));
    assert!(!sys::has_children());
    text
}

/// Returns the rest of the line of a /proc file that begins with `name`.
fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim()
}

/// Role: prints the open descriptors except standard error.
fn show_descriptors(_: &[String]) {
    let mut open = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let entry = entry.unwrap();
        let target = fs::read_link(entry.path()).unwrap();
        let target = target.to_string_lossy().into_owned();
        // Skip the descriptor of the directory that is being read.
        if !target.starts_with("/proc/") {
            let kind = target.split([':', '[']).next().unwrap().to_owned();
            open.push((entry.file_name().to_str().unwrap().parse::<u32>().unwrap(), kind));
        }
    }
    open.sort();
    let open = open.into_iter().filter(|(fd, _)| *fd != 2);
    let open: Vec<String> = open.map(|(fd, kind)| format!("{fd} {kind}")).collect();
    println!("{}", open.join(", "));
}

const FOUR: &str = "0 pipe, 1 pipe, 10 socket\n";

fn a_rank_has_only_four_descriptors() {
    let mut spawner = spawner(ShellState::recorded());
    let many: Vec<OwnedFd> = (0..100)
        .map(|_| nix::unistd::dup(std::io::stderr()).unwrap()) // not close-on-exec
        .collect();
    for _ in 0..3 {
        assert_eq!(output_of(&mut spawner, &myself("descriptors"), &[]), FOUR);
    }
    // Descriptor 10 is the socket to this process, and no other process has the rank's end. (bash, because dash
    // supports only descriptors of one digit.)
    let shell = image(&["bash", "-c", "echo hello >&10"]);
    let running = start(&mut spawner, &shell, &[]).unwrap();
    assert_eq!(read_all(running.pmi), "hello\n");
    assert_eq!(reaped(&running.child), Ended::Exited(0));
    // Without PMI descriptor 10 is closed.
    let (stdout, output) = sys::pipe().unwrap();
    let null = sys::dev_null(false).unwrap();
    let stderr = std::io::stderr();
    let (stdin, stderr) = (null.as_fd(), stderr.as_fd());
    let descriptors = Descriptors { stdin, stdout: output.as_fd(), stderr, pmi: None };
    let child = spawner.spawn(&myself("descriptors"), &[], descriptors, Masks::default()).unwrap();
    drop(output);
    assert_eq!(read_all(stdout), "0 /dev/null, 1 pipe\n");
    reaped(&child);
    drop(many);
}

fn inherited_low_descriptors_are_left_alone() {
    // As if the shell had run this process with 3>file 4>file ... 20>file.
    let inherited: Vec<OwnedFd> = (0..20).map(|_| nix::unistd::dup(std::io::stderr()).unwrap()).collect();
    let mut late = spawner(ShellState::recorded());
    assert_eq!(output_of(&mut late, &myself("descriptors"), &[]), FOUR);
    let mut another = Spawner::new(ShellState::recorded(), &Default::default()).unwrap();
    assert_eq!(output_of(&mut another, &myself("descriptors"), &[]), FOUR);
    assert_eq!(output_of(&mut late, &myself("descriptors"), &[]), FOUR);
    for descriptor in inherited {
        assert!(nix::sys::stat::fstat(&descriptor).is_ok(), "the inherited descriptors are still open");
    }
}

fn files_of_later_sessions_have_the_same_descriptors() {
    sys::reserve_low().unwrap();
    for session in 0..40 {
        let (topology, profile) = (RankFile::new().unwrap(), ProfileFile::new().unwrap());
        let numbers = [topology.as_fd().as_raw_fd(), profile.as_fd().as_raw_fd()];
        assert_eq!(numbers, [RANK_FILE_FD, PROFILE_FD], "session {session}");
    }
}

fn a_rank_leads_its_own_group() {
    let mut spawner = spawner(ShellState::recorded());
    let stat = output_of(&mut spawner, &image(&["cat", "/proc/self/stat"]), &[]);
    let fields: Vec<&str> = stat.split(' ').collect();
    assert_eq!(fields[0], fields[4], "pid and process group in {stat}");
}

fn a_rank_has_the_limits_of_the_shell() {
    let mut shell = ShellState::recorded();
    let nofile = 7; // RLIMIT_NOFILE
    let hard = shell.limits.iter().find(|(resource, ..)| *resource == nofile).unwrap().2;
    shell.limits.retain(|(resource, ..)| *resource != nofile);
    shell.limits.push((nofile, 200, 300));
    let mut spawner = spawner(shell);
    let raised = sys::raise_limit().unwrap();
    assert!(raised > 200, "the agent raised its own limit: {raised}");
    let limits = output_of(&mut spawner, &image(&["cat", "/proc/self/limits"]), &[]);
    let files: Vec<&str> = field(&limits, "Max open files").split_whitespace().collect();
    assert_eq!(files[0], "200");
    assert_eq!(files[1], hard.to_string(), "the hard limit is that of the node");
}

fn a_rank_is_bound_before_it_runs() {
    let mut spawner = spawner(ShellState::recorded());
    let mut bound = |masks: Masks<'_>| {
        let (stdout, output) = sys::pipe().unwrap();
        let null = sys::dev_null(false).unwrap();
        let stderr = std::io::stderr();
        let (stdin, stderr) = (null.as_fd(), stderr.as_fd());
        let descriptors = Descriptors { stdin, stdout: output.as_fd(), stderr, pmi: None };
        let status = image(&["grep", "_allowed_list", "/proc/self/status"]);
        let child = spawner.spawn(&status, &[], descriptors, masks)?;
        drop(output);
        let text = read_all(stdout);
        reaped(&child);
        Ok(field(&text, "Cpus_allowed_list:").to_owned())
    };
    let own = field(&std::fs::read_to_string("/proc/self/status").unwrap(), "Cpus_allowed_list:").to_owned();
    let affinity = sys::affinity();
    let at = affinity.iter().rposition(|word| *word != 0).unwrap();
    let last = 63 - affinity[at].leading_zeros();
    let mut words = vec![0; at + 1];
    words[at] = 1 << last;
    assert_eq!(bound(Masks { cpus: &words, memory: &[] }), Ok((at as u32 * 64 + last).to_string()));
    assert_eq!(bound(Masks::default()), Ok(own), "the next rank is not bound");
    assert_eq!(sys::affinity(), affinity, "nor is this process");
    // No machine has these.
    let none = [0, 0, 0, 1 << 63];
    let refused = |step| Err(SpawnError { step, errno: 22 });
    if affinity.len() < 4 || affinity[3] >> 63 == 0 {
        assert_eq!(bound(Masks { cpus: &none, memory: &[] }), refused(SpawnStep::Processors));
    }
    assert_eq!(bound(Masks { cpus: &[], memory: &none }), refused(SpawnStep::Memory));
}

fn a_rank_has_the_signals_and_umask_of_the_shell() {
    let mut shell = ShellState::recorded();
    shell.umask = 0o027;
    shell.blocked = 1 << (12 - 1); // USR2
    shell.ignored = 1 << (10 - 1); // USR1
    let mut spawner = spawner(shell);
    let mask = nix::sys::signal::SigSet::thread_get_mask().unwrap();
    let status = output_of(&mut spawner, &image(&["cat", "/proc/self/status"]), &[]);
    assert_eq!(field(&status, "SigBlk:"), "0000000000000800");
    assert_eq!(field(&status, "SigIgn:"), "0000000000000200");
    assert_eq!(field(&status, "SigCgt:"), "0000000000000000");
    assert_eq!(field(&status, "SigPnd:"), "0000000000000000");
    assert_eq!(field(&status, "Umask:"), "0027");
    let now = nix::sys::signal::SigSet::thread_get_mask().unwrap();
    assert_eq!(mask, now, "the spawner restored its own mask");
}

fn sigpipe_is_reset_to_its_default() {
    let pipe = 1u64 << (13 - 1);
    let ours = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = |status: &str| u64::from_str_radix(field(status, "SigIgn:"), 16).unwrap();
    assert_ne!(ignored(&ours) & pipe, 0, "Rust's runtime ignores SIGPIPE");
    let mut spawner = spawner(ShellState::recorded());
    let status = output_of(&mut spawner, &image(&["cat", "/proc/self/status"]), &[]);
    assert_eq!(ignored(&status) & pipe, 0);
    let text = output_of(&mut spawner, &image(&["sh", "-c", "yes | head -n 1"]), &[]);
    assert_eq!(text, "y\n");
}

fn script(folder: &Path, name: &str, text: &[u8], mode: u32) {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn programs_are_found_from_the_working_directory() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().canonicalize().unwrap();
    fs::create_dir(here.join("bin")).unwrap();
    fs::create_dir(here.join("bin/tool")).unwrap();
    fs::create_dir(here.join("more")).unwrap();
    script(&here, "own", b"#!/bin/sh\necho $0 $1; pwd -P\n", 0o755);
    script(&here.join("more"), "tool", b"#!/bin/sh\necho $0 $1; pwd -P\n", 0o755);
    let mut spawner = spawner(ShellState::recorded());
    let image = image_in(&here, &["./own", "a"], &[]).unwrap();
    assert_eq!(image.path(), Path::new("./own"));
    let text = output_of(&mut spawner, &image, &[]);
    assert_eq!(text, format!("./own a\n{}\n", here.display()));
    // The PATH of the rank's environment, with a directory named like the program and a relative entry.
    let path = (b"PATH".to_vec(), format!("{}/bin::more", here.display()).into_bytes());
    let argv = [b"tool".to_vec(), b"b".to_vec()];
    let wdir = here.as_os_str().as_bytes();
    let image = Image::prepare(b"tool", &argv, std::slice::from_ref(&path), wdir).unwrap();
    let text = output_of(&mut spawner, &image, &[]);
    assert_eq!(text, format!("more/tool b\n{}\n", here.display()));
    let image = Image::prepare(b"own", &[], &[path], wdir).unwrap();
    assert_eq!(output_of(&mut spawner, &image, &[]), format!("./own\n{}\n", here.display()));
}

fn a_ranks_own_variables_replace_the_images() {
    let mut spawner = spawner(ShellState::recorded());
    let env = [("PMI_RANK", "old"), ("PMI_RANKS", "kept"), ("PMI_RAN", "kept too"), ("EMPTY", "")];
    let image = image_in(Path::new("/"), &["/usr/bin/env"], &env).unwrap();
    let text = output_of(&mut spawner, &image, &["PMI_RANK=7", "PMI_FD=10"]);
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        ["PATH=/usr/bin:/bin", "PMI_RANKS=kept", "PMI_RAN=kept too", "EMPTY=", "PMI_RANK=7", "PMI_FD=10"]
    );
}

fn unusable_commands_have_clear_errors() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    script(here, "plain", b"#!/bin/sh\n", 0o644);
    fs::create_dir(here.join("folder")).unwrap();
    let error = |wdir: &Path, argv: &[&str]| image_in(wdir, argv, &[]).unwrap_err();
    let at = here.display();

    let missing = error(here, &["./absent"]);
    assert!(matches!(missing, ImageError::NotFound { .. }));
    assert_eq!(
        missing.to_string(),
        format!(
            "program './absent' was not found from working directory '{at}'; \
             check the path, and that this node has it too"
        )
    );
    let not_in_path = error(here, &["surely-absent"]).to_string();
    assert_eq!(
        not_in_path,
        "program 'surely-absent' was not found in PATH; \
         give its path (./name for one in the working directory), or set PATH"
    );
    assert!(matches!(error(here, &[""]), ImageError::NotFound { .. }));
    assert!(matches!(error(here, &["plain/below"]), ImageError::NotFound { .. }));
    let plain = error(here, &["./plain"]);
    assert_eq!(plain, ImageError::NotExecutable { program: "./plain".to_owned() });
    assert!(plain.to_string().contains("chmod +x"));
    assert_eq!(error(here, &["./folder"]), ImageError::IsDirectory { program: "./folder".to_owned() });
    script(here, "dos", b"#!/bin/sh\r\necho hello\r\n", 0o755);
    let dos = "program './dos' is a script whose line 1 ends with CR; try dos2unix";
    assert_eq!(error(here, &["./dos"]).to_string(), dos);
    let long = "x".repeat(5000);
    assert!(matches!(error(here, &[&format!("./{long}")]), ImageError::Unreadable { errno: 36, .. }));

    let wdir = error(&here.join("absent"), &["true"]);
    assert_eq!(wdir, ImageError::WdirMissing { wdir: format!("{at}/absent") });
    assert!(wdir.to_string().contains("does not exist on this node"));
    let wdir = error(&here.join("plain"), &["true"]);
    assert_eq!(wdir, ImageError::WdirNotDirectory { wdir: format!("{at}/plain") });
    if !nix::unistd::geteuid().is_root() {
        fs::set_permissions(here.join("folder"), Permissions::from_mode(0o600)).unwrap();
        let wdir = error(&here.join("folder"), &["true"]);
        assert!(matches!(wdir, ImageError::WdirRefused { errno: 13, .. }), "{wdir:?}");
    }
    assert_eq!(error(here, &["true", "a\0b"]), ImageError::Nul { what: "command line" });
    let env = image_in(here, &["true"], &[("A", "\0")]);
    assert_eq!(env.unwrap_err(), ImageError::Nul { what: "environment" });
}

fn exec_errors_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().to_owned();
    script(&here, "orphan", b"#!/no/such/interpreter\n", 0o755);
    script(&here, "foreign", b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0", 0o755);
    script(&here, "removed", b"#!/bin/sh\n", 0o755);
    fs::create_dir(here.join("wdir")).unwrap();
    let mut spawner = spawner(ShellState::recorded());
    let mut failure = |image: &Image| {
        let error = match start(&mut spawner, image, &[]) {
            Ok(_) => panic!("the command must not run"),
            Err(error) => error,
        };
        assert!(!sys::has_children(), "no process is left");
        error
    };
    let bad_interpreter = failure(&image_in(&here, &["./orphan"], &[]).unwrap());
    assert_eq!((bad_interpreter.step, bad_interpreter.errno), (SpawnStep::Exec, 2));
    assert_eq!(
        bad_interpreter.to_string(),
        "the program could not be executed: No such file or directory (errno 2); the interpreter \
         that its first line names, or its dynamic loader, is missing on this node"
    );
    let foreign = failure(&image_in(&here, &["./foreign"], &[]).unwrap());
    assert_eq!((foreign.step, foreign.errno), (SpawnStep::Exec, 8));
    assert!(foreign.to_string().contains("another machine"), "{foreign}");
    let removed = image_in(&here, &["./removed"], &[]).unwrap();
    fs::remove_file(here.join("removed")).unwrap();
    assert_eq!(failure(&removed).step, SpawnStep::Exec);
    let image_in_removed_wdir = image_in(&here.join("wdir"), &["true"], &[]).unwrap();
    fs::remove_dir(here.join("wdir")).unwrap();
    let removed_wdir = failure(&image_in_removed_wdir);
    assert_eq!((removed_wdir.step, removed_wdir.errno), (SpawnStep::Directory, 2));
    // The spawner still works.
    assert_eq!(output_of(&mut spawner, &image(&["echo", "fine"]), &[]), "fine\n");
}

fn a_script_without_an_interpreter_line_runs() {
    let folder = tempfile::tempdir().unwrap();
    script(folder.path(), "bare", b"echo $0 $1 \"$2\" $VALUE\n", 0o755);
    let mut spawner = spawner(ShellState::recorded());
    let image = image_in(folder.path(), &["./bare", "a", "b c"], &[("VALUE", "d")]).unwrap();
    assert_eq!(output_of(&mut spawner, &image, &[]), "./bare a b c d\n");
}

fn ranks_do_not_inherit_the_pipes_of_other_ranks() {
    let mut spawner = spawner(ShellState::recorded());
    let cat = image(&["cat"]);
    let mut ranks: Vec<Running> = (0..200).map(|_| start(&mut spawner, &cat, &[]).unwrap()).collect();
    // Each rank ends when its own input ends. Its output and its socket then reach end of file, although the other
    // ranks still run. The order begins in the middle.
    while !ranks.is_empty() {
        let mut rank = ranks.swap_remove(ranks.len() / 2);
        rank.stdin.write_all(b"a line\n").unwrap();
        drop(rank.stdin);
        assert_eq!(read_all(rank.stdout), "a line\n");
        assert_eq!(read_all(rank.pmi), "");
        assert_eq!(reaped(&rank.child), Ended::Exited(0));
    }
    assert!(!sys::has_children());
}

fn exits_and_signals_are_distinguished() {
    let mut spawner = spawner(ShellState::recorded());
    let mut end = |text: &str| {
        let running = start(&mut spawner, &image(&["sh", "-c", text]), &[]).unwrap();
        reaped(&running.child)
    };
    assert_eq!(end("exit 0"), Ended::Exited(0));
    assert_eq!(end("exit 255"), Ended::Exited(255));
    assert_eq!(end("kill -9 $$"), Ended::Killed { signal: 9, core: false });
    assert_eq!(end("ulimit -c 0; kill -11 $$"), Ended::Killed { signal: 11, core: false });
    assert_eq!(sys::reap(), None);
}

fn a_signal_reaches_the_whole_process_group() {
    let mut spawner = spawner(ShellState::recorded());
    let shell = image(&["sh", "-c", "sleep 60 & echo $!; wait"]);
    let running = start(&mut spawner, &shell, &[]).unwrap();
    let mut stdout = File::from(running.stdout);
    let mut text = String::new();
    until("the shell's output", || {
        let _ = stdout.read_to_string(&mut text);
        text.ends_with('\n')
    });
    let below: u32 = text.trim().parse().unwrap();
    running.child.signal_group(15).unwrap();
    // The pipe reaches end of file when both processes have ended.
    read_all(OwnedFd::from(stdout));
    let mut ended = Vec::new();
    until("both to be reaped", || {
        ended.extend(sys::reap());
        !sys::has_children()
    });
    let killed = Ended::Killed { signal: 15, core: false };
    ended.sort_by_key(|(pid, _)| *pid != running.child.pid());
    assert_eq!(ended, [(running.child.pid(), killed), (below, killed)]);
    assert!(running.child.signal_group(15).is_err());
}

fn daemons_of_ranks_are_killed() {
    let mut spawner = spawner(ShellState::recorded());
    let mut daemons = Vec::new();
    for _ in 0..5 {
        let running = start(&mut spawner, &myself("daemon"), &[]).unwrap();
        let text = read_all(running.stdout);
        daemons.push(field(&text, "daemon ").parse::<u32>().unwrap());
        // The daemon has left the rank's process group. It can be found only because it became a child of this
        // process.
    }
    start(&mut spawner, &myself("sleeper"), &[]).unwrap();
    assert!(daemons.iter().all(|&pid| is_running(pid)));
    end_all_children();
    assert!(!daemons.iter().any(|&pid| is_running(pid)));
    assert_eq!(sys::kill_children(9), 0);
}

fn spared_children_are_not_killed() {
    let mut spawner = spawner(ShellState::recorded());
    let [kept, other] = [(); 2].map(|()| start(&mut spawner, &myself("sleeper"), &[]).unwrap());
    let spared = BTreeSet::from([kept.child.pid()]);
    assert!(sys::has_children_but(&spared));
    assert_eq!(sys::kill_children_but(9, &spared), 1);
    let mut ended = Vec::new();
    until("the other to be reaped", || {
        ended.extend(sys::reap());
        !sys::has_children_but(&spared)
    });
    assert_eq!(ended, [(other.child.pid(), Ended::Killed { signal: 9, core: false })]);
    assert!(is_running(kept.child.pid()) && sys::has_children_but(&BTreeSet::new()));
    end_all_children();
    assert!(!sys::has_children_but(&spared));
}
