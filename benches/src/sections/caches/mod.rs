//! The cache policies beside each other, over trees in which each agent counts as a node.
//!
//! Ranks speak PMI over the wire, because libpmi reads its agent's memory under HCMAB only; what that saves is shown as
//! a line of its own. Each policy is tried over a flat tree and over a deep one, in which agents lie between the
//! launcher and those that ask. How much went over the links, and how much was held, scela-run itself counts.

pub(super) mod exchange;
mod levels;
pub(super) mod memory;
pub(super) mod simulated;

use super::participants;
use crate::bench::Bench;
use crate::launcher::{Client, Launcher};
use crate::policy::Policy;
use crate::results::plot::{Line, Look};
use crate::run::{Finished, Void};
use crate::stats::Stats;

/// A run, and what scela-run counted of it.
struct Counted {
    run: Finished,
    stats: Stats,
}

impl Counted {
    /// Reads what was counted of a run that has just ended.
    fn of(run: Finished, launcher: &Launcher, np: u32) -> Result<Self, Void> {
        let caching = launcher.caching.as_ref().expect("who takes part is asked to cache");
        Ok(Self { run, stats: Stats::read(caching, np)? })
    }

    /// From when all ranks were ready to the last one's last get.
    fn inside_s(&self) -> f64 {
        self.run.reading.inside.map_or(f64::NAN, |inside| inside.as_secs_f64())
    }
}

/// Those who take part over a tree: scela-run with each policy that may.
fn contenders(bench: &Bench, fanout: u32, may: impl Fn(Policy, &Client) -> bool) -> Vec<Launcher> {
    let may =
        |launcher: &Launcher| launcher.caching.as_ref().is_some_and(|caching| may(caching.policy, &launcher.client));
    participants(bench, may).into_iter().map(|launcher| launcher.with_fanout(fanout)).collect()
}

/// HCMAB over the wire, on which ratios stand.
fn is_reference(launcher: &Launcher) -> bool {
    let is_hcmab = launcher.caching.as_ref().is_some_and(|caching| caching.policy == Policy::Hcmab);
    is_hcmab && launcher.client == Client::Wire
}

/// What numbers call the bound of a launcher's cache: nothing where scela-run takes its own.
fn entries(launcher: &Launcher, np: u32) -> String {
    let entries = launcher.caching.as_ref().and_then(|caching| caching.policy.entries(np));
    entries.map_or_else(String::new, |entries| entries.to_string())
}

/// A line for each launcher, without points.
fn lines(launchers: &[Launcher]) -> Vec<Line> {
    let line = |launcher: &Launcher| Line { label: launcher.label(), look: Look::of(launcher), points: Vec::new() };
    launchers.iter().map(line).collect()
}

/// The flat tree, which is scela-run's own for up to 32 agents, and a deep one.
const FANOUTS: [u32; 2] = [32, 4];
