//! Comparisons of the cache policies, over trees in which each agent counts as a node.
//!
//! Ranks speak PMI over the wire, because libpmi reads its agent's memory under HCMAB only; a line of
//! its own shows what that saves. Each policy runs over a flat tree and over a deep one, in which
//! agents forward look-ups between the launcher and other agents. scela-run itself counts the traffic
//! over links and the stored bytes.

pub(super) mod exchange;
mod levels;
pub(super) mod memory;
pub(super) mod simulated;

use super::measure::participants;
use crate::bench::Bench;
use crate::launcher::{Client, Launcher};
use crate::policy::Policy;
use crate::results::plot::{Line, Look};
use crate::run::{Finished, Void};
use crate::stats::Stats;

/// A run with scela-run's statistics.
struct Counted {
    run: Finished,
    stats: Stats,
}

impl Counted {
    /// Reads the statistics of a run that has just ended.
    fn of(run: Finished, launcher: &Launcher, np: u32) -> Result<Self, Void> {
        let caching = launcher.caching.as_ref().expect("participants have a cache policy");
        Ok(Self { run, stats: Stats::read(caching, np).map_err(Void::Failed)? })
    }

    /// Returns the time from when all ranks are ready to the last get of the last rank.
    fn inside_s(&self) -> f64 {
        self.run.reading.inside.map_or(f64::NAN, |inside| inside.as_secs_f64())
    }
}

/// Returns the launchers for a tree: scela-run with each policy that `may` take part.
fn contenders(bench: &Bench, fanout: u32, may: impl Fn(Policy, &Client) -> bool) -> Vec<Launcher> {
    let may =
        |launcher: &Launcher| launcher.caching.as_ref().is_some_and(|caching| may(caching.policy, &launcher.client));
    participants(bench, may).into_iter().map(|launcher| launcher.with_fanout(fanout)).collect()
}

/// Returns whether this is HCMAB over the wire, to which ratios are relative.
fn is_reference(launcher: &Launcher) -> bool {
    let is_hcmab = launcher.caching.as_ref().is_some_and(|caching| caching.policy == Policy::Hcmab);
    is_hcmab && launcher.client == Client::Wire
}

/// Returns the bound of a launcher's cache for the CSV file; empty for the default.
fn entries(launcher: &Launcher, np: u32) -> String {
    let entries = launcher.caching.as_ref().and_then(|caching| caching.policy.entries(np));
    entries.map_or_else(String::new, |entries| entries.to_string())
}

/// Returns a line without points for each launcher.
fn lines(launchers: &[Launcher]) -> Vec<Line> {
    let line = |launcher: &Launcher| Line { label: launcher.label(), look: Look::of(launcher), points: Vec::new() };
    launchers.iter().map(line).collect()
}

/// A flat tree, the default for up to 32 agents, and a deep one.
const FANOUTS: [u32; 2] = [32, 4];
