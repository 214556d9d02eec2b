//! The last report of each subtree: counts by level of the tree, merged on their way up, for `--stats`; and the spans of
//! `--trace`.
//!
//! A place is the launcher or an agent; its level is the number of links between it and the launcher. Each
//! place always counts, since additions cost nothing. An agent reports to its parent only if the session's plan asks
//! for it: once, as its last message.

mod duration_histogram;

use serde::{Deserialize, Serialize};

pub use self::duration_histogram::DurationHistogram;
use super::cache::CachePeaks;
use super::lookup::GetCounts;
use super::topology::Subtree;
use super::trace::{TraceScope, TraceSpan, bounded};

/// Messages of one lane in one direction.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LaneTraffic {
    /// Their number.
    pub messages: u64,
    /// Their encoded bytes, before they are cut into records.
    pub bytes: u64,
}

impl LaneTraffic {
    fn add(&mut self, other: Self) {
        add(&mut self.messages, other.messages);
        add(&mut self.bytes, other.bytes);
    }
}

/// The core's messages in one direction. A message that passes several places is counted by each sender.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// The board lane: fences, puts, gets and their answers.
    pub board: LaneTraffic,
    /// The control lane: all other messages.
    pub control: LaneTraffic,
}

impl Traffic {
    /// Counts a message that is sent to one receiver.
    pub fn note(&mut self, is_board: bool, bytes: usize) {
        let lane = if is_board { &mut self.board } else { &mut self.control };
        lane.add(LaneTraffic { messages: 1, bytes: bytes as u64 });
    }

    fn add(&mut self, other: Self) {
        self.board.add(other.board);
        self.control.add(other.control);
    }
}

/// The counts that the driver of a place makes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DriverCounts {
    /// Messages to the parent.
    pub up: Traffic,
    /// Messages to children.
    pub down: Traffic,
    /// All bytes written to links after the handshake, with the headers and tags of records.
    pub link_bytes: u64,
    /// The part of these bytes that is output and input, with the headers of their messages.
    pub stream_bytes: u64,
    /// Gets of this place's ranks that the board answered without the core.
    pub board_gets: u64,
    /// This place's ranks that were given the shared segment. Their gets from it are not counted anywhere.
    pub segments: u64,
}

impl DriverCounts {
    fn add(&mut self, other: &Self) {
        self.up.add(other.up);
        self.down.add(other.down);
        add(&mut self.link_bytes, other.link_bytes);
        add(&mut self.stream_bytes, other.stream_bytes);
        add(&mut self.board_gets, other.board_gets);
        add(&mut self.segments, other.segments);
    }
}

/// The counts of all places of one level.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LevelStats {
    /// The number of places.
    pub members: u64,
    /// The counts of their drivers.
    pub counted: DriverCounts,
    /// Gets that reached their cores.
    pub gets: GetCounts,
    /// The highest of each peak over the places.
    pub cache_max: CachePeaks,
    /// The sum of the places' peaks, which need not have been at the same time.
    pub cache_sum: CachePeaks,
    /// The time from the subtree's last arrival to the release, for each fence and place.
    pub fences: DurationHistogram,
}

impl LevelStats {
    /// The counts of one place.
    pub fn of_member(counted: DriverCounts, gets: GetCounts, cache: CachePeaks, fences: DurationHistogram) -> Self {
        Self { members: 1, counted, gets, cache_max: cache, cache_sum: cache, fences }
    }

    fn add(&mut self, other: &Self) {
        add(&mut self.members, other.members);
        self.counted.add(&other.counted);
        self.gets = self.gets.plus(other.gets);
        self.cache_max = self.cache_max.max(other.cache_max);
        self.cache_sum = self.cache_sum.plus(other.cache_sum);
        self.fences.merge(&other.fences);
    }
}

/// The counts of the places of a subtree.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stats {
    /// The counts by level; the level of the subtree's head is first. Lower levels without any report are missing.
    pub levels: Vec<LevelStats>,
    /// The spans of the agents that are traced, by agent.
    #[serde(deserialize_with = "bounded")]
    pub spans: Vec<TraceSpan>,
}

impl Stats {
    /// Merges the counts and spans of a place and of its children's subtrees.
    pub fn of<'a>(head: LevelStats, mut spans: Vec<TraceSpan>, children: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut levels = vec![head];
        for child in children {
            levels.resize(levels.len().max(child.levels.len() + 1), LevelStats::default());
            levels[1..].iter_mut().zip(&child.levels).for_each(|(sum, level)| sum.add(level));
            spans.extend_from_slice(&child.spans);
        }
        // A subtree whose head is lost joins another place, as its last child.
        spans.sort_by_key(|span| span.agent);
        Self { levels, spans }
    }

    /// The number of places that have reported.
    pub fn members(&self) -> u64 {
        self.levels.iter().fold(0, |members, level| members.saturating_add(level.members))
    }

    /// The number of ranks that were given the shared segment.
    pub fn segments(&self) -> u64 {
        self.levels.iter().fold(0, |segments, level| segments.saturating_add(level.counted.segments))
    }

    /// Whether this can be a report of `subtree` in a session with a trace of this scope. Reports of peers are checked with
    /// it.
    pub fn is_of(&self, subtree: Subtree, trace: Option<TraceScope>) -> bool {
        self.levels.first().is_some_and(|head| head.members == 1)
            && self.members() <= u64::from(subtree.size())
            && self.levels.len() <= subtree.depth() as usize + 1
            && self.levels.iter().all(|level| level.members > 0 && level.fences.is_consistent())
            && trace.map_or(self.spans.is_empty(), |scope| scope.allows(&self.spans, subtree))
    }
}

/// Adds without overflow: a peer may report any number.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

#[cfg(test)]
mod tests;
