//! What another user of the machine cannot do to this user's sessions and pools. Each test has a victim of its own.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use tempfile::TempDir;
use tests::{Process, Run, eventually, scela, scela_run, sh, skip};

const ATTACKER: u32 = 65_502;
/// The victims.
const MARKS: u32 = 65_511;
const POOL: u32 = 65_512;
const KEEPER: u32 = 65_513;

fn is_root() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        skip("only root can be two other users");
    }
    is_root
}

/// A directory of the victim's with a copy of the program, which this user may execute.
struct Home {
    place: TempDir,
    user: u32,
}

impl Home {
    fn of(user: u32) -> Self {
        let place = tempfile::tempdir().unwrap();
        chown(place.path(), Some(user), Some(user)).unwrap();
        let home = Self { place, user };
        fs::copy(scela_run().with_file_name("scela"), home.program()).unwrap();
        home
    }

    fn program(&self) -> PathBuf {
        self.place.path().join("program")
    }

    /// The words with which root executes a program as this user.
    fn words(&self) -> [String; 5] {
        let user = self.user.to_string();
        ["--reuid".into(), user.clone(), "--regid".into(), user, "--clear-groups".into()]
    }

    /// Returns a run of this user's.
    fn run(&self) -> Run {
        let (words, program) = (self.words().join(" "), self.program());
        scela().shell(&format!("shift; cd / && set -- setpriv {words} {} run \"$@\"", program.display()))
    }

    /// Runs a subcommand, whose directory for pools may be in the user's XDG_RUNTIME_DIR.
    fn scela(&self, words: &[&str]) -> Output {
        let mut command = Command::new("setpriv");
        command.args(self.words()).arg(self.program()).args(words).current_dir("/");
        command.env("XDG_RUNTIME_DIR", self.place.path()).env_remove("SCELA_POOL_DIR").env_remove("SCELA_LOG");
        command.output().expect("setpriv is installed")
    }
}

/// A name that is removed at the end.
struct Taken(PathBuf);

impl Drop for Taken {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0).or_else(|_| fs::remove_file(&self.0));
    }
}

/// The attacker has locked all that both can open, then has a file of the name first.
#[test]
fn no_other_user_marks_processors_of_bound_jobs_or_delays_them() {
    if !is_root() {
        return;
    }
    let home = Home::of(MARKS);
    let directory = File::open("/dev/shm").unwrap();
    let lock = libc::flock {
        l_type: libc::F_RDLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: i64::MAX,
        l_pid: 0,
    };
    fcntl(&directory, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
    let bound = || home.run().np(2).args(["--bind-to", "core:overload-allowed"]);
    bound().program(sh("true")).run().is_quiet_success();
    let path = PathBuf::from(format!("/dev/shm/scela-marks-{MARKS}"));
    assert!(!path.exists());
    let running = bound().program(sh("echo here; exec sleep 1000")).spawn();
    running.wait_for_times("here", 2);
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777, found.len()), (MARKS, 0o600, 0));
    running.world().agents().iter().for_each(|agent| agent.send(Signal::SIGKILL));
    running.finish().has_code(252);
    assert!(!path.exists());
    fs::write(&path, "").unwrap();
    let taken = Taken(path);
    fs::set_permissions(&taken.0, Permissions::from_mode(0o666)).unwrap();
    chown(&taken.0, Some(ATTACKER), None).unwrap();
    let why = format!("'{}': it belongs to user {ATTACKER}\n", taken.0.display());
    let outcome = bound().program(sh("echo ran")).run();
    outcome.has_code(0).wrote("ran\nran\n").says("processors cannot be marked, so another of your sessions").says(&why);
}

/// Returns the owner of a process's private files: root if no debugger of the user may attach to it.
fn owner_of_memory(process: &Process) -> u32 {
    fs::metadata(process.file("environ")).unwrap().uid()
}

#[test]
fn a_user_whose_directory_of_pools_another_one_has_taken_has_pools() {
    if !is_root() {
        return;
    }
    let home = Home::of(POOL);
    let taken = Taken(format!("/tmp/scela-{POOL}").into());
    fs::create_dir(&taken.0).unwrap();
    fs::set_permissions(&taken.0, Permissions::from_mode(0o700)).unwrap();
    chown(&taken.0, Some(ATTACKER), None).unwrap();
    let note = format!(
        "scela: note: the directory of pools, {}, is not used: it belongs to user {ATTACKER}\n",
        taken.0.display()
    );
    let ran = |words: &[&str]| {
        let output = home.scela(words);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && err == note, "{words:?}: {out}{err}");
        out
    };
    ran(&["pool", "start", "--slots", "1"]);
    assert_eq!(ran(&["run", "--pool", "-np", "1", "echo", "here"]), "here\n");
    let state: serde_json::Value = serde_json::from_str(&ran(&["status", "--json", "default"])).unwrap();
    let controller = Process::of(state[0]["controller_pid"].as_i64().unwrap() as i32).unwrap();
    assert_eq!(owner_of_memory(&controller), 0, "keys of jobs pass through it");
    let again = home.scela(&["pool", "start"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("the pool 'default' exists already"), "{again:?}");
    // Nor does it help to free the name.
    drop(taken);
    let again = home.scela(&["pool", "start"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("the pool 'default' exists already"), "{again:?}");
    assert!(home.scela(&["pool", "stop"]).status.success());
    assert!(!Path::new(&format!("/tmp/scela-{POOL}")).exists());
}

#[test]
fn no_debugger_attaches_to_the_keeper_of_a_node() {
    if !is_root() {
        return;
    }
    let home = Home::of(KEEPER);
    let shell = home.place.path().join("remote-shell");
    fs::write(&shell, "shift\nexec \"$@\"\n").unwrap();
    let bootstrap = format!("exec:sh {} {{host}}", shell.display());
    let options = ["--hosts", "n1:1", "--connect-back", "127.0.0.1", "--bootstrap", &bootstrap];
    let started = home.scela(&[&["pool", "start"][..], &options].concat());
    assert!(started.status.success(), "{started:?}");
    let keepers = || {
        let is_keeper = |process: &Process| process.name == "scela-keeper" && user(process) == Some(KEEPER);
        Some(Process::all().into_iter().filter(is_keeper).collect::<Vec<_>>()).filter(|found| !found.is_empty())
    };
    let owners: Option<Vec<u32>> = eventually(keepers).map(|found| found.iter().map(owner_of_memory).collect());
    assert!(home.scela(&["pool", "stop"]).status.success());
    assert_eq!(owners, Some(vec![0]), "keys of jobs pass through it");
}

/// Returns the user of a process.
fn user(process: &Process) -> Option<u32> {
    let status = fs::read_to_string(process.file("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:\t")?.split('\t').next()?.parse().ok())
}
