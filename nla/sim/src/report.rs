//! The report of a run: times, traffic, gets and memory.

use std::fmt;
use std::time::Duration;

use nla::core::{CachePeaks, CachePolicy, DurationHistogram, GetCounts, Outcome, Stats};
use nla::figures;
use serde::{Deserialize, Serialize};

use crate::oracle::FenceRecord;
use crate::program::Pattern;

/// The number of messages and their bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// The number of messages.
    pub messages: u64,
    /// Their bytes on the wire, encryption and framing included.
    pub bytes: u64,
    /// Their encoded bytes, as the drivers count them.
    pub encoded: u64,
}

/// The traffic on the links between two levels of the tree.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Level {
    /// To the root, in the board lane: fences, puts, gets.
    pub up_board: Traffic,
    /// To the root, in the control lane.
    pub up_control: Traffic,
    /// From the root, in the board lane.
    pub down_board: Traffic,
    /// From the root, in the control lane: plans, signals, ends.
    pub down_control: Traffic,
}

/// The times and the size of one fence.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FenceReport {
    /// From the first rank's arrival to the last rank's, in nanoseconds.
    pub gathering: u64,
    /// From the last rank's arrival to the last rank's release, in nanoseconds.
    pub releasing: u64,
    /// The number of new entries on the board.
    pub entries: u64,
    /// The bytes sent down about them.
    pub bytes: u64,
}

/// The sources of the answers to gets.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GetsReport {
    /// Gets that the rank's own agent answered at once.
    pub here: u64,
    /// Gets that waited for the answer to another rank's get of the same key.
    pub waited: u64,
    /// The gets that reached the cores of each level, from the root down. Gets that a board answered are not counted.
    pub levels: Vec<GetCounts>,
}

/// The part of the board that places of one kind stored.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    /// The number of places.
    pub members: u32,
    /// The highest peak of any place, for each figure separately.
    pub max: CachePeaks,
}

/// The highest number of messages that one place sent about one fence.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FenceMessages {
    /// To its parent, up to the release: `Gathered`, with `Gathering` and `Put` before it.
    pub up: u64,
    /// To its children: releases.
    pub down: u64,
}

/// The results of a run. Times are virtual, in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The number of agents in the tree.
    pub agents: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// The fan-out: the highest number of children.
    pub fanout: u32,
    /// The number of links between the root and the farthest agent.
    pub depth: u32,
    /// The cache policy of the agents.
    pub cache: CachePolicy,
    /// The entries that ranks got from each other; `None` if their programs were drawn from the seed.
    pub pattern: Option<Pattern>,
    /// The seed of the faults and of all other randomness.
    pub seed: u64,
    /// How the session ended.
    pub outcome: String,
    /// When all agents had joined.
    pub joined: u64,
    /// When the root learned that all ranks had been started.
    pub started: u64,
    /// The fences.
    pub fences: Vec<FenceReport>,
    /// From the last release from the fence after the puts until the last get was answered.
    pub getting: u64,
    /// From the first arrival at the fence after the puts until the last get was answered.
    pub exchange: u64,
    /// When the session ended.
    pub over: u64,
    /// The traffic by level, from the links of the root down.
    pub levels: Vec<Level>,
    /// The sources of the answers to gets.
    pub gets: GetsReport,
    /// The memory of the root.
    pub root: Memory,
    /// The memory of agents with children.
    pub inner: Memory,
    /// The memory of agents without children.
    pub leaves: Memory,
    /// The highest number of messages that one place sent about one fence.
    pub fence_messages: FenceMessages,
    /// The statistics that the places counted and reported to the root, as `--stats` prints them.
    pub stats: Stats,
    /// The number of faults that struck.
    pub struck: u32,
    /// How often agents whose parents were lost have joined others.
    pub rejoined: u32,
    /// How often ranks have started again.
    pub restarted: u32,
    /// The agents that no fault had hit and that were lost with others.
    pub given_up: u32,
    /// The number of events of the simulation.
    pub events: u64,
}

/// The kind of a place.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum MemberKind {
    Root,
    Inner,
    Leaf,
}

/// The counters of a run in progress.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) joined: u64,
    pub(crate) started: u64,
    pub(crate) over: u64,
    pub(crate) struck: u32,
    pub(crate) rejoined: u32,
    pub(crate) restarted: u32,
    pub(crate) given_up: u32,
    pub(crate) events: u64,
    pub(crate) gets: GetsReport,
    /// The number of releases sent.
    pub(crate) released: u64,
    levels: Vec<Level>,
    lockstep: Vec<GetCounts>,
    /// The root's processor time for each fence, after all ranks had arrived.
    pub(crate) fences: DurationHistogram,
    merged: Vec<(u64, u64)>,
    memory: [Memory; 3],
    fence_messages: FenceMessages,
}

