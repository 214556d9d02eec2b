//! What a run has shown.

use std::fmt;

use nla::core::{CachePeaks, CachePolicy, DurationHistogram, GetCounts, Outcome, Stats};
use serde::{Deserialize, Serialize};

use crate::oracle::Meeting;
use crate::program::Pattern;

/// Messages and their bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// How many.
    pub messages: u64,
    /// Their bytes on the wire, encryption and framing included.
    pub bytes: u64,
    /// Their own bytes, as the drivers count them.
    pub encoded: u64,
}

/// What went over the links between two levels of the tree.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Level {
    /// Toward the root, in the board's lane: fences, puts, gets.
    pub up_board: Traffic,
    /// Toward the root, in the control lane.
    pub up_control: Traffic,
    /// Away from the root, in the board's lane.
    pub down_board: Traffic,
    /// Away from the root, in the control lane: plans, signals, ends.
    pub down_control: Traffic,
}

/// One fence.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FenceReport {
    /// From the first rank's arrival to the last one's, in nanoseconds.
    pub gathering: u64,
    /// From the last rank's arrival until the last rank was released, in nanoseconds.
    pub releasing: u64,
    /// New entries on the board.
    pub entries: u64,
    /// Bytes of what was sent down about them.
    pub bytes: u64,
}

/// How gets were answered.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GetsReport {
    /// By the rank's own agent, at once.
    pub here: u64,
    /// By the rank's own agent, together with another rank's get of the same key that was asked on.
    pub waited: u64,
    /// Gets that came to the cores of each level, the root's first: those that boards answered did not.
    pub levels: Vec<GetCounts>,
}

/// What places of one kind have held of the board.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    /// How many places.
    pub places: u32,
    /// The most that one of them has held at a time, each figure by itself; of evictions the most.
    pub most: CachePeaks,
}

/// Messages about one fence that one place has sent.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FenceMessages {
    /// The most to its parent, up to the release: what has gathered, and puts ahead of it.
    pub up: u64,
    /// The most to its children: releases.
    pub down: u64,
}

/// All that a run has shown. Times are virtual, in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Agents in the tree.
    pub agents: u32,
    /// Ranks on them.
    pub ranks: u32,
    /// The most children of an agent.
    pub fanout: u32,
    /// Links between the root and the farthest agent.
    pub depth: u32,
    /// What agents keep of the board.
    pub cache: CachePolicy,
    /// What ranks got from each other; nothing where what they do was drawn from the seed.
    pub pattern: Option<Pattern>,
    /// What faults are drawn from, and all else that is left to chance.
    pub seed: u64,
    /// How the session ended.
    pub outcome: String,
    /// When all agents had joined.
    pub joined: u64,
    /// When the root knew that all ranks had been started.
    pub started: u64,
    /// The fences.
    pub fences: Vec<FenceReport>,
    /// From the last rank's release from the fence after the puts until the last get was answered.
    pub getting: u64,
    /// From the first rank's arrival at the fence after the puts until the last get was answered.
    pub exchange: u64,
    /// When the session was over.
    pub over: u64,
    /// By level: first the links right below the root.
    pub levels: Vec<Level>,
    /// How gets were answered.
    pub gets: GetsReport,
    /// What the root has held.
    pub root: Memory,
    /// What agents with children have held.
    pub inner: Memory,
    /// What agents without children have held.
    pub leaves: Memory,
    /// The most that one place has sent about one fence.
    pub fence_messages: FenceMessages,
    /// What the places themselves have counted and told the root, as `--stats` shows it.
    pub stats: Stats,
    /// How many faults struck.
    pub struck: u32,
    /// How many events the simulation took.
    pub events: u64,
}

/// Up or down.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Up,
    Down,
}

/// Which kind of place.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    Root,
    Inner,
    Leaf,
}

/// Counts while a run goes on.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) joined: u64,
    pub(crate) started: u64,
    pub(crate) over: u64,
    pub(crate) struck: u32,
    pub(crate) events: u64,
    pub(crate) gets: GetsReport,
    /// Releases that were sent.
    pub(crate) released: u64,
    levels: Vec<Level>,
    in_step: Vec<GetCounts>,
    /// The root's time for each fence once all had arrived.
    pub(crate) fences: DurationHistogram,
    merged: Vec<(u64, u64)>,
    memory: [Memory; 3],
    fence_messages: FenceMessages,
}

impl Tally {
    pub(crate) fn new(depth: u32) -> Self {
        let gets = GetsReport { levels: vec![GetCounts::default(); depth as usize + 1], ..GetsReport::default() };
        let in_step = vec![GetCounts::default(); depth as usize + 1];
        Self { levels: vec![Level::default(); depth as usize], gets, in_step, ..Self::default() }
    }

