//! The state of pools, as text and as JSON.

use std::fmt::Write as _;

use nla::core::printable;
use serde_json::{Value, json};

use super::message::{JobState, PoolState};

/// The most characters of a job's words in a line.
const WORDS_SHOWN: usize = 60;

/// Returns a number with its noun.
pub(super) fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Returns a time in its largest whole unit.
fn age(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

fn busy(jobs: &[JobState]) -> u32 {
    jobs.iter().filter(|job| job.launcher.is_some()).map(|job| job.slots).sum()
}

/// Describes pools, and their jobs if `with_jobs`.
pub(super) fn text(pools: &[(PoolState, Vec<JobState>)], with_jobs: bool) -> String {
    if pools.is_empty() {
        return "there is no pool on this host; 'scela pool start' starts one\n".to_owned();
    }
    let mut text = String::new();
    for (pool, jobs) in pools {
        let running = jobs.iter().filter(|job| job.launcher.is_some()).count();
        let stopping = if pool.is_stopping { ", is being stopped" } else { "" };
        let idle = pool.idle_ms.map(|ms| format!(", ends after {} without a job", age(ms))).unwrap_or_default();
        let _ = writeln!(
            text,
            "pool {} on {}: {} of {} busy, {} {}, {} wait, {} ended, up {}{idle}{stopping}",
            pool.name,
            printable(&pool.host),
            busy(jobs),
            count(pool.slots.into(), "slot"),
            count(running as u64, "job"),
            if running == 1 { "runs" } else { "run" },
            jobs.len() - running,
            pool.ended,
            age(pool.age_ms),
        );
        if with_jobs && !jobs.is_empty() {
            table(&mut text, jobs);
        }
    }
    text
}

fn table(text: &mut String, jobs: &[JobState]) {
    let _ = writeln!(text, "{:>8}  {:<5}  {:>6}  {:>8}  {:>8}  COMMAND", "JOB", "STATE", "SLOTS", "PRIORITY", "SINCE");
    for job in jobs {
        let state = if job.launcher.is_some() { "runs" } else { "waits" };
        let words = crate::refusal::shown(&job.words, WORDS_SHOWN);
        let _ = writeln!(
            text,
            "{:>8}  {state:<5}  {:>6}  {:>8}  {:>8}  {}",
            job.job,
            job.slots,
            job.priority,
            age(job.age_ms),
            printable(&words)
        );
    }
}

/// Describes pools as JSON: an array with an object for each.
pub(super) fn json(pools: &[(PoolState, Vec<JobState>)], with_jobs: bool) -> String {
    let pools: Vec<Value> = pools.iter().map(|(pool, jobs)| pool_value(pool, jobs, with_jobs)).collect();
    format!("{:#}\n", Value::Array(pools))
}

fn pool_value(pool: &PoolState, jobs: &[JobState], with_jobs: bool) -> Value {
    let mut value = json!({
        "pool": pool.name,
        "host": pool.host,
        "controller_pid": pool.pid,
        "age_s": seconds(pool.age_ms),
        "slots": pool.slots,
        "slots_busy": busy(jobs),
        "jobs_ended": pool.ended,
        "idle_s": pool.idle_ms.map(seconds),
        "is_stopping": pool.is_stopping,
    });
    if with_jobs {
        value["jobs"] = jobs.iter().map(job_value).collect();
    }
    value
}

fn job_value(job: &JobState) -> Value {
    json!({
        "job": job.job,
        "state": if job.launcher.is_some() { "runs" } else { "waits" },
        "launcher_pid": job.launcher,
        "slots": job.slots,
        "priority": job.priority,
        "age_s": seconds(job.age_ms),
        "command": job.words,
    })
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> PoolState {
        PoolState {
            name: "night".to_owned(),
            pid: 7,
            host: "n1".to_owned(),
            age_ms: 200_000,
            slots: 4,
            ended: 12,
            idle_ms: Some(60_000),
            is_stopping: false,
        }
    }

    fn job(job: u64, launcher: Option<u32>) -> JobState {
        JobState { job, launcher, slots: 3, priority: 0, age_ms: 1500, words: "-np 3 ./a\x1b[2J".to_owned() }
    }

    #[test]
    fn people_read_lines() {
        let pools = [(pool(), vec![job(13, Some(9)), job(14, None)])];
        let head = "pool night on n1: 3 of 4 slots busy, 1 job runs, 1 wait, 12 ended, up 3 min, \
                    ends after 60 s without a job\n";
        assert_eq!(text(&pools, false), head);
        assert_eq!(
            text(&pools, true),
            format!(
                "{head}\
                 \x20    JOB  STATE   SLOTS  PRIORITY     SINCE  COMMAND\n\
                 \x20     13  runs        3         0       1 s  -np 3 ./a?[2J\n\
                 \x20     14  waits       3         0       1 s  -np 3 ./a?[2J\n"
            )
        );
        assert_eq!(text(&[], true), "there is no pool on this host; 'scela pool start' starts one\n");
    }

    #[test]
    fn programs_read_json() {
        let read = |with_jobs| -> Value {
            serde_json::from_str(&json(&[(pool(), vec![job(13, Some(9))])], with_jobs)).unwrap()
        };
        let with = read(true);
        assert_eq!((&with[0]["slots_busy"], &with[0]["jobs"][0]["launcher_pid"]), (&json!(3), &json!(9)));
        assert_eq!(with[0]["idle_s"], json!(60.0));
        assert!(read(false)[0].get("jobs").is_none());
    }
}
