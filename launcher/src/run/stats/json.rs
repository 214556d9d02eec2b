//! The JSON document of statistics. A change here also changes docs/statistics.md, and the version if a field is
//! removed or gets another meaning.

use std::time::Duration;

use nla::core::{CachePeaks, DriverCounts, DurationHistogram, GetCounts, LaneTraffic, LevelStats, Traffic};
use serde::Serialize;

use super::Statistics;

/// The version of the schema.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Document {
    version: u32,
    policy: &'static str,
    cache_entries: Option<u32>,
    ranks: u32,
    agents: u32,
    agents_reported: u64,
    fanout: u32,
    ranks_with_segment: u64,
    levels: Vec<LevelRow>,
}

#[derive(Serialize)]
struct LevelRow {
    level: usize,
    places: u64,
    up: TrafficRow,
    down: TrafficRow,
    link_bytes: u64,
    stream_bytes: u64,
    gets: GetsRow,
    held: CacheRows,
    fences: FencesRow,
}

#[derive(Serialize)]
struct TrafficRow {
    board: LaneRow,
    control: LaneRow,
}

#[derive(Serialize)]
struct LaneRow {
    messages: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct GetsRow {
    board: u64,
    own: u64,
    others: u64,
    asked: u64,
    joined: u64,
}

#[derive(Serialize)]
struct CacheRows {
    max: CacheRow,
    sum: CacheRow,
}

#[derive(Serialize)]
struct CacheRow {
    entries: u64,
    bytes: u64,
    own_entries: u64,
    own_bytes: u64,
    index_entries: u64,
    evictions: u64,
}

#[derive(Serialize)]
struct FencesRow {
    count: u64,
    min_s: Option<f64>,
    median_s: Option<f64>,
    max_s: Option<f64>,
}

/// Returns the document, with a newline at its end.
pub(super) fn json(statistics: &Statistics) -> String {
    let Statistics { policy, ranks, agents, fanout, stats } = statistics;
    let document = Document {
        version: VERSION,
        policy: policy.name(),
        cache_entries: policy.entries(),
        ranks: *ranks,
        agents: *agents,
        agents_reported: statistics.reported(),
        fanout: *fanout,
        ranks_with_segment: stats.segments(),
        levels: stats.levels.iter().enumerate().map(level).collect(),
    };
    let mut text = serde_json::to_string_pretty(&document).expect("numbers and names can always be written as JSON");
    text.push('\n');
    text
}

fn level((level, stats): (usize, &LevelStats)) -> LevelRow {
    let LevelStats { members, counted, gets, cache_max, cache_sum, fences } = stats;
    let DriverCounts { up, down, link_bytes, stream_bytes, board_gets, segments: _ } = *counted;
    let GetCounts { own, others, asked, joined } = *gets;
    LevelRow {
        level,
        places: *members,
        up: traffic(up),
        down: traffic(down),
        link_bytes,
        stream_bytes,
        gets: GetsRow { board: board_gets, own, others, asked, joined },
        held: CacheRows { max: cache(cache_max), sum: cache(cache_sum) },
        fences: times(fences),
    }
}

fn traffic(Traffic { board, control }: Traffic) -> TrafficRow {
    let lane = |LaneTraffic { messages, bytes }| LaneRow { messages, bytes };
    TrafficRow { board: lane(board), control: lane(control) }
}

fn cache(peaks: &CachePeaks) -> CacheRow {
    let CachePeaks { entries, bytes, own_entries, own_bytes, index_entries, evictions } = *peaks;
    CacheRow { entries, bytes, own_entries, own_bytes, index_entries, evictions }
}

fn times(times: &DurationHistogram) -> FencesRow {
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    FencesRow {
        count: times.count(),
        min_s: seconds(times.min()),
        median_s: seconds(times.median()),
        max_s: seconds(times.max()),
    }
}
