//! Bar charts as SVG, made of the tables of a page.

use std::fmt::{self, Write as _};

/// The size of a picture, and the area of the bars in it.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 48.0;
const TOP: f64 = 64.0;
const RIGHT: f64 = 744.0;
const BOTTOM: f64 = 290.0;
/// The colours of the series: distinct also without colours, from dark to light.
const COLOURS: [&str; 6] = ["#30343f", "#b5483d", "#3f78a8", "#7fb069", "#d8a93b", "#c9c9c9"];
/// The width of a legend's letter.
const LETTER: f64 = 6.4;
/// The part of a group's width that has bars.
const FILLED: f64 = 0.8;

/// A bar chart: groups of bars, with one bar of each series in a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// The title, with the unit of the bars.
    pub title: String,
    /// The names of the series.
    pub series: Vec<String>,
    /// The name of each group, and its numbers in the order of the series.
    pub groups: Vec<(String, Vec<f64>)>,
}

impl Bars {
    /// Draws the chart.
    #[must_use]
    pub fn draw(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let most = self.groups.iter().flat_map(|(_, numbers)| numbers).copied().fold(0.0, f64::max);
        let step = step(most);
        let top = (most / step).ceil().max(1.0) * step;
        let y = |number: f64| BOTTOM - (BOTTOM - TOP) * number / top;
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">"
        )?;
        writeln!(out, "<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>")?;
        writeln!(out, "<text x=\"{LEFT}\" y=\"22\" font-size=\"14\">{}</text>", escaped(&self.title))?;
        for line in 0..=(top / step).round() as u32 {
            let number = f64::from(line) * step;
            let at = y(number);
            writeln!(out, "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>")?;
            writeln!(out, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{number}</text>", LEFT - 6.0, at + 4.0)?;
        }
        let mut x = LEFT;
        for (name, colour) in self.series.iter().zip(COLOURS) {
            writeln!(out, "<rect x=\"{x:.1}\" y=\"36\" width=\"11\" height=\"11\" fill=\"{colour}\"/>")?;
            writeln!(out, "<text x=\"{:.1}\" y=\"46\">{}</text>", x + 16.0, escaped(name))?;
            x += 36.0 + name.chars().count() as f64 * LETTER;
        }
        let group_width = (RIGHT - LEFT) / self.groups.len().max(1) as f64;
        let bar_width = group_width * FILLED / self.series.len().max(1) as f64;
        for (at, (name, numbers)) in self.groups.iter().enumerate() {
            let left = LEFT + (at as f64 + (1.0 - FILLED) / 2.0) * group_width;
            for (bar, ((number, series), colour)) in numbers.iter().zip(&self.series).zip(COLOURS).enumerate() {
                let (x, y) = (left + bar as f64 * bar_width, y(*number));
                writeln!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\">\
                     <title>{}, {}: {number}</title></rect>",
                    bar_width - 1.0,
                    BOTTOM - y,
                    escaped(name),
                    escaped(series)
                )?;
            }
            let middle = LEFT + (at as f64 + 0.5) * group_width;
            writeln!(out, "<text x=\"{middle:.1}\" y=\"310\" text-anchor=\"middle\">{}</text>", escaped(name))?;
        }
        writeln!(out, "<line x1=\"{LEFT}\" y1=\"{BOTTOM}\" x2=\"{RIGHT}\" y2=\"{BOTTOM}\" stroke=\"#333\"/>")?;
        out.write_str("</svg>\n")
    }
}

/// Returns the distance of the lines of a scale: 1, 2 or 5 times a power of ten, with four to ten lines.
fn step(most: f64) -> f64 {
    let power = 10f64.powf((most.max(f64::MIN_POSITIVE) / 4.0).log10().floor());
    let factor = [5.0, 2.0].into_iter().find(|factor| power * factor * 4.0 <= most).unwrap_or(1.0);
    power * factor
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// Returns the cells of the first table after the marker that begins with `<!-- PLACE` on a page of Markdown, without its head.
#[must_use]
pub fn table(page: &str, place: &str) -> Vec<Vec<String>> {
    let begins = format!("<!-- {place}");
    let after = page.lines().skip_while(|line| !line.starts_with(&begins)).skip(1);
    let inside = after.take_while(|line| !line.starts_with("<!--")).filter(|line| line.starts_with('|'));
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    inside.skip(2).map(cells).collect()
}

/// Returns the number at the beginning of a cell.
#[must_use]
pub fn number(cell: &str) -> Option<f64> {
    let end = cell.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(cell.len());
    cell[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_have_round_steps() {
        assert_eq!([4.0, 19.0, 20.0, 188.1, 6.147, 0.9].map(step), [1.0, 2.0, 5.0, 20.0, 1.0, 0.2]);
        assert!(step(0.0) > 0.0);
    }

    #[test]
    fn a_table_is_read_from_its_page() {
        let page = "# T\n| no | table |\n<!-- t: written by the bench -->\n\n| a | b |\n|---|---:|\n| x | 1.5* |\n| y | 2.0 (3.1) |\n\n<!-- t: end -->\n| z | 9 |\n";
        assert_eq!(table(page, "t"), [["x", "1.5*"], ["y", "2.0 (3.1)"]]);
        assert_eq!((number("1.5*"), number("2.0 (3.1)"), number("-")), (Some(1.5), Some(2.0), None));
    }

    #[test]
    fn each_number_has_a_bar_of_its_height() {
        let bars = Bars {
            title: "A & B".to_owned(),
            series: vec!["one".to_owned(), "two".to_owned()],
            groups: vec![("g".to_owned(), vec![10.0, 5.0]), ("h".to_owned(), vec![0.0, 10.0])],
        };
        let svg = bars.draw();
        let full = format!("height=\"{:.1}\" fill=\"{}\">", BOTTOM - TOP, COLOURS[0]);
        assert_eq!(svg.matches(&full).count(), 1, "{svg}");
        assert_eq!(svg.matches("<title>").count(), 4);
        assert!(svg.contains(">A &amp; B</text>") && svg.contains("<title>h, two: 10</title>"), "{svg}");
    }
}
