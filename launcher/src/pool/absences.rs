//! The nodes of a pool that can have no jobs: since when, why, and which of them a job needs. Pure.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use nla::core::printable;
use serde::{Deserialize, Serialize};

use super::nodes::{Health, Node, NodeNumber, Nodes};
use super::schedule::Time;
use super::status;
use crate::cluster::hosts::{fold, quoted};
use crate::plan::pool_name::POOL_DEFAULT;

/// The most lines about absent nodes. Further nodes are counted.
const LINES_MAX: usize = 4;
/// The most bytes of a line's names.
const NAMES_BYTES_MAX: usize = 200;
/// The most characters of the nodes in a command that the user may copy.
const COPIED_CHARS_MAX: usize = 60;

/// The way in which a node can have no jobs.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum AbsenceKind {
    /// Its keeper is lost, or did not start. It is tried again from time to time.
    Down,
    /// The user has drained it.
    Drained,
    /// Its keeper is being started for the first time.
    Starting,
}

/// A node that can have no jobs.
#[derive(Clone, Debug)]
struct Absence {
    since: Time,
    kind: AbsenceKind,
    /// Why it was lost, which is told instead of the outcomes of later attempts; empty unless it is down.
    why: String,
}

/// All nodes of a pool that can have no jobs.
#[derive(Debug, Default)]
pub struct Absences {
    nodes: BTreeMap<NodeNumber, Absence>,
    /// Counts the changes. After a job was told its missing nodes, the schedule checks them again only when this number has changed.
    changes: u64,
}

/// The nodes that a job lacks.
pub type Lacking = BTreeMap<NodeNumber, AbsenceKind>;

/// The nodes that a job lacks, for its user. Displays a line for each group of them, and none if it lacks none.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Absent {
    /// The first groups.
    pub groups: Vec<AbsentNodes>,
    /// The nodes of further groups.
    pub others: u32,
}

/// Nodes that can have no jobs in the same way, for the same reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AbsentNodes {
    /// Their names, folded and cut.
    pub names: String,
    /// How many they are.
    pub count: u32,
    /// The way.
    pub kind: AbsenceKind,
    /// Why they are down, in a line; empty otherwise.
    pub why: String,
    /// For how long it has been so for the first of them, in milliseconds.
    pub age_ms: u64,
}

impl Absences {
    /// Notes the state of a node, which may have changed or is gone.
    pub fn note(&mut self, now: Time, at: NodeNumber, node: Option<&Node>) {
        let former = self.nodes.remove(&at);
        let new = node.and_then(|node| match (&node.health, node.is_drained, &former) {
            // It is being tried again, or that has failed.
            (Health::Starts | Health::Down(_), _, Some(Absence { kind: AbsenceKind::Down, why, .. })) => {
                Some((AbsenceKind::Down, why.clone()))
            }
            (Health::Down(why), ..) => Some((AbsenceKind::Down, why.clone())),
            (Health::Starts, ..) => Some((AbsenceKind::Starting, String::new())),
            (Health::Up, true, _) => Some((AbsenceKind::Drained, String::new())),
            (Health::Up, false, _) => None,
        });
        if new.as_ref().map(|(kind, _)| *kind) != former.as_ref().map(|former| former.kind) {
            self.changes += 1;
        }
        if let Some((kind, why)) = new {
            let since = former.filter(|former| former.kind == kind).map_or(now, |former| former.since);
            self.nodes.insert(at, Absence { since, kind, why });
        }
    }

    /// Returns how often nodes have become absent or usable, or absent in another way.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns those of these nodes that can have no jobs.
    pub fn of(&self, nodes: impl Iterator<Item = NodeNumber>) -> Lacking {
        nodes.filter_map(|at| Some((at, self.nodes.get(&at)?.kind))).collect()
    }

    /// Describes nodes that a job lacks.
    pub fn describe(&self, now: Time, lacking: &Lacking, nodes: &Nodes) -> Absent {
        let mut groups: BTreeMap<(AbsenceKind, &str), (Vec<&str>, Time)> = BTreeMap::new();
        for at in lacking.keys() {
            let (Some(absence), Some(node)) = (self.nodes.get(at), nodes.node(*at)) else { continue };
            let group = groups.entry((absence.kind, &absence.why));
            let (names, since) = group.or_insert_with(|| (Vec::new(), absence.since));
            names.push(&node.name);
            *since = absence.since.min(*since);
        }
        let group = |((kind, why), (names, since)): (&(AbsenceKind, &str), &(Vec<&str>, Time))| AbsentNodes {
            names: status::cut(&fold(names), NAMES_BYTES_MAX),
            count: names.len() as u32,
            kind: *kind,
            why: status::why_shown(why),
            age_ms: now.saturating_sub(*since).as_millis() as u64,
        };
        let others = groups.values().skip(LINES_MAX).map(|(names, _)| names.len() as u32).sum();
        Absent { groups: groups.iter().take(LINES_MAX).map(group).collect(), others }
    }
}

