//! What was counted in a session, for `--stats`: by level of the tree, merged on its way up.
//!
//! A place is the launcher or an agent, its level how many links lie between it and the launcher.
//! Each place counts by itself, always: additions cost nothing. Only if the session's plan asks for
//! it does an agent tell its parent, once, after all else.

mod duration_histogram;

use serde::{Deserialize, Serialize};

pub use self::duration_histogram::DurationHistogram;
use super::cache::CachePeaks;
use super::lookup::GetCounts;
use super::topology::Subtree;

/// Messages of one lane that went one way.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LaneTraffic {
    /// How many.
    pub messages: u64,
    /// Their bytes as encoded, before they are cut into records.
    pub bytes: u64,
}

impl LaneTraffic {
    fn add(&mut self, other: Self) {
        add(&mut self.messages, other.messages);
        add(&mut self.bytes, other.bytes);
    }
}

/// Messages of the core that went one way. What goes through several places is sent by each.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// In the board lane: fences, puts, questions and answers.
    pub board: LaneTraffic,
    /// In the control lane: all else.
    pub control: LaneTraffic,
}

impl Traffic {
    /// A message is sent, to one receiver.
    pub fn note(&mut self, is_board: bool, bytes: usize) {
        let lane = if is_board { &mut self.board } else { &mut self.control };
        lane.add(LaneTraffic { messages: 1, bytes: bytes as u64 });
    }

    fn add(&mut self, other: Self) {
        self.board.add(other.board);
        self.control.add(other.control);
    }
}

/// What the driver of a place counts.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DriverCounts {
    /// To the parent.
    pub up: Traffic,
    /// To children.
    pub down: Traffic,
    /// All bytes that were written to links after the hello, records with all that belongs to them.
    pub link_bytes: u64,
    /// Bytes of output and input that these carried, with the headers of their messages.
    pub stream_bytes: u64,
    /// GetCounts of own ranks that the board answered without the core.
    pub board_gets: u64,
    /// Own ranks that were content the segment; what they get there nobody sees.
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

/// What all places of one level have counted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LevelStats {
    /// How many places these are.
    pub members: u64,
    /// By their drivers.
    pub counted: DriverCounts,
    /// GetCounts that came to their cores.
    pub gets: GetCounts,
    /// Of each peak the highest of any place.
    pub cache_max: CachePeaks,
    /// The peaks of all places together, whenever each was.
    pub cache_sum: CachePeaks,
    /// How long fences took once all below had arrived, for each fence and place.
    pub fences: DurationHistogram,
}

impl LevelStats {
    /// Of one place.
    pub fn of_member(counted: DriverCounts, gets: GetCounts, held: CachePeaks, fences: DurationHistogram) -> Self {
        Self { members: 1, counted, gets, cache_max: held, cache_sum: held, fences }
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

/// What the places of a subtree have counted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stats {
    /// By level, that of the subtree's head first. Levels below of which nobody has reported are
    /// not there.
    pub levels: Vec<LevelStats>,
}

impl Stats {
    /// What a place and its children's subtrees have counted.
    pub fn of<'a>(place: LevelStats, children: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut levels = vec![place];
        for child in children {
            for (at, level) in child.levels.iter().enumerate() {
                if levels.len() <= at + 1 {
                    levels.push(LevelStats::default());
                }
                levels[at + 1].add(level);
            }
        }
        Self { levels }
    }

    /// How many places have reported.
    pub fn members(&self) -> u64 {
        self.levels.iter().fold(0, |members, level| members.saturating_add(level.members))
    }

    /// How many ranks were content the segment.
    pub fn segments(&self) -> u64 {
        self.levels.iter().fold(0, |segments, level| segments.saturating_add(level.counted.segments))
    }

    /// Whether it can be of `subtree`: what comes from a peer is checked with this.
    pub fn is_of(&self, subtree: Subtree) -> bool {
        self.levels.first().is_some_and(|head| head.members == 1)
            && self.members() <= u64::from(subtree.size())
            && self.levels.len() <= subtree.depth() as usize + 1
            && self.levels.iter().all(|level| level.members > 0 && level.fences.is_consistent())
    }
}

/// What a peer says may be anything: sums stay within their type.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

#[cfg(test)]
mod tests;
