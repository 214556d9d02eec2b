//! `--simulate`: what a job of so many ranks would do, by the tree's own code in virtual time.

use std::io::Write;
use std::time::Duration;

use nla::core::CachePolicy;
use sim::{Pattern, Refusal, Report, Spec};

use crate::exit::EarlyEnd;

/// The job to simulate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Simulation {
    /// `--simulate`: nodes, and ranks on each node.
    pub size: (u32, u32),
    /// `--fanouts` or `--fanout`: each of these fan-outs is simulated. If there are several, the best one is
    /// named.
    pub fanouts: Vec<u32>,
    /// `--cache`: the policy of the bulletin board's caches.
    pub cache: CachePolicy,
    /// `--pattern`: the entries that ranks get from each other.
    pub pattern: Pattern,
    /// `--latency`: from one end of a link to the other.
    pub latency: Option<Duration>,
    /// `--bandwidth`: bytes per second that a node can send.
    pub bandwidth: Option<u64>,
    /// `--cores`: the cores that all agents share, as on one machine.
    pub cores: Option<u32>,
    /// `--seed`: the seed of the faults.
    pub seed: Option<u64>,
    /// `--faults`: whether links and agents fail.
    pub faults: bool,
    /// `-q`: no line of progress.
    pub quiet: bool,
}

impl Default for Simulation {
    /// One rank on one node; no fan-outs yet.
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
            quiet: false,
        }
    }
}

/// The length of the values that simulated ranks put.
const VALUE_BYTES: u32 = 64;

/// Simulates what `simulation` asks for and writes what came out to `out`. The exit code: success, usage
/// where it was refused, which `err` is told, or a bug where an invariant did not hold.
pub fn run(simulation: &Simulation, out: &mut impl Write, err: &mut impl Write) -> EarlyEnd {
    let fanouts = &simulation.fanouts;
    let mut rows = Vec::new();
    for fanout in fanouts {
        let spec = spec(simulation, *fanout);
        match sim::run(&spec) {
            Ok(report) if fanouts.len() == 1 => {
                // Nobody to tell if nobody reads; likewise below.
                let _ = write!(out, "{report}");
                return EarlyEnd::Done;
            }
            Ok(report) => {
                if rows.is_empty() {
                    let _ = writeln!(out, "{}", heading(&report));
                }
                let _ = writeln!(out, "{}", row(*fanout, &report));
                rows.push((exchange(&report), *fanout));
            }
            Err(refusal) => {
                let _ = writeln!(err, "scela-run: error: fan-out {fanout}: {refusal}");
                return match refusal {
                    Refusal::Violated(_) => EarlyEnd::Bug,
                    _ => EarlyEnd::Usage,
                };
            }
        }
    }
    if let Some((_, best)) = rows.iter().min() {
        let _ = writeln!(out, "recommended: --fanout {best}");
    }
    EarlyEnd::Done
}

fn spec(simulation: &Simulation, fanout: u32) -> Spec {
    let (nodes, ppn) = simulation.size;
    Spec {
        nodes,
        ppn,
        fanout,
        cache: simulation.cache,
        pattern: simulation.pattern,
        // As a business card of shared memory and one network address.
        value_min: VALUE_BYTES,
        value_max: VALUE_BYTES,
        latency: simulation.latency,
        bandwidth: simulation.bandwidth,
        cores: simulation.cores,
        seed: simulation.seed.unwrap_or_default(),
        faults: simulation.faults,
        ..Spec::default()
    }
}

/// From the last arrival at the fence that follows the puts until the last get is answered, in
/// nanoseconds: what the tree is there for.
fn exchange(report: &Report) -> u64 {
    report.fences.first().map_or(report.started, |fence| fence.releasing + report.getting)
}

fn heading(report: &Report) -> String {
    let Report { agents, ranks, cache, .. } = report;
    format!(
        "{ranks} ranks on {agents} agents, {cache}; times in ms\n\
         fan-out  depth  all joined  all started    fence     gets  exchange  board messages       bytes"
    )
}

fn row(fanout: u32, report: &Report) -> String {
    let ms = |nanoseconds: u64| nanoseconds as f64 / 1e6;
    let fence = report.fences.first().map_or(0, |fence| fence.releasing);
    let both = |count: fn(&sim::Traffic) -> u64| -> u64 {
        report.levels.iter().map(|level| count(&level.up_board) + count(&level.down_board)).sum()
    };
    format!(
        "{fanout:>7} {:>6} {:>11.1} {:>12.1} {:>8.2} {:>8.2} {:>9.2} {:>15} {:>11}",
        report.depth,
        ms(report.joined),
        ms(report.started),
        ms(fence),
        ms(report.getting),
        ms(exchange(report)),
        both(|traffic| traffic.messages),
        both(|traffic| traffic.bytes),
    )
}
