//! The heat map as PNG, with a palette.

use png::{BitDepth, ColorType, Encoder, EncodingError};

use super::font::{CAPITAL_ROWS, GLYPH_COLUMNS, dots};
use super::heat_map::SHADES;
use super::layout::{Anchor, Area, CAPITAL_HEIGHT, CHARACTER_WIDTH, Ink, Label, Picture, text_width};

/// The most bins on a side.
pub(super) const BINS_MAX: u32 = 1024;
/// The side of a dot of a glyph.
const DOT: u32 = CHARACTER_WIDTH / (GLYPH_COLUMNS + 1);

/// Draws the picture.
pub(super) fn draw(picture: &Picture) -> Result<Vec<u8>, EncodingError> {
    let mut canvas = Canvas::new(picture.width, picture.height);
    picture.areas.iter().for_each(|area| canvas.fill(area));
    picture.labels.iter().for_each(|label| canvas.write(label));
    let inks = (0..SHADES).map(Ink::Shade).chain([Ink::Dark, Ink::Border]);
    let palette: Vec<u8> = [[255; 3]].into_iter().chain(inks.map(Ink::colour)).flatten().collect();
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&mut out, picture.width, picture.height);
    encoder.set_color(ColorType::Indexed);
    encoder.set_depth(BitDepth::Eight);
    encoder.set_palette(palette);
    encoder.write_header()?.write_image_data(&canvas.pixels)?;
    Ok(out)
}

/// Returns the place of an ink in the palette. White is 0.
fn index(ink: Ink) -> u8 {
    match ink {
        Ink::Shade(shade) => shade.min(SHADES - 1) as u8 + 1,
        Ink::Dark => SHADES as u8 + 1,
        Ink::Border => SHADES as u8 + 2,
    }
}

struct Canvas {
    width: u32,
    pixels: Vec<u8>,
}

impl Canvas {
    fn new(width: u32, height: u32) -> Self {
        Self { width, pixels: vec![0; width as usize * height as usize] }
    }

    /// Fills a rectangle. What is outside of the picture is left out.
    fn fill(&mut self, area: &Area) {
        let right = (area.x + area.width).min(self.width);
        let rows = self.pixels.chunks_exact_mut(self.width as usize).skip(area.y as usize).take(area.height as usize);
        rows.for_each(|row| row[area.x.min(right) as usize..right as usize].fill(index(area.ink)));
    }

    fn write(&mut self, label: &Label) {
        let width = text_width(&label.text);
        let before = match label.anchor {
            Anchor::Start => 0,
            Anchor::Middle => width / 2,
            Anchor::End => width,
        };
        for (character, at) in label.text.chars().zip(0..) {
            for (column, row) in dots(character) {
                let along = at * CHARACTER_WIDTH + column * DOT;
                // The part below the baseline is added first: no difference is negative in a picture.
                let (below, above) = (row * DOT, CAPITAL_HEIGHT);
                let (x, y) = if label.is_turned {
                    ((label.x + below).saturating_sub(above), (label.y + before).saturating_sub(along + DOT))
                } else {
                    ((label.x + along).saturating_sub(before), (label.y + below).saturating_sub(above))
                };
                self.fill(&Area { x, y, width: DOT, height: DOT, ink: Ink::Dark });
            }
        }
    }
}

const _: () = assert!(CAPITAL_ROWS * DOT == CAPITAL_HEIGHT);
