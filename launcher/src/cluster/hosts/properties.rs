//! Properties of parsing and folding.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::every_short_text::{check_entries, check_error, check_names, check_text};
use super::{HOSTS_MAX, NAME_BYTES_MAX, exclude, expand, fold, parse_file, parse_list, select};
use crate::cluster::node::Node;
use nla::core::Resources;

/// Names of clusters, and others.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-c]{1,2}[0-9]{1,3}",
        "r[0-3]n0{0,2}[0-9]{1,2}",
        "[a-z0-9_][a-z0-9._+-]{0,20}",
        "10\\.0\\.[0-3]\\.[0-9]{1,2}",
        "[0-9]{18,22}",
        "ü[0-9]é?",
        "fe80::[0-9a-f]{1,4}(%eth[0-9])?",
    ]
}

/// An expression with small ranges, and its names.
fn expression() -> impl Strategy<Value = (String, Vec<String>)> {
    let range = (0u64..200, 0u64..12, 1u64..5, 1usize..5, any::<bool>());
    let ranges = vec(range, 1..4).prop_map(|ranges| {
        let mut typed = Vec::new();
        let mut numbers = Vec::new();
        for (first, more, step, width, colon) in ranges {
            let (sign, last) = (if colon { ':' } else { '/' }, first + more);
            let first_typed = format!("{first:0width$}");
            let width = first_typed.len();
            typed.push(format!("{first_typed}-{last:0width$}{sign}{step}"));
            numbers.extend((first..=last).step_by(step as usize).map(|number| format!("{number:0width$}")));
        }
        (format!("[{}]", typed.join(",")), numbers)
    });
    let text = "[a-z.-]{0,3}".prop_map(|text| (text.clone(), vec![text]));
    let first = "[a-z]{1,3}".prop_map(|text| (text.clone(), vec![text]));
    (first, vec((ranges, text), 0..3)).prop_map(|(first, rest)| {
        let parts = rest.into_iter().flat_map(|(ranges, text)| [ranges, text]);
        parts.fold(first, |(typed, names), (more_typed, more)| {
            let names = names.iter().flat_map(|name| more.iter().map(move |more| format!("{name}{more}")));
            (format!("{typed}{more_typed}"), names.collect())
        })
    })
}

/// Text that is close to the grammar.
fn nearly() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        4 => name(),
        4 => expression().prop_map(|(typed, _)| typed),
        1 => Just("[::1]:8".to_owned()),
        1 => Just(" slots=".to_owned()),
        1 => Just(" max-slots = 4".to_owned()),
        1 => Just(" user=ada".to_owned()),
        1 => Just(" gres=gpu:a100:4,fpga".to_owned()),
        8 => "[\\[\\],:@/.#= \t\r\n0-9-]",
        1 => any::<char>().prop_map(String::from),
    ];
    vec(word, 0..10).prop_map(|words| words.concat())
}

fn entry() -> impl Strategy<Value = Node> {
    (proptest::option::of("[a-z_][a-z0-9.-]{0,5}"), name(), proptest::option::of(1u32..9), 0u32..9).prop_map(
        |(user, name, slots, more)| {
            let max_slots = slots.map_or(more, |slots| slots + more);
            Node {
                user,
                name,
                slots,
                max_slots: Some(max_slots).filter(|&max_slots| max_slots > 0),
                gres: Resources::NONE,
            }
        },
    )
}

/// The host part of an item.
fn bracketed(name: &str) -> String {
    if name.contains(':') { format!("[{name}]") } else { name.to_owned() }
}

