//! The script on a host where another user takes the names that it uses and exchanges its files.
//!
//! For root only: the victim and the attacker are two users without privileges. The victim's shell runs in a mount
//! namespace whose `/media`, `/dev/shm`, `/tmp` and `/mnt` are directories of the test.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::stat::Mode;
use nix::unistd::{geteuid, mkfifo};
use tempfile::TempDir;

use self::skip::skip;
use super::tests::{MARK, converse, files, sent};
use super::*;
use crate::bootstrap::program::tests::install;

#[path = "../../../../tests/support/skip.rs"]
#[expect(unreachable_pub, reason = "it belongs to another crate")]
mod skip;

const VICTIM: u32 = 60001;
const ATTACKER: u32 = 60002;

/// The directories that the script tries, in its order, and where the victim sees them.
const PLACES: [(&str, &str); 4] = [("run", "/media"), ("shm", "/dev/shm"), ("tmp", "/tmp"), ("home", "/mnt")];

/// The name that the script uses in each of them.
const NAME: &str = ".scela-60001";

/// How many remote shells the victim starts while the attacker exchanges files.
const SHELLS: u32 = 20;

/// Returns the attacker's program.
fn evil() -> String {
    format!("#!/bin/sh\nif test \"$1\" = --agent-id; then echo {}; else echo evil; cat; fi\n", agent_id())
}

/// Returns the victim's program.
fn good() -> String {
    format!("#!/bin/sh\nif test \"$1\" = --agent-id; then echo {}; else echo good; cat; fi\n", agent_id())
}

/// The directories of a host.
struct Host(TempDir);

impl Host {
    /// Returns a host whose directories have mode 1777; `None` if this user cannot make one.
    fn new() -> Option<Self> {
        let unshares = || Command::new("unshare").args(["--mount", "true"]).output();
        if !geteuid().is_root() || !unshares().is_ok_and(|output| output.status.success()) {
            skip("only root can start remote shells of two users, each with mounts of its own");
            return None;
        }
        let host = Self(tempfile::tempdir().unwrap());
        set_mode(host.0.path(), 0o755);
        for (name, _) in PLACES {
            fs::create_dir(host.place(name)).unwrap();
            set_mode(&host.place(name), 0o1777);
        }
        Some(host)
    }

