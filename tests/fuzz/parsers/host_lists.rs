//! Host lists: `node[1-3]:2,ada@login`, selections, exclusions, and the short form of names.

use std::collections::BTreeSet;

use launcher::cluster::hosts::{
    HOSTS_MAX, HostsError, NAME_BYTES_MAX, exclude, expand, fold, parse_file, parse_list, select,
};
use launcher::cluster::node_list::Node;

/// Longer lists are parsed only: a check of a million names takes a second.
const CHECKED_NAMES_MAX: usize = 4096;

/// Checks the bytes as a list, as names, and as positions.
pub(super) fn check(data: &[u8]) {
    match expand(data) {
        Ok(names) => check_names(&names),
        Err(error) => check_error(data, &error),
    }
    match parse_list(data) {
        Ok(nodes) if nodes.len() <= CHECKED_NAMES_MAX => {
            check_nodes(&nodes);
            // A list is also a file of one line, and the same list again when its nodes are written one by one.
            assert_eq!(parse_file(data).as_ref(), Ok(&nodes));
            let written = nodes.iter().map(written).collect::<Vec<_>>().join(",");
            assert_eq!(parse_list(written.as_bytes()).as_ref(), Ok(&nodes), "{written}");
        }
        Ok(nodes) => check_nodes(&nodes),
        Err(error) => check_error(data, &error),
    }
    let hosts: Vec<usize> = (1..=12).collect();
    match select(&hosts, data) {
        Ok(selected) => assert_eq!(selected.iter().collect::<BTreeSet<_>>().len(), selected.len()),
        Err(error) => check_error(data, &error),
    }
}

/// Names are the same set when they are folded and expanded again, and none of them survives its own exclusion.
fn check_names(names: &[String]) {
    assert!(!names.is_empty() && names.len() <= HOSTS_MAX);
    if names.len() > CHECKED_NAMES_MAX {
        return;
    }
    let set: BTreeSet<&String> = names.iter().collect();
    let folded = fold(names);
    let again = expand(folded.as_bytes()).unwrap_or_else(|error| panic!("{folded}: {error}"));
    assert_eq!(again.iter().collect::<BTreeSet<_>>(), set, "{folded}");
    assert_eq!(again.len(), set.len(), "{folded}: each name once");
    assert_eq!(fold(&again), folded);
    let nodes: Vec<Node> = names.iter().map(Node::named).collect();
    let excluded = exclude(nodes, folded.as_bytes()).unwrap_or_else(|error| panic!("{folded}: {error}"));
    assert!(excluded.kept.is_empty() && excluded.unmatched.is_empty(), "{folded}: {excluded:?}");
}

/// Checks the bounds of nodes.
pub(super) fn check_nodes(nodes: &[Node]) {
    assert!(!nodes.is_empty() && nodes.len() <= HOSTS_MAX);
    for node in nodes {
        let words = [Some(&node.name), node.user.as_ref()];
        for word in words.into_iter().flatten() {
            assert!(!word.is_empty() && word.len() <= NAME_BYTES_MAX, "{node:?}");
            // ssh takes a word that begins with a dash for an option.
            assert!(!word.starts_with(['-', '+', '.']), "{node:?}");
            let is_part = |c: char| c.is_whitespace() || c.is_control() || "[],@;/$`'\"\\".contains(c);
            assert!(!word.contains(is_part), "{node:?}");
        }
        assert!(node.slots != Some(0) && node.max_slots != Some(0));
        assert!(node.slots.is_none_or(|slots| node.max_slots.is_none_or(|max_slots| slots <= max_slots)));
    }
}

/// Returns a node as an item of a list. A list has no `max_slots`.
pub(super) fn written(node: &Node) -> String {
    let user = node.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
    let slots = node.slots.map(|slots| format!(":{slots}")).unwrap_or_default();
    let name = if node.name.contains(':') { format!("[{}]", node.name) } else { node.name.clone() };
    format!("{user}{name}{slots}")
}

/// An error has a place in the text, and prints as three lines with a caret, without control characters.
pub(super) fn check_error(data: &[u8], error: &HostsError) {
    let shown = error.to_string();
    assert!(!error.hint().is_empty());
    shown.lines().for_each(|line| super::check_shown(line));
    let Some(column) = error.column() else { return };
    let text = String::from_utf8_lossy(data);
    let line = error.line().map_or(Some(&*text), |line| text.split('\n').nth(line - 1)).expect("the line is there");
    assert!((1..=line.chars().count() + 1).contains(&column), "{shown}");
    let lines: Vec<&str> = shown.split('\n').collect();
    let [_, line, carets] = lines[..] else { panic!("not three lines: {shown}") };
    let caret = carets.chars().position(|c| c == '^').expect("there is a caret");
    assert!(caret <= line.chars().count(), "{shown}");
}
