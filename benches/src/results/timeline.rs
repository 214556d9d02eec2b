//! A picture of a trace: one band per place, with its steps as bars over time.

use std::collections::BTreeMap;
use std::io;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde_json::Value;

/// Why a timeline cannot be drawn.
pub type TimelineError = DrawingAreaErrorKind<io::Error>;

/// The steps of all places of a session.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// By number: the launcher is 0.
    bands: BTreeMap<u64, Band>,
    end_us: f64,
}

#[derive(Clone, Debug, Default)]
struct Band {
    label: String,
    bars: Vec<Bar>,
}

#[derive(Clone, Debug)]
struct Bar {
    style: &'static Style,
    from_us: f64,
    to_us: f64,
}

/// How a kind of span is drawn.
#[derive(Debug, PartialEq)]
struct Style {
    /// Its name in the legend, and how the names of its spans begin.
    names: &'static [&'static str],
    /// Its row in the band.
    row: i32,
    colour: RGBColor,
}

const fn style(names: &'static [&'static str], row: i32, colour: RGBColor) -> Style {
    Style { names, row, colour }
}

/// Colours that colour-blind readers can distinguish (Okabe and Ito), and tints of them.
const STYLES: [Style; 11] = [
    style(&["bootstrap", "plan"], 0, RGBColor(153, 153, 153)),
    style(&["join"], 0, RGBColor(90, 90, 90)),
    style(&["spawn", "job description"], 0, RGBColor(86, 180, 233)),
    style(&["run"], 0, RGBColor(222, 222, 222)),
    style(&["end, sweep, leave", "end", "sweep", "output", "leave"], 0, RGBColor(204, 121, 167)),
    style(&["starts of ranks", "start "], 1, RGBColor(0, 114, 178)),
    style(&["PMI contacts", "contact of"], 2, RGBColor(230, 159, 0)),
    style(&["fence: arrivals", "arrivals", "fence"], 3, RGBColor(160, 220, 200)),
    style(&["gathering"], 3, RGBColor(240, 228, 66)),
    style(&["waiting"], 3, RGBColor(0, 158, 115)),
    style(&["exits", "end of"], 4, RGBColor(213, 94, 0)),
];

impl Timeline {
    /// Reads the file of `--trace`.
    ///
    /// # Errors
    /// If it is no trace.
    pub fn parse(text: &str) -> Result<Self, String> {
        let trace: Value = serde_json::from_str(text).map_err(|error| format!("malformed trace: {error}"))?;
        let events = trace["traceEvents"].as_array().ok_or("a trace without events")?;
        let mut timeline = Self::default();
        for event in events {
            let place = event["pid"].as_u64().ok_or("an event without a place")?;
            let band = timeline.bands.entry(place).or_default();
            let name = event["name"].as_str().unwrap_or_default();
            if name == "process_name" {
                let label = event["args"]["name"].as_str().unwrap_or_default();
                label.split(" on ").next().unwrap_or_default().clone_into(&mut band.label);
            }
            let (Some(from_us), Some(took_us)) = (event["ts"].as_f64(), event["dur"].as_f64()) else { continue };
            if let Some(style) = style_of(name) {
                let to_us = from_us + took_us;
                band.bars.push(Bar { style, from_us, to_us });
                timeline.end_us = timeline.end_us.max(to_us);
            }
        }
        Ok(timeline)
    }

    /// Draws the timeline as SVG.
    ///
    /// # Errors
    /// If it cannot be drawn.
    pub fn draw(&self, title: &str) -> Result<String, TimelineError> {
        let mut text = String::new();
        let bottom = TOP + BAND * i32::try_from(self.bands.len()).unwrap_or(0);
        {
            let size = ((LEFT + WIDTH + 20) as u32, (bottom + 90) as u32);
            let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
            area.fill(&WHITE)?;
            let text = |size: i32, h, v| ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(h, v));
            area.draw(&Text::new(title.to_owned(), (LEFT, 8), text(18, HPos::Left, VPos::Top)))?;
            let x = |at_us: f64| LEFT + (at_us / self.end_us.max(1.0) * f64::from(WIDTH)) as i32;
            let seconds = self.end_us / 1e6;
            let step = tick(seconds);
            for number in 0..=(seconds / step) as i32 {
                let at = f64::from(number) * step;
                let column = x(at * 1e6);
                area.draw(&PathElement::new(vec![(column, TOP), (column, bottom)], BLACK.mix(0.15)))?;
                let label = format!("{:.*} s", usize::from(step < 1.0) + usize::from(step < 0.1), at);
                area.draw(&Text::new(label, (column, bottom + 4), text(13, HPos::Center, VPos::Top)))?;
            }
            for (index, band) in self.bands.values().enumerate() {
                let top = TOP + BAND * i32::try_from(index).unwrap_or(0);
                let middle = top + BAND / 2;
                area.draw(&Text::new(band.label.clone(), (LEFT - 8, middle), text(12, HPos::Right, VPos::Center)))?;
                for (style, from, to) in band.columns(x) {
                    let row = top + 3 + ROW * style.row;
                    area.draw(&Rectangle::new([(from, row), (to, row + ROW - 1)], style.colour.filled()))?;
                }
            }
            for (index, style) in STYLES.iter().enumerate() {
                let (column, row) = (index as i32 % LEGEND_COLUMNS, index as i32 / LEGEND_COLUMNS);
                let (left, top) = (LEFT + column * (WIDTH / LEGEND_COLUMNS), bottom + 32 + 22 * row);
                area.draw(&Rectangle::new([(left, top), (left + 14, top + 12)], style.colour.filled()))?;
                let at = (left + 20, top + 6);
                area.draw(&Text::new(style.names[0], at, text(13, HPos::Left, VPos::Center)))?;
            }
            area.present()?;
        }
        Ok(text)
    }
}