impl Absent {
    /// Returns whether the job lacks no nodes.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns the same without times, which differ between jobs.
    pub fn without_ages(&self) -> Self {
        let mut same = self.clone();
        same.groups.iter_mut().for_each(|group| group.age_ms = 0);
        same
    }

    /// Returns what the user of this pool may do; empty if it lacks no nodes.
    pub fn hint(&self, pool: &str) -> String {
        let pool = if pool == POOL_DEFAULT { String::new() } else { format!(" {pool}") };
        let resumed: Vec<&AbsentNodes> =
            self.groups.iter().filter(|group| group.kind != AbsenceKind::Starting).collect();
        let jobs = format!("'scela jobs{pool}' lists the jobs that wait");
        match (self.is_empty(), resumed.is_empty()) {
            (true, _) => String::new(),
            (false, true) => jobs,
            (false, false) => {
                let names = resumed.iter().map(|group| group.names.as_str()).collect::<Vec<_>>().join(",");
                let is_whole = self.others == 0 && !names.contains('…') && names.chars().count() <= COPIED_CHARS_MAX;
                let names = if is_whole { quoted(&names) } else { "NODES".to_owned() };
                format!(
                    "'scela pool resume {names}{pool}' uses drained nodes again and tries those that are down at once; {jobs}"
                )
            }
        }
    }
}

impl Display for Absent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for AbsentNodes { names, count, kind, why, age_ms } in &self.groups {
            let (verb, upto) = if *count == 1 { ("has", "") } else { ("have", "up to ") };
            let state = match kind {
                AbsenceKind::Down => "down",
                AbsenceKind::Drained => "drained",
                AbsenceKind::Starting => "starting",
            };
            write!(f, "\n  {} {verb} been {state} for {upto}{}", printable(names), status::age(*age_ms))?;
            if !why.is_empty() {
                write!(f, ": {}", printable(why))?;
            }
        }
        match self.others {
            0 => Ok(()),
            1 => write!(f, "\n  and 1 more node cannot be used"),
            others => write!(f, "\n  and {others} more nodes cannot be used"),
        }
    }
}

/// The nodes of which a job that waits was told.
#[derive(Debug)]
pub(super) struct Told {
    at: Time,
    /// The state of [`Absences::changes`] then.
    changes: u64,
    lacking: Lacking,
}

/// A decision: whether to tell the client of a waiting job which nodes the job lacks.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Telling {
    /// Tell it now.
    Now(Lacking),
    /// Tell it at this time, if the missing nodes still differ then.
    At(Time),
    /// Nothing has changed.
    No,
}

impl Told {
    /// The least time between two tellings of one job: many nodes may be lost one after the other.
    pub(super) const PAUSE: Duration = Duration::from_secs(10);

    /// Records that the client was told these nodes at `now`.
    pub(super) fn new(now: Time, absences: &Absences, lacking: Lacking) -> Self {
        Self { at: now, changes: absences.changes(), lacking }
    }

