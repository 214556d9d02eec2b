//! The memory of the board under each policy, by the number of entries that each rank puts.
//!
//! Each rank puts one entry in each of n rounds and gets those of its neighbours of the same round.
//! Then all ranks wait in a fence, and the bench measures two kinds of memory: that of keys and values
//! (with an estimate of their index), which scela-run counts, and that of the agents' processes, most
//! of which is not the board.

use super::{Counted, FANOUTS, contenders, entries, lines};
use crate::bench::Bench;
use crate::error::BenchError;
use crate::launcher::{Client, Launcher};
use crate::policy::{self, Bound, Policy};
use crate::results::Findings;
use crate::results::csv::Csv;
use crate::results::plot::{Line, Look, Panel, Plot};
use crate::rounds::Series;
use crate::run::{Job, Program, Void, run_inspected};
use crate::sections::agents::{JobProcesses, pss_mb};
use crate::sections::measure::{measure, number};
use crate::sections::notes::{Notes, cell};
use crate::suite::Section;
use crate::table::Table;

/// The measurements of one run.
struct Measured {
    counted: Counted,
    agents_mb: f64,
    launcher_mb: f64,
}

/// The results of the section over all trees.
struct Memory {
    section: Section,
    findings: Findings,
    runs: Csv,
    held: Vec<Panel>,
    processes: Vec<Panel>,
}

pub(in crate::sections) fn run(bench: &mut Bench, section: Section) -> Result<(), BenchError> {
    let findings = Findings::new(section);
    let mut memory = Memory { section, findings, runs: Csv::new(RUN_HEADS), held: Vec::new(), processes: Vec::new() };
    for np in bench.sizes(&SIZES) {
        for fanout in FANOUTS {
            memory.over(bench, np, fanout)?;
        }
    }
    memory.write(bench)
}

impl Memory {
    /// Measures all numbers of entries over one tree.
    fn over(&mut self, bench: &mut Bench, np: u32, fanout: u32) -> Result<(), BenchError> {
        let launchers = contenders(bench, fanout, |policy, client| {
            let is_bound_to_ranks = !matches!(policy, Policy::HcmabLru(Bound::Own | Bound::RanksBy(_)));
            is_bound_to_ranks && *client == Client::Wire
        });
        let labels: Vec<String> = launchers.iter().map(Launcher::label).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let mut table = Table::default();
        table.group("", &["n"]);
        table.group("stored by the fullest agent, kB", &labels);
        table.group("stored by the launcher, kB", &labels);
        table.group("agents' processes, MB", &labels);
        let bounded = launchers.iter().position(is_bounded);
        if let Some(bounded) = bounded {
            table.group(format!("the fullest agent of {}, kB", labels[bounded]), &["others'", "own", "index"]);
        }
        let mut notes = Notes::default();
        let (mut held, mut processes) = (lines(&launchers), lines(&launchers));
        let mut others = bounded.map(|bounded| others(&launchers[bounded]));
        for rounds in ROUNDS {
            let measured = |bench: &Bench, launcher: &Launcher| measured(bench, launcher, np, rounds);
            let all = measure(bench, self.section, np, &launchers, measured, |measured| measured.values(rounds))?;
            let mut row = vec![rounds.to_string()];
            for value in [Measured::agent_kb, Measured::launcher_kb, |measured: &Measured| measured.agents_mb] {
                row.extend(all.iter().map(|series| cell(series, number(series.median(value)))));
            }
            if let Some((others, bounded)) = others.as_mut().zip(bounded) {
                let parts = [Measured::others_kb, Measured::own_kb, Measured::index_kb];
                row.extend(parts.map(|part| number(all[bounded].median(part))));
                others.point(rounds, all[bounded].median(Measured::others_kb));
            }
            table.row(row);
            for (index, (launcher, series)) in launchers.iter().zip(&all).enumerate() {
                notes.take(launcher, np, series, |measured| &measured.counted.run);
                held[index].point(rounds, series.median(Measured::agent_kb));
                processes[index].point(rounds, series.median(|measured| measured.agents_mb));
                self.store_runs(launcher, np, rounds, series);
            }
        }
        let title = format!(
            "memory of the board at np {np} ({} agents), fan-out {fanout}: each rank puts n entries, one in each round\n\
             kB: the peak of keys, values and index; MB: the PSS of all agents' processes together",
            policy::agents(np),
        );
        self.findings.table(bench, &title, &table, notes.lines())?;
        held.extend(others);
        let title = format!("{np} ranks, fan-out {fanout}");
        self.held.push(Panel { title: title.clone(), lines: held });
        self.processes.push(Panel { title, lines: processes });
        Ok(())
    }

