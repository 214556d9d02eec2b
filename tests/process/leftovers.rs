//! Files that killed ranks leave in /dev/shm: the agents remove those of their own ranks, and no others.
//!
//! The ranks are Python programs that map files as MPI libraries do. The names of the files contain the test's pid, so
//! that runs in the same /dev/shm do not disturb each other. A run may report files that other tests have left.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use tests::{Program, Run, Running, scela, sh, skip};

/// A rank: `share FILE` creates a file and maps it, `map FILE` maps an existing one, `unmap` unmaps all. `@RANK` and
/// `@*` choose the ranks of the following steps.
const RANK: &str = r#"
import mmap, os, signal, socket, sys, time
mine, maps = True, []
pmi = socket.socket(fileno=int(os.environ["PMI_FD"])).makefile("rwb", buffering=0)
def ask(line):
    pmi.write(line.encode() + b"\n")
    pmi.readline()
def share(path, flags):
    file = os.open(path, os.O_RDWR | flags, 0o600)
    os.ftruncate(file, 8192)
    maps.append(mmap.mmap(file, 8192))
    os.close(file)
for step in sys.argv[1:]:
    word, _, rest = step.partition(" ")
    if word[0] == "@":
        mine = word[1:] in ("*", os.environ["PMI_RANK"])
    elif not mine: pass
    elif word == "share": share(rest, os.O_CREAT | os.O_EXCL)
    elif word == "map": share(rest, 0)
    elif word == "unmap": maps.clear()
    elif word == "rename": os.rename(*rest.split())
    elif word == "link": os.symlink(*rest.split())
    elif word == "init": ask("cmd=init pmi_version=1 pmi_subversion=1")
    elif word == "fence": ask("cmd=barrier_in")
    elif word == "finalize": ask("cmd=finalize")
    elif word == "say": print(rest, flush=True)
    elif word == "die": os.kill(os.getpid(), signal.SIGKILL)
    elif word == "exit": os._exit(int(rest))
    elif word == "pause": signal.pause()
    elif word == "await":
        while not os.path.exists(rest): time.sleep(0.01)
"#;

fn python(steps: &[&str]) -> Program {
    ["python3", "-c", RANK].iter().chain(steps).map(Into::into).collect()
}

/// Begins a run; `None` if Python is not installed.
fn run() -> Option<Run> {
    match Command::new("python3").arg("--version").stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Some(scela()),
        problem => {
            skip(&format!("python3 is not installed: {problem:?}"));
            None
        }
    }
}

/// A file in /dev/shm that is removed with the test.
struct Shared(PathBuf);

impl Shared {
    /// A name such as MPICH gives.
    fn of_mpich() -> Self {
        Self::named("mpich_shm_", "")
    }

    /// A name that no library gives.
    fn unknown() -> Self {
        Self::named("tests-results_", ".data")
    }

    fn named(prefix: &str, suffix: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self(PathBuf::from(format!("/dev/shm/{prefix}{pid:x}_{count}{suffix}")))
    }

    fn step(&self, word: &str) -> String {
        format!("{word} {}", self.0.display())
    }

    fn exists(&self) -> bool {
        self.0.symlink_metadata().is_ok()
    }

