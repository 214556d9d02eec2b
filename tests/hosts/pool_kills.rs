//! Many jobs on a pool of several hosts, while jobs, agents and keepers are killed at random, until the pool is stopped. The controller
//! of a second pool is killed.
//!
//! `SCELA_POOL_JOBS` sets the number of jobs (default: 80), `SCELA_POOL_SEED` the seed.

use std::collections::BTreeMap;
use std::process::{Child, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::{Cluster, Pool, Process, Random, eventually};

/// The default number of jobs.
const JOBS: u64 = 80;
/// The jobs that run or wait at a time. The pool has eight slots.
const AT_A_TIME: usize = 20;
/// A job may be killed once it has run for so many seconds: before that, another launcher may run it again.
const AGE_MIN: f64 = 0.15;
const HOSTS: usize = 4;
/// The slots of a host.
const SLOTS: usize = 2;
/// The options of a job that stages files.
const STAGES: [&str; 2] = ["--stage-file", "/etc/hostname"];
/// The last words of the report on a job whose launcher was killed.
const KILLED: &str = " was killed; its ranks were ended";

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("it is a number"))
}

/// Starts the job with this index, which ends with this code.
fn begin(pool: &Pool<'_>, index: u64) -> (Child, i32) {
    let code = if index.is_multiple_of(5) { 3 } else { 0 };
    let ranks = if index.is_multiple_of(7) { "2" } else { "1" };
    let script = format!("echo here; sleep 0.{}; exit {code}", 1 + index % 4);
    let mut command = pool.command(&["run", "--pool", "--quiet", "-np", ranks]);
    command.args(STAGES.iter().filter(|_| index.is_multiple_of(3))).args(["sh", "-c", &script]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    (child.expect("scela starts"), code)
}

/// The end of a job.
struct End {
    /// It has not ended with the code of its program.
    is_lost: bool,
    /// Its launcher was killed, by its report.
    was_killed: bool,
}

/// Checks the one end of a job, and its one report.
fn check_end(index: u64, child: Child, code: i32) -> End {
    let output = child.wait_with_output().expect("it was not reaped");
    let text = String::from_utf8_lossy(&output.stderr);
    let ended = output.status.code().unwrap_or_else(|| panic!("job {index}: {output:?}"));
    let reports: Vec<_> = text.lines().filter(|line| line.starts_with("scela-run: error:")).collect();
    assert!([code, 251, 252, 137].contains(&ended), "job {index} ended with {ended}: {text}");
    // A launcher may be killed between the system calls that write its report and that tell the client of it.
    let is_cut = ended == 252 && reports.len() == 2 && reports[1].ends_with(KILLED);
    assert!(is_cut || reports.len() == usize::from(ended != 0), "job {index} ended with {ended}: {text}");
    End { is_lost: ended != code, was_killed: reports.iter().any(|report| report.ends_with(KILLED)) }
}

/// Checks that the victims explain the jobs that were lost.
fn check_losses(ends: &BTreeMap<u64, End>, victims: &BTreeMap<&str, usize>) {
    let of = |kind: &str| victims.get(kind).copied().unwrap_or_default();
    let killed = ends.values().filter(|end| end.was_killed).count();
    assert!(killed <= of("launcher"), "{killed} launchers were killed: {victims:?}");
    // A process of a host ends at most the jobs that have slots there, and those that get them before the controller knows of it.
    let bound = of("launcher") + 2 * SLOTS * (of("agent") + of("guardian") + of("keeper"));
    let lost = ends.values().filter(|end| end.is_lost).count();
    assert!(lost <= bound, "{lost} jobs were lost: {victims:?}");
}

fn jobs_in(state: &Value, which: &str) -> Vec<Value> {
    let jobs = state["jobs"].as_array().cloned().unwrap_or_default();
    jobs.into_iter().filter(|job| job["state"] == which).collect()
}

/// Kills a launcher, an agent, or a keeper. Returns the kind of victim.
fn kill_one(cluster: &Cluster, pool: &Pool<'_>, random: &mut Random) -> &'static str {
    let on_host = |name: &str, at: i64| {
        let processes = cluster.host(at as usize).processes();
        processes.into_iter().find(|process| process.name == name)
    };
    let state = pool.state();
    let mut old = jobs_in(&state, "runs");
    old.retain(|job| job["age_s"].as_f64().is_some_and(|age| age >= AGE_MIN));
    let launcher = || Process::of(old.first()?["launcher_pid"].as_i64()? as i32);
    let (kind, victim) = match random.of(0..=9) {
        0..=3 => ("launcher", launcher()),
        4..=6 => ("agent", on_host("scela-agent", random.of(0..=HOSTS as i64 - 1))),
        7..=8 => ("guardian", on_host("scela-guard", random.of(0..=HOSTS as i64 - 1))),
        _ => ("keeper", on_host("scela-keeper", random.of(0..=HOSTS as i64 - 1))),
    };
    Process::signal_all(&victim, Signal::SIGKILL);
    if victim.is_some() { kind } else { "nothing" }
}

#[test]
fn every_job_has_one_end_while_processes_are_killed() {
    let Some(cluster) = Cluster::new_or_skip(HOSTS) else { return };
    let (all, seed) = (number("SCELA_POOL_JOBS", JOBS), number("SCELA_POOL_SEED", 17));
    let mut random = Random::of_session(seed, 1);
    let pool = Pool::start_on(&cluster, &["--slots", &SLOTS.to_string()]);
    let mut running: BTreeMap<u64, (Child, i32)> = BTreeMap::new();
    let (mut begun, mut ends, mut victims) = (0, BTreeMap::new(), BTreeMap::new());
    while ends.len() < all as usize {
        while running.len() < AT_A_TIME && begun < all {
            running.insert(begun, begin(&pool, begun));
            begun += 1;
        }
        // The state takes some milliseconds, which paces this loop.
        let state = pool.state();
        let numbers = |which| jobs_in(&state, which).iter().filter_map(|job| job["job"].as_u64()).collect::<Vec<_>>();
        let single = |which: &str| {
            let mut jobs = jobs_in(&state, which);
            let is_single = |job: &Value| job["command"].as_str().is_some_and(|command| command.contains("-np 1 "));
            jobs.retain(|job| is_single(job) && job["returned"] == false);
            jobs.iter().filter_map(|job| job["job"].as_u64()).collect::<Vec<_>>()
        };
        // Jobs with one rank start in the order of their numbers; those with two may be overtaken. A job whose launcher was killed
        // before it has taken the job waits again: others may have started meanwhile. The launcher of the victim's job may be that
        // of the next job by now.
        if let (Some(last), Some(first)) = (single("runs").into_iter().max(), single("waits").into_iter().min()) {
            assert!(last < first, "job {first} was overtaken by {last}: {:?}", (numbers("runs"), numbers("waits")));
        }
        let is_over = |child: &mut Child| child.try_wait().expect("it was not reaped").is_some();
        let over: Vec<u64> =
            running.iter_mut().filter_map(|(index, (child, _))| is_over(child).then_some(*index)).collect();
        for index in over {
            let (child, code) = running.remove(&index).expect("it ran");
            ends.insert(index, check_end(index, child, code));
        }
        if random.of(0..=2) == 0 {
            *victims.entry(kill_one(&cluster, &pool, &mut random)).or_insert(0) += 1;
        }
    }
    let lost = ends.values().filter(|end| end.is_lost).count();
    println!("{all} jobs, seed {seed}: {lost} lost, victims {victims:?}");
    check_losses(&ends, &victims);
    // The controller may notice the end of a launcher later than the client.
    let have_ended = || (pool.state()["jobs_ended"] == all).then_some(());
    assert!(eventually(have_ended).is_some(), "each job has ended once: {:?}", pool.state());
    // Some nodes may be down, or lost and not known to be so.
    let last = fill(&pool);
    assert!(pool.scela(&["pool", "stop", "--kill"]).status.success());
    nothing_is_left(&cluster, &pool, last, &[137, 143, 251, 252]);
    // The session of the keepers (/proc/self/exe), and the controller.
    for name in ["exe", "scela-pool"] {
        let pool = Pool::start_on(&cluster, &["--slots", &SLOTS.to_string()]);
        let last = fill(&pool);
        let victims: Vec<_> = pool.processes().into_iter().filter(|process| process.name == name).collect();
        assert!(!victims.is_empty(), "{name}: {:?}", pool.processes());
        Process::signal_all(&victims, Signal::SIGKILL);
        if name == "exe" {
            let has_lost = || (pool.state()["jobs_ended"].as_u64() >= Some((HOSTS * SLOTS) as u64)).then_some(());
            assert!(eventually(has_lost).is_some(), "{:?}", pool.state());
            assert!(pool.scela(&["pool", "stop"]).status.success());
        }
        nothing_is_left(&cluster, &pool, last, &[143, 251, 252]);
    }
}

/// Starts more jobs than the pool has slots. One of them waits.
fn fill(pool: &Pool<'_>) -> Vec<Child> {
    let sleeps = || {
        let command = [&["run", "--pool", "-np", "1"], &STAGES[..], &["sleep", "1000"]].concat();
        pool.command(&command).stderr(Stdio::null()).spawn()
    };
    let jobs = (0..2 * HOSTS * SLOTS).map(|_| sleeps().expect("scela starts")).collect();
    let is_full = || (!jobs_in(&pool.state(), "waits").is_empty()).then_some(());
    assert!(eventually(is_full).is_some(), "{:?}", pool.state());
    jobs
}

/// Waits until these jobs have ended with one of these codes, and until no process of the pool and no staged file is left anywhere.
fn nothing_is_left(cluster: &Cluster, pool: &Pool<'_>, jobs: Vec<Child>, codes: &[i32]) {
    for mut child in jobs {
        let code = child.wait().expect("it was not reaped").code();
        assert!(code.is_some_and(|code| codes.contains(&code)), "{code:?}");
    }
    pool.wait_for_end();
    let left = || {
        let of_host = |at| cluster.host(at).processes().into_iter();
        let all: Vec<_> = (0..HOSTS).flat_map(of_host).filter(|process| process.name.starts_with("scela")).collect();
        all.is_empty().then_some(())
    };
    assert!(eventually(left).is_some(), "processes are left on the hosts");
    let files =
        (0..HOSTS).flat_map(|at| std::fs::read_dir(cluster.host(at).path("/tmp")).into_iter().flatten().flatten());
    let files: Vec<_> =
        files.map(|file| file.path()).filter(|path| path.to_string_lossy().contains("scela-stage")).collect();
    assert!(files.is_empty(), "files are left on the hosts: {files:?}");
}