    fn store_runs(&mut self, launcher: &Launcher, np: u32, rounds: u32, series: &Series<Measured>) {
        for (round, measured) in series.by_round() {
            let stats = &measured.counted.stats;
            let fullest = stats.fullest_agent();
            self.runs.row(&[
                &stats.fanout,
                &np,
                &policy::agents(np),
                &launcher.label(),
                &entries(launcher, np),
                &rounds,
                &round,
                &fullest.all_bytes(),
                &fullest.bytes,
                &fullest.own_bytes,
                &fullest.index_entries,
                &stats.launcher_bytes(),
                &stats.all_bytes(),
                &stats.evictions(),
                &measured.agents_mb,
                &measured.launcher_mb,
                &measured.counted.inside_s(),
            ]);
        }
    }

    fn write(self, bench: &Bench) -> Result<(), BenchError> {
        let Self { mut findings, runs, held, processes, .. } = self;
        let plot = |what: &str, y, panels| {
            let title = format!("Memory of the board: {what}");
            Plot { title, x: "n, entries from each rank", y, panels }
        };
        findings.plot("held", plot("peak at the fullest agent", "kB of keys, values and index", held));
        findings.plot("processes", plot("all agents' processes", "MB (PSS)", processes));
        findings.numbers("runs", runs);
        findings.write(bench)?;
        Ok(())
    }
}

/// Returns whether the caches of a launcher's agents have a bound.
fn is_bounded(launcher: &Launcher) -> bool {
    launcher.caching.as_ref().is_some_and(|caching| matches!(caching.policy, Policy::HcmabLru(_)))
}

/// Returns an empty line for the values of other agents' ranks at the fullest agent, to which the bound
/// applies.
fn others(launcher: &Launcher) -> Line {
    Line { label: format!("{}, others'", launcher.label()), look: Look::of(launcher).hollow(), points: Vec::new() }
}

/// Starts ranks that exchange and then wait, measures, and lets them continue.
fn measured(bench: &Bench, launcher: &Launcher, np: u32, rounds: u32) -> Result<Measured, Void> {
    let job = Job { np, program: Program::Rounds(rounds) };
    let (run, (agents_mb, launcher_mb)) = run_inspected(bench, launcher, job, |launcher_pid| {
        let processes = JobProcesses::of(launcher_pid, bench.pmi_program(launcher), bench.services.processes());
        let agents = processes.agents.iter().filter(|(_, name)| name == AGENT);
        (agents.map(|(pid, _)| pss_mb(*pid)).sum(), pss_mb(launcher_pid))
    })?;
    Ok(Measured { counted: Counted::of(run, launcher, np)?, agents_mb, launcher_mb })
}

impl Measured {
    fn agent_kb(&self) -> f64 {
        self.counted.stats.fullest_agent().all_bytes() as f64 / 1e3
    }

    /// The part of the fullest agent's memory to which the bound applies.
    fn others_kb(&self) -> f64 {
        self.counted.stats.fullest_agent().bytes as f64 / 1e3
    }

    fn own_kb(&self) -> f64 {
        self.counted.stats.fullest_agent().own_bytes as f64 / 1e3
    }

    fn index_kb(&self) -> f64 {
        self.counted.stats.fullest_agent().index_bytes() as f64 / 1e3
    }

    fn launcher_kb(&self) -> f64 {
        self.counted.stats.launcher_bytes() as f64 / 1e3
    }

    fn all_kb(&self) -> f64 {
        self.counted.stats.all_bytes() as f64 / 1e3
    }

    /// Returns the quantities for the CSV file of single runs.
    fn values(&self, rounds: u32) -> Vec<(&'static str, f64)> {
        vec![
            ("entries_per_rank", f64::from(rounds)),
            ("agent_kb", self.agent_kb()),
            ("launcher_kb", self.launcher_kb()),
            ("all_kb", self.all_kb()),
            ("agents_pss_mb", self.agents_mb),
            ("launcher_pss_mb", self.launcher_mb),
            ("inside_s", self.counted.inside_s()),
        ]
    }
}

/// The process name of agents.
const AGENT: &str = "scela-agent";
const SIZES: [u32; 1] = [256];
/// The numbers of entries that each rank puts.
const ROUNDS: [u32; 6] = [1, 2, 4, 8, 16, 32];
const RUN_HEADS: &str = "fanout,np,agents,policy,cache_entries,entries_per_rank,round,\
    agent_bytes,agent_others_bytes,agent_own_bytes,agent_index_entries,\
    launcher_bytes,all_bytes,evictions,agents_pss_mb,launcher_pss_mb,inside_s";
