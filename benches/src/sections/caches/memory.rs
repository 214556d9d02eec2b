//! The memory that the board takes under each policy, against the number of entries that each rank puts.
//!
//! Each rank puts one entry in each of n rounds and gets its neighbours' of the same round; then all wait in a fence,
//! and the bench looks at the agents. Two memories: that of keys and values (and the index of them, estimated), which
//! scela-run counts, and that of whole processes, of which most is not the board.

use nix::unistd::Pid;

use super::{Counted, FANOUTS, contenders, entries, lines};
use crate::bench::{Bench, BenchError};
use crate::launcher::{Client, Launcher};
use crate::policy::{self, Bound, Policy};
use crate::results::Findings;
use crate::results::csv::Csv;
use crate::results::plot::{Line, Look, Panel, Plot};
use crate::rounds::Series;
use crate::run::{Job, Program, Running, Void};
use crate::sections::agents::{Household, pss_mb};
use crate::sections::notes::{Notes, cell};
use crate::sections::{Section, measure, number};
use crate::table::Table;

/// What was seen of one run.
struct Seen {
    counted: Counted,
    agents_mb: f64,
    launcher_mb: f64,
}

/// What the section keeps while it goes from tree to tree.
struct Memory {
    section: Section,
    findings: Findings,
    runs: Csv,
    held: Vec<Panel>,
    processes: Vec<Panel>,
}

pub(in crate::sections) fn run(bench: &mut Bench, section: Section) -> Result<(), BenchError> {
    let findings = Findings::new(section);
    let mut memory = Memory { section, findings, runs: Csv::new(&RUN_HEADS), held: Vec::new(), processes: Vec::new() };
    for np in bench.sizes(&SIZES) {
        for fanout in FANOUTS {
            memory.over(bench, np, fanout)?;
        }
    }
    memory.write(bench)
}

impl Memory {
    /// All numbers of entries over one tree.
    fn over(&mut self, bench: &mut Bench, np: u32, fanout: u32) -> Result<(), BenchError> {
        let launchers = contenders(bench, fanout, |policy, client| {
            let is_bound_to_ranks = !matches!(policy, Policy::HcmabLru(Bound::Own | Bound::RanksBy(_)));
            is_bound_to_ranks && *client == Client::Wire
        });
        let labels: Vec<String> = launchers.iter().map(Launcher::label).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let mut table = Table::default();
        table.group("", &["n"]);
        table.group("held by the fullest agent, kB", &labels);
        table.group("held by the launcher, kB", &labels);
        table.group("agents' processes, MB", &labels);
        let bounded = launchers.iter().position(is_bounded);
        if let Some(bounded) = bounded {
            table.group(format!("the fullest of {}, kB", labels[bounded]), &["others'", "own", "index"]);
        }
        let mut notes = Notes::default();
        let (mut held, mut processes) = (lines(&launchers), lines(&launchers));
        let mut others = bounded.map(|bounded| others(&launchers[bounded]));
        for rounds in ROUNDS {
            let seen = |bench: &Bench, launcher: &Launcher| seen(bench, launcher, np, rounds);
            let all = measure(bench, self.section, np, &launchers, seen, |seen| seen.values(rounds))?;
            let mut row = vec![rounds.to_string()];
            for value in [Seen::agent_kb, Seen::launcher_kb, |seen: &Seen| seen.agents_mb] {
                row.extend(all.iter().map(|series| cell(series, number(series.median(value)))));
            }
            if let Some((others, bounded)) = others.as_mut().zip(bounded) {
                let parts = [Seen::others_kb, Seen::own_kb, Seen::index_kb];
                row.extend(parts.map(|part| number(all[bounded].median(part))));
                others.point(rounds, all[bounded].median(Seen::others_kb));
            }
            table.row(row);
            for (index, (launcher, series)) in launchers.iter().zip(&all).enumerate() {
                notes.take(launcher, np, series, |seen| &seen.counted.run);
                held[index].point(rounds, series.median(Seen::agent_kb));
                processes[index].point(rounds, series.median(|seen| seen.agents_mb));
                self.keep_runs(launcher, np, rounds, series);
            }
        }
        let title = format!(
            "memory of the board at np {np} ({} agents), fan-out {fanout}: n entries from each rank, in n rounds\n\
             keys, values and index that were held at most; and the PSS of all agents' processes together",
            policy::agents(np),
        );
        self.findings.table(bench, &title, &table, notes.lines())?;
        held.extend(others);
        let title = format!("{np} ranks, fan-out {fanout}");
        self.held.push(Panel { title: title.clone(), lines: held });
        self.processes.push(Panel { title, lines: processes });
        Ok(())
    }

