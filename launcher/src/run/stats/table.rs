//! The tables of statistics: a row for each level, numbers shortened, to fit a terminal.

use std::fmt::Write as _;
use std::time::Duration;

use nla::core::{LaneTraffic, LevelStats};

use super::Statistics;

const LEGEND: &str = "
  Level 0 is the launcher, a place is it or an agent; a row is all places of a level together.
  Up and down: messages and their bytes as encoded, each counted by who sent it. Links: all bytes
  that were written to them; streams: output and input among these. GetCounts: answered by the board
  without the agent's core, by the core to own ranks, or to others; asked on: answered elsewhere;
  joined: waited for an answer that was on its way. Fences: from when all below a place had arrived
  to their release. Most at one place: own are entries of own ranks, index is keys of the subtree.";

/// Columns that belong together.
struct Group {
    title: &'static str,
    columns: Vec<(&'static str, Vec<String>)>,
}

impl Group {
    fn widths(&self) -> Vec<usize> {
        let width = |(head, cells): &(&str, Vec<String>)| cells.iter().map(String::len).fold(head.len(), usize::max);
        let mut widths: Vec<usize> = self.columns.iter().map(width).collect();
        let all = widths.iter().sum::<usize>() + GAP.len() * (widths.len() - 1);
        // Room for a dash and a blank on both sides.
        widths[0] += (self.title.len() + 4).saturating_sub(all);
        widths
    }
}

const GAP: &str = "  ";

/// All of it, without a newline at the end.
pub(super) fn table(statistics: &Statistics) -> String {
    let Statistics { policy, ranks, agents, fanout, stats } = statistics;
    let bound = policy.entries().map_or_else(String::new, |entries| format!(" ({entries} entries)"));
    let (reported, segments) = (statistics.reported(), stats.segments());
    let mut text = format!(
        "statistics: policy {policy}{bound}, ranks: {ranks}, fan-out: {fanout}, agents reported: {reported} of {agents}\n"
    );
    if reported < u64::from(*agents) {
        text.push_str("  note: what the other agents have counted is missing\n");
    }
    if segments > 0 {
        let _ =
            writeln!(text, "  note: ranks that read the board in shared memory: {segments}; their gets nobody counts");
    }
    let column = |head: &'static str, cell: &dyn Fn(&LevelStats) -> String| {
        (head, stats.levels.iter().map(cell).collect::<Vec<_>>())
    };
    let number = |head, of: fn(&LevelStats) -> u64| column(head, &|level| short(of(level)));
    let group = |title, columns: Vec<_>| Group { title, columns };
    let levels = || ("level", (0..stats.levels.len()).map(|level| level.to_string()).collect());
    let sent = |title, of: fn(&LevelStats) -> LaneTraffic| {
        let columns =
            [column("msgs", &|level| short(of(level).messages)), column("bytes", &|level| short(of(level).bytes))];
        group(title, columns.into())
    };
    let time = |head, of: fn(&LevelStats) -> Option<Duration>| column(head, &|level| shown(of(level)));
    text += &rendered(&[
        group("", vec![levels(), number("places", |level| level.members)]),
        sent("board up", |level| level.counted.up.board),
        sent("control up", |level| level.counted.up.control),
        sent("board down", |level| level.counted.down.board),
        sent("control down", |level| level.counted.down.control),
        group(
            "links",
            vec![
                number("bytes", |level| level.counted.link_bytes),
                number("streams", |level| level.counted.stream_bytes),
            ],
        ),
    ]);
    text += &rendered(&[
        group("", vec![levels()]),
        group(
            "gets",
            vec![
                number("by board", |level| level.counted.board_gets),
                number("to own", |level| level.gets.own),
                number("to others", |level| level.gets.others),
                number("asked on", |level| level.gets.asked),
                number("joined", |level| level.gets.joined),
            ],
        ),
        group(
            "fences",
            vec![
                number("count", |level| level.fences.count()),
                time("min", |level| level.fences.min()),
                time("median", |level| level.fences.median()),
                time("max", |level| level.fences.max()),
            ],
        ),
    ]);
    text += &rendered(&[
        group("", vec![levels()]),
        group(
            "board, most at one place",
            vec![
                number("entries", |level| level.cache_max.entries),
                number("bytes", |level| level.cache_max.bytes),
                number("own", |level| level.cache_max.own_entries),
                number("bytes", |level| level.cache_max.own_bytes),
                number("index", |level| level.cache_max.index_entries),
            ],
        ),
        group("in all", vec![number("evictions", |level| level.cache_sum.evictions)]),
    ]);
    text + LEGEND
}

fn rendered(groups: &[Group]) -> String {
    let (mut titles, mut heads) = (String::new(), String::new());
    let rows = groups[0].columns[0].1.len();
    let mut lines = vec![String::new(); rows];
    for group in groups {
        let widths = group.widths();
        let all = widths.iter().sum::<usize>() + GAP.len() * (widths.len() - 1);
        // A title lies on its columns like a lid.
        let _ = match group.title {
            "" => write!(titles, "{GAP}{:all$}", ""),
            title => write!(titles, "{GAP}{:-^all$}", format!(" {title} ")),
        };
        for ((head, cells), width) in group.columns.iter().zip(widths) {
            let _ = write!(heads, "{GAP}{head:>width$}");
            for (line, cell) in lines.iter_mut().zip(cells) {
                let _ = write!(line, "{GAP}{cell:>width$}");
            }
        }
    }
    format!("\n{titles}\n{heads}\n{}\n", lines.join("\n"))
}

/// A number in at most five characters, or as many as it takes.
fn short(number: u64) -> String {
    const UNITS: [(u64, &str); 5] =
        [(1_000_000_000_000_000, "P"), (1_000_000_000_000, "T"), (1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
    if number < 100_000 {
        return number.to_string();
    }
    let (size, unit) = UNITS.into_iter().find(|(size, _)| number >= *size).unwrap_or((1, ""));
    format!("{}{unit}", three_digits(number as f64 / size as f64))
}

/// A time with its unit; a dash where there is none.
fn shown(time: Option<Duration>) -> String {
    let Some(seconds) = time.map(|time| time.as_secs_f64()) else { return "-".to_owned() };
    let (factor, unit) = match seconds {
        1.0.. => (1.0, "s"),
        0.001.. => (1e3, "ms"),
        _ => (1e6, "us"),
    };
    format!("{} {unit}", three_digits(seconds * factor))
}

fn three_digits(number: f64) -> String {
    let decimals = match number {
        99.95.. => 0,
        9.995.. => 1,
        _ => 2,
    };
    format!("{number:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (number, text) in [
            (0, "0"),
            (99_999, "99999"),
            (100_000, "100k"),
            (999_499, "999k"),
            (1_234_567, "1.23M"),
            (99_960_000, "100M"),
            (12_345_678_901, "12.3G"),
            (5_000_000_000_000, "5.00T"),
            (u64::MAX, "18447P"),
        ] {
            assert_eq!(short(number), text);
        }
    }

    #[test]
    fn times_have_units() {
        let shown = |ns| shown(Some(Duration::from_nanos(ns)));
        assert_eq!([0, 12_345, 1_000_000, 99_960_000].map(shown), ["0.00 us", "12.3 us", "1.00 ms", "100 ms"]);
        assert_eq!([1_500_000_000, 86_400_000_000_000].map(shown), ["1.50 s", "86400 s"]);
        assert_eq!(super::shown(None), "-");
    }
}