    fn place(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a remote shell of the victim.
    fn start(&self, path: &str, is_sent: bool) -> Output {
        self.start_after("", path, is_sent)
    }

    /// The same after commands of root in the mount namespace of the remote shell.
    fn start_after(&self, setup: &str, path: &str, is_sent: bool) -> Output {
        self.start_with(setup, path, is_sent.then_some(good().as_bytes()))
    }

    /// The same with a program that can be sent.
    fn start_with(&self, setup: &str, path: &str, file: Option<&[u8]>) -> Output {
        // The test's own directory may be in /tmp, which is covered last.
        let mut places = PLACES;
        places.sort_by_key(|(name, _)| *name);
        let mounts = places.map(|(name, at)| format!("mount --bind \"$0/{name}\" {at} && ")).concat();
        let user = format!("exec setpriv --reuid {VICTIM} --regid {VICTIM} --clear-groups");
        let mut command = Command::new("unshare");
        command.args(["--mount", "/bin/sh", "-c"]);
        command.arg(format!("{mounts}cd / && {setup}{user} {}", COMMAND.join(" "))).arg(self.0.path());
        command.env_remove("TMPDIR").env("XDG_RUNTIME_DIR", "/media").env("HOME", "/mnt");
        let own = RemoteProgram::Own { path: path.to_owned(), sent: file.map(sent), stores: true };
        let text = script(&own, false, MARK, "a label", "5000");
        converse(command, &text, file.unwrap_or_default(), Some("an order"))
    }

    /// Returns the victim's stored programs.
    fn stored(&self) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = PLACES.iter().flat_map(|(name, _)| files(&self.place(name))).collect();
        all.retain(|path| path.symlink_metadata().unwrap().uid() == VICTIM);
        all
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Makes a directory that belongs to a user.
fn directory(path: &Path, owner: u32, mode: u32) {
    fs::create_dir(path).unwrap();
    chown(path, Some(owner), Some(owner)).unwrap();
    set_mode(path, mode);
}

/// Makes a program that belongs to a user.
fn program_of(path: &Path, text: &str, owner: u32, mode: u32) {
    install(path, text.as_bytes());
    chown(path, Some(owner), Some(owner)).unwrap();
    set_mode(path, mode);
}

/// Takes a path before the victim does.
type Trap = fn(&Path);

const TRAPS: [(&str, Trap); 9] = [
    ("a directory that everybody may write to", |path| directory(path, ATTACKER, 0o777)),
    ("a directory of the attacker's", |path| directory(path, ATTACKER, 0o700)),
    ("a directory of the victim's that others may enter", |path| directory(path, VICTIM, 0o755)),
    ("a directory with a file of the right name", |path| {
        directory(path, ATTACKER, 0o755);
        let name = format!("scela-run-{}", sent(good().as_bytes()).digest);
        program_of(&path.join(name), &evil(), ATTACKER, 0o755);
    }),
    ("a link to a directory of the attacker's", |path| {
        directory(&path.with_extension("attacker"), ATTACKER, 0o777);
        symlink(path.with_extension("attacker"), path).unwrap();
    }),
    ("a link to a directory of the victim's", |path| {
        directory(&path.with_extension("victim"), VICTIM, 0o700);
        // The victim sees it under another path.
        symlink(format!("{NAME}.victim"), path).unwrap();
    }),
    ("a link to nothing", |path| symlink("/nonexistent", path).unwrap()),
    ("a fifo", |path| {
        mkfifo(path, Mode::from_bits_truncate(0o666)).unwrap();
        chown(path, Some(ATTACKER), Some(ATTACKER)).unwrap();
    }),
    ("a file", |path| program_of(path, &evil(), ATTACKER, 0o777)),
];

#[track_caller]
fn ran(output: &Output, words: &str, trap: &str) {
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, words.replace("MARK", MARK), "{trap}: {output:?}");
}

#[test]
fn a_trap_in_one_directory_makes_the_script_use_the_next() {
    for (name, trap) in TRAPS {
        let Some(host) = Host::new() else { return };
        trap(&host.place("run").join(NAME));
        ran(&host.start("/nonexistent", true), "MARK need\nMARK here\ngood\nan order", name);
        let stored = host.place("shm").join(NAME).join(format!("scela-run-{}", sent(good().as_bytes()).digest));
        assert_eq!(host.stored(), [stored], "{name}");
        ran(&host.start("/nonexistent", true), "MARK here\ngood\nan order", name);
    }
}

#[test]
fn with_traps_in_all_directories_a_temporary_one_is_used_and_removed() {
    for (name, trap) in TRAPS {
        let Some(host) = Host::new() else { return };
        let paths = PLACES.map(|(place, _)| host.place(place).join(NAME));
        paths.iter().for_each(|path| trap(path));
        let count = || PLACES.map(|(place, _)| fs::read_dir(host.place(place)).unwrap().count());
        let before = count();
        for _ in 0..2 {
            ran(&host.start("/nonexistent", true), "MARK need\nMARK here\ngood\nan order", name);
            assert_eq!(host.stored(), Vec::<PathBuf>::new(), "{name}");
            assert_eq!(count(), before, "{name}");
        }
    }
}

#[test]
fn a_program_of_another_user_is_not_run() {
    let Some(host) = Host::new() else { return };
    let path = host.place("home").join("scela-run");
    for (owner, mode) in [(ATTACKER, 0o755), (VICTIM, 0o757), (VICTIM, 0o775), (0, 0o777)] {
        program_of(&path, &evil(), owner, mode);
        let output = host.start("/mnt/scela-run", false);
        assert_eq!(output.status.code(), Some(126));
        let said = "scela: /mnt/scela-run belongs to another user, or others may write to it\n";
        assert_eq!(String::from_utf8_lossy(&output.stderr), said);
        ran(&host.start("/mnt/scela-run", true), "MARK need\nMARK here\ngood\nan order", "sent instead");
        fs::remove_dir_all(host.place("run").join(NAME)).unwrap();
        fs::remove_file(&path).unwrap();
    }
    for owner in [VICTIM, 0] {
        program_of(&path, &good(), owner, 0o755);
        ran(&host.start("/mnt/scela-run", false), "MARK here\ngood\nan order", "a program of root's or the user's");
        fs::remove_file(&path).unwrap();
    }
    // The owner of the directory may exchange the file, so that the one that was checked is run by its descriptor.
    directory(&host.place("home").join("shared"), ATTACKER, 0o775);
    program_of(&host.place("home").join("shared/scela-run"), &good(), VICTIM, 0o755);
    ran(&host.start("/mnt/shared/scela-run", false), "MARK here\ngood\nan order", "a directory of another user");
    symlink("/mnt/shared/scela-run", &path).unwrap();
    ran(&host.start("/mnt/scela-run", false), "MARK here\ngood\nan order", "a link");
}

/// Makes a directory `bin` with the programs of this host, for PATH: all but `without`.
fn programs(bin: &Path, without: &str) {
    fs::create_dir(bin).unwrap();
    for place in ["/bin", "/usr/bin", "/usr/sbin"] {
        for entry in fs::read_dir(place).unwrap().flatten() {
            let name = entry.file_name();
            if !name.to_string_lossy().starts_with(without) {
                let _ = symlink(entry.path(), bin.join(name));
            }
        }
    }
}

/// Runs a remote shell that has no program to be sent. Exchanges names at the moment in which the script looks at them:
/// the script's `ls` asks before and after its work, and `exchange` is called with true before it, and with false after it.
fn start_while_exchanging(host: &Host, path: &str, exchange: impl Fn(bool) + Send) -> Output {
    let home = host.place("home");
    programs(&home.join("bin"), "ls");
    let (asks, answers) = (home.join("asks"), home.join("answers"));
    for fifo in [&asks, &answers] {
        mkfifo(fifo, Mode::from_bits_truncate(0o666)).unwrap();
        set_mode(fifo, 0o666);
    }
    let ls = "#!/bin/sh\nask() { echo $1 >/mnt/asks; read -r x </mnt/answers; }\n\
              ask before\n/bin/ls \"$@\"\ncode=$?\nask after\nexit $code\n";
    program_of(&home.join("bin/ls"), ls, 0, 0o755);
    // Open for both, so that no open waits for another process.
    let open = |path: &Path| fs::File::options().read(true).write(true).open(path).unwrap();
    let (questions, mut replies) = (BufReader::new(open(&asks)), open(&answers));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for question in questions.lines().map_while(Result::ok).take_while(|question| question != "end") {
                exchange(question == "before");
                replies.write_all(b"done\n").unwrap();
            }
        });
        let output = host.start_after("export PATH=/mnt/bin && ", path, false);
        fs::write(&asks, "end\n").unwrap();
        output
    })
}

