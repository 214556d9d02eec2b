//! Random numbers that depend only on a seed (SplitMix64) and are the same on every machine.

use std::ops::RangeInclusive;

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns the sequence of one session. It is independent of those of the other sessions, so that one session
    /// can be repeated alone.
    pub fn of_session(seed: u64, number: u64) -> Self {
        let mut of_seed = Self(seed);
        let mut random = Self(of_seed.next() ^ number.wrapping_mul(0xD605_BBB5_8C8A_BC03));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// Returns a number in the range. The bias of the modulo does not matter here.
    pub fn of(&mut self, range: RangeInclusive<i64>) -> i64 {
        let span = (range.end() - range.start()) as u64 + 1;
        range.start() + (self.next() % span) as i64
    }

    /// Returns true with a probability of one in `times`.
    pub fn once_in(&mut self, times: i64) -> bool {
        self.of(1..=times) == 1
    }

    /// Returns a number up to `max`. Small numbers are as likely as large ones.
    pub fn of_any_size(&mut self, max: u32) -> u32 {
        let bits = i64::from(max.ilog2());
        let ceiling = (2_i64 << self.of(0..=bits)).min(i64::from(max));
        self.of(1..=ceiling) as u32
    }
}