impl Counts {
    pub(crate) fn new(depth: u32) -> Self {
        let gets = GetsReport { levels: vec![GetCounts::default(); depth as usize + 1], ..GetsReport::default() };
        let lockstep = vec![GetCounts::default(); depth as usize + 1];
        Self { levels: vec![Level::default(); depth as usize], gets, lockstep, ..Self::default() }
    }

    /// A message was sent over a link whose lower end is at `depth`.
    pub(crate) fn note_sent(&mut self, depth: u32, is_up: bool, is_board: bool, encoded: usize, bytes: u64) {
        let level = &mut self.levels[depth as usize - 1];
        let traffic = match (is_up, is_board) {
            (true, true) => &mut level.up_board,
            (true, false) => &mut level.up_control,
            (false, true) => &mut level.down_board,
            (false, false) => &mut level.down_control,
        };
        traffic.messages += 1;
        traffic.bytes += bytes;
        traffic.encoded += encoded as u64;
    }

    /// The root has merged a fence's puts.
    pub(crate) fn on_merged(&mut self, number: u32, entries: u64, bytes: u64) {
        self.merged.resize(self.merged.len().max(number as usize + 1), (0, 0));
        self.merged[number as usize] = (entries, bytes);
    }

    /// An agent has sent this many messages about a fence to its parent.
    pub(crate) fn note_fence_messages_up(&mut self, messages: u32) {
        self.fence_messages.up = self.fence_messages.up.max(messages.into());
    }

    /// A place may have sent releases. `before` is the number that all places had sent before.
    pub(crate) fn note_releases(&mut self, before: u64) {
        self.fence_messages.down = self.fence_messages.down.max(self.released - before);
    }

    /// A place has finished.
    pub(crate) fn note_member(&mut self, kind: MemberKind, depth: u32, peaks: CachePeaks, gets: GetCounts) {
        let memory = &mut self.memory[kind as usize];
        memory.members += 1;
        memory.max = memory.max.max(peaks);
        let level = &mut self.gets.levels[depth as usize];
        *level = level.plus(gets);
    }

    /// Counts the gets of an agent's other ranks in lockstep. One rank's get went to the core; these would have gone
    /// there too.
    pub(crate) fn note_lockstep(&mut self, depth: u32, gets: GetCounts) {
        self.gets.here += gets.own;
        self.gets.waited += gets.joined;
        let level = &mut self.lockstep[depth as usize];
        *level = level.plus(gets);
    }

    fn fences(&self, records: &[FenceRecord]) -> Vec<FenceReport> {
        let fences = records.iter().enumerate().map(|(number, record)| {
            let (entries, bytes) = self.merged.get(number).copied().unwrap_or_default();
            let (first, last) = record.arrivals.unwrap_or_default();
            let releasing = record.last_release.saturating_sub(last);
            FenceReport { gathering: last - first, releasing, entries, bytes }
        });
        fences.collect()
    }
}

impl crate::world::World {
    /// Returns the report of the run.
    pub(crate) fn report(&self, fanout: u32, pattern: Option<Pattern>, seed: u64) -> Report {
        let counts = &self.counts;
        let exchanged = self.oracle.fences.get(self.setup.program.fences_before_gets() - 1);
        let released = exchanged.map_or(0, |fence| fence.last_release);
        let put = exchanged.and_then(|fence| fence.arrivals).map_or(0, |(first, _)| first);
        let [root, inner, leaves] = counts.memory;
        let mut gets = counts.gets.clone();
        let mut stats = self.root.stats(self.members[0].driver_counts, counts.fences.clone());
        for (depth, lockstep) in counts.lockstep.iter().enumerate() {
            gets.levels[depth] = gets.levels[depth].plus(*lockstep);
            if let Some(level) = stats.levels.get_mut(depth) {
                level.gets = level.gets.plus(*lockstep);
            }
        }
        Report {
            agents: self.members.len() as u32 - 1,
            ranks: self.oracle.ranks,
            fanout,
            depth: counts.levels.len() as u32,
            cache: self.setup.cache,
            pattern,
            seed,
            outcome: match &self.outcome {
                Some((_, Outcome::Success)) => "success".to_owned(),
                Some((_, outcome)) => format!("{outcome:?}"),
                None => "none".to_owned(),
            },
            joined: counts.joined,
            started: counts.started,
            fences: counts.fences(&self.oracle.fences),
            getting: self.oracle.last_get.saturating_sub(released),
            exchange: self.oracle.last_get.max(released).saturating_sub(put),
            over: counts.over,
            levels: counts.levels.clone(),
            gets,
            stats,
            root,
            inner,
            leaves,
            fence_messages: counts.fence_messages,
            struck: counts.struck,
            rejoined: counts.rejoined,
            restarted: counts.restarted,
            given_up: counts.given_up,
            events: counts.events,
        }
    }
}

