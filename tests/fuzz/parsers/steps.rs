//! The lines of `srun`, and its lists of nodes.

use launcher::cluster::hosts::{expand, fold};
use nla::bootstrap::fuzzing::{is_in_list, judge_step, step_line};
use nla::core::limits::TEXT_BYTES_MAX;

/// Checks each line as one of `srun`, and all words as the names of nodes.
pub(super) fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for line in &lines {
        if let Some((nodes, failure)) = step_line(line) {
            assert!(line.contains(nodes));
            assert!(failure.words.len() <= TEXT_BYTES_MAX);
            let _ = is_in_list("n1", nodes);
        }
    }
    let code = data.first().map(|byte| i32::from(*byte));
    assert!(judge_step(code, &lines).words.len() <= TEXT_BYTES_MAX);
    check_list(&text);
}

/// The names in the short form of a list are in that list, and no others.
fn check_list(text: &str) {
    let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') && !name.starts_with('-');
    let names: Vec<&str> = text.split_whitespace().filter(|word| word.len() <= 64).filter(is_name).take(64).collect();
    let list = fold(&names);
    // Slurm's own lists have one pair of brackets for each group of names.
    if names.is_empty() || list.contains("][") || list.split("],").any(|item| item.matches('[').count() > 1) {
        return;
    }
    for name in &names {
        assert!(is_in_list(name, &list), "{name} is not in {list}");
    }
    let listed = expand(list.as_bytes()).expect("what was folded can be expanded");
    for other in ["n1", "n01", "n10", "login", "1"] {
        assert_eq!(is_in_list(other, &list), listed.iter().any(|name| name == other), "{other} in {list}");
    }
}
