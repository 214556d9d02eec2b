//! The heat map as SVG, with axes, a scale, and the borders of nodes.

use std::fmt::Write as _;

use super::heat_map::{HeatMap, SHADES, colour};
use super::nodes::NodeMap;
use super::{Measure, size_text};

/// The most bins on a side. A matrix that is full has as many rectangles as bins.
pub(super) const BINS_MAX: u32 = 128;

/// The side of the matrix in the picture, and the room around it.
const SIDE: f64 = 512.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 40.0;
/// The most borders of nodes that are drawn.
const BORDERS_MAX: usize = 64;
/// The rectangles of the scale.
const SCALE_PARTS: usize = 32;

/// Draws the picture.
pub(super) fn draw(map: &HeatMap, nodes: Option<&NodeMap>) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_picture(&mut out, map, nodes);
    out
}

fn write_picture(out: &mut String, map: &HeatMap, nodes: Option<&NodeMap>) -> std::fmt::Result {
    let (width, height) = (LEFT + SIDE + 120.0, TOP + SIDE + 48.0);
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">"
    )?;
    writeln!(out, "<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>")?;
    let what = match map.measure {
        Measure::Bytes => "Bytes",
        Measure::Messages => "Messages",
    };
    let bins =
        if map.per_bin > 1 { format!(", {} x {} ranks in a square", map.per_bin, map.per_bin) } else { String::new() };
    writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"24\" font-size=\"14\">{what} from rank to rank, {} ranks{bins}</text>",
        map.ranks
    )?;
    write_bins(out, map)?;
    if let Some(nodes) = nodes {
        write_borders(out, map, nodes)?;
    }
    writeln!(out, "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{SIDE}\" height=\"{SIDE}\" fill=\"none\" stroke=\"#333\"/>")?;
    write_axes(out, map)?;
    write_scale(out, map)?;
    out.push_str("</svg>\n");
    Ok(())
}

/// Draws neighbours of one shade in a row as one rectangle.
fn write_bins(out: &mut String, map: &HeatMap) -> std::fmt::Result {
    let step = SIDE / map.side.max(1) as f64;
    writeln!(out, "<g shape-rendering=\"crispEdges\">")?;
    for from in 0..map.side {
        let mut to = 0;
        while to < map.side {
            let shade = map.shade(from, to);
            let end = (to..map.side).find(|at| map.shade(from, *at) != shade).unwrap_or(map.side);
            if let Some(shade) = shade {
                let (x, y, width) = (LEFT + to as f64 * step, TOP + from as f64 * step, (end - to) as f64 * step);
                let [red, green, blue] = colour(shade);
                writeln!(
                    out,
                    "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{step:.2}\" \
                     fill=\"#{red:02x}{green:02x}{blue:02x}\"/>"
                )?;
            }
            to = end;
        }
    }
    writeln!(out, "</g>")
}

fn write_borders(out: &mut String, map: &HeatMap, nodes: &NodeMap) -> std::fmt::Result {
    let borders = nodes.borders();
    if map.ranks == 0 || borders.len() > BORDERS_MAX {
        return Ok(());
    }
    writeln!(out, "<g stroke=\"#3377aa\" stroke-width=\"0.6\" stroke-opacity=\"0.7\">")?;
    // The last bin may have fewer ranks than the others.
    let per_rank = SIDE / (map.side as f64 * f64::from(map.per_bin));
    for border in borders {
        let at = f64::from(border) * per_rank;
        let (x, y, right, bottom) = (LEFT + at, TOP + at, LEFT + SIDE, TOP + SIDE);
        writeln!(out, "<path d=\"M{x:.2} {TOP}V{bottom}M{LEFT} {y:.2}H{right}\"/>")?;
    }
    writeln!(out, "</g>")
}

fn write_axes(out: &mut String, map: &HeatMap) -> std::fmt::Result {
    let step = tick(map.ranks);
    let per_rank = SIDE / (map.side.max(1) as f64 * f64::from(map.per_bin));
    for rank in (0..map.ranks).step_by(step as usize) {
        // In the middle of the rank's row, or at the beginning of its bin.
        let at = (f64::from(rank) + if map.per_bin > 1 { 0.0 } else { 0.5 }) * per_rank;
        let (x, y, below, left) = (LEFT + at, TOP + at + 4.0, TOP + SIDE + 16.0, LEFT - 6.0);
        writeln!(out, "<text x=\"{x:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">{rank}</text>")?;
        writeln!(out, "<text x=\"{left:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{rank}</text>")?;
    }
    let (middle_x, middle_y, below) = (LEFT + SIDE / 2.0, TOP + SIDE / 2.0, TOP + SIDE + 36.0);
    writeln!(out, "<text x=\"{middle_x}\" y=\"{below}\" text-anchor=\"middle\">receiver</text>")?;
    writeln!(
        out,
        "<text x=\"16\" y=\"{middle_y}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {middle_y})\">sender</text>"
    )
}

/// Returns the distance of numbers on an axis: at most 8 steps, of a power of two.
fn tick(ranks: u32) -> u32 {
    ranks.div_ceil(8).max(1).next_power_of_two()
}

fn write_scale(out: &mut String, map: &HeatMap) -> std::fmt::Result {
    if map.most == 0 {
        return Ok(());
    }
    let (x, height) = (LEFT + SIDE + 20.0, SIDE / SCALE_PARTS as f64);
    for part in 0..SCALE_PARTS {
        let [red, green, blue] = colour(part * (SHADES - 1) / (SCALE_PARTS - 1));
        let y = TOP + SIDE - (part + 1) as f64 * height;
        writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y:.2}\" width=\"14\" height=\"{:.2}\" fill=\"#{red:02x}{green:02x}{blue:02x}\"/>",
            height + 0.2
        )?;
    }
    for shade in [0, SHADES / 2, SHADES - 1] {
        let y = TOP + SIDE * (1.0 - shade as f64 / (SHADES - 1) as f64) + 4.0;
        let value = map.value_of(shade);
        let value = match map.measure {
            Measure::Bytes => size_text(value),
            Measure::Messages => value.to_string(),
        };
        writeln!(out, "<text x=\"{:.1}\" y=\"{y:.1}\">{value}</text>", x + 20.0)?;
    }
    Ok(())
}
