//! The statistics of a session: the file of `--stats`, which docs/statistics.md describes.

use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;

use crate::policy::Caching;

/// The statistics of a session.
#[derive(Clone, Debug, Deserialize)]
pub struct Stats {
    version: u32,
    policy: String,
    /// The bound on values of other ranks in a cache, if the policy has one.
    pub cache_entries: Option<u32>,
    /// The largest number of children of an agent.
    pub fanout: u32,
    agents: u32,
    agents_reported: u32,
    /// The number of ranks that read their agent's shared segment.
    pub ranks_with_segment: u32,
    /// The levels of the tree, from the launcher down.
    pub levels: Vec<Level>,
}

/// The agents of one level of the tree together; level 0 is the launcher.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Level {
    /// The number of links to the launcher.
    pub level: u32,
    /// The number of agents.
    pub places: u32,
    /// Messages to their parents.
    pub up: Lanes,
    /// Messages to their children.
    pub down: Lanes,
    /// All bytes written to links, encryption included.
    pub link_bytes: u64,
    /// How gets were answered.
    pub gets: Gets,
    /// How much of the board was stored.
    pub held: Peaks,
}

/// Messages by subject.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Lanes {
    /// Puts, fences, look-ups and their answers.
    pub board: Traffic,
    /// Everything else.
    pub control: Traffic,
}

/// Messages and their bytes.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Traffic {
    /// The number of messages.
    pub messages: u64,
    /// Their total size.
    pub bytes: u64,
}

/// How gets were answered. Gets that ranks answer themselves from the shared segment are not counted.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Gets {
    /// Gets of the agent's ranks, answered from the part of the board that the ranks' tasks read directly.
    pub board: u64,
    /// Gets of the agent's ranks, answered by its core.
    pub own: u64,
    /// Look-ups of other agents, answered here.
    pub others: u64,
    /// Look-ups sent to another agent.
    pub asked: u64,
    /// Gets that waited for the answer to a look-up already sent.
    pub joined: u64,
}

/// Peaks of what the agents of a level stored.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Peaks {
    /// The maximum over agents, for each quantity.
    pub max: Held,
    /// The sum over agents.
    pub sum: Held,
}

/// The peak size of a stored board.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Held {
    /// The bytes of keys and values except those of `own_bytes`.
    pub bytes: u64,
    /// The bytes of keys and values of the agent's ranks that are stored separately.
    pub own_bytes: u64,
    /// The number of keys for which the child with the value is known.
    pub index_entries: u64,
    /// The number of evicted values.
    pub evictions: u64,
}

impl Stats {
    /// Reads the statistics of a session that was started with `caching` and `np` ranks.
    ///
    /// # Errors
    /// If the file is missing or describes another session.
    pub fn read(caching: &Caching, np: u32) -> Result<Self, String> {
        let text = read(&caching.stats).map_err(|error| format!("no statistics: {error}"))?;
        Self::parse(&text, caching, np)
    }

    /// Reads the statistics of a session.
    ///
    /// # Errors
    /// If the file is missing or malformed, or if some agents have not reported.
    pub fn of_file(path: &Path) -> Result<Self, String> {
        let text = read(path).map_err(|error| format!("no statistics: {error}"))?;
        Self::parse_any(&text)
    }

    /// Returns the messages of both lanes over all links.
    #[must_use]
    pub fn messages(&self) -> u64 {
        let of = |lanes: &Lanes| lanes.board.messages + lanes.control.messages;
        self.levels.iter().map(|level| of(&level.up) + of(&level.down)).sum()
    }

    fn parse(text: &str, caching: &Caching, np: u32) -> Result<Self, String> {
        let stats = Self::parse_any(text)?;
        let entries = caching.policy.entries(np);
        let is_bound = entries.is_none() || stats.cache_entries == entries;
        if stats.policy != caching.policy.name() || stats.fanout != caching.fanout || !is_bound {
            let Self { policy, cache_entries, fanout, .. } = stats;
            return Err(format!(
                "statistics of another session: {policy}, entries {cache_entries:?}, fan-out {fanout}"
            ));
        }
        Ok(stats)
    }

    fn parse_any(text: &str) -> Result<Self, String> {
        let stats: Self = serde_json::from_str(text).map_err(|error| format!("malformed statistics: {error}"))?;
        if stats.version != VERSION {
            return Err(format!("statistics of version {}", stats.version));
        }
        if stats.agents_reported != stats.agents {
            return Err(format!("statistics of {} of {} agents", stats.agents_reported, stats.agents));
        }
        Ok(stats)
    }

    /// Returns the stored size at the agent that stored most.
    #[must_use]
    pub fn fullest_agent(&self) -> Held {
        let agents = self.levels.iter().filter(|level| level.level > 0);
        agents.map(|level| level.held.max).max_by_key(|held| held.all_bytes()).unwrap_or_default()
    }

