//! The context switches of a launcher and its agents while the ranks sleep: operating-system noise, which costs large jobs
//! that compute.

use std::ffi::OsString;
use std::thread;
use std::time::Duration;

use super::agents::JobProcesses;
use super::measure::{measure, number, participants};
use super::notes::{Notes, cell};
use crate::bench::Bench;
use crate::error::BenchError;
use crate::launcher::{Kind, Launcher};
use crate::run::{Finished, Job, Program, Void, run_inspected};
use crate::suite::Section;
use crate::switches::context_switches;
use crate::table::Table;

/// The measurements of one run: context switches in [`TIME`].
struct Measured {
    run: Finished,
    launcher: f64,
    guardians: f64,
    /// Of all other processes that are not ranks.
    agents: f64,
    names: String,
}

impl Measured {
    fn all(&self) -> f64 {
        self.launcher + self.guardians + self.agents
    }
}

pub(super) fn run(bench: &mut Bench, section: Section) -> Result<(), BenchError> {
    let mut launchers = participants(bench, Launcher::owns_agents);
    let own = launchers.iter().find(|launcher| launcher.kind == Kind::Scela).cloned();
    // A node with many cores has several agents.
    let variants = [
        &["--agents-per-node", "4"][..],
        &["--agents-per-node", "8"],
        &["--agents-per-node", "8", "--on-failure", "restart"],
    ];
    let more =
        own.iter().flat_map(|own| variants.map(|words| own.clone().with_options(words.iter().map(OsString::from))));
    launchers.splice(1..1, more);
    let mut table = Table::default();
    table.group("", &["np", "launcher"]);
    table.group("context switches of", &["launcher", "guardians", "agents", "all"]);

    let mut notes = Notes::default();
    for np in bench.sizes(&SIZES) {
        let measured = |bench: &Bench, launcher: &Launcher| measured(bench, launcher, np);
        let values = |measured: &Measured| {
            vec![
                ("launcher_switches", measured.launcher),
                ("guardians_switches", measured.guardians),
                ("agents_switches", measured.agents),
            ]
        };
        let all = measure(bench, section, np, &launchers, measured, values)?;
        for (launcher, series) in launchers.iter().zip(&all) {
            let median = |value: fn(&Measured) -> f64| number(series.median(value));
            table.row(vec![
                np.to_string(),
                launcher.to_string(),
                cell(series, median(|measured| measured.launcher)),
                median(|measured| measured.guardians),
                median(|measured| measured.agents),
                median(Measured::all),
            ]);
            notes.take(launcher, np, series, |measured| &measured.run);
            if let Some(measured) = series.counted().next() {
                notes.add(format!("{launcher}, np {np}: agents are {}", measured.names));
            }
        }
    }
    let title = format!("context switches in {} s while all ranks sleep in a fence", TIME.as_secs());
    bench.report.section(&title, &table, notes.lines())?;
    Ok(())
}

/// Starts ranks that wait, measures, and lets them continue.
fn measured(bench: &Bench, launcher: &Launcher, np: u32) -> Result<Measured, Void> {
    let job = Job { np, program: Program::Sleep };
    let (run, (launcher, guardians, agents, names)) = run_inspected(bench, launcher, job, |launcher_pid| {
        let processes = JobProcesses::of(launcher_pid, bench.pmi_program(launcher), bench.services.processes());
        // Work that the start has left is no noise.
        thread::sleep(SETTLING);
        let (guardians, agents): (Vec<_>, Vec<_>) = processes.agents.iter().partition(|(_, name)| name == GUARDIAN);
        let switches = || {
            let sum = |those: &[&(_, String)]| those.iter().map(|(pid, _)| context_switches(*pid)).sum::<u64>();
            [context_switches(launcher_pid), sum(&guardians), sum(&agents)]
        };
        let before = switches();
        thread::sleep(TIME);
        let after = switches();
        let in_time = |at: usize| after[at].saturating_sub(before[at]) as f64;
        (in_time(0), in_time(1), in_time(2), processes.agent_names())
    })?;
    Ok(Measured { run, launcher, guardians, agents, names })
}

/// The name of scela-run's guardians.
const GUARDIAN: &str = "scela-guard";
const SETTLING: Duration = Duration::from_secs(1);
const TIME: Duration = Duration::from_secs(10);
const SIZES: [u32; 1] = [8];
