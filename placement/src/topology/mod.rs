//! Topologies of networks: hosts, links, distances and routes.
//!
//! A topology has places for hosts, counted from 0. Links have a direction; a cable is two links. The distance of two
//! places is the number of links of the route between them, and 0 within a place.

mod dragonfly;
pub mod slurm;
mod torus;
mod tree;
mod words;
mod yaml;

use std::collections::HashMap;

use thiserror::Error;

use self::dragonfly::Dragonfly;
use self::torus::Torus;
use self::tree::Tree;
use crate::limits::{DIMENSIONS_MAX, LEVELS_MAX, LINKS_MAX, PLACES_MAX};

pub use self::tree::TreeBuilder;

/// The most dimensions of a torus whose coordinates [`Topology::grid`] returns.
pub(crate) const GRID: usize = 4;

/// A network of hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    shape: Shape,
    /// The host of each place. Empty if the topology names no hosts: then they are those of a list, in its order.
    names: Vec<String>,
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Shape {
    Torus(Torus),
    Tree(Tree),
    Dragonfly(Dragonfly),
}

/// A topology that cannot be read or made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TopologyError {
    /// The words are not known.
    #[error("'{0}' is no topology")]
    Words(String),
    /// A line of a file is wrong.
    #[error("line {line}: {reason}")]
    Line {
        /// The line, counted from 1.
        line: usize,
        /// The reason, a fragment.
        reason: String,
    },
    /// The file names no hosts.
    #[error("the file names no hosts")]
    Empty,
    /// A switch is below itself, or there are too many levels.
    #[error("switch {0} is below itself, or below more than {LEVELS_MAX} others")]
    Deep(String),
    /// Too many hosts.
    #[error("the topology has more than {PLACES_MAX} hosts")]
    ManyPlaces,
    /// Too many links.
    #[error("the topology has more than {LINKS_MAX} links")]
    ManyLinks,
    /// A number is zero or too large.
    #[error("the topology '{0}' needs whole numbers from 1 to {max}", max = u32::MAX)]
    Numbers(String),
    /// A torus with too many dimensions.
    #[error("the topology '{0}' has more than {DIMENSIONS_MAX} dimensions")]
    Dimensions(String),
    /// A fat tree with too many levels.
    #[error("the topology '{0}' has more than {LEVELS_MAX} levels")]
    Levels(String),
    /// The switches of a fat tree have an odd number of ports.
    #[error("the topology '{0}' needs an even number of ports: half of them lead upwards")]
    Ports(String),
    /// A wrong number of numbers.
    #[error("the topology '{text}' must have the form {form}")]
    Form {
        /// The words.
        text: String,
        /// The form that they must have.
        form: &'static str,
    },
    /// Hosts that the topology does not have.
    #[error("the topology does not have {0}")]
    Strangers(String),
    /// More hosts than places.
    #[error("the topology has {places} hosts, and the list has {hosts}")]
    Small {
        /// The hosts of the topology.
        places: u32,
        /// Those of the list.
        hosts: usize,
    },
}

/// The most hosts that an error names.
const STRANGERS_SHOWN: usize = 4;

impl Topology {
    /// Returns the torus of these dimensions. The last coordinate of a place counts fastest.
    pub fn torus(dimensions: &[u32]) -> Result<Self, TopologyError> {
        let text = dimensions.iter().map(u32::to_string).collect::<Vec<_>>().join("x");
        Ok(Self {
            shape: Shape::Torus(Torus::new(dimensions, true)?),
            names: Vec::new(),
            text: format!("torus:{text}"),
        })
    }

    /// Returns a network in which all hosts have the same distance: one switch.
    pub fn flat(hosts: u32) -> Result<Self, TopologyError> {
        let mut tree = TreeBuilder::default();
        let top = tree.switch(None, 1)?;
        (0..hosts).try_for_each(|_| tree.host(top))?;
        Ok(Self { shape: Shape::Tree(tree.finish()?), names: Vec::new(), text: "one switch".to_owned() })
    }

    /// Returns the tree whose switches hold the places with numbers that begin with the same bits.
    pub(crate) fn halves(places: u32) -> Result<Self, TopologyError> {
        let tree = TreeBuilder::halves(places)?;
        Ok(Self { shape: Shape::Tree(tree), names: Vec::new(), text: "halves".to_owned() })
    }

    /// Parses words: `torus:8x8x8`, `mesh:16x16`, `fat-tree:LEVELS:PORTS`, `dragonfly:GROUPS:ROUTERS:HOSTS`, `flat:HOSTS`.
    pub fn parse_words(text: &str) -> Result<Self, TopologyError> {
        words::parse(text)
    }

