//! Values of the options about processors and memory of ranks, in our spelling and in those of Hydra and Open MPI.

use std::ffi::OsStr;

use nla::core::limits::RANKS_MAX;
use nla::core::{BindTo, CpuSet, CpuSetError, Level, MapWithin, MemoryPolicy};

use super::limits::{BINDING_LIST_MAX, PARTS_MAX};
use super::text::{shown, thousands};
use super::values::{OPTION, Parsed, described, number_within, some};
use crate::cluster::placement::MapBy;
use crate::refusal::Refusal;
use crate::suggest;

/// Further names of levels, which Hydra, Open MPI or hwloc use.
const ALIASES: [(&str, Level); 7] = [
    ("thread", Level::Hwthread),
    ("l2", Level::L2),
    ("l3", Level::L3),
    ("numanode", Level::Numa),
    ("socket", Level::Package),
    ("pu", Level::Hwthread),
    ("skt", Level::Package),
];

/// The parts of a value of `--map-by`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MapRule {
    /// How ranks are distributed over nodes.
    pub(super) nodes: MapBy,
    /// How they are distributed within a node.
    pub(super) within: Option<MapWithin>,
    /// The cores of each rank.
    pub(super) elements: Option<u32>,
}

fn level(word: &str) -> Option<Level> {
    let word = word.to_ascii_lowercase();
    let named = Level::ALL.into_iter().find(|level| level.name() == word);
    named.or_else(|| ALIASES.into_iter().find(|(name, _)| *name == word).map(|(_, level)| level))
}

/// Parses `--bind-to`: `none`, a level with an optional number of parts, or `user:LIST`. Returns also whether ranks may
/// overload a node. Open MPI's `if-supported` is accepted without effect.
pub(super) fn bind_to(value: &OsStr) -> Parsed<(Option<BindTo>, bool)> {
    let text = some(value)?.to_string_lossy();
    if let Some(list) = text.strip_prefix("user:") {
        return Ok((Some(BindTo::List(lists(value, list)?)), false));
    }
    let mut words = text.split(':');
    let first = words.next().unwrap_or_default();
    let (mut count, mut overloads) = (None, false);
    for word in words {
        match word {
            "overload-allowed" => overloads = true,
            "if-supported" => {}
            _ if count.is_none() => count = Some(number_within(value, word, 1, PARTS_MAX)?),
            _ => return Err(Refusal::new(format!("'{}' has two numbers", shown(value)), described())),
        }
    }
    if first.eq_ignore_ascii_case("none") && count.is_none() {
        return Ok((Some(BindTo::Nothing), false));
    }
    match level(first) {
        Some(level) => Ok((Some(BindTo::Parts(level, count.unwrap_or(1))), overloads)),
        None => Err(unknown(first, &["none", "user:LIST"])),
    }
}

/// Returns the refusal of a word that names no level. `others` are the words that name something else.
fn unknown(word: &str, others: &[&str]) -> Refusal {
    let names: Vec<&str> = Level::ALL.map(Level::name).into_iter().chain(others.iter().copied()).collect();
    let text = format!("'{}' is not one of {}", shown(OsStr::new(word)), names.join(", "));
    let near = suggest::nearest(&word.to_ascii_lowercase(), names.iter().copied());
    Refusal::new(text, near.map_or_else(described, |near| format!("did you mean '{near}'?")))
}

/// Returns the refusal of a value with a set that cannot be parsed. The error has a part of the value as it was typed.
fn unreadable(value: &OsStr, error: &CpuSetError, hint: String) -> Refusal {
    Refusal::new(format!("{}: {}", shown(value), shown(OsStr::new(&error.to_string()))), hint)
}

