//! The heat map as PNG: the squares alone, with a palette.

use png::{BitDepth, ColorType, Encoder, EncodingError};

use super::heat_map::{HeatMap, SHADES, colour};

/// The most bins on a side.
pub(super) const BINS_MAX: u32 = 1024;
/// Smaller pictures are enlarged to at least this side.
const SIDE_MIN: usize = 512;

/// Draws the picture: colour 0 is white, for no traffic.
pub(super) fn draw(map: &HeatMap) -> Result<Vec<u8>, EncodingError> {
    let scale = SIDE_MIN.div_ceil(map.side.max(1)).max(1);
    let side = map.side.max(1) * scale;
    let mut pixels = Vec::with_capacity(side * side);
    for y in 0..side {
        pixels.extend((0..side).map(|x| match map.side {
            0 => 0,
            _ => map.shade(y / scale, x / scale).map_or(0, |shade| shade as u8 + 1),
        }));
    }
    let palette: Vec<u8> = [[255; 3]].into_iter().chain((0..SHADES).map(colour)).flatten().collect();
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&mut out, side as u32, side as u32);
    encoder.set_color(ColorType::Indexed);
    encoder.set_depth(BitDepth::Eight);
    encoder.set_palette(palette);
    encoder.write_header()?.write_image_data(&pixels)?;
    Ok(out)
}