/// Formats a time.
fn time(nanoseconds: u64) -> String {
    figures::time(Duration::from_nanos(nanoseconds))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { agents, ranks, fanout, depth, cache, .. } = self;
        let ranks = figures::counted((*ranks).into(), "rank");
        let agents = figures::counted((*agents).into(), "agent");
        writeln!(f, "simulated: {ranks} on {agents}, fan-out {fanout}, depth {depth}, {cache}")?;
        let mut line = |label: &str, value: String| writeln!(f, "  {label:<28} {value:>14}");
        line("agents joined", time(self.joined))?;
        line("ranks started", time(self.started))?;
        for (number, fence) in self.fences.iter().enumerate() {
            line(&format!("fence {number}: to the last arrival"), time(fence.gathering))?;
            line(&format!("fence {number}: to the last release"), time(fence.releasing))?;
            if fence.entries > 0 || fence.bytes > 0 {
                line(&format!("fence {number}: new entries"), fence.entries.to_string())?;
                line(&format!("fence {number}: sent down"), figures::bytes(fence.bytes))?;
            }
        }
        let gets = &self.gets;
        let asked: u64 = gets.levels.iter().skip(1).map(|level| level.asked).sum();
        if gets.here + gets.waited + asked > 0 {
            line("gets", time(self.getting))?;
        }
        line("session ended", time(self.over))?;
        self.write_links(f)?;
        if gets.here + gets.waited + asked > 0 {
            self.write_gets(f)?;
        }
        self.write_memory(f)?;
        let FenceMessages { up, down } = self.fence_messages;
        writeln!(f, "most messages of one place about one fence: {up} up, {down} down")?;
        if self.struck > 0 || self.outcome != "success" {
            writeln!(f, "{} faults struck; outcome: {}", self.struck, self.outcome)?;
        }
        Ok(())
    }
}

impl Report {
    fn write_links(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "links       {:>24}{:>24}{:>24}{:>24}", "board up", "board down", "control up", "control down")?;
        let cell = |traffic: Traffic| format!("{} / {}", traffic.messages, figures::bytes(traffic.bytes));
        for (number, level) in self.levels.iter().enumerate() {
            let lanes = [level.up_board, level.down_board, level.up_control, level.down_control].map(cell);
            let [up_board, down_board, up_control, down_control] = lanes;
            writeln!(
                f,
                "  {:<10}{up_board:>24}{down_board:>24}{up_control:>24}{down_control:>24}",
                format!("level {}", number + 1)
            )?;
        }
        Ok(())
    }

    fn write_gets(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "gets answered by the rank's agent: {} at once, {} with another rank's get",
            self.gets.here, self.gets.waited
        )?;
        writeln!(f, "  {:<10}{:>16}{:>16}{:>16}", "at level", "for others", "asked on", "joined")?;
        for (number, level) in self.gets.levels.iter().enumerate() {
            let name = if number == 0 { "root".to_owned() } else { number.to_string() };
            writeln!(f, "  {name:<10}{:>16}{:>16}{:>16}", level.others, level.asked, level.joined)?;
        }
        Ok(())
    }

    fn write_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "the board at {:<12}{:>10}{:>12}{:>12}{:>12}{:>12}",
            "", "places", "entries", "bytes", "own", "index"
        )?;
        for (name, memory) in [("the root", self.root), ("inner agents", self.inner), ("leaves", self.leaves)] {
            let CachePeaks { entries, bytes, own_entries, index_entries, .. } = memory.max;
            let bytes = figures::bytes(bytes);
            writeln!(
                f,
                "  {name:<23}{:>10}{entries:>12}{bytes:>12}{own_entries:>12}{index_entries:>12}",
                memory.members
            )?;
        }
        Ok(())
    }
}
