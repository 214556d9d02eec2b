//! What scela-run counted of a session: the file that `--stats` names, which docs/statistics.md describes.

use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;
use thiserror::Error;

use crate::policy::Caching;

/// All that was counted.
#[derive(Clone, Debug, Deserialize)]
pub struct Stats {
    version: u32,
    policy: String,
    /// The bound on values of others in a cache, where there is one.
    pub cache_entries: Option<u32>,
    /// The most children that an agent had.
    pub fanout: u32,
    agents: u32,
    agents_reported: u32,
    /// How many ranks read their agent's memory.
    pub ranks_with_segment: u32,
    /// From the launcher down, by the number of links to it.
    pub levels: Vec<Level>,
}

/// The places of one level of the tree together.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Level {
    /// The number of links to the launcher.
    pub level: u32,
    /// How many places there are.
    pub places: u32,
    /// What they sent to their parents.
    pub up: Lanes,
    /// What they sent to their children.
    pub down: Lanes,
    /// What they wrote to links in all, sealed.
    pub link_bytes: u64,
    /// What became of gets.
    pub gets: Gets,
    /// How much of the board was held.
    pub held: Peaks,
}

/// Messages by what they are about.
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
    /// How many.
    pub messages: u64,
    /// How large together.
    pub bytes: u64,
}

/// What became of gets. Those that ranks answer themselves out of their agent's memory, nobody counts.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Gets {
    /// Of own ranks, answered by what the agent lets their tasks read.
    pub board: u64,
    /// Of own ranks, answered by the agent's core.
    pub own: u64,
    /// Of other places, answered here.
    pub others: u64,
    /// Sent on to another place.
    pub asked: u64,
    /// Waiting for the answer to a question that was on its way already.
    pub joined: u64,
}

/// Peaks of what the places of a level held.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Peaks {
    /// The most of any place, quantity by quantity.
    pub max: Held,
    /// All places together.
    pub sum: Held,
}

/// What was held of a board at most.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Held {
    /// Keys and values, but for those of `own_bytes`.
    pub bytes: u64,
    /// Keys and values of own ranks that are kept beside them.
    pub own_bytes: u64,
    /// Keys of which it is known below which child they were put.
    pub index_entries: u64,
    /// Values that had to go.
    pub evictions: u64,
}

/// Why there are no counts.
#[derive(Debug, Error)]
pub enum StatsError {
    /// There is no such file.
    #[error("no counts: {0}")]
    Unread(#[from] io::Error),
    /// It does not say what it should.
    #[error("counts that cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// It says it in another way.
    #[error("counts of version {0}")]
    Version(u32),
    /// Another policy or tree was counted than the one that was asked for.
    #[error("counts of another session: {0}")]
    Other(String),
    /// Agents are missing in it.
    #[error("counts of {reported} of {agents} agents")]
    Missing {
        /// How many told theirs.
        reported: u32,
        /// How many there were.
        agents: u32,
    },
}

impl Stats {
    /// Reads what scela-run wrote of a session that was asked for with `caching` and `np` ranks.
    ///
    /// # Errors
    /// Where it did not write, or of another session.
    pub fn read(caching: &Caching, np: u32) -> Result<Self, StatsError> {
        Self::parse(&read(&caching.stats)?, caching, np)
    }

    fn parse(text: &str, caching: &Caching, np: u32) -> Result<Self, StatsError> {
        let stats: Self = serde_json::from_str(text)?;
        if stats.version != VERSION {
            return Err(StatsError::Version(stats.version));
        }
        let entries = caching.policy.entries(np);
        let is_bound = entries.is_none() || stats.cache_entries == entries;
        if stats.policy != caching.policy.name() || stats.fanout != caching.fanout || !is_bound {
            let Self { policy, cache_entries, fanout, .. } = stats;
            return Err(StatsError::Other(format!("{policy}, entries {cache_entries:?}, fan-out {fanout}")));
        }
        if stats.agents_reported != stats.agents {
            return Err(StatsError::Missing { reported: stats.agents_reported, agents: stats.agents });
        }
        Ok(stats)
    }

    /// What the fullest agent held of the board.
    #[must_use]
    pub fn fullest_agent(&self) -> Held {
        let agents = self.levels.iter().filter(|level| level.level > 0);
        agents.map(|level| level.held.max).max_by_key(|held| held.all_bytes()).unwrap_or_default()
    }

    /// What the launcher held of it.
    #[must_use]
    pub fn launcher_bytes(&self) -> u64 {
        self.levels.iter().find(|level| level.level == 0).map_or(0, |level| level.held.sum.all_bytes())
    }

    /// What all agents and the launcher held of it.
    #[must_use]
    pub fn all_bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.held.sum.all_bytes()).sum()
    }

    /// How many values the agents let go.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.levels.iter().map(|level| level.held.sum.evictions).sum()
    }

    /// Messages about the board over all links, both ways.
    #[must_use]
    pub fn board_messages(&self) -> u64 {
        self.levels.iter().map(|level| level.up.board.messages + level.down.board.messages).sum()
    }

    /// Their bytes.
    #[must_use]
    pub fn board_bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.up.board.bytes + level.down.board.bytes).sum()
    }
}

impl Held {
    /// Values with their keys, and the index.
    #[must_use]
    pub fn all_bytes(self) -> u64 {
        self.bytes + self.own_bytes + self.index_bytes()
    }

    /// The index, as far as it can be told from the number of keys.
    #[must_use]
    pub fn index_bytes(self) -> u64 {
        self.index_entries * INDEX_ENTRY_BYTES
    }
}

/// The file, which must not be read again for a later session.
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

    /// A level, of which an agent and all together held so much.
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

    fn told(reported: u32) -> String {
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
        let stats = Stats::parse(&told(2), &caching(4), 16).unwrap();
        assert_eq!(stats.launcher_bytes(), 100 + 10 * INDEX_ENTRY_BYTES);
        assert_eq!(stats.fullest_agent().all_bytes(), 40 + 8 + INDEX_ENTRY_BYTES);
        assert_eq!(stats.all_bytes(), 100 + 70 + 16 + 11 * INDEX_ENTRY_BYTES);
        assert_eq!((stats.board_messages(), stats.board_bytes(), stats.evictions()), (12, 280, 7));
    }

    #[test]
    fn counts_of_another_session_are_not_taken() {
        let error = |text: &str, fanout, np| Stats::parse(text, &caching(fanout), np).unwrap_err().to_string();
        let other = "counts of another session: hcmab-lru, entries Some(2), fan-out 4";
        assert_eq!([error(&told(2), 32, 16), error(&told(2), 4, 64)], [other, other]);
        assert_eq!(error(&told(1), 4, 16), "counts of 1 of 2 agents");
        assert_eq!(error(&told(2).replace("\"version\":1", "\"version\":2"), 4, 16), "counts of version 2");
        assert!(error("{}", 4, 16).starts_with("counts that cannot be read"));
    }

    #[test]
    fn counts_are_taken_once() {
        let scratch = tempfile::tempdir().unwrap();
        let caching = Caching { stats: scratch.path().join("stats.json"), ..caching(4) };
        fs::write(&caching.stats, told(2)).unwrap();
        assert!(Stats::read(&caching, 16).is_ok());
        assert!(matches!(Stats::read(&caching, 16), Err(StatsError::Unread(_))));
    }
}
