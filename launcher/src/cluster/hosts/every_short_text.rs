//! Parses every text of a few characters by every parser.

use std::collections::BTreeSet;

use super::{HostsError, expand, fold, parse_file, parse_list, select};
use crate::cluster::node::Node;

/// Calls a function with each text of at most `chars_max` of these characters.
fn every_text(alphabet: &[char], chars_max: usize, check: &mut impl FnMut(&str)) {
    fn extend(text: &mut String, alphabet: &[char], more: usize, check: &mut impl FnMut(&str)) {
        check(text);
        if more > 0 {
            for &c in alphabet {
                text.push(c);
                extend(text, alphabet, more - 1, check);
                text.pop();
            }
        }
    }
    extend(&mut String::new(), alphabet, chars_max, check);
}

/// Checks that an error has a position in the text, and prints with a caret.
pub(super) fn check_error(text: &str, error: &HostsError) {
    assert!(!error.hint().is_empty());
    let shown = error.to_string();
    let Some(column) = error.column() else {
        let of_whole = ["the list is empty", "there is no host in it", "it is larger than 64 MiB"];
        assert!(of_whole.contains(&shown.as_str()), "{text:?}: {shown}");
        return;
    };
    let line = match error.line() {
        Some(line) => text.split('\n').nth(line - 1).expect("the line is there"),
        None => text,
    };
    assert!((1..=line.chars().count() + 1).contains(&column), "{text:?}: {shown}");
    let lines: Vec<&str> = shown.split('\n').collect();
    assert_eq!(lines.len(), 3, "{text:?}: {shown}");
    let caret = lines[2].chars().position(|c| c == '^').expect("there is a caret");
    assert!(caret <= lines[1].chars().count(), "{text:?}: {shown}");
    assert!(!shown.replace('\n', "").contains(char::is_control), "{text:?}: {shown:?}");
}

/// Checks that hosts are within bounds, and stay the same when folded and parsed again.
pub(super) fn check_names(text: &str, names: &[String]) {
    assert!(!names.is_empty());
    let set: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let folded = fold(names);
    let again = expand(folded.as_bytes()).unwrap_or_else(|error| panic!("{text:?} gave {folded:?}: {error}"));
    assert_eq!(again.iter().map(String::as_str).collect::<BTreeSet<_>>(), set, "{text:?} gave {folded:?}");
    assert_eq!(again.len(), set.len(), "{text:?} gave {folded:?}: each name once");
    assert_eq!(fold(&again), folded, "{text:?}");
}

pub(super) fn check_entries(entries: &[Node]) {
    for entry in entries {
        assert!(!entry.name.is_empty() && !entry.name.contains(['[', ']', ',', '@', ' ', '\t']), "{entry:?}");
        assert!(!entry.name.starts_with(['-', '+', '.']), "{entry:?}");
        assert!(entry.slots != Some(0) && entry.max_slots != Some(0));
        assert!(entry.slots.is_none_or(|slots| entry.max_slots.is_none_or(|max_slots| slots <= max_slots)));
    }
}

/// Parses a text by every parser.
pub(super) fn check_text(text: &str) {
    match expand(text.as_bytes()) {
        Ok(names) => check_names(text, &names),
        Err(error) => check_error(text, &error),
    }
    match parse_list(text.as_bytes()) {
        Ok(entries) => {
            check_entries(&entries);
            // A list is also a file of one line.
            assert_eq!(parse_file(text.as_bytes()), Ok(entries), "{text:?}");
        }
        Err(error) => check_error(text, &error),
    }
    match parse_file(text.as_bytes()) {
        Ok(entries) => check_entries(&entries),
        Err(error) => check_error(text, &error),
    }
    if let Err(error) = select(&[1, 2, 3], text.as_bytes()) {
        check_error(text, &error);
    }
}

#[test]
fn short_texts() {
    let mut texts = 0;
    every_text(&['a', '0', '1', '[', ']', '-', ',', ':'], 5, &mut |text| {
        check_text(text);
        texts += 1;
    });
    assert_eq!(texts, (0..=5).map(|chars| 8usize.pow(chars)).sum::<usize>());
    every_text(&['a', '1', ' ', '\n', '#', '=', '\t', '\u{e9}', '%', '\r', '@', ':'], 4, &mut check_text);
}

#[test]
fn short_texts_in_brackets() {
    every_text(&['0', '1', '2', '-', ',', '/', ':', '.'], 4, &mut |text| {
        check_text(&format!("a[{text}]"));
        check_text(&format!("[{text}]b1"));
    });
    every_text(&['a', ':', '%', '.', '1', '-'], 5, &mut |text| check_text(&format!("[{text}]:2")));
}

#[test]
fn short_texts_behind_a_host() {
    every_text(&['s', '=', '1', ' ', ',', '#', '9', '0'], 4, &mut |text| {
        check_text(&format!("a:5 slots{text}"));
        check_text(&format!("a max-slots=2 slots={text}"));
        check_text(&format!("a user={text}"));
    });
}

#[test]
fn every_set_of_a_few_names_folds() {
    let names = ["n1", "n2", "n01", "n02", "n10", "r1n1", "r1n2", "r2n1", "r2n2", "r2n02", "a", "1", "::1", "010"];
    for set in 1u32..1 << names.len() {
        let chosen = (0..).zip(names).filter(|(i, _)| set >> i & 1 == 1).map(|(_, name)| name.to_owned());
        check_names("a set", &chosen.collect::<Vec<_>>());
    }
}
