//! Limits on open files and processes: jobs run within them, or are refused with advice that is enough when it is followed.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::unistd::geteuid;
use tests::{Outcome, Pool, Run, eventually, scela, scela_run, sh, skip};

use crate::host;

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
        outcome.has_code(2).says(" not fit on this machine:").says("\n  hint: ").says("'ulimit -");
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

/// Returns a run on hosts whose remote shells set limits by these commands.
fn on_hosts(np: u32, hosts: &str, commands: &str) -> Run {
    let run = scela().np(np).args(["-hosts", hosts]);
    let shell = run.world().file("remote-shell");
    fs::write(&shell, format!("host=$1\nshift\n{commands}\nexec \"$@\"\n")).unwrap();
    run.arg("--bootstrap").arg(format!("exec:sh {} {{host}}", shell.display()))
}

/// Runs one rank on a host that allows so many open files.
fn on_host(files: u64) -> Outcome {
    on_hosts(1, "h1", &format!("ulimit -n {files}")).program(sh("exit 0")).run()
}

#[test]
fn limits_that_ranks_of_hosts_cannot_have_are_named_once() {
    let commands = "case $host in h3) ;; *) ulimit -n 500 ;; esac";
    let run = || on_hosts(4, "h1,h2,h3,h4", commands).args(["-ppn", "1"]).program(sh("ulimit -n"));
    let outcome = run().shell("ulimit -Sn 700").run();
    outcome.has_code(0).wrote_lines(["500", "500", "500", "700"]);
    assert_eq!(
        outcome.err(),
        "scela-run: warning: ranks on h[1-2,4] have at most 500 open files (nofile); your shell has 700\n  \
         hint: raise the hard limit there, until 'ulimit -Hn' in a remote shell prints 700 or more\n"
    );
    // The agents have raised their own soft limits, and the ranks get those of the shell.
    run().shell("ulimit -Sn 400").run().is_quiet_success().wrote(&"400\n".repeat(4));
}

#[test]
fn limits_that_ranks_of_a_pool_cannot_have_are_named() {
    let pool = Pool::unstarted();
    let start = format!("ulimit -n 300; exec {} pool start", scela_run().with_file_name("scela").display());
    let started = Command::new("bash").args(["-c", &start]).env("SCELA_POOL_DIR", pool.directory()).output().unwrap();
    assert!(started.status.success(), "{started:?}");
    let run = || pool.job().np(2).program(sh("ulimit -n"));
    let outcome = run().shell("ulimit -Sn 700").run();
    outcome.has_code(0).wrote("300\n300\n");
    let hint = "hint: start the pool from a shell in which 'ulimit -Hn' prints 700 or more";
    outcome.says(&format!(
        "scela-run: warning: ranks on {} have at most 300 open files (nofile); your shell has 700\n  {hint}\n",
        host()
    ));
    run().shell("ulimit -Sn 200").run().is_quiet_success().wrote("200\n200\n");
}