/// Parses the list of `user:`: for each rank of a node, numbers and ranges of processors with `+` between them.
fn lists(value: &OsStr, list: &str) -> Parsed<Vec<CpuSet>> {
    let hint = format!("name the processors of each rank of a node, as in '{OPTION} user:0+2,1+3,4-7'");
    let lists: Result<Vec<CpuSet>, CpuSetError> =
        list.split(',').take(BINDING_LIST_MAX + 1).map(|set| CpuSet::parse(set, '+')).collect();
    let lists = lists.map_err(|error| unreadable(value, &error, hint.clone()))?;
    if lists.iter().any(CpuSet::is_empty) {
        return Err(Refusal::new(format!("'{}' has an entry without a processor", shown(value)), hint));
    }
    if lists.len() > BINDING_LIST_MAX {
        let text = format!("the list has more than {} entries", thousands(BINDING_LIST_MAX as u32));
        return Err(Refusal::new(text, "a list is used again from its beginning if a node has more ranks"));
    }
    Ok(lists)
}

/// Parses `--map-by`: `slot`, `node`, `comm`, a level, or `ppr:N:` with `node` or a level; then, at will, `:PE=N`.
pub(super) fn map_by(value: &OsStr) -> Parsed<MapRule> {
    let text = some(value)?.to_string_lossy();
    let modified = text.rsplit_once(':').and_then(|(rule, modifier)| {
        let (name, count) = modifier.split_once('=')?;
        name.eq_ignore_ascii_case("pe").then_some((rule, count))
    });
    let (rule, elements) = match modified {
        Some((rule, count)) => (rule, Some(number_within(value, count, 1, PARTS_MAX)?)),
        None => (text.as_ref(), None),
    };
    let (nodes, within) = match rule.strip_prefix("ppr:").map(|rest| rest.split_once(':')) {
        Some(Some((count, "node"))) => (MapBy::PerNode(number_within(value, count, 1, RANKS_MAX)?), None),
        Some(Some((count, part))) => {
            let level = level(part).ok_or_else(|| unknown(part, &["node"]))?;
            (MapBy::Slot, Some(MapWithin::Filled(number_within(value, count, 1, RANKS_MAX)?, level)))
        }
        Some(None) => {
            let text = format!("'{}' names no level", shown(value));
            return Err(Refusal::new(text, format!("write '{OPTION} ppr:2:node', or a level in place of node")));
        }
        None => match rule.to_ascii_lowercase().as_str() {
            "slot" => (MapBy::Slot, None),
            "node" => (MapBy::Node, None),
            "comm" => (MapBy::Comm, None),
            word => {
                let level = level(word).ok_or_else(|| unknown(rule, &["slot", "node", "comm", "ppr:N:node"]))?;
                (MapBy::Slot, Some(MapWithin::Each(level)))
            }
        },
    };
    Ok(MapRule { nodes, within, elements })
}

