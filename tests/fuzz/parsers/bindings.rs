//! Sets of processors, and the values of options about them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use launcher::cli::{Typed, parse};
use nla::core::limits::CPUS_MAX;
use nla::core::{BindTo, CpuSet, MemoryPolicy};

/// A set is written as it was parsed, and values of options name processors within the bound.
pub(super) fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for separator in [',', '+'] {
        match CpuSet::parse(text.trim_end(), separator) {
            Ok(set) => check_set(&set),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    for option in ["--bind-to", "--map-by", "--mem-bind"] {
        let words = [option.into(), OsString::from_vec(data.to_vec()), "a".into()].to_vec();
        match parse(OsStr::new("scela-run"), words, &|_| Err(std::io::Error::other("none"))) {
            Ok(Typed::Run(request)) => {
                let binding = request.options.binding;
                if let Some(BindTo::List(list)) = &binding.bind_to {
                    assert!(!list.is_empty() && list.iter().all(|set| !set.is_empty()));
                    list.iter().for_each(check_set);
                }
                if let MemoryPolicy::Nodes(nodes) = &binding.memory {
                    check_set(nodes);
                }
            }
            Ok(other) => panic!("an option with a value means {other:?}"),
            Err(error) => {
                super::check_shown(&error.to_string());
                super::check_shown(error.hint());
            }
        }
    }
}

fn check_set(set: &CpuSet) {
    assert_eq!(set.to_string().parse::<CpuSet>().as_ref(), Ok(set));
    assert!(set.iter().all(|cpu| cpu < CPUS_MAX));
    assert_eq!(set.iter().count() as u32, set.len());
    assert!(set.words().last() != Some(&0), "in its shortest form");
}
