//! Every function of both interfaces with arguments of all kinds, compared with Slurm's libraries.

use std::collections::BTreeSet;

use crate::differences::{self, are_listed, are_none};
use crate::launchers::{Launcher, Results, all, sruns};
use crate::libraries::{Api, Library, Ours, slurms};

/// Walks through the whole interface.
#[track_caller]
fn walk(launcher: &Launcher, library: &Library) -> Results {
    let without = launcher.without(library.api).iter().flat_map(|section| ["--without", section]);
    let results = launcher.walk(&walker(library), &without.collect::<Vec<_>>());
    let by = format!("{} library under {}", library.owner, launcher.name());
    assert!(results.len() > 20, "the walk with {by} got nowhere: {results:?}");
    results
}

/// Walks through one section.
#[track_caller]
fn walk_only(section: &str, launcher: &Launcher, library: &Library) -> Results {
    launcher.walk(&walker(library), &["--only", section])
}

#[track_caller]
fn walker(library: &Library) -> std::path::PathBuf {
    library.compiled(&format!("{}_walk", library.api.name()))
}

/// What differs from Slurm's library is listed, with reasons: under the same launcher, or under srun if it is
/// of no use under that one.
#[track_caller]
fn compare(api: Api) {
    let Some(theirs) = slurms(api) else { return };
    let ours = Ours::of(api);
    let (mut found, mut names) = (BTreeSet::new(), Vec::new());
    let launchers = all();
    for launcher in &launchers {
        let is_srun = |other: &&Launcher| matches!(other, Launcher::Srun(_, 1));
        let home = if launcher.is_home(api) { Some(launcher) } else { launchers.iter().find(is_srun) };
        let Some(home) = home else { continue };
        found.extend(differences::between(launcher.name(), &walk(launcher, &ours), &walk(home, &theirs)));
        names.push(launcher.name());
    }
    are_listed(api, &names, &found);
}

#[test]
fn pmi_is_slurms() {
    compare(Api::Pmi);
}

#[test]
fn pmi2_is_slurms() {
    compare(Api::Pmi2);
}

/// Else nothing could be said of differences.
#[test]
fn two_walks_write_the_same() {
    for api in Api::ALL {
        let Some(theirs) = slurms(api) else { return };
        for launcher in all() {
            are_none(&differences::between(launcher.name(), &walk(&launcher, &theirs), &walk(&launcher, &theirs)));
        }
    }
}

/// Where Slurm's own libraries end in a signal, or never.
#[test]
fn no_argument_brings_us_down() {
    for api in Api::ALL {
        for launcher in [Launcher::Scela, Launcher::Nobody] {
            let mut results = launcher.walk(&walker(&Ours::of(api)), &[]);
            results.extend(walk_only("cliffs", &launcher, &Ours::of(api)));
            let is_fall = |result: &str| result.starts_with("signal") || result == "hangs";
            let falls: Vec<_> = results.iter().filter(|(_, result)| is_fall(result)).collect();
            assert!(falls.is_empty(), "{} under {}: {falls:?}", api.name(), launcher.name());
            assert_eq!(results.get("walk.end@0").map(String::as_str), Some("reached"), "{results:?}");
        }
    }
}

/// `PMI_Abort` has a code, `PMI2_Abort` has none.
#[test]
fn an_abort_ends_all_ranks() {
    let launchers: Vec<_> = [Launcher::Scela, Launcher::Hydra].into_iter().chain(sruns()).collect();
    for launcher in &launchers {
        let by_pmi = walk_only("abort", launcher, &Ours::of(Api::Pmi));
        let by_pmi2 = walk_only("abort", launcher, &Ours::of(Api::Pmi2));
        for results in [&by_pmi, &by_pmi2] {
            assert!(!results.contains_key("abort.PMI_Abort"), "it came back: {results:?}");
            assert!(!results.contains_key("abort.PMI2_Abort"), "it came back: {results:?}");
            assert_ne!(results["exit"], "0", "under {}: {results:?}", launcher.name());
        }
        if matches!(launcher, Launcher::Scela | Launcher::Hydra) {
            assert_eq!(by_pmi["exit"], "42", "under {}", launcher.name());
        }
    }
}
