//! The heat map laid out: rectangles and texts at their places, which `svg` writes and `png` paints.

use super::heat_map::{HeatMap, SHADES, colour};
use super::nodes::NodeMap;
use super::{Measure, size_text};

/// The room of a character, and the height of a capital letter. All lengths are in pixels.
pub(super) const CHARACTER_WIDTH: u32 = 12;
pub(super) const CAPITAL_HEIGHT: u32 = 14;
/// The distance of lines of text.
const LINE: u32 = 22;
/// The margin of the picture, and the distance between its parts.
const GAP: u32 = 8;
/// The length of the mark of a rank beside the matrix.
const TICK: u32 = 5;
/// Smaller matrices are enlarged to at least this side.
const SIDE_MIN: u32 = 512;
/// The most ranks that an axis names.
const TICKS_MAX: u32 = 8;
/// The width of the scale.
const SCALE_WIDTH: u32 = 16;
/// The most borders of nodes that are drawn.
const BORDERS_MAX: usize = 64;
/// The least side of a square beside which a border is drawn through the matrix. Beside smaller squares it would hide some.
const BORDERED_STEP_MIN: u32 = 3;

/// The colour of a mark.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Ink {
    /// A shade of the scale.
    Shade(usize),
    /// Lines and texts.
    Dark,
    /// The border between nodes.
    Border,
}

impl Ink {
    /// Returns red, green and blue.
    pub(super) fn colour(self) -> [u8; 3] {
        match self {
            Self::Shade(shade) => colour(shade),
            Self::Dark => [0x33; 3],
            Self::Border => [0x33, 0x77, 0xaa],
        }
    }
}

/// A filled rectangle.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Area {
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) ink: Ink,
}

/// The place of a text relative to its point on the baseline.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A text in one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Label {
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) anchor: Anchor,
    /// It reads upwards.
    pub(super) is_turned: bool,
    pub(super) text: String,
}

/// A heat map with all that is drawn around it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Picture {
    pub(super) width: u32,
    pub(super) height: u32,
    /// Later ones cover earlier ones.
    pub(super) areas: Vec<Area>,
    pub(super) labels: Vec<Label>,
}

/// The matrix in the picture.
#[derive(Copy, Clone, Debug)]
struct Plot {
    left: u32,
    top: u32,
    side: u32,
    /// The side of a square.
    step: u32,
    per_bin: u32,
}

impl Plot {
    /// Returns the distance of a rank's row from the upper edge, or of its column from the left one.
    fn offset(&self, rank: u32) -> u32 {
        (u64::from(rank) * u64::from(self.step) / u64::from(self.per_bin)) as u32
    }

    fn right(&self) -> u32 {
        self.left + self.side
    }

    fn bottom(&self) -> u32 {
        self.top + self.side
    }
}

/// Returns the room that a text needs at most.
pub(super) fn text_width(text: &str) -> u32 {
    text.chars().count() as u32 * CHARACTER_WIDTH
}

impl Picture {
    /// Lays a heat map out. `nodes` has the borders between nodes.
    pub(super) fn new(map: &HeatMap, nodes: Option<&NodeMap>) -> Self {
        let bins = (map.side as u32).max(1);
        let step = SIDE_MIN.div_ceil(bins);
        let longest_rank = text_width(&map.ranks.saturating_sub(1).to_string());
        let scale = scale_labels(map);
        let longest_value = scale.iter().map(|(_, text)| text_width(text)).max().unwrap_or(0);
        let plot = Plot {
            left: GAP + LINE + longest_rank + GAP + TICK,
            top: GAP + 2 * LINE + GAP,
            side: bins * step,
            step,
            per_bin: map.per_bin,
        };
        let unit = measure_text(map.measure);
        let scale_width = (SCALE_WIDTH + GAP + longest_value).max(text_width(unit));
        let mut picture = Self {
            width: plot.right() + 2 * GAP + scale_width + GAP,
            height: plot.bottom() + TICK + GAP + LINE + LINE + GAP,
            areas: Vec::new(),
            labels: Vec::new(),
        };
        picture.add_bins(map, &plot);
        picture.add_borders(map, nodes, &plot);
        picture.add_frame(&plot);
        picture.add_axes(map, &plot);
        if !scale.is_empty() {
            picture.add_scale(&plot, unit, scale);
        }
        let capital = |text: &str| text[..1].to_uppercase() + &text[1..];
        picture.add_text((plot.left, GAP + LINE), Anchor::Start, format!("{} from rank to rank", capital(unit)));
        let bins = match map.per_bin {
            1 => String::new(),
            per_bin => format!(", {per_bin} x {per_bin} in a square"),
        };
        picture.add_text((plot.left, GAP + 2 * LINE), Anchor::Start, format!("{} ranks{bins}", map.ranks));
        picture
    }

    fn add(&mut self, (x, y): (u32, u32), (width, height): (u32, u32), ink: Ink) {
        self.areas.push(Area { x, y, width, height, ink });
    }

    fn add_text(&mut self, (x, y): (u32, u32), anchor: Anchor, text: String) {
        self.labels.push(Label { x, y, anchor, is_turned: false, text });
    }