    fn name(&self) -> String {
        self.0.file_name().unwrap().to_string_lossy().into_owned()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Runs two ranks. Rank 0 maps `file`; rank 1 is killed after a fence.
fn killed_beside(run: Run, file: &Shared) -> tests::Outcome {
    let steps = ["init", "@0", &file.step("share"), "@*", "fence", "@1", "die", "@0", "pause"];
    let outcome = run.np(2).program(python(&steps)).run();
    outcome.has_code(137);
    outcome
}

#[test]
fn a_file_of_a_killed_rank_is_removed() {
    let Some(run) = run() else { return };
    let file = Shared::of_mpich();
    killed_beside(run.arg("-v"), &file).says("1 file of ended ranks removed from /dev/shm, ");
    assert!(!file.exists());
}

#[test]
fn nothing_is_said_without_verbosity() {
    let Some(run) = run() else { return };
    let file = Shared::of_mpich();
    killed_beside(run, &file).never_says("/dev/shm");
    assert!(!file.exists());
}

#[test]
fn agents_that_share_a_file_remove_it_when_the_last_has_ended() {
    let Some(run) = run() else { return };
    let file = Shared::of_mpich();
    let (share, map) = (file.step("share"), file.step("map"));
    let steps =
        ["init", "@0", &share, "@*", "fence", "@1", &map, "@2", &map, "@*", "fence", "@1", "die", "@*", "pause"];
    run.np(4).agents(4).fanout(2).program(python(&steps)).run().has_code(137);
    assert!(!file.exists());
}

#[test]
fn the_ranks_of_a_killed_agent_leave_no_file() {
    let Some(run) = run() else { return };
    let (file, other) = (Shared::of_mpich(), Shared::unknown());
    let steps = ["init", &file.step("share"), &other.step("share"), "fence", "pause"];
    let running = run.np(1).env("SCELA_LOG", "debug").program(python(&steps)).spawn();
    running.wait_until("both files were noted", || {
        (running.stderr().text().matches("noted a file in /dev/shm").count() == 2).then_some(())
    });
    running.world().agents()[0].signal(Signal::SIGKILL);
    running.finish().has_code(252);
    assert!(!file.exists() && other.exists());
}

#[test]
fn files_are_noted_after_a_fence_before_any_rank_dies() {
    let Some(run) = run() else { return };
    let file = Shared::of_mpich();
    let steps = ["init", &file.step("share"), "fence", "pause"];
    let running = run.np(1).env("SCELA_LOG", "debug").program(python(&steps)).spawn();
    running.wait_for_error("noted a file in /dev/shm");
    running.rank(0).signal(Signal::SIGKILL);
    running.finish().has_code(137);
    assert!(!file.exists());
}

#[test]
fn files_of_a_ranks_child_are_removed() {
    let Some(run) = run() else { return };
    let file = Shared::of_mpich();
    let mut program = sh("\"$@\"; exit $?");
    program.extend(python(&["init", &file.step("share"), "fence", "say here", "pause"]));
    let running = run.np(1).program(program).spawn();
    running.wait_for("here").signal(Signal::SIGTERM);
    running.finish().has_code(143);
    assert!(!file.exists());
}

#[test]
fn the_ranks_of_a_killed_launcher_leave_no_file() {
    let Some(run) = run() else { return };
    let file = Shared::of_mpich();
    let running = run.np(1).program(python(&["init", &file.step("share"), "fence", "say here", "pause"])).spawn();
    running.wait_for("here").signal(Signal::SIGKILL);
    running.finish_killed();
    assert!(!file.exists());
}

#[test]
fn an_exit_without_finalize_is_an_abnormal_end() {
    let Some(run) = run() else { return };
    let file = Shared::of_mpich();
    let go = run.world().file("go");
    let awaits = format!("await {}", go.display());
    let steps = ["init", "@0", &file.step("share"), "@*", "fence", "@0", &awaits, "exit 0", "@1", "fence"];
    let running = run.np(2).agents(2).env("SCELA_LOG", "debug").program(python(&steps)).spawn();
    running.wait_for_error("noted a file in /dev/shm");
    fs::write(&go, "").unwrap();
    running.finish().has_code(1);
    assert!(!file.exists());
}

#[test]
fn after_a_normal_end_nothing_is_removed() {
    let Some(run) = run() else { return };
    let file = Shared::of_mpich();
    let steps = ["init", &file.step("share"), "fence", "finalize"];
    run.np(1).args(["--clean-shm", "all"]).program(python(&steps)).run().is_quiet_success();
    assert!(file.exists());
}

#[test]
fn a_file_of_another_name_is_reported_or_removed_on_demand() {
    let Some(first) = run() else { return };
    let file = Shared::unknown();
    killed_beside(first.arg("-v"), &file).says(" left in /dev/shm: ").says(&file.name());
    assert!(file.exists());
    fs::remove_file(&file.0).unwrap();
    killed_beside(scela().args(["--clean-shm", "all"]), &file).never_says("/dev/shm");
    assert!(!file.exists());
}

#[test]
fn no_file_is_removed_if_the_user_wants_none_removed() {
    let Some(run) = run() else { return };
    let file = Shared::of_mpich();
    killed_beside(run.args(["-v", "--clean-shm", "none"]), &file).never_says("/dev/shm");
    assert!(file.exists());
}

/// Ends a run abnormally by SIGTERM to the launcher.
fn end(running: Running) -> tests::Outcome {
    running.signal(Signal::SIGTERM);
    let outcome = running.finish();
    outcome.has_code(143);
    outcome
}

#[test]
fn the_files_of_another_job_are_left() {
    let Some(run) = run() else { return };
    let (ours, theirs, unmapped) = (Shared::of_mpich(), Shared::of_mpich(), Shared::of_mpich());
    let go = run.world().file("go");
    let awaits = format!("await {}", go.display());
    let steps = ["init", &ours.step("share"), "fence", "say here", &awaits, "fence", "say on", "pause"];
    let first = run.np(1).args(["-v", "--clean-shm", "all"]).program(python(&steps)).spawn();
    first.wait_for("here");
    // The other job begins later, and maps one of its files no more.
    let steps = [
        "init",
        &unmapped.step("share"),
        "unmap",
        &theirs.step("share"),
        "fence",
        "say here",
        "fence",
        "say on",
        "pause",
    ];
    let second = scela().np(1).program(python(&steps)).spawn();
    second.wait_for("on");
    fs::write(&go, "").unwrap();
    first.wait_for("on");
    end(first).says("1 file of ended ranks removed from /dev/shm, ").says(&unmapped.name()).never_says(&theirs.name());
    assert!(!ours.exists() && theirs.exists() && unmapped.exists());
    end(second);
    assert!(!theirs.exists() && unmapped.exists(), "no process of the second job had it mapped at a fence");
}

#[test]
fn a_file_that_another_job_still_uses_is_left_to_it() {
    let Some(run) = run() else { return };
    let file = Shared::of_mpich();
    let first = run.np(1).program(python(&["init", &file.step("share"), "fence", "say here", "pause"])).spawn();
    first.wait_for("here");
    let second = scela().np(1).program(python(&["init", &file.step("map"), "fence", "say here", "pause"])).spawn();
    second.wait_for("here");
    end(first);
    assert!(file.exists(), "another process has it mapped");
    end(second);
    assert!(file.exists(), "it is older than the second job");
}

#[test]
fn a_file_that_is_older_than_the_job_is_left() {
    let Some(run) = run() else { return };
    let file = Shared::of_mpich();
    fs::write(&file.0, "").unwrap();
    let steps = ["init", &file.step("map"), "fence", "say here", "pause"];
    let running = run.np(1).args(["-v", "--clean-shm", "all"]).program(python(&steps)).spawn();
    running.wait_for("here");
    end(running).never_says(&file.name());
    assert!(file.exists());
}

#[test]
fn a_name_that_means_another_file_is_left() {
    let Some(run) = run() else { return };
    let (link, replaced, renamed, victim) =
        (Shared::of_mpich(), Shared::of_mpich(), Shared::unknown(), Shared::of_mpich());
    let steps = [
        "init",
        &link.step("share"),
        &format!("rename {} {}", link.0.display(), renamed.0.display()),
        "fence",
        "say here",
        "pause",
    ];
    let running = run.np(1).arg("-v").program(python(&steps)).spawn();
    running.wait_for("here");
    // After the mapping: a link with the name of the mapped file, and a file that no rank has mapped.
    fs::write(&victim.0, "").unwrap();
    symlink(&victim.0, &link.0).unwrap();
    fs::write(&replaced.0, "").unwrap();
    end(running).says(&renamed.name()).never_says("removed");
    assert!(link.exists() && victim.exists() && replaced.exists() && renamed.exists());
}

#[test]
fn a_file_of_another_user_is_left() {
    const ATTACKER: u32 = 64_998;
    if !geteuid().is_root() {
        skip("only root can make a file of another user");
        return;
    }
    let Some(run) = run() else { return };
    let (foreign, own) = (Shared::of_mpich(), Shared::of_mpich());
    let go = run.world().file("go");
    let steps = [
        "say here",
        &format!("await {}", go.display()),
        "init",
        &foreign.step("map"),
        &own.step("share"),
        "fence",
        "say on",
        "pause",
    ];
    let running = run.np(1).args(["--clean-shm", "all"]).program(python(&steps)).spawn();
    running.wait_for("here");
    fs::write(&foreign.0, "").unwrap();
    chown(&foreign.0, Some(ATTACKER), Some(ATTACKER)).unwrap();
    fs::write(Path::new(&go), "").unwrap();
    running.wait_for("on");
    end(running);
    assert!(foreign.exists() && !own.exists());
}

#[test]
fn pythons_resource_tracker_removes_what_a_rank_has_left() {
    // The rank ends without `unlink`, as a program with a mistake does. A process that Python has started then does it.
    let script = "import os; from multiprocessing import shared_memory\n\
                  shared_memory.SharedMemory(create=True, size=4096, name='tracked_' + os.environ['PMI_RANK'])";
    let run = scela().np(4).agents(2).own_shared_memory().leaves_no_shared_memory();
    run.program(["python3", "-c", script].map(Into::into).into()).run().has_code(0);
}