/// The attacker's directory is not there, or a link to one of root's is, while the script looks at the path.
#[test]
fn a_path_that_the_attacker_exchanges_while_it_is_checked_is_not_executed() {
    for (mode, is_link) in [(0o755, false), (0o755, true), (0o711, false), (0o711, true)] {
        let Some(host) = Host::new() else { return };
        let home = host.place("home");
        let (build, aside, link) = (home.join("build"), home.join("aside"), home.join("link"));
        directory(&build, ATTACKER, 0o755);
        program_of(&build.join("scela-run"), &evil(), ATTACKER, mode);
        // The victim sees a directory of root's there, with a link to a program of root's.
        symlink("/dev/shm", &link).unwrap();
        symlink("/bin/sh", host.place("shm").join("scela-run")).unwrap();
        let output = start_while_exchanging(&host, "/mnt/build/scela-run", |away| {
            let renames = [(&build, &aside), (&link, &build)];
            let renames = &renames[..if is_link { 2 } else { 1 }];
            if away {
                renames.iter().for_each(|(from, to)| fs::rename(from, to).unwrap());
            } else {
                renames.iter().rev().for_each(|(to, from)| fs::rename(from, to).unwrap());
            }
        });
        assert_eq!(output.status.code(), Some(126), "{mode:o}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{mode:o}");
        let said = "scela: /mnt/build/scela-run belongs to another user, or others may write to it\n";
        assert_eq!(String::from_utf8_lossy(&output.stderr), said, "{mode:o}");
    }
}

/// If no file can be executed, Python takes the program into memory, and loads no module of the working directory.
#[test]
fn an_interpreter_loads_no_module_of_the_attacker() {
    let Some(host) = Host::new() else { return };
    let work = host.place("home").join("work");
    directory(&work, ATTACKER, 0o1777);
    program_of(&work.join("ctypes.py"), "print('evil', flush=True)\nimport os\nos._exit(0)\n", ATTACKER, 0o644);
    programs(&host.place("home").join("bin"), "perl");
    // The victim's directories last, since the working directory is in one of them.
    let noexec = "for place in /media /dev/shm /tmp; do mount -t tmpfs -o noexec,mode=1777 tmpfs $place || exit; done";
    let home = "mount -o remount,bind,noexec /mnt && cd /mnt/work && export PYTHONPATH=: PATH=/mnt/bin";
    let output = host.start_after(&format!("{noexec} && {home} && "), "/nonexistent", true);
    ran(&output, "MARK need\nMARK here\ngood\nan order", "a module in the working directory");
}

#[test]
fn a_directory_without_room_for_the_program_is_passed_over() {
    let Some(host) = Host::new() else { return };
    let small = "mount -t tmpfs -o size=4k,mode=1777 tmpfs /media && ";
    let large = format!("{}{}", good(), "#".repeat(10_000));
    let output = host.start_with(small, "/nonexistent", Some(large.as_bytes()));
    ran(&output, "MARK need\nMARK here\ngood\nan order", "a small directory");
    let stored = host.place("shm").join(NAME).join(format!("scela-run-{}", sent(large.as_bytes()).digest));
    assert_eq!(host.stored(), [stored]);
}

