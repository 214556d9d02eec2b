//! How the costs of scela-run grow with the number of ranks: time, memory and messages.
//!
//! The bench fails if the cost of a rank grows by more than [`GROWTH_MAX`]. Times count relative to a floor in the same round,
//! because the kernel's own cost of a process and of a socket grows, too: the empty program to posix_spawn, PMI to a server
//! without a tree (`programs/server.c`), exchanges by libpmi to one that wakes all ranks at once (`programs/wakes.c`).
//! It also fails if there are more than [`MESSAGES_MAX`] messages per rank.

use std::ffi::OsString;

use super::agents::{JobProcesses, pss_mb};
use super::measure::{number, ratio};
use super::notes::{Notes, cell};
use crate::bench::Bench;
use crate::error::BenchError;
use crate::launcher::{Client, Kind, Launcher};
use crate::results::Findings;
use crate::results::csv::Csv;
use crate::results::plot::{Line, Look, Panel, Plot};
use crate::rounds::{Series, rounds};
use crate::run::{self, Finished, Job, Program, Void, run_inspected};
use crate::stats::Stats;
use crate::suite::Section;
use crate::table::Table;

/// The costs at one number of ranks, by name.
#[derive(Clone, Debug, Default)]
struct Costs {
    np: u32,
    /// Times relative to the floor, and memory per rank.
    of_rank: Vec<(String, f64)>,
}

/// One job of a round.
#[derive(Clone, Copy)]
struct Turn<'a> {
    name: &'static str,
    launcher: &'a Launcher,
    program: Program,
    /// The turn that this one is compared with, by its index; `None` for a floor.
    floor: Option<usize>,
}

impl Turn<'_> {
    /// Returns the seconds of a run: from start to end, of an exchange those that its ranks have measured.
    fn seconds(&self, run: &Finished) -> f64 {
        match self.program {
            Program::OneToTwo | Program::Wakes => run.reading.inside.map_or(f64::NAN, |inside| inside.as_secs_f64()),
            _ => run.wall.as_secs_f64(),
        }
    }
}

/// The state of a session whose ranks sleep in a fence.
struct Held {
    agents_mb: f64,
    launcher_mb: f64,
    messages: f64,
}