    /// Returns the bytes stored at the launcher.
    #[must_use]
    pub fn launcher_bytes(&self) -> u64 {
        self.levels.iter().find(|level| level.level == 0).map_or(0, |level| level.held.sum.all_bytes())
    }

    /// Returns the bytes stored at all agents and the launcher.
    #[must_use]
    pub fn all_bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.held.sum.all_bytes()).sum()
    }

    /// Returns the number of values that agents have evicted.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.levels.iter().map(|level| level.held.sum.evictions).sum()
    }

    /// Returns the number of board messages over all links in both directions.
    #[must_use]
    pub fn board_messages(&self) -> u64 {
        self.levels.iter().map(|level| level.up.board.messages + level.down.board.messages).sum()
    }

    /// Returns the bytes of these messages.
    #[must_use]
    pub fn board_bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.up.board.bytes + level.down.board.bytes).sum()
    }
}

impl Held {
    /// Returns the bytes of keys, values and the index.
    #[must_use]
    pub fn all_bytes(self) -> u64 {
        self.bytes + self.own_bytes + self.index_bytes()
    }

    /// Estimates the size of the index from its number of keys.
    #[must_use]
    pub fn index_bytes(self) -> u64 {
        self.index_entries * INDEX_ENTRY_BYTES
    }
}

/// Reads and removes the file, so that a later session cannot be confused with this one.
fn read(path: &Path) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    fs::remove_file(path)?;
    Ok(text)
}

const VERSION: u32 = 1;
/// A hash of 8 bytes and the number of a child.
const INDEX_ENTRY_BYTES: u64 = 8 + 4;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::policy::{Bound, Policy};

    /// Returns the JSON of a level with these stored sizes: the maximum and the sum.
    fn level(level: u32, places: u32, held: &str, sum: &str) -> String {
        let lanes = r#"{"board":{"messages":3,"bytes":70},"control":{"messages":1,"bytes":9}}"#;
        format!(
            r#"{{"level":{level},"places":{places},"up":{lanes},"down":{lanes},"link_bytes":200,"stream_bytes":0,
            "gets":{{"board":5,"own":0,"others":0,"asked":2,"joined":1}},"held":{{"max":{held},"sum":{sum}}},
            "fences":{{"count":2,"min_s":0.1,"median_s":0.2,"max_s":0.3}}}}"#
        )
    }

    fn held(bytes: u64, own_bytes: u64, index_entries: u64, evictions: u64) -> String {
        format!(
            r#"{{"entries":1,"bytes":{bytes},"own_entries":1,"own_bytes":{own_bytes},"index_entries":{index_entries},
            "evictions":{evictions}}}"#
        )
    }

    fn reported(reported: u32) -> String {
        let root = level(0, 1, &held(100, 0, 10, 2), &held(100, 0, 10, 2));
        let agents = level(1, 2, &held(40, 8, 1, 3), &held(70, 16, 1, 5));
        format!(
            r#"{{"version":1,"policy":"hcmab-lru","cache_entries":2,"ranks":16,"agents":2,"agents_reported":{reported},
            "fanout":4,"ranks_with_segment":0,"levels":[{root},{agents}]}}"#
        )
    }

    fn caching(fanout: u32) -> Caching {
        Caching { policy: Policy::HcmabLru(Bound::RanksBy(8)), fanout, stats: PathBuf::new() }
    }

    #[test]
    fn bytes_are_values_and_an_estimate_of_the_index() {
        let stats = Stats::parse(&reported(2), &caching(4), 16).unwrap();
        assert_eq!(stats.launcher_bytes(), 100 + 10 * INDEX_ENTRY_BYTES);
        assert_eq!(stats.fullest_agent().all_bytes(), 40 + 8 + INDEX_ENTRY_BYTES);
        assert_eq!(stats.all_bytes(), 100 + 70 + 16 + 11 * INDEX_ENTRY_BYTES);
        assert_eq!((stats.board_messages(), stats.board_bytes(), stats.evictions()), (12, 280, 7));
    }

    #[test]
    fn statistics_of_another_session_are_refused() {
        let error = |text: &str, fanout, np| Stats::parse(text, &caching(fanout), np).unwrap_err();
        let other = "statistics of another session: hcmab-lru, entries Some(2), fan-out 4";
        assert_eq!([error(&reported(2), 32, 16), error(&reported(2), 4, 64)], [other, other]);
        assert_eq!(error(&reported(1), 4, 16), "statistics of 1 of 2 agents");
        assert_eq!(error(&reported(2).replace("\"version\":1", "\"version\":2"), 4, 16), "statistics of version 2");
        assert!(error("{}", 4, 16).starts_with("malformed statistics"));
    }

    #[test]
    fn statistics_are_read_once() {
        let scratch = tempfile::tempdir().unwrap();
        let caching = Caching { stats: scratch.path().join("stats.json"), ..caching(4) };
        fs::write(&caching.stats, reported(2)).unwrap();
        assert!(Stats::read(&caching, 16).is_ok());
        assert!(Stats::read(&caching, 16).unwrap_err().starts_with("no statistics"));
    }
}
