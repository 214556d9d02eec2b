//! Command lines, configuration files and log filters.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use launcher::cli::{FANOUT_MAX, FANOUT_MIN, KILL_GRACE_MAX, TIMEOUT_MAX, Typed, UsageError, check_log_filter, parse};
use launcher::plan::request::{Program, Request, StdinTo};
use nla::core::limits::RANKS_MAX;

/// Checks the words of a command line, which are lines of the input up to a NUL byte. A configfile is the rest.
pub(super) fn check(data: &[u8]) {
    let mut parts = data.splitn(2, |&byte| byte == 0);
    let words = parts.next().unwrap_or_default().split(|&byte| byte == b'\n');
    let words: Vec<OsString> = words.map(|word| OsString::from_vec(word.to_vec())).collect();
    let file = parts.next().unwrap_or_default().to_vec();
    for word in &words {
        if let Err(refusal) = check_log_filter(word) {
            super::check_shown(&refusal.to_string());
        }
    }
    let read = || parse(OsStr::new("scela-run"), words.clone(), &|_| Ok(file.clone()));
    check_typed(read);
}

/// Checks a configuration file.
pub(super) fn check_config_file(data: &[u8]) {
    let words = ["-configfile", "f"].map(OsString::from).to_vec();
    check_typed(|| parse(OsStr::new("scela-run"), words.clone(), &|_| Ok(data.to_vec())));
}

/// A command line always means the same, and its values are within their bounds.
fn check_typed(read: impl Fn() -> Result<Typed, UsageError>) {
    match (read(), read()) {
        (Ok(typed), Ok(again)) => {
            assert_eq!(typed, again);
            if let Typed::Run(request) = typed {
                check_request(&request);
            }
        }
        (Err(error), Err(again)) => {
            assert_eq!(error.to_string(), again.to_string());
            super::check_shown(&error.to_string());
            super::check_shown(error.hint());
        }
        (one, other) => panic!("the same words mean {one:?} and {other:?}"),
    }
}

fn check_request(request: &Request) {
    let Request { options, commands } = request;
    assert!(!commands.is_empty());
    assert!((FANOUT_MIN..=FANOUT_MAX).contains(&options.fanout()));
    assert!(options.timeout.is_none_or(|time| !time.is_zero() && time <= TIMEOUT_MAX));
    assert!(options.kill_grace() <= KILL_GRACE_MAX);
    for command in commands {
        assert!(command.nprocs.is_none_or(|nprocs| (1..=RANKS_MAX).contains(&nprocs)));
        assert!(command.program != Program::Named(OsString::new()));
        assert!(command.wdir.as_ref().is_none_or(|wdir| !wdir.as_os_str().is_empty()));
    }
    if let Some(StdinTo::Ranks(ranges)) = &options.stdin {
        assert!(!ranges.is_empty() && ranges.iter().all(|(first, last)| first <= last));
        assert!(ranges.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
    }
}