#[test]
fn a_limit_on_open_files_of_a_host_is_named() {
    let outcome = on_host(16);
    outcome
        .says("failed to start the agent: Too many open files")
        .says("the hard limit (ulimit -Hn) allows 16 open files");
    let outcome = on_host(40);
    outcome.says("Too many open files").says("the hard limit (ulimit -Hn) allows 40 open files");
    assert!(!outcome.err().contains("--agents-per-node"), "another agent has not fewer ranks: {outcome}");
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

/// A cgroup of this test. Dropping it removes it.
struct Group(PathBuf);

impl Group {
    /// Creates a cgroup of a controller. Returns `None` where that is not possible, as in most containers: the unit tests of
    /// `nla/src/sys/cgroup_files.rs` read such cgroups from a directory.
    fn new(controller: &str, name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let mount = |kind: &str, option: &str| {
            let has_option = |line: &str| line.rsplit(' ').next().unwrap().split(',').any(|word| word == option);
            let mut lines = mounts.lines().filter(|line| line.contains(kind));
            Some(PathBuf::from(lines.find(|line| option.is_empty() || has_option(line))?.split(' ').nth(4)?))
        };
        let v1 = || {
            let path = own.lines().find_map(|line| line.split_once(&format!(":{controller}:/")))?.1;
            Some(mount(" - cgroup ", controller)?.join(path))
        };
        let v2 = || {
            let root = mount(" - cgroup2 ", "")?;
            let controllers = fs::read_to_string(root.join("cgroup.subtree_control")).ok()?;
            controllers.split_ascii_whitespace().any(|word| word == controller).then_some(root)
        };
        let Some(above) = v1().or_else(v2) else {
            println!("no hierarchy of cgroups has the controller '{controller}'");
            return None;
        };
        let group = above.join(format!("{name}-{}", std::process::id()));
        match fs::create_dir(&group) {
            Ok(()) => Some(Self(group)),
            Err(problem) => {
                println!("no cgroup can be created: {problem}");
                None
            }
        }
    }

    /// Returns the file with the limit.
    fn limit(&self) -> PathBuf {
        let names = ["pids.max", "memory.max", "memory.limit_in_bytes"];
        names.map(|name| self.0.join(name)).into_iter().find(|file| file.exists()).unwrap()
    }

    /// Runs ranks that end at once in the cgroup, with this limit.
    fn run(&self, ranks: u32, words: &[&str], limit: u64) -> Outcome {
        fs::write(self.limit(), limit.to_string()).unwrap();
        let run = scela().np(ranks).args(words).shell(&format!("echo $$ > {}/cgroup.procs", self.0.display()));
        run.program(sh("exit 0")).run()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended may not have left it.
        let removed = eventually(|| fs::remove_dir(&self.0).is_ok().then_some(()));
        assert!(removed.is_some() || std::thread::panicking(), "{} is not empty", self.0.display());
    }
}

/// Small jobs start before the limits of cgroups are read. The advice after their failure is enough as well.
#[test]
fn advice_on_processes_in_a_cgroup_is_enough() {
    let Some(group) = Group::new("pids", "scela-pids") else { return };
    let mut refused = 0;
    for (ranks, limits) in [(1, 2..8), (8, 2..15), (64, 60..63)] {
        for limit in limits {
            let outcome = group.run(ranks, &[], limit);
            if outcome.code == Some(0) {
                continue;
            }
            refused += 1;
            let errors = outcome.err();
            let advice = errors.split_once("'echo ").and_then(|(_, rest)| rest.split_once("' as root"));
            let (advised, file) = advice.and_then(|(advice, _)| advice.split_once(" > ")).unwrap_or_else(|| {
                panic!("there is no advice for {ranks} ranks with a limit of {limit}\n{outcome}");
            });
            assert_eq!(Path::new(file), group.limit());
            group.run(ranks, &[], advised.parse().unwrap()).is_quiet_success();
        }
    }
    assert!(refused >= 10, "most of these limits are too low");
}

#[test]
fn advice_on_memory_in_a_cgroup_is_enough() {
    let Some(group) = Group::new("memory", "scela-memory") else { return };
    let limit = 20 << 20;
    let outcome = group.run(256, &["--explain"], limit);
    let file = group.limit().display().to_string();
    outcome.has_code(2).says("256 ranks and ").says(" do not fit on this machine: ").says(&format!("{file} leaves "));
    let errors = outcome.err();
    let more =
        errors.split_once("a limit higher by ").and_then(|(_, rest)| rest.split_once(&format!(" MiB in {file}")));
    let more: u64 = more.unwrap_or_else(|| panic!("there is no advice\n{outcome}")).0.parse().unwrap();
    // The launcher and its shell use some of it, not always as much.
    group.run(256, &["--explain"], limit + ((more + 1) << 20)).has_code(0);
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
fn too_small_a_memory_is_named() {
    let outcome = scela().np(1).shell("ulimit -v 20000").program(sh("exit 0")).run();
    outcome.has_code(251).says("scela-run needs 24576 KiB of address space, and 'ulimit -v' allows 20000\n  hint: ");
    let outcome = scela().np(1).shell("ulimit -s 100").program(sh("exit 0")).run();
    outcome.has_code(251).says("scela-run needs 256 KiB of stack, and 'ulimit -s' allows 100\n  hint: ");
    let outcome = scela().np(4).shell("ulimit -d 1000").program(sh("exit 0")).run();
    outcome.has_code(251).says("scela-run needs 4096 KiB of data, and 'ulimit -d' allows 1000\n  hint: ");
}

#[test]
fn a_refusal_is_the_only_error() {
    for files in [10, 14, 20] {
        let outcome = scela().np(1).shell(&format!("ulimit -n {files}")).program(sh("exit 0")).run();
        let outcome = outcome.has_code(2).says(" open files, and the hard limit (ulimit -Hn) allows ");
        let text = String::from_utf8_lossy(&outcome.stderr);
        assert_eq!(text.matches("scela-run: ").count(), 1, "{text}");
    }
}