    fn keep_runs(&mut self, launcher: &Launcher, np: u32, rounds: u32, series: &Series<Seen>) {
        for (round, seen) in series.by_round() {
            let stats = &seen.counted.stats;
            self.runs.row(&[
                &stats.fanout,
                &np,
                &policy::agents(np),
                &launcher.label(),
                &entries(launcher, np),
                &rounds,
                &round,
                &stats.fullest_agent().all_bytes(),
                &stats.fullest_agent().bytes,
                &stats.fullest_agent().own_bytes,
                &stats.fullest_agent().index_entries,
                &stats.launcher_bytes(),
                &stats.all_bytes(),
                &stats.evictions(),
                &seen.agents_mb,
                &seen.launcher_mb,
                &seen.counted.inside_s(),
            ]);
        }
    }

    fn write(self, bench: &Bench) -> Result<(), BenchError> {
        let Self { mut findings, runs, held, processes, .. } = self;
        let plot = |what: &str, y, panels| {
            let title = format!("Memory of the board: {what}");
            Plot { title, x: "n, entries from each rank", y, panels }
        };
        findings.plot("held", plot("held at most by the fullest agent", "kB of keys, values and index", held));
        findings.plot("processes", plot("all agents' processes", "MB (PSS)", processes));
        findings.numbers("runs", runs);
        findings.write(bench)?;
        Ok(())
    }
}

/// Whether a launcher's agents keep a bounded number of values.
fn is_bounded(launcher: &Launcher) -> bool {
    launcher.caching.as_ref().is_some_and(|caching| matches!(caching.policy, Policy::HcmabLru(_)))
}

/// The line of what its fullest agent keeps of other agents' ranks, which is what the bound is about.
fn others(launcher: &Launcher) -> Line {
    Line { label: format!("{}, others'", launcher.label()), look: Look::of(launcher).hollow(), points: Vec::new() }
}

/// Starts ranks that exchange and then wait, looks, and lets them go.
fn seen(bench: &Bench, launcher: &Launcher, np: u32, rounds: u32) -> Result<Seen, Void> {
    let mut running = Running::start(bench, launcher, Job { np, program: Program::Rounds(rounds) })?;
    running.wait_for_marks()?;
    let launcher_pid = running.launcher_pid();
    let household = Household::of(launcher_pid, bench.pmi_program(launcher));
    let agents = household.agents.iter().filter(|(_, name)| name == AGENT);
    let agents_mb = agents.map(|(pid, _): &(Pid, String)| pss_mb(*pid)).sum();
    let launcher_mb = pss_mb(launcher_pid);
    running.page().release_ranks()?;
    Ok(Seen { counted: Counted::of(running.finish()?, launcher, np)?, agents_mb, launcher_mb })
}

impl Seen {
    fn agent_kb(&self) -> f64 {
        self.counted.stats.fullest_agent().all_bytes() as f64 / 1e3
    }

    /// Of what the fullest agent held: that which has a bound.
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

    /// What the file of single runs gets.
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

/// What an agent calls itself.
const AGENT: &str = "scela-agent";
const SIZES: [u32; 1] = [256];
/// As many entries as each rank puts.
const ROUNDS: [u32; 6] = [1, 2, 4, 8, 16, 32];
const RUN_HEADS: [&str; 17] = [
    "fanout",
    "np",
    "agents",
    "policy",
    "cache_entries",
    "entries_per_rank",
    "round",
    "agent_bytes",
    "agent_others_bytes",
    "agent_own_bytes",
    "agent_index_entries",
    "launcher_bytes",
    "all_bytes",
    "evictions",
    "agents_pss_mb",
    "launcher_pss_mb",
    "inside_s",
];
