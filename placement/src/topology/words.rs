//! Topologies in words.

use super::dragonfly::Dragonfly;
use super::torus::Torus;
use super::{Shape, Topology, TopologyError, TreeBuilder};
use crate::limits::{DIMENSIONS_MAX, LEVELS_MAX, PLACES_MAX};

/// The first words.
pub(super) const WORDS: [&str; 5] = ["torus", "mesh", "fat-tree", "dragonfly", "flat"];

/// The most characters of a text in an error.
const SHOWN_CHARS_MAX: usize = 60;

pub(super) fn parse(text: &str) -> Result<Topology, TopologyError> {
    let shown: String = text.chars().take(SHOWN_CHARS_MAX).map(|c| if c.is_control() { '?' } else { c }).collect();
    let (word, rest) = text.split_once(':').ok_or_else(|| TopologyError::Words(shown.clone()))?;
    let word = word.to_ascii_lowercase();
    let separator = if word == "torus" || word == "mesh" { 'x' } else { ':' };
    if !WORDS.contains(&word.as_str()) {
        return Err(TopologyError::Words(shown));
    }
    if rest.split(separator).count() > DIMENSIONS_MAX {
        return Err(TopologyError::Dimensions(shown));
    }
    let numbers: Option<Vec<u32>> = rest.split(separator).map(number).collect();
    let numbers = numbers.ok_or_else(|| TopologyError::Numbers(shown.clone()))?;
    let form = |form| TopologyError::Form { text: shown.clone(), form };
    let shape = match (word.as_str(), numbers.as_slice()) {
        ("torus", numbers) => Shape::Torus(Torus::new(numbers, true)?),
        ("mesh", numbers) => Shape::Torus(Torus::new(numbers, false)?),
        ("fat-tree", [levels, ports]) => Shape::Tree(fat_tree(*levels, *ports, &shown)?),
        ("dragonfly", [groups, routers, hosts]) => Shape::Dragonfly(Dragonfly::new(*groups, *routers, *hosts)?),
        ("flat", [hosts]) => Topology::flat(*hosts)?.shape,
        ("fat-tree", _) => return Err(form("fat-tree:LEVELS:PORTS")),
        ("dragonfly", _) => return Err(form("dragonfly:GROUPS:ROUTERS:HOSTS")),
        ("flat", _) => return Err(form("flat:HOSTS")),
        _ => return Err(TopologyError::Words(shown)),
    };
    Ok(Topology { shape, names: Vec::new(), text: shown })
}

fn number(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten().filter(|number| *number > 0)
}

/// Makes a fat tree of switches with `ports` ports each: half of them lead downwards, and at the top level all. The top
/// switches are one vertex here: every one of them reaches every subtree.
fn fat_tree(levels: u32, ports: u32, text: &str) -> Result<super::Tree, TopologyError> {
    if !ports.is_multiple_of(2) {
        return Err(TopologyError::Ports(text.to_owned()));
    }
    if levels > LEVELS_MAX {
        return Err(TopologyError::Levels(text.to_owned()));
    }
    let half = u64::from(ports / 2);
    let hosts = (1..=levels).try_fold(2u64, |hosts, _| hosts.checked_mul(half));
    if hosts.is_none_or(|hosts| hosts > u64::from(PLACES_MAX)) {
        return Err(TopologyError::ManyPlaces);
    }
    let mut tree = TreeBuilder::default();
    let mut above = vec![tree.switch(None, 1)?];
    for level in (1..levels).rev() {
        // A subtree of n levels has (ports / 2)^n cables upwards.
        let width = (half.pow(level)) as u32;
        let children = if level == levels - 1 { ports } else { ports / 2 };
        let mut next = Vec::new();
        for parent in above {
            for _ in 0..children {
                next.push(tree.switch(Some(parent), width)?);
            }
        }
        above = next;
    }
    let each = if levels == 1 { ports } else { ports / 2 };
    for parent in above {
        (0..each).try_for_each(|_| tree.host(parent))?;
    }
    tree.finish()
}
