//! Tests of the full table and the full JSON document.

use std::time::Duration;

use nla::core::{CachePeaks, DriverCounts, DurationHistogram, GetCounts, LevelStats};

use super::*;

fn fences(all_us: &[u64]) -> DurationHistogram {
    let mut times = DurationHistogram::default();
    all_us.iter().for_each(|us| times.note(Duration::from_micros(*us)));
    times
}

fn statistics() -> Statistics {
    let mut root = DriverCounts { link_bytes: 24_000, ..DriverCounts::default() };
    let mut agent = DriverCounts { link_bytes: 1_234_567, stream_bytes: 99, board_gets: 64, segments: 2, ..root };
    for _ in 0..2 {
        root.down.note(true, 11_000);
        root.down.note(false, 300);
        agent.up.note(true, 500);
        agent.up.note(false, 20);
    }
    let gets = GetCounts { own: 8, others: 4, asked: 3, joined: 1 };
    let held = CachePeaks {
        entries: 16,
        bytes: 1600,
        own_entries: 8,
        own_bytes: 800,
        index_entries: 24,
        evictions: 1_000_000,
    };
    let leaf = LevelStats::of_member(agent, gets, held, fences(&[900, 20_000]));
    let leaves = [leaf.clone(), leaf].map(|leaf| Stats { levels: vec![leaf], spans: Vec::new() });
    let place = LevelStats::of_member(root, GetCounts::default(), CachePeaks::default(), fences(&[]));
    let stats = Stats::of(place, Vec::new(), &leaves);
    Statistics { policy: CachePolicy::HcmabLru { entries: 16 }, ranks: 64, agents: 2, fanout: 32, stats }
}

#[test]
fn the_table_has_a_row_for_each_level() {
    let table = statistics().table();
    let (numbers, legend) = table.split_once("\n\n  Level 0").expect("a legend");
    assert_eq!(
        format!("{numbers}\n"),
        "\
statistics: policy hcmab-lru (16 entries), ranks: 64, fan-out: 32, agents reported: 2 of 2
  note: ranks that read the board in shared memory: 4; their gets are not counted
  sent over links: 2.49 MB, of which 198 B are output and input of ranks
  gets: 144 answered by the rank's own agent, 6 forwarded to other places
  longest fence: 20.0 ms, from the arrival of all ranks below a place to the release there
  largest part of the board at one place: 16 entries, 1.60 kB

                 - board up -  - control up -  - board down -  - control down -  --- links ----
  level  places   msgs  bytes     msgs  bytes     msgs  bytes       msgs  bytes  bytes  streams
      0       1      0      0        0      0        2  22000          2    600  24000        0
      1       2      4   2000        4     80        0      0          0      0  2.47M      198

         -------------------- gets --------------------  ----------- fences -----------
  level  by board  to own  to others  forwarded  joined  count     min  median      max
      0         0       0          0          0       0      0       -       -        -
      1       128      16          8          6       2      4  900 us  901 us  20.0 ms

         --- board, most at one place ----  - in all -
  level  entries  bytes  own  bytes  index   evictions
      0        0      0    0      0      0           0
      1       16   1600    8    800     24       2.00M
"
    );
    assert!(legend.ends_with("subtree."));
}

#[test]
fn lines_of_the_table_fit_with_the_largest_numbers() {
    let most = u64::from(u32::MAX) << 20;
    let mut statistics = statistics();
    for level in &mut statistics.stats.levels {
        level.cache_max = CachePeaks {
            entries: most,
            bytes: most,
            own_entries: most,
            own_bytes: most,
            index_entries: most,
            evictions: most,
        };
        level.cache_sum = level.cache_max;
        level.gets = GetCounts { own: most, others: most, asked: most, joined: most };
        level.counted.link_bytes = most;
        level.counted.stream_bytes = most;
        for traffic in [&mut level.counted.up, &mut level.counted.down] {
            for sent in [&mut traffic.board, &mut traffic.control] {
                (sent.messages, sent.bytes) = (most, most);
            }
        }
    }
    for line in statistics.table().lines() {
        assert!(line.len() <= 100, "{} columns: {line}", line.len());
        assert_eq!(line.trim_end(), line);
    }
}

