//! Plots: panels in a row with the same logarithmic axes, and one legend.

use std::io;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::launcher::{Client, Launcher};
use crate::policy::{Bound, Policy};

/// Why a plot cannot be drawn.
pub type PlotError = DrawingAreaErrorKind<io::Error>;

/// Panels that share their axes.
#[derive(Clone, Debug)]
pub struct Plot {
    /// The title.
    pub title: String,
    /// The label of the horizontal axis, with its unit if it has one.
    pub x: &'static str,
    /// The label of the vertical axis, with its unit.
    pub y: &'static str,
    /// The panels from left to right.
    pub panels: Vec<Panel>,
}

/// Lines over one pair of axes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The title: the difference from the other panels.
    pub title: String,
    /// The lines.
    pub lines: Vec<Line>,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    /// The name in the legend.
    pub label: String,
    /// The colour, marker and stroke.
    pub look: Look,
    /// The points from left to right; those that are not above 0 are not drawn.
    pub points: Vec<(f64, f64)>,
}

/// The colour, marker and stroke of a line, the same in all plots. Lines are drawn in the order of the policies. A line
/// that may cover an earlier one is thinner and dashed, and has a smaller marker, so that both can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    colour: RGBColor,
    marker: Marker,
    stroke: Stroke,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stroke {
    width: u32,
    /// The lengths of a dash and of the gap after it; `None` for a solid line.
    dashes: Option<(i32, i32)>,
}

impl Stroke {
    /// A wide line, which may be covered.
    const WIDE: Self = Self { width: 5, dashes: None };
    /// A line.
    const PLAIN: Self = Self { width: 2, dashes: None };
    /// A line with long dashes.
    const DASHED: Self = Self { width: 2, dashes: Some((9, 6)) };
    /// A thin line with short dashes.
    const DOTTED: Self = Self { width: 1, dashes: Some((3, 3)) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    LargeCircle,
    LargeSquare,
    Square,
    Triangle,
    Cross,
    Ring,
}

impl Look {
    /// Returns the look of a launcher with a cache policy.
    #[must_use]
    pub fn of(launcher: &Launcher) -> Self {
        let policy = launcher.caching.as_ref().map(|caching| caching.policy);
        // Colours that colour-blind readers can distinguish (Okabe and Ito).
        let (colour, marker, stroke) = match (policy, &launcher.client) {
            (None, _) | (_, Client::Library(_)) => (RGBColor(0, 0, 0), Marker::Cross, Stroke::DOTTED),
            (Some(Policy::Hcs), _) => (RGBColor(213, 94, 0), Marker::LargeSquare, Stroke::WIDE),
            (Some(Policy::Hcma), _) => (RGBColor(230, 159, 0), Marker::Triangle, Stroke::DASHED),
            (Some(Policy::Hcmab), _) => (RGBColor(0, 114, 178), Marker::LargeCircle, Stroke::WIDE),
            (Some(Policy::HcmabLru(Bound::Own)), _) => (RGBColor(86, 180, 233), Marker::Square, Stroke::DASHED),
            (Some(Policy::HcmabLru(Bound::Ranks)), _) => (RGBColor(0, 158, 115), Marker::Cross, Stroke::PLAIN),
            (Some(Policy::HcmabLru(Bound::RanksBy(_))), _) => {
                (RGBColor(204, 121, 167), Marker::Triangle, Stroke::PLAIN)
            }
        };
        Self { colour, marker, stroke }
    }

    /// Returns one of four looks that readers can tell apart, by number.
    #[must_use]
    pub fn numbered(number: usize) -> Self {
        let (colour, marker, stroke) = match number % 5 {
            0 => (RGBColor(0, 0, 0), Marker::Cross, Stroke::DOTTED),
            1 => (RGBColor(213, 94, 0), Marker::LargeSquare, Stroke::WIDE),
            2 => (RGBColor(0, 114, 178), Marker::LargeCircle, Stroke::PLAIN),
            3 => (RGBColor(0, 158, 115), Marker::Triangle, Stroke::DASHED),
            _ => (RGBColor(204, 121, 167), Marker::LargeCircle, Stroke::DASHED),
        };
        Self { colour, marker, stroke }
    }

    /// Returns the look of a line that shows a part of another line's values.
    #[must_use]
    pub fn hollow(self) -> Self {
        Self { marker: Marker::Ring, stroke: Stroke::DASHED, ..self }
    }

