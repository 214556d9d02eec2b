//! The lines about the processors and memory that ranks are bound to.

use std::collections::BTreeSet;

use litemap::LiteMap;
use nla::core::{BindingNote, BindingReport, BoundRanks, CpuSet};
use pmi::Ranks;

use crate::cluster::hosts::fold;

/// The most different bindings that are reported. Others are left out.
const LINES_MAX: usize = 65_536;

/// The bindings that agents have reported. Ranks with the same binding on different hosts share a line.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    bound: LiteMap<String, (Ranks, BTreeSet<String>)>,
    notes: LiteMap<String, BTreeSet<String>>,
}

impl Bindings {
    /// Adds the report of an agent on `host`.
    pub(crate) fn add(&mut self, host: &str, report: &BindingReport) {
        for bound in &report.bound {
            let text = seat_text(bound);
            if self.bound.len() < LINES_MAX || self.bound.contains_key(&text) {
                let (ranks, hosts) = self.bound.entry(text).or_default();
                ranks.union_with(&bound.ranks);
                hosts.insert(host.to_owned());
            }
        }
        if let Some(note) = &report.note
            && self.notes.len() < LINES_MAX
        {
            self.notes.entry(note_text(note)).or_default().insert(host.to_owned());
        }
    }

    /// Returns the lines, in the order of the ranks, and the notes after them.
    pub(crate) fn lines(self) -> Vec<String> {
        let mut bound: Vec<_> = self.bound.into_iter().collect();
        bound.sort_by_key(|(_, (ranks, _))| ranks.first());
        let bound = bound.into_iter().map(|(text, (ranks, hosts))| format!("{}: {text}", ranks_on(&ranks, &hosts)));
        let notes = self.notes.into_iter().map(|(text, hosts)| format!("ranks on {}: {text}", fold(&hosts)));
        bound.chain(notes).collect()
    }
}

fn ranks_on(ranks: &Ranks, hosts: &BTreeSet<String>) -> String {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {ranks} on {}", fold(hosts))
}

/// Describes the binding of ranks: a picture, the processors and their mask; then their memory and devices.
pub(crate) fn seat_text(bound: &BoundRanks) -> String {
    let BoundRanks { ranks: _, is_bound, cpus, memory, picture, devices } = bound;
    let space = if picture.is_empty() { "" } else { " " };
    let noun = if cpus.len() == 1 { "processor" } else { "processors" };
    let mut text = match is_bound {
        true => format!("{picture}{space}{noun} {cpus}, mask {}", cpus.mask()),
        false => format!("not bound, may use {noun} {cpus}"),
    };
    if !memory.is_empty() {
        let noun = if memory.len() == 1 { "node" } else { "nodes" };
        text.push_str(&format!(", memory of {noun} {memory}"));
    }
    if !devices.is_empty() {
        text.push_str(&format!(", {devices}"));
    }
    text
}

/// Describes why ranks are not bound as the user may expect, and what to try.
pub(crate) fn note_text(note: &BindingNote) -> String {
    let processors = |cpus: &CpuSet| format!("{} {cpus}", if cpus.len() == 1 { "processor" } else { "processors" });
    match note {
        BindingNote::Crowded { ranks, cpus, room, count, level } => {
            let level = level.name();
            let parts = if *count == 1 { level.to_owned() } else { format!("{level}:{count}") };
            let has = if cpus.len() == 1 { "has" } else { "have" };
            format!(
                "not bound: {ranks} ranks do not fit on {}, which {has} room for {room}; \
                 '--bind-to {parts}:overload-allowed' lets ranks share processors",
                processors(cpus)
            )
        }
        BindingNote::Shared { cpus } => {
            let are = if cpus.len() == 1 { "is" } else { "are" };
            format!(
                "{} {are} also used by another of your sessions; '--bind-to user:LIST' chooses others, \
                 '--bind-to none' lets the kernel choose",
                processors(cpus)
            )
        }
        BindingNote::Unmarked { why } => {
            format!("processors cannot be marked, so another of your sessions may use the same ones: {why}")
        }
    }
}

#[cfg(test)]
mod tests {
    use nla::core::Level;

    use super::*;

    fn bound(ranks: &str, cpus: &str, picture: &str) -> BoundRanks {
        BoundRanks {
            ranks: ranks.parse().unwrap(),
            is_bound: !picture.is_empty(),
            cpus: cpus.parse().unwrap(),
            memory: Default::default(),
            picture: picture.to_owned(),
            devices: String::new(),
        }
    }

    #[test]
    fn equal_bindings_share_a_line() {
        let mut bindings = Bindings::default();
        let report = |first: u32, note| BindingReport {
            bound: vec![bound(&(first + 1).to_string(), "1", "[./B]"), bound(&first.to_string(), "0", "[B/.]")],
            note,
        };
        let crowded = Some(BindingNote::Crowded {
            ranks: 3,
            cpus: "0-1".parse().unwrap(),
            room: 2,
            count: 1,
            level: Level::Core,
        });
        bindings.add("n1", &report(0, None));
        bindings.add("n2", &report(2, crowded.clone()));
        bindings.add("n3", &BindingReport { bound: vec![bound("4-5", "0-3", "")], note: crowded });
        let expected = [
            "ranks 0,2 on n[1-2]: [B/.] processor 0, mask 0x1",
            "ranks 1,3 on n[1-2]: [./B] processor 1, mask 0x2",
            "ranks 4-5 on n3: not bound, may use processors 0-3",
            "ranks on n[2-3]: not bound: 3 ranks do not fit on processors 0-1, which have room for 2; \
             '--bind-to core:overload-allowed' lets ranks share processors",
        ];
        assert_eq!(bindings.lines(), expected);
    }

    #[test]
    fn memory_and_other_sessions_are_named() {
        let devices = BoundRanks { devices: "gpu 0,2".to_owned(), ..bound("0", "1", "[B]") };
        assert_eq!(seat_text(&devices), "[B] processor 1, mask 0x2, gpu 0,2");
        let local = BoundRanks { memory: "0,2".parse().unwrap(), ..bound("0", "0-1", "[BB]") };
        assert_eq!(seat_text(&local), "[BB] processors 0-1, mask 0x3, memory of nodes 0,2");
        let text = note_text(&BindingNote::Shared { cpus: "1".parse().unwrap() });
        assert!(text.starts_with("processor 1 is also used by another of your sessions; "), "{text}");
    }

    #[test]
    fn the_hint_names_the_binding_that_was_typed() {
        let cpus: CpuSet = "0-7".parse().unwrap();
        let text = note_text(&BindingNote::Crowded { ranks: 3, cpus, room: 2, count: 3, level: Level::Hwthread });
        assert!(text.ends_with("; '--bind-to hwthread:3:overload-allowed' lets ranks share processors"), "{text}");
    }
}