#[test]
fn notes_name_missing_agents_and_shared_memory() {
    let mut statistics = statistics();
    assert!(statistics.table().contains("  note: ranks that read the board in shared memory: 4;"));
    assert!(!statistics.table().contains("missing"));
    statistics.agents = 5;
    assert!(
        statistics.table().contains("agents reported: 2 of 5\n  note: the numbers of the other agents are missing")
    );
}

#[test]
fn the_json_has_the_documented_fields() {
    let document: serde_json::Value = serde_json::from_str(&statistics().json()).expect("it is JSON");
    let expected = serde_json::json!({
        "version": 1, "policy": "hcmab-lru", "cache_entries": 16, "ranks": 64, "agents": 2, "agents_reported": 2,
        "fanout": 32, "ranks_with_segment": 4,
        "levels": [
            {
                "level": 0, "places": 1,
                "up": {"board": {"messages": 0, "bytes": 0}, "control": {"messages": 0, "bytes": 0}},
                "down": {"board": {"messages": 2, "bytes": 22_000}, "control": {"messages": 2, "bytes": 600}},
                "link_bytes": 24_000, "stream_bytes": 0,
                "gets": {"board": 0, "own": 0, "others": 0, "asked": 0, "joined": 0},
                "held": {
                    "max": {"entries": 0, "bytes": 0, "own_entries": 0, "own_bytes": 0, "index_entries": 0, "evictions": 0},
                    "sum": {"entries": 0, "bytes": 0, "own_entries": 0, "own_bytes": 0, "index_entries": 0, "evictions": 0}
                },
                "fences": {"count": 0, "min_s": null, "median_s": null, "max_s": null}
            },
            {
                "level": 1, "places": 2,
                "up": {"board": {"messages": 4, "bytes": 2000}, "control": {"messages": 4, "bytes": 80}},
                "down": {"board": {"messages": 0, "bytes": 0}, "control": {"messages": 0, "bytes": 0}},
                "link_bytes": 2_469_134, "stream_bytes": 198,
                "gets": {"board": 128, "own": 16, "others": 8, "asked": 6, "joined": 2},
                "held": {
                    "max": {"entries": 16, "bytes": 1600, "own_entries": 8, "own_bytes": 800, "index_entries": 24,
                        "evictions": 1_000_000},
                    "sum": {"entries": 32, "bytes": 3200, "own_entries": 16, "own_bytes": 1600, "index_entries": 48,
                        "evictions": 2_000_000}
                },
                "fences": {"count": 4, "min_s": 0.0009, "median_s": document["levels"][1]["fences"]["median_s"],
                    "max_s": 0.02}
            }
        ]
    });
    assert_eq!(document, expected);
    let median = document["levels"][1]["fences"]["median_s"].as_f64().expect("a number");
    assert!((median - 0.0009).abs() < 0.00003, "{median}");
    let without = Statistics { policy: CachePolicy::Hcs, ..statistics() };
    let document: serde_json::Value = serde_json::from_str(&without.json()).expect("it is JSON");
    assert_eq!((&document["policy"], &document["cache_entries"]), (&"hcs".into(), &serde_json::Value::Null));
}

#[test]
fn the_file_is_created_at_once_or_refused_by_name() {
    let place = tempfile::tempdir().expect("a place for files");
    let path = place.path().join("s.json");
    let sink = Sink::open(&StatsTo::File(path.clone())).expect("a file");
    assert_eq!(std::fs::read(&path).expect("it is there"), b"");
    assert!(matches!(sink.take(&statistics()), Ok((None, None))));
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), statistics().json());
    let path = place.path().join("none/s.json");
    let error = Sink::open(&StatsTo::File(path.clone())).expect_err("no such place").to_string();
    assert!(error.starts_with(&format!("the statistics cannot be written to '{}': No such file", path.display())));
    let table = Sink::Table.take(&statistics()).map(|(table, _)| table);
    assert_eq!(table, Ok(Some(statistics().table())));
}
