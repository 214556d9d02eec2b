//! The memory of agents while all ranks but one wait in a fence.
//!
//! It is the proportional set size (PSS) of every descendant of the launcher that is not a rank:
//! scela-run's agents and guardians, Hydra's proxies. The launcher's own is shown as well.

use super::agents::{JobProcesses, pss_mb};
use super::measure::{measure, number, participants};
use super::notes::{Notes, cell};
use crate::bench::Bench;
use crate::error::BenchError;
use crate::launcher::Launcher;
use crate::overview;
use crate::run::{Finished, Job, Program, Void, run_inspected};
use crate::suite::Section;
use crate::table::Table;

/// The measurements of one run.
struct Measured {
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
        let measured = |bench: &Bench, launcher: &Launcher| measured(bench, launcher, np);
        let values = |measured: &Measured| {
            vec![("agents_pss_mb", measured.agents_mb), ("launcher_pss_mb", measured.launcher_mb)]
        };
        let all = measure(bench, section, np, &launchers, measured, values)?;
        let mut row = vec![np.to_string()];
        for (launcher, series) in launchers.iter().zip(&all) {
            row.push(cell(series, number(series.median(|measured| measured.agents_mb))));
            row.push(number(series.median(|measured| measured.launcher_mb)));
            notes.take(launcher, np, series, |measured| &measured.run);
            if let Some(measured) = series.counted().next() {
                notes.add(format!("{launcher}, np {np}: agents are {}", measured.agent_names));
            }
            if series.median(|measured| measured.agents_mb).is_some_and(f64::is_nan) {
                notes.add(format!("{launcher}: this user may not read the memory of its processes; root may"));
            }
        }
        table.row(row);
        let cells = launchers.iter().zip(&all);
        let cells = cells.map(|(launcher, series)| {
            (launcher, overview::cell(series, number(series.median(|measured| measured.agents_mb)), None))
        });
        bench.overview.row(format!("memory of agents and guardians, np {np}, MB"), cells);
    }
    let title = "memory while all ranks but one wait in a fence: PSS in MB of all agents (and guardians) together";
    bench.report.section(title, &table, notes.lines())?;
    Ok(())
}

/// Starts ranks that wait, measures, and lets them continue.
fn measured(bench: &Bench, launcher: &Launcher, np: u32) -> Result<Measured, Void> {
    let job = Job { np, program: Program::Sleep };
    let (run, (agents_mb, launcher_mb, agent_names)) = run_inspected(bench, launcher, job, |launcher_pid| {
        let processes = JobProcesses::of(launcher_pid, bench.pmi_program(launcher), bench.services.processes());
        (processes.agents_mb(), pss_mb(launcher_pid), processes.agent_names())
    })?;
    Ok(Measured { run, agents_mb, launcher_mb, agent_names })
}

const SIZES: [u32; 1] = [1024];
