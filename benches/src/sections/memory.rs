//! The memory that serving takes, while all ranks but one wait in a fence.
//!
//! Counted is the proportional share (PSS) of every process below the launcher that is not a rank: scela-run's agents
//! and guardians, Hydra's proxies. The launcher's own is shown beside it.

use super::agents::{Household, pss_mb};
use super::notes::{Notes, cell};
use super::{Section, measure, number, participants};
use crate::bench::{Bench, BenchError};
use crate::launcher::Launcher;
use crate::run::{Finished, Job, Program, Running, Void};
use crate::table::Table;

/// What was seen of one run.
struct Seen {
    run: Finished,
    agents_mb: f64,
    launcher_mb: f64,
    agent_names: String,
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
                notes.add(format!("{launcher}, np {np}: agents are {}", seen.agent_names));
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
    running.wait_for_marks()?;
    let launcher_pid = running.launcher_pid();
    let household = Household::of(launcher_pid, bench.pmi_program(launcher));
    let (agents_mb, launcher_mb) = (household.agents_mb(), pss_mb(launcher_pid));
    running.page().release_ranks()?;
    Ok(Seen { run: running.finish()?, agents_mb, launcher_mb, agent_names: household.agent_names() })
}

const SIZES: [u32; 1] = [1024];