pub(super) fn run(bench: &mut Bench, section: Section) -> Result<(), BenchError> {
    let launchers = bench.launchers.clone();
    let of_kind = |kind| launchers.iter().find(|launcher| launcher.kind == kind && launcher.client == Client::Wire);
    let library = launchers.iter().find(|launcher| matches!(launcher.client, Client::Library(_)));
    let missing = || BenchError::new("the floors and scela-run are all needed");
    let (floor, wire) = (of_kind(Kind::Floor).ok_or_else(missing)?, of_kind(Kind::Scela).ok_or_else(missing)?);
    let server = of_kind(Kind::Server).ok_or_else(missing)?;
    let turn = |name, launcher, program, floor| Turn { name, launcher, program, floor };
    let mut turns = vec![
        turn("floor", floor, Program::Empty, None),
        turn("empty", wire, Program::Empty, Some(0)),
        turn("server", server, Program::Hello, None),
        turn("wire", wire, Program::Hello, Some(2)),
    ];
    turns.extend(library.map(|launcher| turn("libpmi", launcher, Program::Hello, Some(2))));
    let starts = turns.len();
    turns.push(turn("exchange: server", server, Program::OneToTwo, None));
    turns.push(turn("exchange: wire", wire, Program::OneToTwo, Some(starts)));
    if let Some(launcher) = library {
        turns.push(turn("exchange: libpmi", launcher, Program::OneToTwo, Some(starts + 3)));
        turns.push(turn("exchange: wakes", server, Program::Wakes, None));
    }
    let held_turns = &turns[3..starts];

    let mut table = Table::default();
    let mut exchanges = Table::default();
    for (table, those) in [(&mut table, &turns[..starts]), (&mut exchanges, &turns[starts..])] {
        table.group("", &["np"]);
        for turn in those {
            let name = turn.name.trim_start_matches("exchange: ");
            match turn.floor {
                None => table.group(name, &["s"]),
                Some(floor) => {
                    let times = format!("x {}", turns[floor].name.trim_start_matches("exchange: "));
                    table.group(name, &["s", &times]);
                }
            }
        }
    }
    for turn in held_turns {
        table.group(format!("{}: MB", turn.name), &["agents", "launcher"]);
        table.group("", &["messages"]);
    }
    let mut started = Started::new(&turns[..starts]);
    let mut notes = Notes::default();
    let mut numbers = Csv::new(HEADS);
    let line = |(at, turn): (usize, &Turn<'_>)| Line {
        label: turn.name.to_owned(),
        look: Look::numbered(at),
        points: Vec::new(),
    };
    let mut times: Vec<Line> = turns[..starts].iter().enumerate().map(line).collect();
    // The look of each is that of the same server or client above.
    times.extend(turns[starts..].iter().enumerate().map(|(at, turn)| line((at + 2, turn))));
    let mut memory: Vec<Line> = held_turns.iter().enumerate().map(|(at, turn)| line((at + 3, turn))).collect();
    let (mut all_costs, mut too_many) = (Vec::new(), Vec::new());
    for np in bench.sizes(&SIZES) {
        let all = measured(bench, section, np, &turns)?;
        let mut costs = Costs { np, of_rank: Vec::new() };
        let mut rows = [vec![np.to_string()], vec![np.to_string()]];
        for (at, ((turn, series), line)) in turns.iter().zip(&all).zip(&mut times).enumerate() {
            let row = &mut rows[usize::from(at >= starts)];
            let median = series.median(|run| turn.seconds(run));
            line.point(np, median);
            row.push(cell(series, number(median)));
            if let Some(floor) = turn.floor {
                let times = series.median_ratio(&all[floor], |run| turn.seconds(run));
                row.push(ratio(times));
                costs.of_rank.extend(times.map(|times| (format!("time of {}", turn.name), times)));
            }
            notes.take(turn.launcher, np, series, |run| run);
            for (round, run) in series.by_round() {
                numbers.row(&[&np, &turn.name, &round, &"s", &turn.seconds(run)]);
            }
        }
        started.row(np, &all, &mut numbers);
        let [mut row, exchange] = rows;
        exchanges.row(exchange);
        for (turn, line) in held_turns.iter().zip(&mut memory) {
            match held(bench, turn.launcher, np) {
                Ok(held) => {
                    let Held { agents_mb, launcher_mb, messages } = held;
                    line.point(np, Some(agents_mb + launcher_mb));
                    row.extend([agents_mb, launcher_mb, messages].map(|value| number(Some(value))));
                    let quantities = [("agents_mb", agents_mb), ("launcher_mb", launcher_mb), ("messages", messages)];
                    for (quantity, value) in quantities {
                        numbers.row(&[&np, &turn.name, &1, &quantity, &value]);
                    }
                    let memory = (agents_mb + launcher_mb) / f64::from(np);
                    costs.of_rank.push((format!("memory of {}", turn.name), memory));
                    if messages > f64::from(np) * MESSAGES_MAX {
                        too_many.push(format!("messages of {}: {messages:.0} with np {np}", turn.name));
                    }
                }
                Err(why) => {
                    row.extend(["failed", "-", "-"].map(str::to_owned));
                    notes.add(format!("{}, np {np}: memory not measured: {why}", turn.launcher));
                }
            }
        }
        table.row(row);
        all_costs.push(costs);
    }
    let title = "costs by the number of ranks: the empty program, and the PMI hello over the wire and by libpmi\n\
                 floor: posix_spawn of the empty program; server: the hello with a PMI server without a tree\n\
                 s: seconds from start to end; MB: PSS while all ranks wait in a fence; messages: over all links";
    let title_of_exchange = "PMI exchange: each rank puts one entry and gets the entries of its two neighbours\n\
                             wakes: each rank sends one message, and one futex call wakes all: the kernel's part of libpmi's\n\
                             s: seconds from the time when all ranks are ready to the last get";
    let mut findings = Findings::new(section);
    findings.table(bench, title, &table, notes.lines())?;
    findings.table(bench, TITLE_OF_STARTED, &started.table, &[])?;
    findings.table(bench, title_of_exchange, &exchanges, &[])?;
    let panel = |lines| vec![Panel { title: String::new(), lines }];
    let plot = |title: &str, y, lines| Plot { title: title.to_owned(), x: "ranks", y, panels: panel(lines) };
    let exchange_times = times.split_off(starts);
    findings.plot("time", plot("Time from start to end", "seconds", times));
    findings.plot("exchange", plot("Time of an exchange", "seconds", exchange_times));
    findings.plot("memory", plot("PSS of agents and launcher", "MB", memory));
    findings.numbers("runs", numbers);
    findings.write(bench)?;
    let failures = [growths(&all_costs), too_many].concat();
    if failures.is_empty() {
        return Ok(());
    }
    Err(BenchError::new(format!("the cost of a rank grows:\n  {}", failures.join("\n  "))))
}

/// The table of the times at which the last ranks have started.
struct Started<'a> {
    table: Table,
    /// The floor, with index 0, and the jobs that speak PMI.
    turns: Vec<(usize, &'a Turn<'a>)>,
}

