//! The lists of differences between ScELA's libraries and Slurm's, and the comparison with them.
//!
//! A line of a list: `launchers | check | ours | slurm's | reason`, launchers separated by commas. If
//! only some of the ranks that print a check differ, their numbers follow its name, `@0,2`. A missing
//! result is `-`. Empty lines and lines that begin with `#` are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use crate::launchers::Results;
use crate::libraries::{Api, repository};

/// A missing result.
const NOTHING: &str = "-";
/// The placeholder for a reason that a person has to add.
const NO_REASON: &str = "?";

/// A difference under one launcher.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Difference {
    /// The check, with the ranks that differ unless all do.
    check: String,
    ours: String,
    theirs: String,
    launcher: String,
}

/// Returns the differences between two runs under a launcher.
pub(crate) fn between(launcher: &str, ours: &Results, theirs: &Results) -> BTreeSet<Difference> {
    let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    // For each check: the ranks that printed it, and those of each pair of results.
    let mut written: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut pairs: BTreeMap<(&str, &str, &str), BTreeSet<&str>> = BTreeMap::new();
    for name in names {
        let (check, rank) = name.split_once('@').unwrap_or((name, ""));
        written.entry(check).or_default().insert(rank);
        let [ours, theirs] = [ours, theirs].map(|results| results.get(name).map_or(NOTHING, String::as_str));
        if ours != theirs {
            pairs.entry((check, ours, theirs)).or_default().insert(rank);
        }
    }
    let differences = pairs.into_iter().map(|((check, ours, theirs), ranks)| {
        let ranks = if written[check] == ranks {
            String::new()
        } else {
            format!("@{}", ranks.into_iter().collect::<Vec<_>>().join(","))
        };
        let [ours, theirs, launcher] = [ours, theirs, launcher].map(str::to_owned);
        Difference { check: format!("{check}{ranks}"), ours, theirs, launcher }
    });
    differences.collect()
}

/// The list of an interface, and its path.
struct List {
    path: PathBuf,
    differences: BTreeSet<Difference>,
}

impl List {
    #[track_caller]
    fn of(api: Api) -> Self {
        let path = repository().join(format!("tests/abi/differences/{}.txt", api.name()));
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut differences = BTreeSet::new();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let place = format!("{}:{}", path.display(), at + 1);
            let parts: Vec<&str> = line.split(" | ").map(str::trim).collect();
            let [launchers, check, ours, theirs, reason] = parts[..] else {
                panic!("{place}: not 'launchers | check | ours | slurm's | reason'");
            };
            assert!(!reason.is_empty() && reason != NO_REASON, "{place}: the reason is missing");
            for launcher in launchers.split(',') {
                let [check, ours, theirs, launcher] = [check, ours, theirs, launcher].map(str::to_owned);
                let new = differences.insert(Difference { check, ours, theirs, launcher });
                assert!(new, "{place}: listed twice");
            }
        }
        Self { path, differences }
    }
}

/// Checks that the differences found under `launchers` are exactly those of the list.
#[track_caller]
pub(crate) fn are_listed(api: Api, launchers: &[&str], found: &BTreeSet<Difference>) {
    let list = List::of(api);
    let is_run = |difference: &&Difference| launchers.contains(&difference.launcher.as_str());
    let new: BTreeSet<_> = found.difference(&list.differences).cloned().collect();
    let obsolete: BTreeSet<_> = list.differences.difference(found).filter(is_run).cloned().collect();
    let mut text = String::new();
    for (what, differences) in [("add, with a reason instead of '?'", new), ("remove", obsolete)] {
        if !differences.is_empty() {
            let _ = writeln!(text, "to {what}:\n{}", lines(&differences));
        }
    }
    assert!(text.is_empty(), "{} does not match the differences found\n{text}", list.path.display());
}

/// Checks that two runs of the same library have no difference.
#[track_caller]
pub(crate) fn are_none(found: &BTreeSet<Difference>) {
    assert!(found.is_empty(), "two runs of the same library differ\n{}", lines(found));
}

/// Formats differences as lines of a list: one line for all launchers with the same difference.
fn lines(differences: &BTreeSet<Difference>) -> String {
    let mut merged: BTreeMap<(&str, &str, &str), Vec<&str>> = BTreeMap::new();
    for Difference { check, ours, theirs, launcher } in differences {
        merged.entry((check, ours, theirs)).or_default().push(launcher);
    }
    merged.into_iter().fold(String::new(), |mut text, ((check, ours, theirs), launchers)| {
        let _ = writeln!(text, "{} | {check} | {ours} | {theirs} | {NO_REASON}", launchers.join(","));
        text
    })
}
