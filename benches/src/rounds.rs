//! Rounds, in which every launcher runs once, and medians over them. Each round begins with another
//! launcher.

use crate::run::Void;

/// The results of one launcher, one per round.
#[derive(Debug)]
pub struct Series<T> {
    results: Vec<Result<T, Void>>,
}

/// Runs `runs` rounds over `launchers` and returns the results of each. The launcher that begins a
/// round comes last in the next, so that what a run leaves behind (caches, daemons, a hot processor)
/// affects all launchers alike.
///
/// A launcher that has hung is not run again: it would hang until its deadline each time.
pub fn rounds<L: Copy, T>(
    launchers: &[L],
    runs: u32,
    mut run: impl FnMut(u32, L) -> Result<T, Void>,
) -> Vec<Series<T>> {
    let mut all: Vec<Series<T>> = launchers.iter().map(|_| Series { results: Vec::new() }).collect();
    for round in 0..runs {
        for turn in 0..launchers.len() {
            let at = (round as usize + turn) % launchers.len();
            let series = &mut all[at];
            series.results.push(if series.has_hung() {
                Err(Void::Failed("skipped after a run that hung".to_owned()))
            } else {
                run(round, launchers[at])
            });
        }
    }
    all
}

impl<T> Series<T> {
    /// Returns the median of `value` over the runs that count.
    #[must_use]
    pub fn median(&self, value: impl Fn(&T) -> f64) -> Option<f64> {
        median(self.counted().map(value).collect())
    }

    /// Returns the median of the ratios to `other`'s run of the same round, over the rounds in which
    /// both count.
    #[must_use]
    pub fn median_ratio(&self, other: &Self, value: impl Fn(&T) -> f64) -> Option<f64> {
        self.median_of_rounds(other, |own, other| value(own) / value(other))
    }

    /// Returns the median of `value` over the rounds in which both runs count, its own and `other`'s.
    #[must_use]
    pub fn median_of_rounds(&self, other: &Self, value: impl Fn(&T, &T) -> f64) -> Option<f64> {
        let pairs = self.results.iter().zip(&other.results);
        let pairs = pairs.filter_map(|(own, other)| Some((own.as_ref().ok()?, other.as_ref().ok()?)));
        median(pairs.map(|(own, other)| value(own, other)).collect())
    }

    /// Returns the number of rounds.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "every series has at least one round")]
    pub fn len(&self) -> usize {
        self.results.len()
    }

    /// Returns the runs that count.
    pub fn counted(&self) -> impl Iterator<Item = &T> {
        self.results.iter().filter_map(|result| result.as_ref().ok())
    }

    /// Returns the runs that count with the numbers of their rounds, from 1.
    pub fn by_round(&self) -> impl Iterator<Item = (usize, &T)> {
        let rounds = self.results.iter().enumerate();
        rounds.filter_map(|(index, result)| Some((index + 1, result.as_ref().ok()?)))
    }

    /// Returns the number of runs that do not count, and the first reason. Runs that were not repeated because they are
    /// slow are not among them.
    #[must_use]
    pub fn voids(&self) -> Option<(usize, &Void)> {
        let voids = || self.results.iter().filter_map(|result| result.as_ref().err());
        let voids = || voids().filter(|why| !matches!(why, Void::Slow(_)));
        voids().next().map(|first| (voids().count(), first))
    }

    /// Returns why runs were not repeated, if some were not.
    #[must_use]
    pub fn not_repeated(&self) -> Option<&Void> {
        self.results.iter().find_map(|result| result.as_ref().err().filter(|why| matches!(why, Void::Slow(_))))
    }

    /// Returns whether the launcher was not to run at this size.
    #[must_use]
    pub fn was_left_out(&self) -> bool {
        self.results.iter().all(|result| matches!(result, Err(Void::NotTyped(_))))
    }

    /// Returns whether a run has exceeded its deadline.
    #[must_use]
    pub fn has_hung(&self) -> bool {
        self.results.iter().any(|result| matches!(result, Err(Void::Hung(_))))
    }
}

/// Returns the middle value, or the mean of the two in the middle.
#[must_use]
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let above = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 { Some(above) } else { Some(f64::midpoint(values[values.len() / 2 - 1], above)) }
}

/// Returns the smallest value that at least `percent` percent of the values do not exceed.
#[must_use]
pub fn percentile(mut values: Vec<f64>, percent: usize) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() * percent).div_ceil(100);
    values.get(rank.saturating_sub(1)).copied()
}

/// The median and the 99th percentile of some values; NaN without values.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// The median: the 50th percentile.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl Spread {
    /// Computes both percentiles.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.collect();
        let at = |percent| percentile(values.clone(), percent).unwrap_or(f64::NAN);
        Self { p50: at(50), p99: at(99) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn medians_and_percentiles() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((percentile(hundred.clone(), 50), percentile(hundred, 99)), (Some(50.0), Some(99.0)));
        assert_eq!(percentile(vec![7.0], 99), Some(7.0));
    }

    #[test]
    fn the_first_launcher_of_a_round_rotates() {
        let mut order = String::new();
        let all = rounds(&['a', 'b', 'c'], 4, |round, launcher| {
            order.push(launcher);
            Ok(format!("{launcher}{round}"))
        });
        assert_eq!(order, "abcbcacababc");
        assert!(all[2].counted().eq(["c0", "c1", "c2", "c3"]));
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        // The machine is ten times slower in the second round, which does not affect the ratio.
        let times = [[1.0, 2.0], [10.0, 20.0]];
        let all = rounds(&[0, 1], 2, |round, launcher: usize| Ok(times[round as usize][launcher]));
        assert_eq!(all[1].median_ratio(&all[0], |time| *time), Some(2.0));
    }

    #[test]
    fn a_round_in_which_either_does_not_count_has_no_ratio() {
        let all = rounds(&["floor", "hydra"], 3, |round, launcher| match (round, launcher) {
            (1, "hydra") => Err(Void::Failed("1 processes left behind".to_owned())),
            (_, "hydra") => Ok(f64::from(round + 1) * 3.0),
            _ => Ok(1.0),
        });
        assert_eq!(all[1].median_ratio(&all[0], |time| *time), Some(6.0));
        assert_eq!(all[1].voids().map(|(count, _)| count), Some(1));
        assert!(all[1].by_round().eq([(1, &3.0), (3, &9.0)]));
    }

    #[test]
    fn a_launcher_above_its_size_limit_is_left_out() {
        let all = rounds(&[4096, 64], 2, |_, np| if np > 1024 { Err(Void::NotTyped(1024)) } else { Ok(1.0) });
        assert!(all[0].was_left_out() && !all[1].was_left_out());
        assert_eq!(all[1].median_ratio(&all[0], |time| *time), None);
    }

    #[test]
    fn a_launcher_that_has_hung_is_not_run_again() {
        let mut tried = 0;
        let all = rounds(&[()], 5, |_, ()| -> Result<(), Void> {
            tried += 1;
            Err(Void::Hung(Duration::from_secs(60)))
        });
        assert_eq!((tried, all[0].voids().map(|(count, _)| count)), (1, Some(5)));
    }
}