/// A remote shell that is killed cannot remove what it has begun to store.
#[test]
fn what_killed_remote_shells_have_left_is_removed_after_a_day() {
    let Some(host) = Host::new() else { return };
    let own = host.place("run").join(NAME);
    directory(&own, VICTIM, 0o700);
    let (old, young) = (own.join("new-old"), own.join("new-young"));
    for path in [&old, &young] {
        program_of(path, "a part", VICTIM, 0o700);
    }
    let three_days_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3 * 24 * 60 * 60);
    fs::File::open(&old).unwrap().set_modified(three_days_ago).unwrap();
    ran(&host.start("/nonexistent", true), "MARK need\nMARK here\ngood\nan order", "leftovers");
    assert!(!old.exists() && young.exists());
}

/// The variables that make this test program the attacker: its directories, and its kind.
const ATTACKED: &str = "SCELA_TEST_ATTACKED";
const KIND: &str = "SCELA_TEST_ATTACKER";

/// The most rounds of the attacker, which is killed long before.
const ROUNDS_MAX: u32 = 10_000_000;

/// The attacker's process. Dropping this kills it.
struct Attacker(Child);

impl Attacker {
    fn start(kind: &str, places: &[PathBuf]) -> Self {
        let mut command = Command::new("/proc/self/exe");
        command.args(["an_attacker_if_started_as_one", "--nocapture"]).stdout(Stdio::null()).current_dir("/");
        command.env(ATTACKED, std::env::join_paths(places).unwrap()).env(KIND, kind);
        Self(command.uid(ATTACKER).gid(ATTACKER).spawn().unwrap())
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Waits for a file in a world-writable directory, and then exchanges that directory for a program.
fn exchange_what_has_arrived(place: &Path, evil: &Path) {
    let (path, aside) = (place.join(NAME), place.join("aside"));
    if fs::create_dir(&path).is_ok() {
        let _ = fs::set_permissions(&path, PermissionsExt::from_mode(0o777));
    }
    if fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some()) && fs::rename(&path, &aside).is_ok() {
        let _ = fs::hard_link(evil, &path);
    }
    let _ = fs::remove_dir_all(&aside);
}

/// Takes the name by a directory, a link and a file in turn, and exchanges every file in every directory.
fn exchange_at_random(place: &Path, evil: &Path) {
    let (path, aside) = (place.join(NAME), place.join("aside"));
    let _ = fs::create_dir(&path);
    let _ = fs::set_permissions(&path, PermissionsExt::from_mode(0o777));
    for directory in fs::read_dir(place).into_iter().flatten().flatten() {
        for file in fs::read_dir(directory.path()).into_iter().flatten().flatten() {
            let _ = fs::rename(file.path(), place.join("taken"));
            let _ = fs::hard_link(evil, file.path());
        }
    }
    let _ = fs::remove_dir_all(&aside);
    let _ = fs::rename(&path, &aside);
    let _ = symlink("aside", &path);
    let _ = fs::remove_file(&path);
    let _ = fs::hard_link(evil, &path);
    let _ = fs::remove_file(&path);
}

/// The attacker ignores errors: of operations that it may not perform, and of those that come too late.
#[test]
fn an_attacker_if_started_as_one() {
    let Some(places) = std::env::var_os(ATTACKED) else { return };
    let places: Vec<PathBuf> = std::env::split_paths(&places).collect();
    let exchange =
        if std::env::var(KIND).unwrap() == "patient" { exchange_what_has_arrived } else { exchange_at_random };
    let mine = places[0].join("mine");
    fs::write(&mine, evil()).unwrap();
    set_mode(&mine, 0o777);
    for _ in 0..ROUNDS_MAX {
        places.iter().for_each(|place| exchange(place, &mine));
    }
}

/// In directories without the sticky bit, the attacker may exchange the victim's own directory as well.
#[test]
fn the_program_of_an_attacker_who_exchanges_files_is_not_run() {
    for (kind, mode) in [("patient", 0o1777), ("patient", 0o777), ("restless", 0o1777), ("restless", 0o777)] {
        let Some(host) = Host::new() else { return };
        let places: Vec<PathBuf> = PLACES.iter().map(|(name, _)| host.place(name)).collect();
        places.iter().for_each(|place| set_mode(place, mode));
        let mut attacker = Attacker::start(kind, &places);
        for _ in 0..SHELLS {
            let output = host.start("/nonexistent", true);
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(!said.contains("evil"), "{kind} {mode:o}: {output:?}");
            let words = "MARK here\ngood\nan order".replace("MARK", MARK);
            assert!(said.ends_with(&words), "{kind} {mode:o}: {output:?}");
            // The next remote shell must make its directory again.
            for path in places.iter().map(|place| place.join(NAME)) {
                let _ = fs::remove_file(&path);
                let _ = fs::remove_dir_all(&path);
            }
        }
        assert_eq!(attacker.0.try_wait().unwrap(), None, "the attacker ran all the time");
    }
}
