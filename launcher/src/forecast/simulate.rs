//! `--simulate`: runs a job of any size on the real code of the tree in virtual time, without processes.

use std::time::Duration;

use nla::core::CachePolicy;
use nla::figures;
use sim::{BoardCosts, Costs, Pattern, Refusal, Report, Spec};

use crate::exit::EarlyEnd;
use crate::forecast::model::{Size, fence};

/// The job to simulate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Simulation {
    /// `--simulate`: nodes, and ranks on each node.
    pub size: (u32, u32),
    /// `--fanouts` or `--fanout`: each of these fan-outs is simulated. If there are several, the best one is
    /// named. If there is none, the one that a start would choose by the costs of [`board`](Self::board) is simulated.
    pub fanouts: Vec<u32>,
    /// `--cache`: the policy of the bulletin board's caches.
    pub cache: CachePolicy,
    /// `--pattern`: the entries that ranks get from each other.
    pub pattern: Pattern,
    /// `--latency`: the latency of a link.
    pub latency: Option<Duration>,
    /// `--bandwidth`: the bytes per second that a node can send.
    pub bandwidth: Option<u64>,
    /// `--cores`: the cores that all agents share, as on one machine.
    pub cores: Option<u32>,
    /// `--seed`: the seed of the faults.
    pub seed: Option<u64>,
    /// `--faults`: whether links and agents fail.
    pub faults: bool,
    /// The costs of entries on their way through the tree.
    pub board: BoardCosts,
    /// `-q`: whether progress lines are left out.
    pub quiet: bool,
}

impl Default for Simulation {
    /// Returns a job of one rank on one node, without fan-outs.
    fn default() -> Self {
        Self {
            size: (1, 1),
            fanouts: Vec::new(),
            cache: CachePolicy::default(),
            pattern: Pattern::default(),
            latency: None,
            bandwidth: None,
            cores: None,
            seed: None,
            faults: false,
            board: BoardCosts::default(),
            quiet: false,
        }
    }
}

/// The length of the values that simulated ranks put.
const VALUE_BYTES: u32 = 64;

/// Why a simulation has no result.
#[derive(Debug, thiserror::Error)]
#[error("{}{refusal}", fanout.map_or_else(String::new, |fanout| format!("fan-out {fanout}: ")))]
pub struct SimulateError {
    /// `None` if the user has typed none, and the reason is not about one.
    fanout: Option<u32>,
    refusal: Refusal,
}

impl SimulateError {
    /// Returns how scela-run ends after this error.
    pub fn early_end(&self) -> EarlyEnd {
        match self.refusal {
            Refusal::Violated(_) => EarlyEnd::Bug,
            _ => EarlyEnd::Usage,
        }
    }
}

/// A fan-out and its result.
type Simulated = (u32, Result<Report, Refusal>);

/// Simulates the job with each fan-out and returns the text to print: a report for one fan-out, a table for several. The table says
/// why a fan-out cannot be simulated, as long as another one can.
///
/// A large job takes a minute. `show_progress` gets a line before each fan-out, and an empty one at the end.
///
/// # Errors
///
/// No fan-out can be simulated, with the reason of the first one; or the simulation has found a bug.
pub fn run(simulation: &Simulation, show_progress: &mut dyn FnMut(&str)) -> Result<String, SimulateError> {
    let fanouts = &fanouts(simulation);
    let results = fanouts.iter().zip(1..).map(|(&fanout, number)| {
        show_progress(&progress(simulation, fanout, (number, fanouts.len())));
        match sim::run(&spec(simulation, fanout)) {
            Err(refusal @ Refusal::Violated(_)) => Err(SimulateError { fanout: Some(fanout), refusal }),
            result => Ok((fanout, result)),
        }
    });
    let results: Result<Vec<Simulated>, SimulateError> = results.collect();
    show_progress("");
    let mut results = results?;
    if results.iter().all(|(_, result)| result.is_err()) && !results.is_empty() {
        let (fanout, first) = results.swap_remove(0);
        let fanout = (!simulation.fanouts.is_empty()).then_some(fanout);
        return first.map(|report| report.to_string()).map_err(|refusal| SimulateError { fanout, refusal });
    }
    Ok(match results.as_slice() {
        [(_, Ok(report))] => report.to_string(),
        results => table(results),
    })
}

