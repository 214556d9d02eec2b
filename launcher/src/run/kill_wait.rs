//! The time that Slurm gives the processes of a job between TERM and KILL (`KillWait`).

use std::thread;
use std::time::Duration;

use nla::tasks::Tasks;
use tokio::sync::oneshot;

use crate::cluster::manager::ManagerChoice;
use crate::cluster::system::answer_within;
use crate::plan::request::Options;

/// The delay before the query: shorter jobs do not load Slurm's controller.
const ASKED_AFTER: Duration = Duration::from_secs(1);
/// How long the answer may take.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// The longest configuration that is read.
const CONFIGURATION_BYTES_MAX: usize = 256 * 1024;

/// Queries KillWait in a thread, if the session runs in a Slurm job and the user has not typed `--kill-grace`.
pub(super) fn ask(options: &Options, tasks: &Tasks) -> Option<oneshot::Receiver<Duration>> {
    let in_job = std::env::var_os("SLURM_JOB_ID").is_some() && options.hosts.manager == ManagerChoice::Auto;
    if !in_job || options.kill_grace.is_some() {
        return None;
    }
    let (told, answer) = oneshot::channel();
    let ask = move || {
        thread::sleep(ASKED_AFTER);
        let answer = answer_within(ANSWER_TIME, &["scontrol", "show", "config"], CONFIGURATION_BYTES_MAX);
        match answer.map(|text| parsed(&String::from_utf8_lossy(&text))) {
            Ok(Some(time)) => drop(told.send(time)),
            Ok(None) => tracing::debug!("scontrol shows no KillWait"),
            Err(error) => tracing::debug!(%error, "scontrol does not show KillWait"),
        }
    };
    // Without a thread, the grace is the default.
    tasks.spawn_thread("kill-wait", ask).ok().map(|_| answer)
}

/// Finds `KillWait = 30 sec`.
fn parsed(text: &str) -> Option<Duration> {
    let value =
        text.lines().find_map(|line| line.trim_start().strip_prefix("KillWait")?.trim_start().strip_prefix('='))?;
    value.split_ascii_whitespace().next()?.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_found_in_slurms_configuration() {
        let text =
            "Configuration data as of 2026\nKillOnBadExit           = 0\nKillWait                = 30 sec\nX = 1 sec\n";
        assert_eq!(parsed(text), Some(Duration::from_secs(30)));
        for text in ["", "KillWait", "KillWait = ", "KillWait = x sec", "OverKillWait = 1 sec", "KillWait = -1 sec"] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }
}