/// Parses `--mem-bind`: `local`, `none`, or a list of memory nodes. Hydra's `bind:` before a list is accepted.
pub(super) fn memory(value: &OsStr) -> Parsed<MemoryPolicy> {
    let text = some(value)?.to_string_lossy();
    match text.as_ref() {
        "local" => return Ok(MemoryPolicy::Local),
        "none" => return Ok(MemoryPolicy::Inherited),
        _ => {}
    }
    let nodes: Result<CpuSet, _> = text.strip_prefix("bind:").unwrap_or(&text).parse();
    let hint = || format!("write 'local', or the numbers of memory nodes, as in '{OPTION} 0,2-3'");
    let nodes = nodes.map_err(|error| unreadable(value, &error, hint()))?;
    if nodes.is_empty() {
        return Err(Refusal::new(format!("'{}' names no memory node", shown(value)), hint()));
    }
    Ok(MemoryPolicy::Nodes(nodes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(text: &str) -> Result<(Option<BindTo>, bool), String> {
        bind_to(OsStr::new(text)).map_err(|error| error.to_string())
    }

    fn mapped(text: &str) -> Result<MapRule, String> {
        map_by(OsStr::new(text)).map_err(|error| error.to_string())
    }

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn bindings_are_parsed() {
        let to = |level, count, overloads| Ok((Some(BindTo::Parts(level, count)), overloads));
        assert_eq!(bound("none"), Ok((Some(BindTo::Nothing), false)));
        for level in Level::ALL {
            assert_eq!(bound(level.name()), to(level, 1, false));
        }
        assert_eq!(bound("Socket:2"), to(Level::Package, 2, false));
        assert_eq!(bound("core:overload-allowed"), to(Level::Core, 1, true));
        assert_eq!(bound("l3cache:2:overload-allowed"), to(Level::L3, 2, true));
        assert_eq!(bound("core:if-supported"), to(Level::Core, 1, false));
        let list = vec![set("0,2"), set("1,3"), set("4-7")];
        assert_eq!(bound("user:0+2,1+3,4-7"), Ok((Some(BindTo::List(list)), false)));
    }

    #[test]
    fn other_bindings_are_refused() {
        let check = |text: &str, expected: &str| assert_eq!(bound(text), Err(expected.to_owned()));
        check("", "the value is empty");
        check("cores", "'cores' is not one of hwthread, core, l2cache, l3cache, numa, package, none, user:LIST");
        check("core:0", "0 is out of range, it must be 1 to 4,096");
        check("core:2:2", "'core:2:2' has two numbers");
        check("user:0,", "'user:0,' has an entry without a processor");
        check("user:0+a", "user:0+a: 'a' is neither a number nor a range such as 0-3");
        check("user:\n", r"user:\n: '\n' is neither a number nor a range such as 0-3");
        check("user:16384", "user:16384: 16384 is too large: numbers end at 16383");
        assert!(bound(&format!("user:0{}", ",1".repeat(BINDING_LIST_MAX - 1))).is_ok());
        check(&format!("user:0{}", ",1".repeat(BINDING_LIST_MAX)), "the list has more than 4,096 entries");
    }

    #[test]
    fn mappings_are_parsed() {
        let rule = |nodes, within, elements| Ok(MapRule { nodes, within, elements });
        assert_eq!(mapped("slot"), rule(MapBy::Slot, None, None));
        assert_eq!(mapped("node:PE=2"), rule(MapBy::Node, None, Some(2)));
        assert_eq!(mapped("comm"), rule(MapBy::Comm, None, None));
        assert_eq!(mapped("ppr:3:node"), rule(MapBy::PerNode(3), None, None));
        assert_eq!(mapped("numa"), rule(MapBy::Slot, Some(MapWithin::Each(Level::Numa)), None));
        let filled = Some(MapWithin::Filled(2, Level::Package));
        assert_eq!(mapped("ppr:2:package:pe=4"), rule(MapBy::Slot, filled, Some(4)));
    }

    #[test]
    fn other_mappings_are_refused() {
        let check = |text: &str, expected: &str| assert_eq!(mapped(text), Err(expected.to_owned()));
        check("ppr:2", "'ppr:2' names no level");
        check("ppr:0:numa", "0 is out of range, it must be 1 to 16,777,216");
        check("slot:PE=x", "'x' is not a whole number");
        check("ppr:2:board", "'board' is not one of hwthread, core, l2cache, l3cache, numa, package, node");
        assert!(mapped("slots").is_err() && mapped("core:PE=").is_err() && mapped("é=é:é=é").is_err());
    }

    #[test]
    fn memory_is_parsed() {
        let parsed = |text: &str| memory(OsStr::new(text)).map_err(|error| error.to_string());
        assert_eq!(parsed("local"), Ok(MemoryPolicy::Local));
        assert_eq!(parsed("none"), Ok(MemoryPolicy::Inherited));
        assert_eq!(parsed("bind:0,2-3"), Ok(MemoryPolicy::Nodes(set("0,2-3"))));
        assert_eq!(parsed("0-99999"), Err("0-99999: 99999 is too large: numbers end at 16383".to_owned()));
        assert_eq!(parsed("near"), Err("near: 'near' is neither a number nor a range such as 0-3".to_owned()));
    }
}