/// Returns the fan-outs to simulate.
fn fanouts(simulation: &Simulation) -> Vec<u32> {
    let (nodes, ppn) = simulation.size;
    match simulation.fanouts.as_slice() {
        [] => vec![fence::recommend(Size { nodes, ppn }, &simulation.board).fanout],
        typed => typed.to_vec(),
    }
}

/// Formats a progress line.
fn progress(simulation: &Simulation, fanout: u32, (number, all): (usize, usize)) -> String {
    let (nodes, ppn) = simulation.size;
    let ranks = u64::from(nodes) * u64::from(ppn);
    let which = if all == 1 { String::new() } else { format!(", {number} of {all}") };
    let ranks = figures::counted(ranks, "rank");
    format!("scela-run: simulating {ranks} with fan-out {fanout}{which}")
}

/// Formats a row for each fan-out, and the recommended fan-out.
fn table(results: &[Simulated]) -> String {
    let reports = || results.iter().filter_map(|(fanout, result)| Some((fanout, result.as_ref().ok()?)));
    let mut text = reports().next().map_or_else(String::new, |(_, report)| heading(report));
    for (fanout, result) in results {
        text.push_str(&match result {
            Ok(report) => row(*fanout, report),
            Err(refusal) => format!("{fanout:>7}  not simulated: {refusal}\n"),
        });
    }
    if let Some((_, best)) = reports().map(|(fanout, report)| (exchange(report), fanout)).min() {
        text.push_str(&format!("recommended: --fanout {best}\n"));
    }
    text
}

fn spec(simulation: &Simulation, fanout: u32) -> Spec {
    let (nodes, ppn) = simulation.size;
    Spec {
        nodes,
        ppn,
        fanout,
        cache: simulation.cache,
        pattern: simulation.pattern,
        // The size of a business card with shared memory and one network address.
        value_min: VALUE_BYTES,
        value_max: VALUE_BYTES,
        costs: Costs { board: simulation.board, ..Costs::default() },
        latency: simulation.latency,
        bandwidth: simulation.bandwidth,
        cores: simulation.cores,
        seed: simulation.seed.unwrap_or_default(),
        faults: simulation.faults,
        ..Spec::default()
    }
}

/// Returns the time of the exchange in nanoseconds, which the recommendation minimizes: from the last arrival at the
/// fence after the puts until the last get is answered.
fn exchange(report: &Report) -> u64 {
    report.fences.first().map_or(report.started, |fence| fence.releasing + report.getting)
}

fn heading(report: &Report) -> String {
    let cache = report.cache;
    let ranks = figures::counted(report.ranks.into(), "rank");
    let agents = figures::counted(report.agents.into(), "agent");
    format!(
        "{ranks} on {agents}, {cache}; exchange = fence + gets\n\
         fan-out  depth  all joined  all started     fence      gets  exchange  board messages  board bytes\n"
    )
}

