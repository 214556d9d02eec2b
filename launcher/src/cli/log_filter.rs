//! `SCELA_LOG`: what is logged.

use std::ffi::OsStr;

use super::text::shown;
use crate::refusal::Refusal;

/// The names of levels, as `tracing` knows them.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// The crates whose names select everything that they log.
const CRATES: [&str; 5] = ["nla", "launcher", "scela_run", "pmi", "sim"];

/// Checks the value of `SCELA_LOG`: levels, or targets with levels, between commas.
///
/// `tracing_subscriber` alone takes any word for a target and then logs nothing.
pub fn check_log_filter(value: &OsStr) -> Result<(), Refusal> {
    let text = value.to_string_lossy();
    let is_level = |word: &str| LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    let is_target = |word: &str| CRATES.contains(&word.split("::").next().unwrap_or_default());
    let is_known = |directive: &&str| match directive.rsplit_once('=') {
        // A target may have a span with fields, which contain '=' as well.
        Some((target, level)) if !level.ends_with(']') => is_level(level) && !target.is_empty(),
        _ => is_level(directive) || is_target(directive) || directive.contains('['),
    };
    match text.split(',').map(str::trim).filter(|directive| !directive.is_empty()).find(|word| !is_known(word)) {
        Some(directive) => Err(Refusal::new(
            format!("SCELA_LOG: '{}' is not a level", shown(OsStr::new(directive))),
            "SCELA_LOG=LEVEL, with error, warn, info, debug, trace or off, or as in SCELA_LOG=warn,nla::driver=debug",
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_targets_with_levels_are_known() {
        for value in ["", "debug", "WARN", "warn,nla=debug", "nla::driver=trace, off", "nla", "nla[rank{rank=3}]=debug"]
        {
            assert_eq!(check_log_filter(OsStr::new(value)), Ok(()), "{value}");
        }
    }

    #[test]
    fn other_words_are_refused() {
        for (value, directive) in
            [("foo", "foo"), ("warn,dbug", "dbug"), ("nla=loud", "nla=loud"), ("=debug", "=debug")]
        {
            let error = check_log_filter(OsStr::new(value)).unwrap_err();
            assert_eq!(error.to_string(), format!("SCELA_LOG: '{directive}' is not a level"));
            assert!(error.hint().starts_with("SCELA_LOG=LEVEL, with error, warn, info, debug, trace or off"));
        }
    }
}
