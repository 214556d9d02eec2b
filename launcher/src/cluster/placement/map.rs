//! Rank maps: placements that the user types.

use nla::core::limits::RANKS_MAX;

use crate::refusal::{Refusal, shown};

/// The longest text of a rank map, which may come from a file: a million ranks, each on a node with six digits.
pub const MAP_BYTES_MAX: usize = 8 << 20;

/// The most characters of a rank map in a message.
const SHOWN_CHARS_MAX: usize = 40;

/// The node of each rank, as typed.
///
/// ```text
/// map    = item { "," item }  |  "(vector" { "," "(" start "," nodes "," ranks ")" } ")"
/// item   = [ times "*" ] node  |  node "-" node
/// ```
///
/// Nodes are counted from 0, in the order of the hosts. `0,0,1-3,2*4` places ranks 0 and 1 on node 0,
/// ranks 2, 3 and 4 on nodes 1, 2 and 3, and ranks 5 and 6 on node 4. The long form has the syntax of
/// `PMI_process_mapping`: `(vector,(0,4,2))` is two ranks on each of the nodes 0 to 3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankMap {
    /// First node, number of nodes, ranks on each; neither number is zero.
    blocks: Vec<(u32, u32, u32)>,
    size: u32,
}

/// Returns the refusal of a text that is no rank map.
fn refused(text: impl Into<String>) -> Refusal {
    Refusal::new(text, "write the node of each rank, counted from 0, as in -rankmap 0,0,1,1")
}

/// Returns the refusal of a part that is not understood. `wanted` is the syntax that is expected there.
fn not(text: &str, wanted: &str) -> Refusal {
    refused(format!("the rank map has '{}' where {wanted} must be", shown(text, SHOWN_CHARS_MAX)))
}

fn too_many_ranks() -> Refusal {
    refused(format!("the rank map has more than {RANKS_MAX} ranks"))
}

impl RankMap {
    /// Parses a rank map.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        if text.is_empty() {
            return Err(refused("the rank map is empty"));
        }
        if text.len() > MAP_BYTES_MAX {
            return Err(refused(format!("the rank map is longer than {} MiB", MAP_BYTES_MAX >> 20)));
        }
        let blocks: Vec<(u32, u32, u32)> = match text.strip_prefix("(vector,") {
            Some(rest) => vector(rest)?,
            None => text.split(',').map(item).collect::<Result<_, _>>()?,
        };
        let ranks = blocks.iter().try_fold(0u32, |sum, &(first, nodes, ranks)| {
            // A range has at least one node.
            first.checked_add(nodes - 1)?;
            sum.checked_add(nodes.checked_mul(ranks)?).filter(|sum| *sum <= RANKS_MAX)
        });
        ranks.map(|size| Self { blocks, size }).ok_or_else(too_many_ranks)
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns nodes and their numbers of consecutive ranks, from rank 0 on.
    pub fn runs(&self) -> impl Iterator<Item = (u32, u32)> {
        self.blocks.iter().flat_map(|&(first, nodes, ranks)| (0..nodes).map(move |at| (first + at, ranks)))
    }
}

/// Parses `4`, `2*4` or `1-3` as a block.
fn item(text: &str) -> Result<(u32, u32, u32), Refusal> {
    if let Some((times, node)) = text.split_once('*') {
        let times = number(times, "a number of ranks")?;
        if times == 0 {
            return Err(not(text, "TIMES*NODE with TIMES above 0"));
        }
        return Ok((number(node, "the number of a node")?, 1, times));
    }
    let Some((first, last)) = text.split_once('-') else { return Ok((number(text, "the number of a node")?, 1, 1)) };
    let (first, last) = (number(first, "the number of a node")?, number(last, "the number of a node")?);
    let downwards = || refused(format!("the range {first}-{last} of the rank map goes downwards"));
    let nodes = last.checked_sub(first).ok_or_else(downwards)?.checked_add(1);
    Ok((first, nodes.ok_or_else(too_many_ranks)?, 1))
}