fn row(fanout: u32, report: &Report) -> String {
    let time = |nanoseconds: u64| figures::time(Duration::from_nanos(nanoseconds));
    let fence = report.fences.first().map_or(0, |fence| fence.releasing);
    let both = |count: fn(&sim::Traffic) -> u64| -> u64 {
        report.levels.iter().map(|level| count(&level.up_board) + count(&level.down_board)).sum()
    };
    format!(
        "{fanout:>7} {:>6} {:>11} {:>12} {:>9} {:>9} {:>9} {:>15} {:>12}\n",
        report.depth,
        time(report.joined),
        time(report.started),
        time(fence),
        time(report.getting),
        time(exchange(report)),
        figures::count(both(|traffic| traffic.messages)),
        figures::bytes(both(|traffic| traffic.bytes)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simulated(fanouts: Vec<u32>) -> (String, Vec<String>) {
        let mut lines = Vec::new();
        let simulation = Simulation { size: (4, 2), fanouts, ..Simulation::default() };
        (run(&simulation, &mut |line| lines.push(line.to_owned())).unwrap(), lines)
    }

    #[test]
    fn several_fan_outs_are_compared_in_a_table() {
        let (text, progress) = simulated(vec![2, 4]);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].ends_with("; exchange = fence + gets"), "{text}");
        assert!(lines[1].ends_with("board messages  board bytes"), "{text}");
        assert!(lines[4].starts_with("recommended: --fanout ") && lines.len() == 5, "{text}");
        let expected = [
            "scela-run: simulating 8 ranks with fan-out 2, 1 of 2",
            "scela-run: simulating 8 ranks with fan-out 4, 2 of 2",
            "",
        ];
        assert_eq!(progress, expected);
    }

    #[test]
    fn a_fan_out_that_cannot_be_simulated_leaves_the_others() {
        let run = |fanouts: &[u32]| {
            let latency = Some(Duration::from_secs(4));
            let simulation = Simulation { size: (20, 1), fanouts: fanouts.to_vec(), latency, ..Simulation::default() };
            super::run(&simulation, &mut |_| {}).map_err(|error| error.to_string())
        };
        let why = "a latency of 4.00 s is too long for the deadlines of a session; use a shorter one";
        let text = run(&[2, 32]).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[2], format!("      2  not simulated: {why}"));
        assert!(lines[3].starts_with("     32 ") && lines.len() == 5, "{text}");
        assert_eq!(lines[4], "recommended: --fanout 32");
        assert_eq!([run(&[2]), run(&[2, 3])], [(); 2].map(|()| Err(format!("fan-out 2: {why}"))));
        let narrow = Simulation { size: (64, 4), bandwidth: Some(1), ..Simulation::default() };
        let error = super::run(&narrow, &mut |_| {}).unwrap_err().to_string();
        assert!(error.starts_with("a bandwidth of 1 "), "the user has typed no fan-out: {error}");
    }

    #[test]
    fn one_rank_is_singular() {
        let one = Simulation { fanouts: vec![2, 3], ..Simulation::default() };
        let mut progress = Vec::new();
        let text = super::run(&one, &mut |line| progress.push(line.to_owned())).unwrap();
        assert!(text.starts_with("1 rank on 1 agent, hcmab"), "{text}");
        assert_eq!(progress[0], "scela-run: simulating 1 rank with fan-out 2, 1 of 2");
    }

    /// Those of `--calibrate` may differ from typical ones, which the parser of options knows.
    #[test]
    fn the_default_fan_out_follows_from_the_costs_of_the_simulation() {
        let slow = BoardCosts { byte_received_ps: 900_000, byte_sent_ps: 10, ..BoardCosts::default() };
        let of = |board| fanouts(&Simulation { size: (256, 64), board, ..Simulation::default() });
        let [usual, measured] = [BoardCosts::default(), slow].map(of);
        assert_eq!(measured, [fence::recommend(Size { nodes: 256, ppn: 64 }, &slow).fanout]);
        assert_ne!(usual, measured);
        assert_eq!(fanouts(&Simulation { fanouts: vec![7, 9], ..Simulation::default() }), [7, 9]);
    }

    #[test]
    fn one_fan_out_has_a_report() {
        let (text, progress) = simulated(vec![32]);
        assert!(text.starts_with("simulated: 8 ranks on 4 agents, fan-out 32"), "{text}");
        assert_eq!(progress, ["scela-run: simulating 8 ranks with fan-out 32", ""]);
    }
}
