//! The nodes that have staged files in memory, and those that could not remove them.

use std::collections::{BTreeMap, BTreeSet};

use nla::core::{AgentId, InMemory, one_line};

use crate::cluster::hosts::fold_within;
use crate::run::rank_locations::RankLocations;

/// The most different places that are told, and the most bytes of a list of hosts.
const PLACES_MAX: usize = 8;
const HOSTS_BYTES_MAX: usize = 200;

/// Collects the agents' messages about the places of staged files until they are reported to the user.
#[derive(Debug, Default)]
pub(crate) struct StagedMemory {
    places: BTreeMap<Place, BTreeSet<AgentId>>,
    /// The files that an agent could not remove, and why.
    left: BTreeMap<AgentId, String>,
}

/// A directory in memory: whether no other directory had room, and its path.
type Place = (bool, String);

impl StagedMemory {
    /// Takes an agent's message.
    pub(crate) fn take(&mut self, agent: AgentId, memory: InMemory<'_>) {
        let place = (memory.is_last, one_line(String::from_utf8_lossy(memory.place).into_owned()));
        if self.places.len() < PLACES_MAX || self.places.contains_key(&place) {
            self.places.entry(place).or_default().insert(agent);
        }
    }

    /// Takes an agent's message about files that it could not remove.
    pub(crate) fn take_left(&mut self, agent: AgentId, text: &[u8]) {
        let text = one_line(String::from_utf8_lossy(text).into_owned());
        self.left.entry(agent).or_insert(text);
    }

    /// Returns the lines for the user, once, and whether each is a note: about a place that was taken because no other can have the
    /// files, or about files that are left.
    pub(crate) fn lines(&mut self, locations: &RankLocations) -> Vec<(bool, String)> {
        let line = |((is_last, place), agents): (Place, BTreeSet<AgentId>)| {
            let hosts: BTreeSet<&str> = agents.iter().map(|agent| locations.of_agent(*agent)).collect();
            let why = if is_last { "; no other place can have them" } else { "" };
            let hosts = fold_within(hosts, HOSTS_BYTES_MAX);
            (is_last, format!("staged files are in {place}, in the memory of {hosts}{why}"))
        };
        let mut lines: Vec<_> = std::mem::take(&mut self.places).into_iter().map(line).collect();
        let left = std::mem::take(&mut self.left);
        let more = left.len().saturating_sub(PLACES_MAX);
        for (agent, text) in left.into_iter().take(PLACES_MAX) {
            lines.push((true, format!("staged files are left on {}: {text}", locations.of_agent(agent))));
        }
        if more > 0 {
            lines.push((true, format!("staged files of {more} more agents are left")));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_a_place_are_told_once_and_folded() {
        let names = ["n1", "n2", "n3", "n4"].map(str::to_owned).to_vec();
        let locations = RankLocations::of_agents("front".into(), names);
        let mut memory = StagedMemory::default();
        for agent in [3, 1, 2] {
            memory.take(AgentId(agent), InMemory { is_last: true, place: b"/dev/shm" });
        }
        memory.take(AgentId(4), InMemory { is_last: false, place: b"/tmp/a\nb" });
        let expected = [
            (false, "staged files are in /tmp/a\\nb, in the memory of n4"),
            (true, "staged files are in /dev/shm, in the memory of n[1-3]; no other place can have them"),
        ];
        assert_eq!(memory.lines(&locations), expected.map(|(is_last, text)| (is_last, text.to_owned())));
        assert_eq!(memory.lines(&locations), []);
        (0..100).for_each(|number| memory.take(AgentId(1), InMemory { is_last: true, place: &[b'a' + number] }));
        assert_eq!(memory.lines(&locations).len(), PLACES_MAX);
    }

    #[test]
    fn files_that_are_left_are_told_with_their_host() {
        let locations = RankLocations::of_agents("front".into(), (1..=20).map(|number| format!("n{number}")).collect());
        let mut memory = StagedMemory::default();
        memory.take_left(AgentId(2), b"/tmp/a\nb: Permission denied");
        let expected = "staged files are left on n2: /tmp/a\\nb: Permission denied";
        assert_eq!(memory.lines(&locations), [(true, expected.to_owned())]);
        (1..=20).for_each(|agent| memory.take_left(AgentId(agent), b"/tmp/a: busy"));
        let lines = memory.lines(&locations);
        assert_eq!((lines.len(), &*lines[8].1), (9, "staged files of 12 more agents are left"));
        assert_eq!(memory.lines(&locations), []);
    }
}
