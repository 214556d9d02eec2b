//! Sets of processors, lists of devices, and the values of options about them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use launcher::cli::{Typed, parse};
use nla::core::limits::{CPUS_MAX, DEVICES_MAX};
use nla::core::{BindTo, CpuSet, MemoryPolicy, Resource, Resources, listed};

/// A set and a list are written as it was parsed, and values of options name processors within the bound.
pub(super) fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for separator in [',', '+'] {
        match CpuSet::parse(text.trim_end(), separator) {
            Ok(set) => check_set(&set),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    for id in listed(&text) {
        assert_eq!(listed(&id), [id.as_str()], "a name in a list is a list of itself");
    }
    if let Ok(list) = text.parse::<Resources>() {
        assert_eq!(list.to_string().parse::<Resources>().as_ref(), Ok(&list));
        assert!(list.iter().map(Resource::count).sum::<u32>() <= DEVICES_MAX);
    }
    for option in ["--gres", "--bind-to", "--map-by", "--mem-bind"] {
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
