//! The files of ranks that are brought back at the end: those of `--collect`.

use std::path::{Path, PathBuf};

use nla::core::{CollectPattern, CollectPlan};

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
    match plan.collect_to.iter().find(|directory| directory.exists() && !directory.is_dir()) {
        Some(file) => {
            let text = format!("option '--collect': '{}' is no directory", file.display());
            Err(Refusal::new(text, "name another one after the '='"))
        }
        None => Ok(()),
    }
}
