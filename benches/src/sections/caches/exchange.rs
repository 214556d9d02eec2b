//! Exchanges of entries under each policy: the time and the traffic over links.

use super::levels::{self, Levels};
use super::{Counted, FANOUTS, contenders, entries, is_reference, lines};
use crate::bench::Bench;
use crate::error::BenchError;
use crate::launcher::Launcher;
use crate::policy::{self, Bound, Policy};
use crate::results::Findings;
use crate::results::csv::Csv;
use crate::results::plot::{Line, Panel, Plot};
use crate::rounds::Series;
use crate::run::{self, Job, Program};
use crate::sections::exchange::sizes;
use crate::sections::measure::{measure, number, ratio};
use crate::sections::notes::{Notes, cell};
use crate::suite::{Section, Suite};
use crate::table::Table;

/// The results of the section over all trees.
struct Exchange {
    section: Section,
    program: Program,
    findings: Findings,
    runs: Csv,
    levels: Levels,
    times: Vec<Panel>,
    messages: Vec<Panel>,
}

pub(in crate::sections) fn run(bench: &mut Bench, section: Section, program: Program) -> Result<(), BenchError> {
    let mut exchange = Exchange {
        section,
        program,
        findings: Findings::new(section),
        runs: Csv::new(RUN_HEADS),
        levels: Levels::default(),
        times: Vec::new(),
        messages: Vec::new(),
    };
    for fanout in FANOUTS {
        exchange.over(bench, fanout)?;
    }
    exchange.write(bench)
}

/// The results over one tree.
struct Tree {
    launchers: Vec<Launcher>,
    /// The launcher to which ratios are relative.
    reference: Option<usize>,
    table: Table,
    notes: Notes,
    times: Vec<Line>,
    messages: Vec<Line>,
    /// The runs with the most ranks.
    largest: Option<(u32, Vec<Series<Counted>>)>,
}

impl Exchange {
    /// Measures all sizes over one tree.
    fn over(&mut self, bench: &mut Bench, fanout: u32) -> Result<(), BenchError> {
        let mut tree = Tree::new(contenders(bench, fanout, |policy, _| policy != Policy::HcmabLru(Bound::Ranks)));
        for np in bench.sizes(sizes(Suite::Caches)) {
            self.size(bench, &mut tree, np)?;
        }
        let Tree { launchers, table, notes, times, messages, largest, .. } = tree;
        let title = format!(
            "PMI {} exchange, {} ranks per agent, fan-out {fanout}: each rank puts one entry and gets {}\n\
             s: seconds from the time when all ranks are ready to the last get of the last rank",
            self.section,
            policy::RANKS_PER_AGENT,
            if self.program == Program::OneToAll {
                "those of all p ranks in a random order"
            } else {
                "the entries of its two neighbours"
            },
        );
        self.findings.table(bench, &title, &table, notes.lines())?;
        if let Some((np, all)) = largest {
            let title = format!(
                "board traffic at np {np}, fan-out {fanout}, by level of the tree; level 0 is the launcher\n\
                 up, down: messages and kB sent to parents and to children\n\
                 gets: gets of own ranks and look-ups of other agents that were answered here, look-ups sent on,\n\
                 and gets that waited for the answer to a look-up that was already sent"
            );
            let table = levels::table(&launchers, &all);
            self.findings.table(bench, &title, &table, levels::notes(&launchers, &all).lines())?;
        }
        let title = format!("fan-out {fanout}");
        self.times.push(Panel { title: title.clone(), lines: times });
        self.messages.push(Panel { title, lines: messages });
        Ok(())
    }

    /// Measures one number of ranks over a tree.
    fn size(&mut self, bench: &mut Bench, tree: &mut Tree, np: u32) -> Result<(), BenchError> {
        let job = Job { np, program: self.program };
        let counted = |bench: &Bench, launcher: &Launcher| Counted::of(run::run(bench, launcher, job)?, launcher, np);
        let all = measure(bench, self.section, np, &tree.launchers, counted, values)?;
        let mut row = vec![np.to_string(), policy::agents(np).to_string()];
        for (index, (launcher, series)) in tree.launchers.iter().zip(&all).enumerate() {
            let seconds = series.median(Counted::inside_s);
            row.push(cell(series, number(seconds)));
            if let Some(reference) = tree.reference.filter(|reference| *reference != index) {
                row.push(ratio(series.median_ratio(&all[reference], Counted::inside_s)));
            }
            tree.notes.take(launcher, np, series, |counted| &counted.run);
            tree.times[index].point(np, seconds);
            tree.messages[index].point(np, series.median(|counted| counted.stats.board_messages() as f64));
            self.store_runs(launcher, np, series);
            self.levels.add(launcher, np, series);
        }
        tree.table.row(row);
        if tree.largest.as_ref().is_none_or(|(largest, _)| np > *largest) {
            tree.largest = Some((np, all));
        }
        Ok(())
    }

    fn store_runs(&mut self, launcher: &Launcher, np: u32, series: &Series<Counted>) {
        for (round, counted) in series.by_round() {
            let stats = &counted.stats;
            self.runs.row(&[
                &stats.fanout,
                &np,
                &policy::agents(np),
                &launcher.label(),
                &entries(launcher, np),
                &round,
                &counted.inside_s(),
                &counted.run.wall.as_secs_f64(),
                &stats.board_messages(),
                &stats.board_bytes(),
                &stats.evictions(),
            ]);
        }
    }

    fn write(self, bench: &Bench) -> Result<(), BenchError> {
        let Self { section, mut findings, runs, levels, times, messages, .. } = self;
        let plot =
            |what: &str, y, panels| Plot { title: format!("PMI {section} exchange: {what}"), x: "ranks", y, panels };
        findings.plot("time", plot("time until the last rank's last get", "seconds", times));
        findings.plot("messages", plot("messages about the board over all links", "messages", messages));
        findings.numbers(RUNS, runs);
        findings.numbers("levels", levels.numbers());
        findings.write(bench)?;
        Ok(())
    }
}

impl Tree {
    fn new(launchers: Vec<Launcher>) -> Self {
        let reference = launchers.iter().position(is_reference);
        let mut table = Table::default();
        table.group("", &["np", "agents"]);
        for (index, launcher) in launchers.iter().enumerate() {
            match reference {
                Some(reference) if reference != index => table.group(launcher.label(), &["s", "x hcmab"]),
                _ => table.group(launcher.label(), &["s"]),
            }
        }
        let (times, messages) = (lines(&launchers), lines(&launchers));
        Self { launchers, reference, table, notes: Notes::default(), times, messages, largest: None }
    }
}

/// Returns the quantities for the CSV file of single runs.
fn values(counted: &Counted) -> Vec<(&'static str, f64)> {
    vec![
        ("inside_s", counted.inside_s()),
        ("wall_s", counted.run.wall.as_secs_f64()),
        ("board_messages", counted.stats.board_messages() as f64),
        ("board_bytes", counted.stats.board_bytes() as f64),
        ("evictions", counted.stats.evictions() as f64),
    ]
}

/// The name of the file of single runs.
pub(super) const RUNS: &str = "runs";

const RUN_HEADS: &str =
    "fanout,np,agents,policy,cache_entries,round,inside_s,wall_s,board_messages,board_bytes,evictions";
