//! Lines and bytes that a rank generates and a test can compute again, to compare the output byte by byte.

use std::fmt::Write as _;

/// Pseudo-random numbers from a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// Starts the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns the next number, reduced to less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound.max(1)
    }
}

/// Returns line `number` of `rank`, newline included: the rank, the number, and up to `bytes_max` more bytes.
pub fn line(rank: u32, number: u64, bytes_max: u64) -> String {
    let mut draw = Draw::new(u64::from(rank) << 40 | number);
    let mut line = format!("{rank} {number} ");
    for _ in 0..draw.below(bytes_max + 1) / 16 {
        let _ = write!(line, "{:016x}", draw.number());
    }
    line.push('\n');
    line
}

/// The checksum (FNV-1a) of bytes that arrive in any number of pieces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sum {
    bytes: u64,
    hash: u64,
}

impl Default for Sum {
    fn default() -> Self {
        Self { bytes: 0, hash: 0xcbf2_9ce4_8422_2325 }
    }
}

impl Sum {
    /// Returns the checksum of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut sum = Self::default();
        sum.add(bytes);
        sum
    }

    /// Adds the next piece.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes {:016x}", self.bytes, self.hash)
    }
}

/// Returns `count` pseudo-random bytes.
pub fn noise(count: usize) -> Vec<u8> {
    let mut draw = Draw::new(count as u64);
    let mut bytes: Vec<u8> =
        std::iter::repeat_with(|| draw.number().to_le_bytes()).take(count / 8 + 1).flatten().collect();
    bytes.truncate(count);
    bytes
}