    fn style(self) -> ShapeStyle {
        self.colour.stroke_width(self.stroke.width)
    }
}

impl Line {
    /// Adds a point if there is a value.
    pub fn point(&mut self, x: u32, y: Option<f64>) {
        self.points.extend(y.map(|y| (f64::from(x), y)));
    }
}

impl Plot {
    /// Draws the plot as SVG.
    ///
    /// # Errors
    /// If the drawing library fails.
    pub fn draw(&self) -> Result<String, PlotError> {
        let mut svg = String::new();
        {
            let width = PANEL_WIDTH * self.panels.len() as u32 + LEGEND_WIDTH;
            let area = SVGBackend::with_string(&mut svg, (width, HEIGHT)).into_drawing_area();
            area.fill(&WHITE)?;
            let area = area.titled(&self.title, (FONT, 20))?;
            let (panels, legend) = area.split_horizontally(width - LEGEND_WIDTH);
            let panels = panels.split_evenly((1, self.panels.len()));
            for (panel, area) in self.panels.iter().zip(&panels) {
                self.draw_panel(panel, area)?;
            }
            self.draw_legend(&legend)?;
            area.present()?;
        }
        Ok(svg)
    }

    fn draw_panel(&self, panel: &Panel, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), PlotError> {
        let (xs, ys) = (self.values(|point| point.0), self.values(|point| point.1));
        let (x_range, y_range) = (margined(&xs), margined(&ys));
        let y_ticks = ticks(y_range.clone());
        let mut chart = ChartBuilder::on(area)
            .caption(&panel.title, (FONT, 17))
            .margin(10)
            .x_label_area_size(42)
            .y_label_area_size(72)
            .build_cartesian_2d(
                x_range.log_scale().with_key_points(xs),
                y_range.log_scale().with_key_points(y_ticks),
            )?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(logarithmic(self.x))
            .y_desc(logarithmic(self.y))
            .axis_desc_style((FONT, 16))
            .label_style((FONT, 15))
            .x_label_formatter(&short)
            .y_label_formatter(&short)
            .draw()?;
        for line in &panel.lines {
            let points: Vec<_> = line.points.iter().copied().filter(is_drawn).collect();
            let style = line.look.style();
            match line.look.stroke.dashes {
                Some((dash, gap)) => {
                    chart.draw_series(DashedLineSeries::new(points.iter().copied(), dash, gap, style))?;
                }
                None => {
                    chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
                }
            }
            for point in points {
                draw_marker(chart.plotting_area(), point, line.look)?;
            }
        }
        Ok(())
    }

    /// Draws the legend: each line once, in the order of the panels.
    fn draw_legend(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), PlotError> {
        let mut lines: Vec<&Line> = Vec::new();
        for line in self.panels.iter().flat_map(|panel| &panel.lines) {
            if lines.iter().all(|known| known.label != line.label) {
                lines.push(line);
            }
        }
        let left = Pos::new(HPos::Left, VPos::Center);
        for (row, line) in lines.iter().enumerate() {
            let y = 60 + 24 * i32::try_from(row).unwrap_or(0);
            let (ends, style) = ([(4, y), (32, y)], line.look.style());
            match line.look.stroke.dashes {
                Some((dash, gap)) => area.draw(&plotters::element::DashedPathElement::new(ends, dash, gap, style))?,
                None => area.draw(&PathElement::new(ends, style))?,
            }
            draw_marker(area, (18, y), line.look)?;
            area.draw(&Text::new(line.label.clone(), (40, y), (FONT, 16).into_font().color(&BLACK).pos(left)))?;
        }
        Ok(())
    }