impl<'a> Started<'a> {
    fn new(turns: &'a [Turn<'a>]) -> Self {
        let mut table = Table::default();
        table.group("", &["np"]);
        let turns = turns.iter().enumerate().filter(|(at, turn)| *at == 0 || turn.program == Program::Hello);
        let turns: Vec<_> = turns.collect();
        for (at, turn) in &turns {
            table.group(turn.name, if *at == 0 { &["s"] } else { &["s", "x floor"] });
        }
        Self { table, turns }
    }

    fn row(&mut self, np: u32, all: &[Series<Finished>], numbers: &mut Csv) {
        let floor = &all[0];
        let seconds = |run: &Finished| run.last_rank_started.map_or(f64::NAN, |time| time.as_secs_f64());
        let mut row = vec![np.to_string()];
        for (at, turn) in &self.turns {
            let series = &all[*at];
            if *at == 0 {
                row.push(cell(series, number(series.median(|run| turn.seconds(run)))));
                continue;
            }
            let times = series.median_of_rounds(floor, |own, floor| seconds(own) / floor.wall.as_secs_f64());
            row.extend([cell(series, number(series.median(seconds))), ratio(times)]);
            for (round, run) in series.by_round() {
                numbers.row(&[&np, &turn.name, &round, &"last_rank_started_s", &seconds(run)]);
            }
        }
        self.table.row(row);
    }
}

/// Runs rounds of all turns and records each run.
fn measured(
    bench: &mut Bench,
    section: Section,
    np: u32,
    turns: &[Turn<'_>],
) -> Result<Vec<Series<Finished>>, BenchError> {
    let mut recorded = Ok(());
    let all = rounds(turns, bench.options.runs, |round, turn| {
        let result = run::run(bench, turn.launcher, Job { np, program: turn.program });
        let values = result.as_ref().map(|run| vec![(turn.name, turn.seconds(run))]).map_err(ToString::to_string);
        if recorded.is_ok() {
            recorded = bench.report.record(section, np, turn.launcher, round + 1, values);
        }
        result
    });
    recorded?;
    Ok(all)
}

/// Starts ranks that wait, measures, and lets them continue.
fn held(bench: &Bench, launcher: &Launcher, np: u32) -> Result<Held, Void> {
    let file = bench.scratch.programs().join("scale.json");
    let mut stats = OsString::from("--stats=");
    stats.push(&file);
    let launcher = launcher.clone().with_options([stats]);
    let job = Job { np, program: Program::Sleep };
    let (_, (agents_mb, launcher_mb)) = run_inspected(bench, &launcher, job, |launcher_pid| {
        let processes = JobProcesses::of(launcher_pid, bench.pmi_program(&launcher), bench.services.processes());
        (processes.agents_mb(), pss_mb(launcher_pid))
    })?;
    let messages = Stats::of_file(&file).map_err(Void::Failed)?.messages() as f64;
    Ok(Held { agents_mb, launcher_mb, messages })
}

/// Describes the costs that exceed the least one of fewer ranks by more than [`GROWTH_MAX`].
fn growths(all: &[Costs]) -> Vec<String> {
    let mut grown = Vec::new();
    for (at, costs) in all.iter().enumerate() {
        for (name, cost) in &costs.of_rank {
            let earlier =
                all[..at].iter().flat_map(|less| less.of_rank.iter().map(move |(of, cost)| (less.np, of, *cost)));
            let least = earlier.filter(|(_, of, _)| *of == name).min_by(|one, other| one.2.total_cmp(&other.2));
            if let Some((np, _, least)) = least.filter(|(_, _, least)| *cost > least * GROWTH_MAX) {
                grown.push(format!("{name}: {:.2} times from np {np} to np {}", cost / least, costs.np));
            }
        }
    }
    grown
}

/// By how much the cost of a rank may grow beside that of its floor, with the noise of a shared machine.
const GROWTH_MAX: f64 = 1.35;
/// The most messages per rank. Ends of ranks are reported together at fixed intervals, so their number grows with the time in
/// which ranks end, too.
const MESSAGES_MAX: f64 = 0.25;
const TITLE_OF_STARTED: &str = "start of the last rank, in the runs of the PMI hello above\n\
                                floor: s from start to end, as above\n\
                                s: seconds from the start of the launcher until its last rank is about to send its first PMI message";
const HEADS: &str = "np,job,round,quantity,value";
const SIZES: [u32; 4] = [256, 1024, 4096, 16_384];

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(np: u32, time: f64, memory: f64) -> Costs {
        Costs { np, of_rank: vec![("time".to_owned(), time), ("memory".to_owned(), memory)] }
    }

    #[test]
    fn costs_are_compared_with_the_least_of_fewer_ranks() {
        let all = [costs(256, 1.5, 4.0), costs(1024, 1.2, 2.0), costs(4096, 1.6, 1.0), costs(16_384, 1.7, 1.3)];
        assert_eq!(growths(&all[..3]), [] as [String; 0]);
        assert_eq!(growths(&all), ["time: 1.42 times from np 1024 to np 16384"]);
    }

    #[test]
    fn a_cost_that_was_not_measured_is_not_compared() {
        let all = [costs(256, 1.0, 1.0), Costs { np: 1024, of_rank: Vec::new() }, costs(4096, 1.0, 1.4)];
        assert_eq!(growths(&all), ["memory: 1.40 times from np 256 to np 4096"]);
    }
}