/// Parses the text after `(vector,`.
fn vector(rest: &str) -> Result<Vec<(u32, u32, u32)>, Refusal> {
    const WANTED: &str = "(node,nodes,ranks), all in one (vector,...),";
    let wrong = |text: &str| not(text, WANTED);
    let inside = rest.strip_prefix('(').and_then(|rest| rest.strip_suffix("))")).ok_or_else(|| wrong(rest))?;
    let block = |text: &str| {
        let numbers: Vec<u32> = text.split(',').map(|text| number(text, "a number")).collect::<Result<_, _>>()?;
        match numbers[..] {
            [first, nodes, ranks] if nodes > 0 && ranks > 0 => Ok((first, nodes, ranks)),
            _ => Err(wrong(text)),
        }
    };
    inside.split("),(").map(block).collect()
}

fn number(text: &str, wanted: &str) -> Result<u32, Refusal> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| text.parse().ok()).flatten();
    number.ok_or_else(|| not(text, wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(text: &str) -> Result<Vec<u32>, String> {
        let map = RankMap::parse(text).map_err(|error| error.to_string())?;
        let nodes: Vec<u32> = map.runs().flat_map(|(node, ranks)| std::iter::repeat_n(node, ranks as usize)).collect();
        assert_eq!(nodes.len(), map.size() as usize);
        Ok(nodes)
    }

    #[test]
    fn valid_maps_are_read() {
        assert_eq!(nodes("0,0,1-3,2*4"), Ok(vec![0, 0, 1, 2, 3, 4, 4]));
        assert_eq!(nodes("3,1-1"), Ok(vec![3, 1]));
        assert_eq!(nodes("(vector,(0,2,2))"), Ok(vec![0, 0, 1, 1]));
        assert_eq!(nodes("(vector,(1,2,1),(0,1,3))"), Ok(vec![1, 2, 0, 0, 0]));
    }

    #[test]
    fn invalid_maps_are_refused_with_a_reason() {
        for (text, message) in [
            ("", "the rank map is empty"),
            ("0,,1", "the rank map has '' where the number of a node must be"),
            ("0,x", "the rank map has 'x' where the number of a node must be"),
            ("0,+1", "the rank map has '+1' where the number of a node must be"),
            ("4294967296", "the rank map has '4294967296' where the number of a node must be"),
            ("0*1", "the rank map has '0*1' where TIMES*NODE with TIMES above 0 must be"),
            ("*1", "the rank map has '' where a number of ranks must be"),
            ("3-1", "the range 3-1 of the rank map goes downwards"),
            ("0-4294967295", "the rank map has more than 16777216 ranks"),
            ("16777217*0", "the rank map has more than 16777216 ranks"),
            ("(vector,(0,1))", "the rank map has '0,1' where (node,nodes,ranks), all in one (vector,...), must be"),
            ("(vector,(0,0,1))", "the rank map has '0,0,1' where (node,nodes,ranks), all in one (vector,...), must be"),
            ("(vector)", "the rank map has '(vector)' where the number of a node must be"),
        ] {
            assert_eq!(nodes(text), Err(message.to_owned()), "{text}");
        }
        assert_eq!(nodes(&"0,".repeat(MAP_BYTES_MAX)), Err("the rank map is longer than 8 MiB".to_owned()));
        assert_eq!(nodes("16777216*7").map(|nodes| nodes.len()), Ok(1 << 24));
    }

    mod properties {
        use proptest::prelude::*;

        use super::super::*;

        proptest! {
            #[test]
            fn no_text_panics(text in "[0-9,*()v-]{0,24}|\\(vector,[0-9,()]{0,24}") {
                if let Ok(map) = RankMap::parse(&text) {
                    let ranks: u64 = map.runs().map(|(_, ranks)| u64::from(ranks)).sum();
                    prop_assert_eq!(ranks, u64::from(map.size()));
                }
            }
        }
    }
}
