//! Trees of switches. Each vertex, host or switch, has one link up and one down, which several cables may form.

use super::{TopologyError, checked};
use crate::limits::LEVELS_MAX;

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tree {
    /// The vertex above each vertex; `NONE` for the top.
    parents: Vec<u32>,
    /// The cables between each vertex and its parent.
    widths: Vec<u32>,
    /// The number of vertices above each.
    depths: Vec<u32>,
    /// The vertex of each place.
    hosts: Vec<u32>,
    /// The place of each vertex; `NONE` for switches.
    places: Vec<u32>,
    /// The names of vertices that are switches; empty for hosts and nameless ones.
    names: Vec<String>,
}

/// Makes a tree from the top downwards: a switch before all that is below it.
#[derive(Debug, Default)]
pub struct TreeBuilder {
    parents: Vec<u32>,
    widths: Vec<u32>,
    depths: Vec<u32>,
    hosts: Vec<u32>,
    names: Vec<String>,
}

impl TreeBuilder {
    fn vertex(&mut self, parent: u32, width: u32) -> Result<u32, TopologyError> {
        let depth = if parent == NONE { 0 } else { self.depths[parent as usize] + 1 };
        if depth > LEVELS_MAX {
            return Err(TopologyError::Deep(self.names[parent as usize].clone()));
        }
        self.parents.push(parent);
        self.widths.push(width.max(1));
        self.depths.push(depth);
        self.names.push(String::new());
        let vertices = self.parents.len() as u64;
        checked(self.hosts.len() as u64, 2 * vertices)?;
        Ok(vertices as u32 - 1)
    }

    /// Adds a switch below another one, or the top. Only the first vertex has no parent. `width` cables lead upwards.
    pub fn switch(&mut self, parent: Option<u32>, width: u32) -> Result<u32, TopologyError> {
        self.vertex(parent.unwrap_or(NONE), width)
    }

    /// Names a switch.
    pub fn name(&mut self, switch: u32, name: &str) {
        name.clone_into(&mut self.names[switch as usize]);
    }

    /// Adds the next place below a switch.
    pub fn host(&mut self, parent: u32) -> Result<(), TopologyError> {
        let vertex = self.vertex(parent, 1)?;
        self.hosts.push(vertex);
        checked(self.hosts.len() as u64, 0)
    }

    /// Makes the tree whose switches hold the places with numbers that begin with the same bits.
    pub(super) fn halves(places: u32) -> Result<Tree, TopologyError> {
        let size = places.checked_next_power_of_two().unwrap_or(places);
        let mut tree = Self::default();
        let top = tree.switch(None, 1)?;
        tree.halve(top, 0..size, places)?;
        tree.finish()
    }

    fn halve(&mut self, switch: u32, range: std::ops::Range<u32>, places: u32) -> Result<(), TopologyError> {
        let half = (range.end - range.start) / 2;
        for part in [range.start..range.start + half, range.start + half..range.end] {
            match part.len() {
                _ if part.start >= places => {}
                0 => {}
                1 => self.host(switch)?,
                _ => {
                    let below = self.switch(Some(switch), 1)?;
                    self.halve(below, part, places)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Tree, TopologyError> {
        if self.hosts.is_empty() {
            return Err(TopologyError::Empty);
        }
        let Self { parents, widths, depths, hosts, names } = self;
        let mut places = vec![NONE; parents.len()];
        hosts.iter().zip(0..).for_each(|(vertex, place)| places[*vertex as usize] = place);
        Ok(Tree { parents, widths, depths, hosts, places, names })
    }
}

impl Tree {
    pub(super) fn places(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// Calls `up` for each vertex that is left on the way to the lowest common switch, and `down` for each that is
    /// entered after it, the last one first.
    fn walk(&self, from: u32, to: u32, mut up: impl FnMut(u32), mut down: impl FnMut(u32)) {
        let (mut from, mut to) = (self.hosts[from as usize], self.hosts[to as usize]);
        while from != to {
            let (depth_from, depth_to) = (self.depths[from as usize], self.depths[to as usize]);
            if depth_from >= depth_to {
                up(from);
                from = self.parents[from as usize];
            }
            if depth_to >= depth_from {
                down(to);
                to = self.parents[to as usize];
            }
        }
    }

    pub(super) fn distance(&self, from: u32, to: u32) -> u32 {
        let (mut ups, mut downs) = (0, 0);
        self.walk(from, to, |_| ups += 1, |_| downs += 1);
        ups + downs
    }

    pub(super) fn route(&self, from: u32, to: u32, links: &mut Vec<u32>) {
        let mut downs = Vec::new();
        self.walk(from, to, |vertex| links.push(2 * vertex), |vertex| downs.push(2 * vertex + 1));
        links.extend(downs.into_iter().rev());
    }

    pub(super) fn links(&self) -> u32 {
        2 * self.parents.len() as u32
    }

    pub(super) fn width(&self, link: u32) -> u32 {
        self.widths[(link / 2) as usize]
    }

    pub(super) fn host_of(&self, link: u32) -> Option<u32> {
        Some(self.places[(link / 2) as usize]).filter(|place| *place != NONE)
    }

    pub(super) fn link_name(&self, link: u32, host: &dyn Fn(u32) -> String) -> String {
        let vertex = link / 2;
        let below = match self.host_of(link) {
            Some(place) => host(place),
            None if self.names[vertex as usize].is_empty() => format!("switch {vertex}"),
            None => self.names[vertex as usize].clone(),
        };
        if link.is_multiple_of(2) { format!("{below} up") } else { format!("{below} down") }
    }

    /// Returns the vertex that is `level` below the top on the way to a place, or the place itself if there is none.
    pub(super) fn group(&self, place: u32, level: u32) -> u32 {
        let mut vertex = self.hosts[place as usize];
        while self.depths[vertex as usize] > level {
            vertex = self.parents[vertex as usize];
        }
        vertex
    }
}
