//! Limits on open files and processes: jobs run within them, or are refused with advice that is enough when it is followed.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::unistd::geteuid;
use tests::{Outcome, Run, scela, sh, skip};

/// The first of the users that nothing else runs as.
const USERS_FROM: u32 = 1_700_000_000;

/// The limits of a run.
#[derive(Copy, Clone, Debug)]
struct Limits {
    /// `ulimit -n`.
    files: u64,
    /// `ulimit -u`, for a user of its own; `None` for the user of this test.
    tasks: Option<u64>,
}

/// Returns a run of ranks that end at once, within limits.
fn limited(ranks: u32, words: &[&str], Limits { files, tasks }: Limits) -> Run {
    let run = scela().np(ranks).args(words).directory("/");
    let run = match tasks {
        None => run.shell(&format!("ulimit -n {files}")),
        Some(tasks) => {
            static USERS: AtomicU32 = AtomicU32::new(0);
            let user = USERS_FROM + std::process::id() % 100_000 * 1000 + USERS.fetch_add(1, Ordering::Relaxed);
            let copy = run.world().file("scela-run");
            let (folder, temporary) = (copy.parent().unwrap(), run.world().temporary());
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
            chown(&temporary, Some(user), Some(user)).unwrap();
            let copy = copy.display();
            run.shell(&format!(
                "cp \"$1\" {copy} && chmod 755 {copy} && shift && ulimit -n {files}\n\
                 set -- prlimit --nproc={tasks}:{tasks} setpriv --reuid {user} --regid {user} --clear-groups {copy} \"$@\""
            ))
        }
    };
    run.program(sh("exit 0"))
}

/// Returns the number in `'ulimit OPTION NUMBER'` of an outcome's hint.
fn advised(outcome: &Outcome, option: &str) -> Option<u64> {
    let errors = outcome.err();
    let (_, rest) = errors.split_once(&format!("'ulimit {option} "))?;
    rest.split_once('\'')?.0.parse().ok()
}

/// Runs jobs within limits. Follows the advice of each refusal literally: the job runs then, and does not with one less.
fn check(jobs: &[(u32, &[&str], Limits)]) {
    let refused = Cell::new(0);
    for (ranks, words, limits) in jobs {
        let outcome = limited(*ranks, words, *limits).run();
        if outcome.code == Some(0) {
            continue;
        }
        refused.set(refused.get() + 1);
        outcome.has_code(2).says(" not fit on this machine: ").says("\n  hint: 'ulimit -");
        let (files, tasks) = (advised(&outcome, "-n"), advised(&outcome, "-u"));
        assert!(tasks.is_none() || limits.tasks.is_some(), "this limit does not apply to the user of this test");
        let raised = |fewer_files: u64, fewer_tasks: u64| Limits {
            files: files.map_or(limits.files, |files| files - fewer_files),
            tasks: tasks.map(|tasks| tasks - fewer_tasks).or(limits.tasks),
        };
        limited(*ranks, words, raised(0, 0)).run().is_quiet_success();
        if files.is_some() {
            limited(*ranks, words, raised(1, 0)).run().has_code(2).says("not fit on this machine");
        }
        if tasks.is_some() {
            limited(*ranks, words, raised(0, 1)).run().has_code(2).says("not fit on this machine");
        }
    }
    assert!(refused.get() >= jobs.len() / 3, "most of these limits are too low");
}

#[test]
fn advice_on_open_files_is_enough() {
    let limits = |files| Limits { files, tasks: None };
    check(&[
        (1, &[], limits(45)),
        (1, &["-stdin", "none"], limits(55)),
        (5, &[], limits(64)),
        (33, &[], limits(64)),
        (64, &[], limits(60)),
        (64, &[], limits(100)),
        (64, &["-stdin", "all"], limits(71)),
        (200, &[], limits(90)),
        (40, &["--agents-per-node", "1"], limits(64)),
        (40, &["--agents-per-node", "40"], limits(100)),
        (33, &["--agents-per-node", "3", "--fanout", "2"], limits(80)),
    ]);
}

#[test]
fn advice_on_processes_is_enough() {
    if !geteuid().is_root() {
        return skip("only root may run a program as another user");
    }
    let limits = |files, tasks| Limits { files, tasks: Some(tasks) };
    check(&[
        (1, &[], limits(1024, 6)),
        (4, &[], limits(1024, 20)),
        (20, &[], limits(1024, 20)),
        (64, &[], limits(1024, 75)),
        (64, &[], limits(1024, 70)),
        (64, &[], limits(64, 70)),
        (64, &[], limits(110, 80)),
        (100, &["--agents-per-node", "4"], limits(1024, 100)),
    ]);
}

#[test]
fn fewer_agents_or_more_fit_a_job_into_its_limits() {
    let explained = |limits: Limits, agents: &str| {
        let outcome = limited(64, &["--explain"], limits).run();
        outcome.has_code(0).wrote_among_others(&format!("job: 64 ranks on 1 host, {agents}\n"));
    };
    explained(Limits { files: 100, tasks: None }, "8 agents");
    if geteuid().is_root() {
        explained(Limits { files: 1024, tasks: Some(74) }, "1 agent");
    }
}

#[test]
fn too_small_an_address_space_is_named() {
    let outcome = scela().np(1).shell("ulimit -v 20000").program(sh("exit 0")).run();
    outcome.has_code(251).says("scela-run needs 24576 KiB of address space, and 'ulimit -v' allows 20000\n  hint: ");
}
