//! The files of ranks that are brought back at the end: those of `--collect`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nla::core::{CollectPattern, CollectPlan};
use nla::sys;

use crate::plan::Plan;
use crate::refusal::Refusal;

/// Files that are brought back, as the user typed them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collect {
    /// The files, relative to a rank's working directory or to the directory of the staged files.
    pub pattern: CollectPattern,
    /// Their directory on the launcher's machine. May be relative to the launcher's own directory.
    pub directory: PathBuf,
}

/// Adds the files that the options ask for to the plan.
pub(super) fn provide(plan: &mut Plan, wdir: &Path) -> Result<(), Refusal> {
    let Plan { settings, options, .. } = plan;
    let patterns = options.collect.iter().map(|collect| collect.pattern.clone()).collect();
    let refused = |error| Refusal::new(format!("option '--collect': {error}"), "name fewer patterns");
    settings.session.collect = CollectPlan::new(patterns, options.collect_max()).map_err(refused)?;
    plan.collect_to = options.collect.iter().map(|collect| wdir.join(&collect.directory)).collect();
    // Hours later it would be too late.
    if let Some(file) = plan.collect_to.iter().find(|directory| directory.exists() && !directory.is_dir()) {
        let text = format!("option '--collect': '{}' is not a directory", file.display());
        return Err(Refusal::new(text, "name another one after the '='"));
    }
    let places = || plan.settings.first.commands.iter().map(|command| Path::new(OsStr::from_bytes(&command.wdir)));
    let brings_itself =
        |(collect, to): &(&Collect, &PathBuf)| places().any(|place| matches_brought(collect, to, place));
    match plan.options.collect.iter().zip(&plan.collect_to).find(brings_itself) {
        Some((collect, _)) => {
            let (pattern, directory) = (collect.pattern.text(), collect.directory.display());
            let text = format!(
                "option '--collect': '{pattern}' also matches what is brought to '{directory}', so the next run would bring it again"
            );
            Err(Refusal::new(
                text,
                "name a directory that is not below the working directory of the ranks, such as ../results",
            ))
        }
        None => Ok(()),
    }
}

/// Returns whether files that were brought to the directory `to` match their pattern again, in ranks that work in `place`.
fn matches_brought(collect: &Collect, to: &Path, place: &Path) -> bool {
    if collect.pattern.is_in_stage_directory() {
        return false;
    }
    let name = |directory: &Path| sys::true_path(&directory.join("name"));
    let (to, place) = (name(to), name(place));
    let (Some(to), Some(place)) = (to.parent(), place.parent()) else { return false };
    let Ok(below) = to.strip_prefix(place) else { return false };
    let below: Vec<&[u8]> = below.iter().map(|component| component.as_bytes()).collect();
    // A file that replaces itself does not become a second one.
    !below.is_empty() && collect.pattern.matches_brought(&below)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::{machine, planned};

    #[test]
    fn a_directory_that_would_be_brought_to_itself_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let mut here = machine();
        here.wdir = place.path().to_owned();
        std::fs::create_dir(place.path().join("sub")).unwrap();
        let text = |words: &str| {
            let mut plan = planned(words, &here).unwrap();
            provide(&mut plan, &here.wdir).map_err(|refusal| refusal.with_hint())
        };
        for (words, pattern, directory) in [
            ("--collect *=res ./a", "*", "res"),
            ("--collect *=./res/ ./a", "*", "./res/"),
            ("--collect x=x ./a", "x", "x"),
            ("--collect *=sub/res -wdir sub ./a : ./b", "*", "sub/res"),
        ] {
            let why = format!(
                "'{pattern}' also matches what is brought to '{directory}', so the next run would bring it again"
            );
            let hint = "name a directory that is not below the working directory of the ranks, such as ../results";
            assert_eq!(text(words), Err(format!("option '--collect': {why}\n  hint: {hint}")), "{words}");
        }
        for words in [
            "--collect *=. ./a",
            "--collect *=../res ./a",
            "--collect *.dat=res ./a",
            "--collect *=res -wdir sub ./a",
            "--collect $SCELA_STAGE_DIR/*=res --stage ./a",
        ] {
            assert_eq!(text(words), Ok(()), "{words}");
        }
    }
}