    /// Whether the text has the form of words, not of a file's name.
    pub fn is_words(text: &str) -> bool {
        text.split_once(':').is_some_and(|(word, _)| words::WORDS.contains(&word.to_ascii_lowercase().as_str()))
    }

    /// Parses a file: Slurm's `topology.conf` or `topology.yaml`, or the output of `scontrol show topology`.
    pub fn parse_file(text: &str, expand: slurm::Expand<'_>) -> Result<Self, TopologyError> {
        if yaml::is_yaml(text) { yaml::parse(text, expand) } else { slurm::parse(text, expand) }
    }

    fn named(tree: Tree, names: Vec<String>, text: String) -> Self {
        Self { shape: Shape::Tree(tree), names, text }
    }

    /// Returns the number of places.
    pub fn places(&self) -> u32 {
        match &self.shape {
            Shape::Torus(torus) => torus.places(),
            Shape::Tree(tree) => tree.places(),
            Shape::Dragonfly(dragonfly) => dragonfly.places(),
        }
    }

    /// Returns its description, a fragment.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the host of each place; empty if the topology names none.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Gives the hosts of a list the first places, in their order, if the topology names no hosts and has room for them.
    pub fn with_hosts<'a>(mut self, hosts: impl ExactSizeIterator<Item = &'a str>) -> Self {
        if self.names.is_empty() && hosts.len() <= self.places() as usize {
            self.names = hosts.map(str::to_owned).collect();
        }
        self
    }

    /// Returns the place of each host of a list: by its name, also without its domain, or by its position if the
    /// topology names no hosts.
    pub fn places_of<'a>(&self, hosts: impl ExactSizeIterator<Item = &'a str>) -> Result<Vec<u32>, TopologyError> {
        let count = hosts.len();
        if self.names.is_empty() {
            if count > self.places() as usize {
                return Err(TopologyError::Small { places: self.places(), hosts: count });
            }
            return Ok((0..count as u32).collect());
        }
        let hosts: Vec<&str> = hosts.collect();
        let (mut found, mut strangers) = (Vec::with_capacity(count), Vec::new());
        for (host, place) in hosts.iter().zip(self.named_places(hosts.iter().copied())) {
            match place {
                Some(place) => found.push(place),
                None => strangers.push((*host).to_owned()),
            }
        }
        if strangers.is_empty() {
            return Ok(found);
        }
        let more = strangers.len().saturating_sub(STRANGERS_SHOWN);
        strangers.truncate(STRANGERS_SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Err(TopologyError::Strangers(strangers.join(", ") + &more))
    }

    /// Returns the place of each host that the topology names, also without its domain; `None` for other hosts.
    pub fn named_places<'a>(&self, hosts: impl Iterator<Item = &'a str>) -> Vec<Option<u32>> {
        let short = |name: &'_ str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
        let places: HashMap<&str, u32> = self.names.iter().map(String::as_str).zip(0..).collect();
        let by_short: HashMap<String, u32> = self.names.iter().map(|name| short(name)).zip(0..).collect();
        hosts.map(|host| places.get(host).or_else(|| by_short.get(&short(host))).copied()).collect()
    }

    /// Returns the number of links of the route from one place to another.
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        match &self.shape {
            Shape::Torus(torus) => torus.distance(from, to),
            Shape::Tree(tree) => tree.distance(from, to),
            Shape::Dragonfly(dragonfly) => dragonfly.distance(from, to),
        }
    }

    /// Appends the links of the route from one place to another, in order.
    pub fn route(&self, from: u32, to: u32, links: &mut Vec<u32>) {
        match &self.shape {
            Shape::Torus(torus) => torus.route(from, to, links),
            Shape::Tree(tree) => tree.route(from, to, links),
            Shape::Dragonfly(dragonfly) => dragonfly.route(from, to, links),
        }
    }

    /// Returns the number of links. Each has a number below it; not all numbers need exist.
    pub fn links(&self) -> u32 {
        match &self.shape {
            Shape::Torus(torus) => torus.links(),
            Shape::Tree(tree) => tree.links(),
            Shape::Dragonfly(dragonfly) => dragonfly.links(),
        }
    }

    /// Returns the number of cables that share the traffic of a link.
    pub fn width(&self, link: u32) -> u32 {
        match &self.shape {
            Shape::Tree(tree) => tree.width(link),
            Shape::Torus(_) | Shape::Dragonfly(_) => 1,
        }
    }

    /// Returns the places at the ends of a link; a switch is `None`.
    pub fn ends(&self, link: u32) -> [Option<u32>; 2] {
        match &self.shape {
            Shape::Torus(torus) => torus.ends(link),
            Shape::Tree(tree) => [tree.host_of(link), None],
            Shape::Dragonfly(dragonfly) => [dragonfly.host_of(link), None],
        }
    }

    /// Returns the name of a link, for people. `host` names a place.
    pub fn link_name(&self, link: u32, host: &dyn Fn(u32) -> String) -> String {
        match &self.shape {
            Shape::Torus(torus) => {
                let [from, to] = torus.ends(link).map(|place| host(place.unwrap_or_default()));
                format!("{from} -> {to}")
            }
            Shape::Tree(tree) => tree.link_name(link, host),
            Shape::Dragonfly(dragonfly) => dragonfly.link_name(link, host),
        }
    }

    /// Returns the coordinates of each place of a torus with few dimensions, and its sizes. A mesh has sizes that no way
    /// around is shorter in.
    pub(crate) fn grid(&self) -> Option<(Vec<[u16; GRID]>, [u16; GRID])> {
        match &self.shape {
            Shape::Torus(torus) => torus.grid(),
            Shape::Tree(_) | Shape::Dragonfly(_) => None,
        }
    }

    /// Returns the places one link away; none if hosts are connected through switches.
    pub(crate) fn neighbours(&self, place: u32) -> Vec<u32> {
        match &self.shape {
            Shape::Torus(torus) => torus.neighbours(place),
            Shape::Tree(_) | Shape::Dragonfly(_) => Vec::new(),
        }
    }

    /// Reorders places so that they split into two parts with little distance within each, and returns the size of the
    /// first. There are at least two; `weight` is not zero and says how much a place counts.
    pub(crate) fn split(&self, places: &mut [u32], weight: &dyn Fn(u32) -> u64) -> usize {
        match &self.shape {
            Shape::Torus(torus) => torus.split(places, weight),
            Shape::Tree(tree) => split_groups(places, weight, LEVELS_MAX, |place, level| tree.group(place, level)),
            Shape::Dragonfly(dragonfly) => {
                split_groups(places, weight, 3, |place, level| dragonfly.group(place, level))
            }
        }
    }

    /// Returns the average distance between two sets of places, in 16ths.
    pub(crate) fn spread(&self, one: &[u32], other: &[u32]) -> i64 {
        match &self.shape {
            Shape::Torus(torus) => torus.spread(one, other),
            Shape::Tree(_) | Shape::Dragonfly(_) => {
                // All pairs of two subtrees have nearly the same distance: a few stand for all.
                let some = |places: &'_ [u32]| -> Vec<u32> {
                    let step = places.len().div_ceil(3).max(1);
                    places.iter().copied().step_by(step).collect()
                };
                let (one, other) = (some(one), some(other));
                let sum: i64 = one.iter().flat_map(|a| other.iter().map(|b| i64::from(self.distance(*a, *b)))).sum();
                sum * 16 / (one.len() * other.len()).max(1) as i64
            }
        }
    }
}

