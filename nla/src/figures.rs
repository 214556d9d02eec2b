//! Formats numbers for people: three digits and a unit.

use std::time::Duration;

/// Formats a time: `900 us`, `13.6 ms`, `1.50 s`.
pub fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let (factor, unit) = match seconds {
        1.0.. => (1.0, "s"),
        0.001.. => (1e3, "ms"),
        _ => (1e6, "us"),
    };
    format!("{} {unit}", three_digits(seconds * factor))
}

/// Formats a number of bytes: `999 B`, `1.67 TB`.
pub fn bytes(bytes: u64) -> String {
    if bytes < 1000 { format!("{bytes} B") } else { scaled(bytes, " ") + "B" }
}

/// Formats a number in at most five characters, if its unit allows: `99999`, `1.23M`.
pub fn count(number: u64) -> String {
    if number < 100_000 { number.to_string() } else { scaled(number, "") }
}

/// Formats a number with its noun: `1 rank`, `2 batches`.
pub fn counted(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ if noun.ends_with("ch") => format!("{number} {noun}es"),
        _ => format!("{number} {noun}s"),
    }
}

/// Formats a number of at least 1,000 with a prefix of the SI.
fn scaled(number: u64, gap: &str) -> String {
    let power = (number.ilog10() / 3).min(5);
    format!(
        "{}{gap}{}",
        three_digits(number as f64 / 1000f64.powi(power as i32)),
        ["", "k", "M", "G", "T", "P"][power as usize]
    )
}

/// Formats a number with at least three significant digits.
fn three_digits(number: f64) -> String {
    let decimals = match number {
        99.95.. => 0,
        9.995.. => 1,
        _ => 2,
    };
    format!("{number:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_follow_their_numbers() {
        let texts = [(1, "rank"), (2, "rank"), (0, "remote shell"), (1, "batch"), (3, "batch")];
        let texts = texts.map(|(number, noun)| counted(number, noun));
        assert_eq!(texts, ["1 rank", "2 ranks", "0 remote shells", "1 batch", "3 batches"]);
    }

    #[test]
    fn large_numbers_are_shortened() {
        for (number, text) in [
            (0, "0"),
            (99_999, "99999"),
            (100_000, "100k"),
            (999_499, "999k"),
            (1_234_567, "1.23M"),
            (99_960_000, "100M"),
            (12_345_678_901, "12.3G"),
            (5_000_000_000_000, "5.00T"),
            (u64::MAX, "18447P"),
        ] {
            assert_eq!(count(number), text);
        }
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!([0, 999, 1000, 97_655].map(bytes), ["0 B", "999 B", "1.00 kB", "97.7 kB"]);
        assert_eq!([1_666_976_368_533, u64::MAX].map(bytes), ["1.67 TB", "18447 PB"]);
    }

    #[test]
    fn times_have_units() {
        let time = |ns| time(Duration::from_nanos(ns));
        assert_eq!([0, 12_345, 1_000_000, 99_960_000].map(time), ["0.00 us", "12.3 us", "1.00 ms", "100 ms"]);
        assert_eq!([1_500_000_000, 86_400_000_000_000].map(time), ["1.50 s", "86400 s"]);
    }
}