    /// A message goes over a link whose lower end is at `depth`.
    pub(crate) fn note_sent(&mut self, depth: u32, way: Way, is_board: bool, encoded: usize, bytes: u64) {
        let level = &mut self.levels[depth as usize - 1];
        let traffic = match (way, is_board) {
            (Way::Up, true) => &mut level.up_board,
            (Way::Up, false) => &mut level.up_control,
            (Way::Down, true) => &mut level.down_board,
            (Way::Down, false) => &mut level.down_control,
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

    /// An agent has sent so many messages about a fence to its parent.
    pub(crate) fn note_told_up(&mut self, messages: u32) {
        self.fence_messages.up = self.fence_messages.up.max(messages.into());
    }

    /// A place has sent releases; `before` is how many had been sent by all before it did.
    pub(crate) fn note_told_down(&mut self, before: u64) {
        self.fence_messages.down = self.fence_messages.down.max(self.released - before);
    }

    /// A place is done.
    pub(crate) fn note_place(&mut self, which: Which, depth: u32, held: CachePeaks, gets: GetCounts) {
        let memory = &mut self.memory[which as usize];
        memory.places += 1;
        let most = &mut memory.most;
        *most = most.max(held);
        let level = &mut self.gets.levels[depth as usize];
        *level = level.plus(gets);
    }

    /// Gets of an agent's ranks that make them in step: one of them went to the core, and these would have
    /// done as it did.
    pub(crate) fn note_in_step(&mut self, depth: u32, gets: GetCounts) {
        self.gets.here += gets.own;
        self.gets.waited += gets.joined;
        let level = &mut self.in_step[depth as usize];
        *level = level.plus(gets);
    }

    fn fences(&self, meetings: &[Meeting]) -> Vec<FenceReport> {
        let fences = meetings.iter().enumerate().map(|(number, meeting)| {
            let (entries, bytes) = self.merged.get(number).copied().unwrap_or_default();
            let (first, last) = meeting.arrivals.unwrap_or_default();
            let releasing = meeting.last_release.saturating_sub(last);
            FenceReport { gathering: last - first, releasing, entries, bytes }
        });
        fences.collect()
    }
}

impl crate::world::World {
    /// What the run has shown.
    pub(crate) fn report(&self, fanout: u32, pattern: Option<Pattern>, seed: u64) -> Report {
        let tally = &self.tally;
        let exchanged = self.watch.fences.get(self.program.fences_before_gets() - 1);
        let released = exchanged.map_or(0, |fence| fence.last_release);
        let put = exchanged.and_then(|fence| fence.arrivals).map_or(0, |(first, _)| first);
        let [root, inner, leaves] = tally.memory;
        let mut gets = tally.gets.clone();
        let mut stats = self.root.stats(self.places[0].counted, tally.fences.clone());
        for (depth, in_step) in tally.in_step.iter().enumerate() {
            gets.levels[depth] = gets.levels[depth].plus(*in_step);
            if let Some(level) = stats.levels.get_mut(depth) {
                level.gets = level.gets.plus(*in_step);
            }
        }
        Report {
            agents: self.places.len() as u32 - 1,
            ranks: self.watch.ranks(),
            fanout,
            depth: tally.levels.len() as u32,
            cache: self.cache,
            pattern,
            seed,
            outcome: match &self.outcome {
                Some((_, Outcome::Success)) => "success".to_owned(),
                Some((_, outcome)) => format!("{outcome:?}"),
                None => "none".to_owned(),
            },
            joined: tally.joined,
            started: tally.started,
            fences: tally.fences(&self.watch.fences),
            getting: self.watch.last_get.saturating_sub(released),
            exchange: self.watch.last_get.max(released).saturating_sub(put),
            over: tally.over,
            levels: tally.levels.clone(),
            gets,
            stats,
            root,
            inner,
            leaves,
            fence_messages: tally.fence_messages,
            struck: tally.struck,
            events: tally.events,
        }
    }
}

/// A time as people read it.
fn time(nanoseconds: u64) -> String {
    format!("{:.3} ms", nanoseconds as f64 / 1e6)
}

/// So many bytes as people read it.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        ..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { agents, ranks, fanout, depth, cache, .. } = self;
        writeln!(f, "simulated: {ranks} ranks on {agents} agents, fan-out {fanout}, depth {depth}, {cache}")?;
        let mut line = |what: &str, value: String| writeln!(f, "  {what:<28} {value:>14}");
        line("agents joined", time(self.joined))?;
        line("ranks started", time(self.started))?;
        for (number, fence) in self.fences.iter().enumerate() {
            line(&format!("fence {number}: to the last arrival"), time(fence.gathering))?;
            line(&format!("fence {number}: to the last release"), time(fence.releasing))?;
            if fence.entries > 0 || fence.bytes > 0 {
                line(&format!("fence {number}: new entries"), fence.entries.to_string())?;
                line(&format!("fence {number}: sent down"), size(fence.bytes))?;
            }
        }
        let gets = &self.gets;
        let asked: u64 = gets.levels.iter().skip(1).map(|level| level.asked).sum();
        if gets.here + gets.waited + asked > 0 {
            line("gets", time(self.getting))?;
        }
        line("session over", time(self.over))?;
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
        let cell = |traffic: Traffic| format!("{} / {}", traffic.messages, size(traffic.bytes));
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
            "gets answered by the rank's agent: {} at once, {} with another's",
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
            "", "places", "entries", "bytes", "of own", "index"
        )?;
        for (name, memory) in [("the root", self.root), ("inner agents", self.inner), ("leaves", self.leaves)] {
            let CachePeaks { entries, bytes, own_entries, index_entries, .. } = memory.most;
            let bytes = size(bytes);
            writeln!(
                f,
                "  {name:<23}{:>10}{entries:>12}{bytes:>12}{own_entries:>12}{index_entries:>12}",
                memory.places
            )?;
        }
        Ok(())
    }
}