impl Band {
    /// Returns the columns from which and to which bars are drawn. Bars of one style that touch there are joined.
    fn columns(&self, x: impl Fn(f64) -> i32) -> Vec<(&'static Style, i32, i32)> {
        let mut bars: Vec<&Bar> = self.bars.iter().collect();
        bars.sort_by(|one, other| one.from_us.total_cmp(&other.from_us));
        let mut columns: Vec<(&'static Style, i32, i32)> = Vec::new();
        for Bar { style, from_us, to_us } in bars {
            let (from, to) = (x(*from_us), x(*to_us).max(x(*from_us) + 1));
            match columns.iter_mut().rfind(|(other, ..)| other == style) {
                Some((_, _, end)) if from <= *end => *end = to.max(*end),
                _ => columns.push((style, from, to)),
            }
        }
        columns
    }
}

/// Returns the style of a span: that of the longest name with which it begins.
fn style_of(name: &str) -> Option<&'static Style> {
    static ALL: [Style; 11] = STYLES;
    let begins =
        |style: &Style| style.names.iter().filter(|begin| name.starts_with(**begin)).map(|begin| begin.len()).max();
    ALL.iter()
        .filter_map(|style| Some((begins(style)?, style)))
        .max_by_key(|(length, _)| *length)
        .map(|(_, style)| style)
}

/// Returns the distance of ticks for an axis of this length: 1, 2 or 5 times a power of ten.
fn tick(seconds: f64) -> f64 {
    let power = 10_f64.powf((seconds / 10.0).max(1e-6).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power).find(|step| seconds / step <= 10.0).unwrap_or(seconds)
}

const LEFT: i32 = 90;
const TOP: i32 = 40;
const WIDTH: i32 = 1000;
const ROW: i32 = 6;
/// Five rows and a gap.
const BAND: i32 = 36;
const LEGEND_COLUMNS: i32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_drawn_in_the_band_of_their_place() {
        let trace = r#"{"traceEvents":[
            {"name":"process_name","ph":"M","pid":0,"args":{"name":"launcher on n0"}},
            {"name":"process_name","ph":"M","pid":1,"args":{"name":"agent 1 on n0, ranks 0-7"}},
            {"name":"plan","ph":"X","ts":0.0,"dur":2000.0,"pid":0,"tid":2},
            {"name":"publish","ph":"X","ts":0.0,"dur":1.0,"pid":1,"tid":5},
            {"name":"start 8 ranks","ph":"X","ts":3000.0,"dur":1000.0,"pid":1,"tid":10}
        ]}"#;
        let timeline = Timeline::parse(trace).unwrap();
        assert_eq!(timeline.bands.values().map(|band| band.bars.len()).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(timeline.end_us, 4000.0);
        let svg = timeline.draw("A start").unwrap();
        let count = |text: &str| svg.lines().filter(|line| line.trim() == text).count();
        assert_eq!([count("A start"), count("launcher"), count("agent 1"), count("starts of ranks")], [1; 4]);
        let bar = |from_us, to_us| Bar { style: style_of("contact of").unwrap(), from_us, to_us };
        let band = Band { label: String::new(), bars: vec![bar(50.0, 60.0), bar(1.0, 20.0), bar(22.0, 22.0)] };
        let columns = band.columns(|us| us as i32 / 10);
        assert_eq!(columns.iter().map(|(_, from, to)| (*from, *to)).collect::<Vec<_>>(), [(0, 3), (5, 6)]);
        assert!(Timeline::parse("{}").is_err() && Timeline::parse("").is_err());
        assert!(Timeline::default().draw("").is_ok());
    }

    #[test]
    fn each_span_has_the_style_of_the_longest_name() {
        let name = |span| style_of(span).map(|style| style.names[0]);
        assert_eq!(name("end of 3 ranks"), Some("exits"));
        assert_eq!(name("end"), Some("end, sweep, leave"));
        assert_eq!(name("start 1 rank"), Some("starts of ranks"));
        assert_eq!(name("release 3 ranks"), None);
    }

    #[test]
    fn an_axis_has_five_to_ten_ticks() {
        for (seconds, step) in [(7.3, 1.0), (0.12, 0.02), (64.0, 10.0), (10.0, 1.0)] {
            assert!((tick(seconds) - step).abs() < 1e-9, "{seconds}: {}", tick(seconds));
        }
    }
}