/// Splits places by the topmost level at which their groups differ, between groups, near the half of the weight.
/// `group` numbers the groups of a level, 0 being the topmost.
fn split_groups(
    places: &mut [u32],
    weight: &dyn Fn(u32) -> u64,
    levels: u32,
    group: impl Fn(u32, u32) -> u32,
) -> usize {
    let differs = |level: &u32| places.iter().any(|place| group(*place, *level) != group(places[0], *level));
    let level = (0..levels).find(differs).unwrap_or(levels);
    places.sort_by_key(|place| (group(*place, level), *place));
    let places = &*places;
    let is_edge = |at: usize| group(places[at - 1], level) != group(places[at], level);
    nearest_half(places, weight, is_edge)
}

/// Returns the edge nearest to the half of the weight; without edges, the half itself.
fn nearest_half(places: &[u32], weight: &dyn Fn(u32) -> u64, is_edge: impl Fn(usize) -> bool) -> usize {
    let total: u64 = places.iter().map(|place| weight(*place)).sum();
    let mut sum = 0;
    let (mut best, mut best_off) = (0, u64::MAX);
    let (mut half, mut half_off) = (1, u64::MAX);
    for at in 1..places.len() {
        sum += weight(places[at - 1]);
        let off = (2 * sum).abs_diff(total);
        if off < half_off {
            (half, half_off) = (at, off);
        }
        if off < best_off && is_edge(at) {
            (best, best_off) = (at, off);
        }
    }
    if best == 0 { half } else { best }
}

/// Checks the number of places and links of a topology with this many of each.
fn checked(places: u64, links: u64) -> Result<(), TopologyError> {
    match (places <= u64::from(PLACES_MAX), links <= LINKS_MAX) {
        (false, _) => Err(TopologyError::ManyPlaces),
        (true, false) => Err(TopologyError::ManyLinks),
        (true, true) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