    /// Decides whether a job is told, `told` being what it was told last. `lacks` returns what it lacks.
    pub(super) fn telling(
        told: Option<&mut Self>,
        now: Time,
        absences: &Absences,
        lacks: impl FnOnce() -> Lacking,
    ) -> Telling {
        let Some(told) = told else { return Telling::Now(lacks()) };
        if told.changes == absences.changes() {
            return Telling::No;
        }
        let lacking = lacks();
        if lacking == told.lacking {
            told.changes = absences.changes();
            return Telling::No;
        }
        let due = told.at + Self::PAUSE;
        if due <= now { Telling::Now(lacking) } else { Telling::At(due) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn down(why: &str) -> Health {
        Health::Down(why.to_owned())
    }

    fn absences(now: Time, nodes: &Nodes, absences: &mut Absences) -> Lacking {
        nodes.all().for_each(|(at, node)| absences.note(now, at, Some(node)));
        absences.of(nodes.all().map(|(at, _)| at))
    }

    #[test]
    fn absent_nodes_are_folded_by_kind_and_reason() {
        let names = ["n1", "n2", "n3", "n4", "n5"];
        let mut nodes = Nodes::new(names.map(|name| Node::new(name, 1, Health::Up)).into());
        let mut all = Absences::default();
        assert!(absences(Time::ZERO, &nodes, &mut all).is_empty());
        for at in [0, 2] {
            nodes.set_health(at, down("1 of 2 hosts could not be started\n  n1: no route\n    hint: look"));
        }
        nodes.set_drained(1, true);
        absences(SECOND, &nodes, &mut all);
        nodes.set_health(3, Health::Starts);
        let lacking = absences(5 * SECOND, &nodes, &mut all);
        let absent = all.describe(10 * SECOND, &lacking, &nodes);
        assert_eq!(
            absent.to_string(),
            "\n  n[1,3] have been down for up to 9 s: 1 of 2 hosts could not be started: n1: no route\
             \n  n2 has been drained for 9 s\
             \n  n4 has been starting for 5 s"
        );
        assert_eq!(
            absent.hint("night"),
            "'scela pool resume \"n[1,3],n2\" night' uses drained nodes again and tries those that are down at once; \
             'scela jobs night' lists the jobs that wait"
        );
        let starts = all.describe(10 * SECOND, &all.of([3].into_iter()), &nodes);
        assert_eq!(starts.hint(POOL_DEFAULT), "'scela jobs' lists the jobs that wait");
        assert_eq!((Absent::default().to_string(), Absent::default().hint("night")), (String::new(), String::new()));
    }

    #[test]
    fn there_are_few_lines_about_many_nodes() {
        let nodes = Nodes::new((0..9).map(|at| Node::new(format!("n{at}"), 1, down(&at.to_string()))).collect());
        let mut all = Absences::default();
        let lacking = absences(Time::ZERO, &nodes, &mut all);
        let absent = all.describe(Time::ZERO, &lacking, &nodes);
        assert_eq!((absent.to_string().lines().count(), absent.others), (1 + LINES_MAX + 1, 5));
        assert!(absent.to_string().ends_with("\n  and 5 more nodes cannot be used"), "{absent}");
        assert!(absent.hint("night").starts_with("'scela pool resume NODES night' "), "{}", absent.hint("night"));
        let long = Nodes::new((0..200).map(|at| Node::new(format!("a{at}b{at}"), 1, down(""))).collect());
        let mut all = Absences::default();
        let lacking = absences(Time::ZERO, &long, &mut all);
        let [group] = &all.describe(Time::ZERO, &lacking, &long).groups[..] else { panic!() };
        assert_eq!((group.names.chars().count(), group.count), (NAMES_BYTES_MAX, 200));
    }

    #[test]
    fn a_node_that_is_tried_again_is_down_since_it_was_lost() {
        let mut nodes = Nodes::new(vec![Node::new("n1", 1, Health::Up)]);
        let mut all = Absences::default();
        let mut note = |nodes: &Nodes, seconds| {
            let lacking = absences(seconds * SECOND, nodes, &mut all);
            (all.describe(100 * SECOND, &lacking, nodes).to_string(), all.changes())
        };
        nodes.set_health(0, down("lost"));
        let lost = "\n  n1 has been down for 90 s: lost".to_owned();
        assert_eq!(note(&nodes, 10), (lost.clone(), 1));
        nodes.set_health(0, Health::Starts);
        assert_eq!(note(&nodes, 20), (lost.clone(), 1));
        nodes.set_drained(0, true);
        assert_eq!(note(&nodes, 20), (lost.clone(), 1));
        nodes.set_health(0, down("no route"));
        assert_eq!(note(&nodes, 30), (lost, 1));
        nodes.set_up(0, 1);
        assert_eq!(note(&nodes, 40), ("\n  n1 has been drained for 60 s".to_owned(), 2));
        nodes.set_drained(0, false);
        assert_eq!(note(&nodes, 50), (String::new(), 3));
    }

    #[test]
    fn a_job_is_told_of_each_change_once_and_not_too_often() {
        let mut nodes = Nodes::new(vec![Node::new("n1", 1, Health::Up), Node::new("n2", 1, Health::Up)]);
        let mut all = Absences::default();
        let lacking = absences(Time::ZERO, &nodes, &mut all);
        let mut told = Told::new(Time::ZERO, &all, lacking);
        let mut telling = |told: &mut Told, nodes: &Nodes, now| {
            let lacking = absences(now, nodes, &mut all);
            let telling = Told::telling(Some(told), now, &all, || lacking.clone());
            if telling == Telling::Now(lacking.clone()) {
                *told = Told::new(now, &all, lacking);
            }
            telling
        };
        assert_eq!(telling(&mut told, &nodes, SECOND), Telling::No);
        nodes.set_drained(0, true);
        assert_eq!(telling(&mut told, &nodes, 2 * SECOND), Telling::At(Told::PAUSE));
        nodes.set_drained(1, true);
        let both: Lacking = [(0, AbsenceKind::Drained), (1, AbsenceKind::Drained)].into();
        assert_eq!(telling(&mut told, &nodes, Told::PAUSE), Telling::Now(both));
        assert_eq!(telling(&mut told, &nodes, 3 * Told::PAUSE), Telling::No);
        nodes.set_drained(1, false);
        nodes.set_drained(1, true);
        assert_eq!(telling(&mut told, &nodes, 3 * Told::PAUSE), Telling::No);
        nodes.set_drained(1, false);
        assert_eq!(telling(&mut told, &nodes, 3 * Told::PAUSE), Telling::Now([(0, AbsenceKind::Drained)].into()));
        let first = Told::telling(None, SECOND, &Absences::default(), Lacking::new);
        assert_eq!(first, Telling::Now(Lacking::new()));
    }
}