    fn values(&self, of: impl Fn(&(f64, f64)) -> f64) -> Vec<f64> {
        let lines = self.panels.iter().flat_map(|panel| &panel.lines);
        let mut values: Vec<f64> =
            lines.flat_map(|line| &line.points).filter(|point| is_drawn(point)).map(of).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        values
    }
}

/// Returns whether a point can be shown on logarithmic axes.
fn is_drawn((x, y): &(f64, f64)) -> bool {
    [x, y].into_iter().all(|value| value.is_finite() && *value > 0.0)
}

fn draw_marker<C: CoordTranslate>(
    area: &DrawingArea<SVGBackend<'_>, C>,
    at: C::From,
    look: Look,
) -> Result<(), PlotError>
where
    C::From: Clone,
{
    let fill = look.colour.filled();
    match look.marker {
        Marker::LargeCircle => area.draw(&Circle::new(at, 6, fill)),
        Marker::LargeSquare => area.draw(&(EmptyElement::at(at) + Rectangle::new([(-6, -6), (6, 6)], fill))),
        Marker::Triangle => area.draw(&TriangleMarker::new(at, 5, fill)),
        Marker::Ring => area.draw(&Circle::new(at, 4, look.colour.stroke_width(2))),
        Marker::Cross => area.draw(&Cross::new(at, 4, look.colour.stroke_width(2))),
        Marker::Square => area.draw(&(EmptyElement::at(at) + Rectangle::new([(-3, -3), (4, 4)], fill))),
    }
}

/// Returns the range of `values`, which are sorted, with a margin on both sides.
fn margined(values: &[f64]) -> std::ops::Range<f64> {
    match (values.first(), values.last()) {
        (Some(least), Some(greatest)) => least / 1.15..greatest * 1.15,
        _ => 1.0..10.0,
    }
}

/// Returns the labelled values of a logarithmic axis: powers of ten, and values between them if these
/// are few.
fn ticks(range: std::ops::Range<f64>) -> Vec<f64> {
    let powers = || range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let with = |steps: &[f64]| -> Vec<f64> {
        let all = powers().flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
        all.filter(|tick| range.contains(tick)).collect()
    };
    let steps: [&[f64]; 3] = [&[1.0], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]];
    let sparse = steps.into_iter().map(with).find(|ticks| ticks.len() >= TICKS_MIN);
    sparse.unwrap_or_else(|| with(steps[steps.len() - 1]))
}

/// Returns the label of an axis, which says that the axis is logarithmic.
fn logarithmic(label: &str) -> String {
    format!("{label} (logarithmic scale)")
}

/// Formats a number briefly: 0.05, 2, 500, 20k, 3M.
fn short(value: &f64) -> String {
    let rounded = |value: f64| {
        let text = format!("{value:.4}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match *value {
        value if value >= 1e6 => rounded(value / 1e6) + "M",
        value if value >= 1e4 => rounded(value / 1e3) + "k",
        value => rounded(value),
    }
}

const TICKS_MIN: usize = 4;
const PANEL_WIDTH: u32 = 420;
const LEGEND_WIDTH: u32 = 170;
const HEIGHT: u32 = 420;
const FONT: &str = "sans-serif";

#[cfg(test)]
mod tests {
    use super::*;

    fn line(label: &str, points: &[(f64, f64)]) -> Line {
        let look = Look { colour: RGBColor(1, 2, 3), marker: Marker::LargeCircle, stroke: Stroke::WIDE };
        Line { label: label.to_owned(), look, points: points.to_vec() }
    }

    #[test]
    fn axes_of_few_decades_have_ticks_between_powers_of_ten() {
        assert_eq!(ticks(0.04..3.0), [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]);
        assert_eq!(ticks(22.0..85.0), [30.0, 40.0, 50.0, 60.0, 80.0]);
        assert_eq!(ticks(0.5..2000.0), [1.0, 10.0, 100.0, 1000.0]);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.05, 2.0, 512.0, 20_000.0, 1.5e6].map(|value| short(&value)), ["0.05", "2", "512", "20k", "1.5M"]);
    }

    #[test]
    fn each_line_is_drawn_in_every_panel_and_once_in_the_legend() {
        let lines = vec![line("hcs", &[(64.0, 0.1), (128.0, 0.2)]), line("hcmab", &[(64.0, f64::NAN), (128.0, 0.0)])];
        let panel = |title: &str| Panel { title: title.to_owned(), lines: lines.clone() };
        let panels = vec![panel("fan-out 32"), panel("fan-out 4")];
        let plot = Plot { title: "1:p".to_owned(), x: "ranks", y: "seconds", panels };
        let svg = plot.draw().unwrap();
        let count = |text: &str| svg.lines().filter(|line| line.trim() == text).count();
        assert_eq!(
            [count("hcs"), count("hcmab"), count("fan-out 4"), count("seconds (logarithmic scale)")],
            [1, 1, 1, 2]
        );
        // Two points in each panel, and one in the legend for each line; points that are not above 0
        // are not drawn.
        assert_eq!(svg.matches("<circle").count(), 2 * 2 + 2);
    }

    #[test]
    fn an_empty_plot_can_be_drawn() {
        let panels = vec![Panel { title: String::new(), lines: Vec::new() }];
        assert!(Plot { title: String::new(), x: "n", y: "bytes", panels }.draw().is_ok());
    }
}
