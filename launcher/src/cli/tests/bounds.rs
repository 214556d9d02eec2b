//! Each bound on numbers and lengths is accepted, and one past it is refused.

use super::super::limits::{
    AGENTS_PER_NODE_MAX, BATCH_MAX, CACHE_ENTRIES_MAX, CORES_MAX, FANOUT_MAX, FANOUT_MIN, FANOUTS_MAX, IFACE_BYTES_MAX,
    LABEL_BYTES_MAX, MEMORY_ALLOC_KINDS_BYTES_MAX, RESTARTS_MAX,
};
use super::*;

/// Asserts that the line with `good` in place of `{}` is accepted, and that with `bad` refused.
fn check(line: &str, good: &str, bad: &str) {
    let parsed = |value: &str| parse(OsStr::new("scela-run"), words(&line.replace("{}", value)), &no_file);
    assert!(parsed(good).is_ok(), "{line} with {good}: {:?}", parsed(good));
    assert!(parsed(bad).is_err(), "{line} with {bad}: {:?}", parsed(bad));
}

#[test]
fn numbers() {
    for (line, least, most) in [
        ("--fanout {} ./a", FANOUT_MIN, FANOUT_MAX),
        ("--batch {} ./a", 1, BATCH_MAX),
        ("--agents-per-node {} ./a", 1, AGENTS_PER_NODE_MAX),
        ("--cache hcmab-lru --cache-entries {} ./a", 1, CACHE_ENTRIES_MAX),
        ("--on-failure restart --max-restarts {} ./a", 1, RESTARTS_MAX),
        ("--simulate 4x2 --cores {}", 1, CORES_MAX),
        ("--simulate 4x2 --fanouts 2,{}", FANOUT_MIN, FANOUT_MAX),
    ] {
        check(line, &least.to_string(), &(least - 1).to_string());
        check(line, &most.to_string(), &(most + 1).to_string());
    }
}

#[test]
fn lengths() {
    check("-iface {} ./a", &"i".repeat(IFACE_BYTES_MAX), &"i".repeat(IFACE_BYTES_MAX + 1));
    let kinds = MEMORY_ALLOC_KINDS_BYTES_MAX;
    check("-memory-alloc-kinds {} ./a", &"k".repeat(kinds), &"k".repeat(kinds + 1));
    check("--label {} ./a", &"l".repeat(LABEL_BYTES_MAX), &"l".repeat(LABEL_BYTES_MAX + 1));
    let list = |count: usize| vec!["2"; count].join(",");
    check("--simulate 4x2 --fanouts {}", &list(FANOUTS_MAX), &list(FANOUTS_MAX + 1));
}
