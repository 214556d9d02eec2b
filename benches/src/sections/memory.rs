//! The memory that serving takes, while all ranks but one wait in a fence.
//!
//! Counted is the proportional share (PSS) of every process below the launcher that is not a rank: scela-run's agents
//! and guardians, Hydra's proxies. The launcher's own is shown beside it.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::unistd::Pid;

use super::notes::{Notes, cell};
use super::{Section, measure, number, participants};
use crate::bench::{Bench, BenchError};
use crate::family;
use crate::launcher::Launcher;
use crate::run::{Finished, Job, Program, Running, Void};
use crate::table::Table;

/// What was seen of one run.
struct Seen {
    run: Finished,
    agents_mb: f64,
    launcher_mb: f64,
    /// How many processes of each name the agents are.
    names: BTreeMap<String, usize>,
}

pub(super) fn run(bench: &mut Bench, section: Section) -> Result<(), BenchError> {
    let launchers = participants(bench, Launcher::owns_agents);
    let mut table = Table::default();
    table.group("", &["np"]);
    for launcher in &launchers {
        table.group(launcher.to_string(), &["agents MB", "launcher MB"]);
    }

    let mut notes = Notes::default();
    for np in bench.sizes(&SIZES) {
        let seen = |bench: &Bench, launcher: &Launcher| seen(bench, launcher, np);
        let values = |seen: &Seen| vec![("agents_pss_mb", seen.agents_mb), ("launcher_pss_mb", seen.launcher_mb)];
        let all = measure(bench, section, np, &launchers, seen, values)?;
        let mut row = vec![np.to_string()];
        for (launcher, series) in launchers.iter().zip(&all) {
            row.push(cell(series, number(series.median(|seen| seen.agents_mb))));
            row.push(number(series.median(|seen| seen.launcher_mb)));
            notes.take(launcher, np, series, |seen| &seen.run);
            if let Some(seen) = series.counted().next() {
                let names = seen.names.iter().map(|(name, count)| format!("{count} {name}"));
                notes.add(format!("{launcher}, np {np}: agents are {}", names.collect::<Vec<_>>().join(", ")));
            }
            if series.median(|seen| seen.agents_mb).is_some_and(f64::is_nan) {
                notes.add(format!("{launcher}: its processes may not be looked at by this user; root may"));
            }
        }
        table.row(row);
    }
    let title = "memory while all ranks but one wait in a fence: PSS in MB of all agents (and guardians) together";
    bench.report.section(title, &table, notes.lines())?;
    Ok(())
}

/// Starts sleepers, looks, and lets them go.
fn seen(bench: &Bench, launcher: &Launcher, np: u32) -> Result<Seen, Void> {
    let mut running = Running::start(bench, launcher, Job { np, program: Program::Sleep })?;
    while running.is_going() && running.page().marked()? < np as usize {
        thread::sleep(TICK);
    }
    let launcher_pid = running.launcher_pid();
    let agents = agents(launcher_pid, &bench.programs.pmi);
    let agents_mb = agents.iter().map(|(pid, _)| pss_mb(*pid)).sum();
    let launcher_mb = pss_mb(launcher_pid);
    let mut names = BTreeMap::new();
    for (_, name) in agents {
        *names.entry(name).or_default() += 1;
    }
    running.page().let_go()?;
    Ok(Seen { run: running.finish()?, agents_mb, launcher_mb, names })
}

/// Everything below the launcher that is not a rank, with its name.
///
/// The bench runs one launcher at a time, so whatever descends from the bench is the launcher's.
fn agents(launcher: Pid, rank_program: &Path) -> Vec<(Pid, String)> {
    let descendants = family::descendants(nix::unistd::getpid());
    let named = descendants.into_iter().filter(|pid| *pid != launcher).filter_map(|pid| {
        let command_line = family::command_line(pid);
        let first = command_line.first().filter(|first| Path::new(first) != rank_program)?;
        let name = Path::new(first.split([' ', ':']).next()?).file_name()?;
        Some((pid, name.to_string_lossy().into_owned()))
    });
    named.collect()
}

fn pss_mb(pid: Pid) -> f64 {
    family::pss_kib(pid).map_or(f64::NAN, |kib| kib as f64 * 1024.0 / 1e6)
}

const SIZES: [u32; 1] = [1024];
const TICK: Duration = Duration::from_millis(10);