    /// Neighbours of one shade in a row are one rectangle.
    fn add_bins(&mut self, map: &HeatMap, plot: &Plot) {
        for from in 0..map.side {
            let mut to = 0;
            while to < map.side {
                let shade = map.shade(from, to);
                let end = (to..map.side).find(|at| map.shade(from, *at) != shade).unwrap_or(map.side);
                if let Some(shade) = shade {
                    let at = (plot.left + to as u32 * plot.step, plot.top + from as u32 * plot.step);
                    self.add(at, ((end - to) as u32 * plot.step, plot.step), Ink::Shade(shade));
                }
                to = end;
            }
        }
    }

    fn add_borders(&mut self, map: &HeatMap, nodes: Option<&NodeMap>, plot: &Plot) {
        let borders = nodes.map(NodeMap::borders).unwrap_or_default();
        if map.ranks == 0 || borders.len() > BORDERS_MAX {
            return;
        }
        for border in borders {
            let offset = plot.offset(border);
            let (x, y) = (plot.left + offset, plot.top + offset);
            if plot.step >= BORDERED_STEP_MIN {
                self.add((x, plot.top), (1, plot.side), Ink::Border);
                self.add((plot.left, y), (plot.side, 1), Ink::Border);
            } else {
                self.add((x, plot.top - TICK), (1, TICK), Ink::Border);
                self.add((plot.right(), y), (TICK, 1), Ink::Border);
            }
        }
    }

    fn add_frame(&mut self, plot: &Plot) {
        let (left, top, long) = (plot.left - 1, plot.top - 1, plot.side + 2);
        self.add((left, top), (long, 1), Ink::Dark);
        self.add((left, plot.bottom()), (long, 1), Ink::Dark);
        self.add((left, top), (1, long), Ink::Dark);
        self.add((plot.right(), top), (1, long), Ink::Dark);
    }

    fn add_axes(&mut self, map: &HeatMap, plot: &Plot) {
        for rank in (0..map.ranks).step_by(tick_step(map.ranks, plot) as usize) {
            // In the middle of the rank's row, or at the beginning of its bin.
            let offset = plot.offset(rank) + if map.per_bin > 1 { 0 } else { plot.step / 2 };
            let (x, y) = (plot.left + offset, plot.top + offset);
            self.add((x, plot.bottom() + 1), (1, TICK), Ink::Dark);
            self.add((plot.left - 1 - TICK, y), (TICK, 1), Ink::Dark);
            self.add_text((x, plot.bottom() + TICK + GAP + CAPITAL_HEIGHT), Anchor::Middle, rank.to_string());
            self.add_text((plot.left - TICK - GAP, y + CAPITAL_HEIGHT / 2), Anchor::End, rank.to_string());
        }
        let below = plot.bottom() + TICK + GAP + LINE + CAPITAL_HEIGHT;
        self.add_text((plot.left + plot.side / 2, below), Anchor::Middle, "receiving rank".to_owned());
        self.labels.push(Label {
            x: GAP + CAPITAL_HEIGHT,
            y: plot.top + plot.side / 2,
            anchor: Anchor::Middle,
            is_turned: true,
            text: "sending rank".to_owned(),
        });
    }

    fn add_scale(&mut self, plot: &Plot, unit: &str, labels: Vec<(usize, String)>) {
        let x = plot.right() + 2 * GAP;
        // The upper edge of a shade; the lightest is at the bottom.
        let edge = |shade: usize| plot.bottom() - plot.side * shade as u32 / SHADES as u32;
        for shade in 0..SHADES {
            let (upper, lower) = (edge(shade + 1), edge(shade));
            self.add((x, upper), (SCALE_WIDTH, lower - upper), Ink::Shade(shade));
        }
        self.add_text((x, plot.top - GAP), Anchor::Start, unit.to_owned());
        for (shade, text) in labels {
            let middle = (edge(shade) + edge(shade + 1)) / 2;
            // Those at the ends stay beside the scale.
            let baseline = (middle + CAPITAL_HEIGHT / 2).clamp(plot.top + CAPITAL_HEIGHT, plot.bottom());
            self.add_text((x + SCALE_WIDTH + GAP, baseline), Anchor::Start, text);
        }
    }
}

fn measure_text(measure: Measure) -> &'static str {
    match measure {
        Measure::Bytes => "bytes",
        Measure::Messages => "messages",
    }
}

/// Returns the shades that the scale names, with their values; none without traffic.
fn scale_labels(map: &HeatMap) -> Vec<(usize, String)> {
    if map.most == 0 {
        return Vec::new();
    }
    let last = SHADES - 1;
    let mut labels: Vec<(usize, String)> = [last, last * 3 / 4, last / 2, last / 4, 0]
        .into_iter()
        .map(|shade| {
            let value = map.value_of(shade);
            let text = match map.measure {
                Measure::Bytes => size_text(value),
                Measure::Messages => value.to_string(),
            };
            (shade, text)
        })
        .collect();
    // If all sums are close to each other, shades share a text.
    labels.dedup_by(|later, former| later.1 == former.1);
    labels
}

/// Returns the distance of ranks on an axis: a power of two, so that their texts do not touch.
fn tick_step(ranks: u32, plot: &Plot) -> u32 {
    let room = text_width(&ranks.to_string()) + CHARACTER_WIDTH;
    let mut step = ranks.div_ceil(TICKS_MAX).max(1).next_power_of_two();
    while plot.offset(step) < room && step < ranks {
        step *= 2;
    }
    step
}
