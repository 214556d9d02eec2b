//! Every function of both interfaces with arguments of all kinds, compared with Slurm's libraries.

use std::collections::BTreeSet;

use crate::differences::{self, are_listed, are_none};
use crate::launchers::{Launcher, Results, all, hydra5, sruns};
use crate::libraries::{Api, Library, Ours, slurms};

/// Runs all sections of a walk.
#[track_caller]
fn walk(launcher: &Launcher, library: &Library) -> Results {
    let without = launcher.without(library.api).iter().flat_map(|section| ["--without", section]);
    let results = launcher.walk(&walker(library), &without.collect::<Vec<_>>());
    let by = format!("{} library under {}", library.owner, launcher.name());
    assert!(results.len() > 20, "the walk with {by} has hardly any results: {results:?}");
    results
}

/// Runs one section of a walk.
#[track_caller]
fn walk_only(section: &str, launcher: &Launcher, library: &Library) -> Results {
    launcher.walk(&walker(library), &["--only", section])
}

#[track_caller]
fn walker(library: &Library) -> std::path::PathBuf {
    library.compiled(&format!("{}_walk", library.api.name()))
}

/// Checks that every difference from Slurm's library is listed with a reason. Both libraries run under
/// the same launcher; if Slurm's does not support that launcher, its results are those under srun.
#[track_caller]
fn compare(api: Api) {
    let Some(theirs) = slurms(api) else { return };
    let ours = Ours::of(api);
    let (mut found, mut names) = (BTreeSet::new(), Vec::new());
    let launchers = all();
    for launcher in &launchers {
        let is_srun = |other: &&Launcher| matches!(other, Launcher::Srun(_, 1));
        let reference =
            if launcher.is_supported_by_slurms(api) { Some(launcher) } else { launchers.iter().find(is_srun) };
        let Some(reference) = reference else { continue };
        found.extend(differences::between(launcher.name(), &walk(launcher, &ours), &walk(reference, &theirs)));
        names.push(launcher.name());
    }
    are_listed(api, &names, &found);
}

#[test]
fn pmi_differs_from_slurms_only_as_listed() {
    compare(Api::Pmi);
}

#[test]
fn pmi2_differs_from_slurms_only_as_listed() {
    compare(Api::Pmi2);
}

/// The comparison depends on this.
#[test]
fn two_walks_with_the_same_library_agree() {
    for api in Api::ALL {
        let Some(theirs) = slurms(api) else { return };
        // scela-run has programs load our library instead of one which contacts srun only.
        for launcher in all().iter().filter(|launcher| launcher.is_supported_by_slurms(api)) {
            are_none(&differences::between(launcher.name(), &walk(launcher, &theirs), &walk(launcher, &theirs)));
        }
    }
}

/// Slurm's PMI-1 contacts srun only.
#[test]
fn a_program_that_was_linked_with_slurms_pmi_loads_our_library_under_scela_run() {
    let Some(theirs) = slurms(Api::Pmi) else { return };
    are_none(&differences::between("scela", &walk(&Launcher::Scela, &theirs), &walk(&Launcher::Scela, &Ours::pmi())));
}

/// Includes arguments with which Slurm's libraries crash or hang.
#[test]
fn no_argument_crashes_or_hangs_the_library() {
    for api in Api::ALL {
        for launcher in [Launcher::Scela, Launcher::None] {
            let mut results = launcher.walk(&walker(&Ours::of(api)), &[]);
            results.extend(walk_only("cliffs", &launcher, &Ours::of(api)));
            let is_failure = |result: &str| result.starts_with("signal") || result == "hangs";
            let failures: Vec<_> = results.iter().filter(|(_, result)| is_failure(result)).collect();
            assert!(failures.is_empty(), "{} under {}: {failures:?}", api.name(), launcher.name());
            assert_eq!(results.get("walk.end@0").map(String::as_str), Some("reached"), "{results:?}");
        }
    }
}

/// Hydra 5 answers as Hydra 4 does. They differ in two things that PMI leaves open: the value after a second put of a key,
/// and whether an unknown universe size is an attribute.
#[test]
fn both_versions_of_hydra_serve_our_libraries_alike() {
    let Some(five) = hydra5() else { return };
    for api in Api::ALL {
        let walker = walker(&Ours::of(api));
        let without: Vec<&str> = five.without(api).iter().flat_map(|section| ["--without", section]).collect();
        let [five, four] = [&five, &Launcher::Hydra].map(|launcher| {
            let mut results = launcher.walk(&walker, &without);
            assert_eq!(results["exit"], "0", "under {}: {results:?}", launcher.name());
            results.retain(|check, _| !check.starts_with("twice.") && !check.contains("universeSize"));
            results
        });
        are_none(&differences::between("hydra-5", &five, &four));
    }
}

/// `PMI_Abort` has an exit code, `PMI2_Abort` has none.
#[test]
fn an_abort_ends_all_ranks() {
    let launchers: Vec<_> = [Launcher::Scela, Launcher::Hydra].into_iter().chain(sruns()).collect();
    for launcher in &launchers {
        let by_pmi = walk_only("abort", launcher, &Ours::of(Api::Pmi));
        let by_pmi2 = walk_only("abort", launcher, &Ours::of(Api::Pmi2));
        for results in [&by_pmi, &by_pmi2] {
            assert!(!results.contains_key("abort.PMI_Abort"), "PMI_Abort returned: {results:?}");
            assert!(!results.contains_key("abort.PMI2_Abort"), "PMI_Abort returned: {results:?}");
            assert_ne!(results["exit"], "0", "under {}: {results:?}", launcher.name());
        }
        if matches!(launcher, Launcher::Scela | Launcher::Hydra) {
            assert_eq!(by_pmi["exit"], "42", "under {}", launcher.name());
        }
    }
}
