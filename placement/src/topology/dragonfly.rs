//! Dragonflies: groups of routers, all routers of a group connected to each other, and one cable between each two groups.
//!
//! The cable from group g to group h ends at router (h - 1 if h > g, else h) modulo the routers of g. Routes are minimal.

use super::{TopologyError, checked};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dragonfly {
    groups: u32,
    routers: u32,
    hosts: u32,
}

impl Dragonfly {
    pub(super) fn new(groups: u32, routers: u32, hosts: u32) -> Result<Self, TopologyError> {
        let [g, r, h] = [groups, routers, hosts].map(u64::from);
        if g * r * h == 0 {
            return Err(TopologyError::Numbers(format!("{groups}:{routers}:{hosts}")));
        }
        let places = g.saturating_mul(r).saturating_mul(h);
        let links = places.saturating_mul(2).saturating_add(g.saturating_mul(r).saturating_mul(r));
        checked(places, links.saturating_add(g.saturating_mul(g)))?;
        Ok(Self { groups, routers, hosts })
    }

    pub(super) fn places(&self) -> u32 {
        self.groups * self.routers * self.hosts
    }

    /// Returns the group and the router in it.
    fn at(&self, place: u32) -> (u32, u32) {
        let router = place / self.hosts;
        (router / self.routers, router % self.routers)
    }

    fn gate(&self, from: u32, to: u32) -> u32 {
        (if to > from { to - 1 } else { to }) % self.routers
    }

    fn up(place: u32) -> u32 {
        2 * place
    }

    fn down(place: u32) -> u32 {
        2 * place + 1
    }

    fn local(&self, group: u32, from: u32, to: u32) -> u32 {
        2 * self.places() + (group * self.routers + from) * self.routers + to
    }

    fn global(&self, from: u32, to: u32) -> u32 {
        2 * self.places() + self.groups * self.routers * self.routers + from * self.groups + to
    }

    pub(super) fn links(&self) -> u32 {
        self.global(self.groups - 1, self.groups - 1) + 1
    }

    pub(super) fn distance(&self, from: u32, to: u32) -> u32 {
        if from == to {
            return 0;
        }
        let ((group, router), (group_to, router_to)) = (self.at(from), self.at(to));
        if group == group_to {
            return 2 + u32::from(router != router_to);
        }
        3 + u32::from(router != self.gate(group, group_to)) + u32::from(router_to != self.gate(group_to, group))
    }

    pub(super) fn route(&self, from: u32, to: u32, links: &mut Vec<u32>) {
        if from == to {
            return;
        }
        let ((group, router), (group_to, router_to)) = (self.at(from), self.at(to));
        let mut across = |group, from, to| {
            if from != to {
                links.push(self.local(group, from, to));
            }
        };
        if group == group_to {
            across(group, router, router_to);
        } else {
            let (leave, enter) = (self.gate(group, group_to), self.gate(group_to, group));
            across(group, router, leave);
            across(group_to, enter, router_to);
            links.insert(links.len() - usize::from(enter != router_to), self.global(group, group_to));
        }
        let first = links.len() - (self.distance(from, to) as usize - 2);
        links.insert(first, Self::up(from));
        links.push(Self::down(to));
    }

    pub(super) fn host_of(&self, link: u32) -> Option<u32> {
        (link < 2 * self.places()).then_some(link / 2)
    }

    pub(super) fn link_name(&self, link: u32, host: &dyn Fn(u32) -> String) -> String {
        if let Some(place) = self.host_of(link) {
            let way = if link.is_multiple_of(2) { "up" } else { "down" };
            return format!("{} {way}", host(place));
        }
        let rest = link - 2 * self.places();
        let square = self.routers * self.routers;
        match rest.checked_sub(self.groups * square) {
            Some(global) => format!("group {} -> group {}", global / self.groups, global % self.groups),
            None => {
                let (group, pair) = (rest / square, rest % square);
                format!("group {group}: router {} -> {}", pair / self.routers, pair % self.routers)
            }
        }
    }

    /// Returns the group (level 0), the router (level 1) or the place.
    pub(super) fn group(&self, place: u32, level: u32) -> u32 {
        match level {
            0 => self.at(place).0,
            1 => place / self.hosts,
            _ => place,
        }
    }
}
