//! The summary of a profile as text.

use std::cmp::Reverse;
use std::fmt::Write as _;

use nla::figures::counted;
use placement::matrix::{Matrix, Pair, Traffic};

use super::nodes::NodeMap;
use super::{Measure, shown_line, size_text};

/// The most pairs of nodes that are listed.
const NODE_PAIRS_MAX: usize = 16;

/// Returns the text. `top` is the number of the heaviest pairs.
pub(super) fn text(matrix: &Matrix, map: Option<&NodeMap>, measure: Measure, top: usize) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_text(&mut out, matrix, map, measure, top);
    out
}

fn write_text(
    out: &mut String,
    matrix: &Matrix,
    map: Option<&NodeMap>,
    measure: Measure,
    top: usize,
) -> std::fmt::Result {
    let total = matrix.total();
    writeln!(out, "{}, {}", counted(matrix.ranks().into(), "rank"), traffic_text(total))?;
    for remark in matrix.remarks() {
        writeln!(out, "  {}", shown_line(remark))?;
    }
    if let Some(mean) = total.bytes.checked_div(total.messages) {
        writeln!(out, "mean message      {}", size_text(mean))?;
    }
    write_degree(out, matrix)?;
    let own = matrix.pairs().iter().filter(|pair| pair.from == pair.to).fold(Traffic::default(), sum);
    if !own.is_zero() {
        writeln!(out, "to themselves     {}", traffic_text(own))?;
    }
    write_pairs(out, matrix, measure, top)?;
    if let Some(map) = map {
        write_nodes(out, matrix, map, measure)?;
    }
    Ok(())
}

/// Returns traffic in words: `3.9 KiB in 8 messages`.
fn traffic_text(traffic: Traffic) -> String {
    format!("{} in {}", size_text(traffic.bytes), counted(traffic.messages, "message"))
}

fn sum(mut sum: Traffic, pair: &Pair) -> Traffic {
    sum.add(pair.traffic);
    sum
}

fn value(traffic: Traffic, measure: Measure) -> u64 {
    match measure {
        Measure::Bytes => traffic.bytes,
        Measure::Messages => traffic.messages,
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// Writes to how many other ranks a rank sends.
fn write_degree(out: &mut String, matrix: &Matrix) -> std::fmt::Result {
    let degrees = (0..matrix.ranks()).map(|rank| {
        let others = matrix.row(rank).iter().filter(|pair| pair.to != rank).count();
        (others, Reverse(rank))
    });
    let (mut all, mut most) = (0, None);
    for degree in degrees {
        all += degree.0;
        most = most.max(Some(degree));
    }
    let Some((most, Reverse(rank))) = most else { return Ok(()) };
    let mean = all as f64 / f64::from(matrix.ranks());
    writeln!(out, "receivers of one  {mean:.1} on average, {most} at most (rank {rank})")
}

fn write_pairs(out: &mut String, matrix: &Matrix, measure: Measure, top: usize) -> std::fmt::Result {
    let whole = value(matrix.total(), measure);
    let mut pairs: Vec<&Pair> = matrix.pairs().iter().filter(|pair| pair.from != pair.to).collect();
    let weight = |pair: &&Pair| (Reverse(value(pair.traffic, measure)), pair.from, pair.to);
    if pairs.len() > top && top > 0 {
        pairs.select_nth_unstable_by_key(top - 1, weight);
    }
    pairs.truncate(top);
    pairs.sort_unstable_by_key(weight);
    if pairs.is_empty() {
        return Ok(());
    }
    writeln!(out, "heaviest pairs")?;
    for Pair { from, to, traffic } in pairs {
        let share = percent(value(*traffic, measure), whole);
        let (bytes, messages) = (size_text(traffic.bytes), counted(traffic.messages, "message"));
        writeln!(out, "  {:<15} {bytes:>10} in {messages}, {share:.1} %", format!("{from} -> {to}"))?;
    }
    Ok(())
}

fn write_nodes(out: &mut String, matrix: &Matrix, map: &NodeMap, measure: Measure) -> std::fmt::Result {
    let (total, (inside, mut between)) = (matrix.total(), map.traffic(matrix));
    writeln!(out, "{}, {}", counted(map.nodes() as u64, "node"), map.source)?;
    writeln!(
        out,
        "  inside nodes    {:.1} % of bytes, {:.1} % of messages",
        percent(inside.bytes, total.bytes),
        percent(inside.messages, total.messages)
    )?;
    let outside = between.iter().fold(Traffic::default(), |mut sum, (_, _, traffic)| {
        sum.add(*traffic);
        sum
    });
    writeln!(out, "  between nodes   {}", traffic_text(outside))?;
    let pairs = between.len();
    between.sort_by_key(|(_, _, traffic)| Reverse(value(*traffic, measure)));
    for (from, to, traffic) in between.iter().take(NODE_PAIRS_MAX) {
        let names = format!("{} -> {}", map.name(*from), map.name(*to));
        let messages = counted(traffic.messages, "message");
        writeln!(out, "  {names:<20} {:>10} in {messages}", size_text(traffic.bytes))?;
    }
    if pairs > NODE_PAIRS_MAX {
        writeln!(out, "  and {} other pairs of nodes with less", pairs - NODE_PAIRS_MAX)?;
    }
    Ok(())
}