proptest! {
    #[test]
    fn folding_and_expanding_are_inverse(names in vec(name(), 1..60)) {
        check_names("names", &names);
    }

    #[test]
    fn folding_depends_on_the_set_alone(names in vec(name(), 1..30).prop_shuffle(), twice in 0usize..30) {
        let mut others: Vec<_> = names.clone();
        others.sort();
        others.extend(names.get(twice).cloned());
        prop_assert_eq!(fold(&names), fold(&others));
        prop_assert!(fold(&names).len() <= names.iter().map(|name| name.len() + 3).sum());
    }

    #[test]
    fn folding_takes_any_text(names in vec(any::<String>(), 0..10)) {
        let folded = fold(&names);
        prop_assert!(!folded.contains(char::is_control), "{:?}", folded);
    }

    #[test]
    fn expressions_expand_to_their_names((typed, names) in expression()) {
        let expanded = expand(typed.as_bytes());
        if names[0].len() < NAME_BYTES_MAX && names.len() < HOSTS_MAX {
            prop_assert_eq!(expanded.as_ref().ok(), Some(&names), "{}", typed);
        }
        check_names(&typed, &names);
    }

    #[test]
    fn lists_and_files_are_read_as_written(entries in vec(entry(), 1..8)) {
        let item = |entry: &Node| {
            let user = entry.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
            let slots = entry.slots.map(|slots| format!(":{slots}")).unwrap_or_default();
            format!("{user}{}{slots}", bracketed(&entry.name))
        };
        let without_max: Vec<_> =
            entries.iter().map(|entry| Node { max_slots: None, ..entry.clone() }).collect();
        let list = entries.iter().map(item).collect::<Vec<_>>().join(",");
        prop_assert_eq!(parse_list(list.as_bytes()), Ok(without_max));
        let line = |entry: &Node| {
            let max_slots = entry.max_slots.map(|max_slots| format!(" max-slots={max_slots}")).unwrap_or_default();
            format!("{}{max_slots}\n", item(entry))
        };
        let hydra: String = entries.iter().map(line).collect();
        prop_assert_eq!(parse_file(hydra.as_bytes()), Ok(entries.clone()));
        let line = |entry: &Node| {
            let user = entry.user.as_ref().map(|user| format!(" user={user}")).unwrap_or_default();
            let slots = entry.slots.map(|slots| format!(" slots = {slots}")).unwrap_or_default();
            let max_slots = entry.max_slots.map(|max_slots| format!("\tmax_slots={max_slots}")).unwrap_or_default();
            format!("  {}{max_slots}{user}{slots} # a:b\r\n", bracketed(&entry.name))
        };
        let open_mpi: String = entries.iter().map(line).collect();
        prop_assert_eq!(parse_file(open_mpi.as_bytes()), Ok(entries));
    }

    #[test]
    fn nearly_valid_text_is_read_or_refused_with_a_place(text in nearly()) {
        check_text(&text);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        let text = String::from_utf8_lossy(&bytes);
        for entries in [parse_file(&bytes), parse_list(&bytes)] {
            match entries {
                Ok(entries) => check_entries(&entries),
                Err(error) => check_error(&text, &error),
            }
        }
        if let Err(error) = select(&[1, 2, 3], &bytes) {
            check_error(&text, &error);
        }
    }

    #[test]
    fn exclusion_removes_exactly_the_excluded_hosts(
        entries in vec(entry(), 1..20), picks in vec(any::<bool>(), 20), unknown in "x[0-9]{4}",
    ) {
        let chosen = entries.iter().zip(&picks).filter(|(_, pick)| **pick).map(|(entry, _)| entry.name.clone());
        let mut out: BTreeSet<String> = chosen.collect();
        out.insert(unknown.clone());
        let excluded = exclude(entries.clone(), fold(&out).as_bytes()).expect("what was folded can be read");
        let kept: Vec<_> = entries.into_iter().filter(|entry| !out.contains(&entry.name)).collect();
        prop_assert_eq!(excluded.kept, kept);
        prop_assert_eq!(excluded.unmatched, [unknown]);
    }

    #[test]
    fn indices_select_what_they_fold(picks in vec(any::<bool>(), 1..40)) {
        let all: Vec<usize> = (1..=picks.len()).collect();
        let chosen: Vec<usize> = all.iter().zip(&picks).filter(|(_, pick)| **pick).map(|(i, _)| *i).collect();
        prop_assume!(!chosen.is_empty());
        let folded = fold(chosen.iter().map(ToString::to_string));
        let text = folded.trim_matches(['[', ']']);
        prop_assert_eq!(select(&all, text.as_bytes()), Ok(chosen.clone()));
        prop_assert_eq!(select(&all, text.replace('-', "..").as_bytes()), Ok(chosen));
    }
}
