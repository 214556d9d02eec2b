//! The tables of statistics: a row for each level, with short numbers that fit a terminal.

use std::fmt::Write as _;
use std::time::Duration;

use nla::core::{LaneTraffic, LevelStats};
use nla::figures;

use super::Statistics;

const LEGEND: &str = "
  Level 0 is the launcher. A place is the launcher or an agent; a row is for all places of a level.
  Up and down: messages and their encoded bytes, counted by the sender. Links: all bytes written to
  them; streams: output and input among these. Gets: answered by the board without the agent's core,
  by the core to its own ranks, or to others; forwarded: sent on to another place; joined: waited
  for the answer to an earlier request. Fences: from the arrival of all ranks below a place to the
  release. Most at one place: own are entries of its own ranks, index is keys of the subtree.";

/// Columns with a common title.
struct Group {
    title: &'static str,
    columns: Vec<Column>,
}

impl Group {
    /// Returns the widths of the columns. The first is wide enough for the title to fit.
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

/// Returns the heading, the tables and the legend, without a newline at the end.
pub(super) fn table(statistics: &Statistics) -> String {
    let Statistics { policy, ranks, agents, fanout, stats } = statistics;
    let bound = policy.entries().map_or_else(String::new, |entries| format!(" ({entries} entries)"));
    let reported = statistics.reported();
    let mut text = format!(
        "statistics: policy {policy}{bound}, ranks: {ranks}, fan-out: {fanout}, agents reported: {reported} of {agents}\n"
    );
    if reported < u64::from(*agents) {
        text.push_str("  note: the numbers of the other agents are missing\n");
    }
    if stats.segments() > 0 {
        let segments = stats.segments();
        let _ = writeln!(
            text,
            "  note: ranks that read the board in shared memory: {segments}; their gets are not counted"
        );
    }
    let levels = Levels(&stats.levels);
    text + &levels.summary() + &levels.traffic() + &levels.gets_and_fences() + &levels.board() + LEGEND
}

/// A column: its heading and its cells.
type Column = (&'static str, Vec<String>);

/// The rows of all tables, from the launcher down.
struct Levels<'a>(&'a [LevelStats]);

impl Levels<'_> {
    /// Returns the figures that most users look for, with their meaning.
    fn summary(&self) -> String {
        let sum = |of: fn(&LevelStats) -> u64| self.0.iter().map(of).sum::<u64>();
        let max = |of: fn(&LevelStats) -> u64| self.0.iter().map(of).max().unwrap_or_default();
        let longest = self.0.iter().filter_map(|level| level.fences.max()).max().map_or_else(
            || "none".to_owned(),
            |time| format!("{}, from the arrival of all ranks below a place to the release there", figures::time(time)),
        );
        format!(
            "  sent over links: {}, of which {} are output and input of ranks\n\
             \x20 gets: {} answered by the rank's own agent, {} forwarded to other places\n\
             \x20 longest fence: {longest}\n\
             \x20 largest part of the board at one place: {} entries, {}\n",
            figures::bytes(sum(|level| level.counted.link_bytes)),
            figures::bytes(sum(|level| level.counted.stream_bytes)),
            figures::count(sum(|level| level.counted.board_gets + level.gets.own)),
            figures::count(sum(|level| level.gets.asked)),
            figures::count(max(|level| level.cache_max.entries)),
            figures::bytes(max(|level| level.cache_max.bytes)),
        )
    }

    /// Returns the table of messages and bytes.
    fn traffic(&self) -> String {
        rendered(&[
            group("", vec![self.numbers(), self.count("places", |level| level.members)]),
            self.lane("board up", |level| level.counted.up.board),
            self.lane("control up", |level| level.counted.up.control),
            self.lane("board down", |level| level.counted.down.board),
            self.lane("control down", |level| level.counted.down.control),
            group(
                "links",
                vec![
                    self.count("bytes", |level| level.counted.link_bytes),
                    self.count("streams", |level| level.counted.stream_bytes),
                ],
            ),
        ])
    }

    /// Returns the table of gets and fences.
    fn gets_and_fences(&self) -> String {
        rendered(&[
            group("", vec![self.numbers()]),
            group(
                "gets",
                vec![
                    self.count("by board", |level| level.counted.board_gets),
                    self.count("to own", |level| level.gets.own),
                    self.count("to others", |level| level.gets.others),
                    self.count("forwarded", |level| level.gets.asked),
                    self.count("joined", |level| level.gets.joined),
                ],
            ),
            group(
                "fences",
                vec![
                    self.count("count", |level| level.fences.count()),
                    self.time("min", |level| level.fences.min()),
                    self.time("median", |level| level.fences.median()),
                    self.time("max", |level| level.fences.max()),
                ],
            ),
        ])
    }

    /// Returns the table of the bulletin board's caches.
    fn board(&self) -> String {
        rendered(&[
            group("", vec![self.numbers()]),
            group(
                "board, most at one place",
                vec![
                    self.count("entries", |level| level.cache_max.entries),
                    self.count("bytes", |level| level.cache_max.bytes),
                    self.count("own", |level| level.cache_max.own_entries),
                    self.count("bytes", |level| level.cache_max.own_bytes),
                    self.count("index", |level| level.cache_max.index_entries),
                ],
            ),
            group("in all", vec![self.count("evictions", |level| level.cache_sum.evictions)]),
        ])
    }

    fn column(&self, head: &'static str, cell: impl Fn(&LevelStats) -> String) -> Column {
        (head, self.0.iter().map(cell).collect())
    }

    fn numbers(&self) -> Column {
        ("level", (0..self.0.len()).map(|level| level.to_string()).collect())
    }

    fn count(&self, head: &'static str, of: fn(&LevelStats) -> u64) -> Column {
        self.column(head, |level| figures::count(of(level)))
    }

    fn time(&self, head: &'static str, of: fn(&LevelStats) -> Option<Duration>) -> Column {
        self.column(head, |level| of(level).map_or_else(|| "-".to_owned(), figures::time))
    }

    fn lane(&self, title: &'static str, of: fn(&LevelStats) -> LaneTraffic) -> Group {
        let messages = self.column("msgs", |level| figures::count(of(level).messages));
        group(title, vec![messages, self.column("bytes", |level| figures::count(of(level).bytes))])
    }
}

fn group(title: &'static str, columns: Vec<Column>) -> Group {
    Group { title, columns }
}

/// Lays out a table: a line of titles, a line of headings, and a line for each level.
fn rendered(groups: &[Group]) -> String {
    let (mut titles, mut heads) = (String::new(), String::new());
    let rows = groups[0].columns[0].1.len();
    let mut lines = vec![String::new(); rows];
    for group in groups {
        let widths = group.widths();
        let all = widths.iter().sum::<usize>() + GAP.len() * (widths.len() - 1);
        // The title is centred over its columns, with dashes on both sides.
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
