//! The heat map as SVG.

use std::fmt::Write as _;

use super::layout::{Anchor, Area, CAPITAL_HEIGHT, Label, Picture};

/// The most bins on a side. A matrix that is full has as many rectangles as bins.
pub(super) const BINS_MAX: u32 = 128;

/// Draws the picture.
pub(super) fn draw(picture: &Picture) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_picture(&mut out, picture);
    out
}

fn write_picture(out: &mut String, picture: &Picture) -> std::fmt::Result {
    let (width, height) = (picture.width, picture.height);
    // Capital letters have about seven tenths of a font's size.
    let size = CAPITAL_HEIGHT * 8 / 7;
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"{size}\">"
    )?;
    writeln!(out, "<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>")?;
    writeln!(out, "<g shape-rendering=\"crispEdges\">")?;
    for Area { x, y, width, height, ink } in &picture.areas {
        let [red, green, blue] = ink.colour();
        writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"#{red:02x}{green:02x}{blue:02x}\"/>"
        )?;
    }
    writeln!(out, "</g>")?;
    for Label { x, y, anchor, is_turned, text } in &picture.labels {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let turn = if *is_turned { format!(" transform=\"rotate(-90 {x} {y})\"") } else { String::new() };
        writeln!(out, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\"{turn}>{text}</text>")?;
    }
    out.push_str("</svg>\n");
    Ok(())
}
