//! `--map-by comm`: places ranks by what they send to each other and by the network between the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use placement::exposure::Exposure;
use placement::mapping::{Chosen, Job, Mapped, Metrics, figures, map_from, order};
use placement::matrix::{Collector, Matrix, Traffic};
use placement::topology::Topology;

use super::{Room, Run, add};
use crate::cluster::hosts::first_of;
use crate::cluster::node::Node;
use crate::refusal::Refusal;

/// The seed of the mapping: the same job gets the same placement each time.
const SEED: u64 = 1;

/// The number of hosts that may fail that a line names.
const EXPOSED_SHOWN: usize = 4;

/// The traffic between the ranks of a job, and the network. Clones share it; it is never changed.
#[derive(Clone)]
pub struct Talk(Arc<Inner>);

struct Inner {
    matrix: Matrix,
    /// The matrix's source, for messages.
    source: String,
    topology: Option<Topology>,
    /// Hosts that may fail, and the probability of each that it does.
    faulty: Vec<(String, f64)>,
    foreign: Foreign,
    /// The last mapping: a plan is made more than once for the same nodes.
    last: Mutex<Option<(Key, Talked, Vec<u32>)>>,
}

/// Asks another program for the node of each rank. `Ok(None)` if it is not installed or does not map such jobs; the error says
/// why it gave no mapping.
pub type Foreign = fn(&Job<'_>) -> Result<Option<Vec<u32>>, String>;

/// All that a mapping depends on.
#[derive(PartialEq, Eq)]
struct Key {
    size: u32,
    names: Vec<String>,
    capacities: Vec<u32>,
    block: Vec<u32>,
}

/// The gain of a mapping.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Talked {
    /// The lines of `--explain`.
    pub lines: Vec<String>,
    /// A line for the user, if the mapping is not as asked.
    pub remark: Option<String>,
}

impl PartialEq for Talk {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Talk {}

impl fmt::Debug for Talk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Talk({} ranks of {})", self.0.matrix.ranks(), self.0.source)
    }
}

impl Talk {
    /// Makes it from a matrix that was read from `source`. Without a topology all nodes count as equally far apart.
    /// Hosts that may fail are left aside where others suffice. `foreign` maps as well; the better mapping counts.
    pub fn new(
        matrix: Matrix,
        source: impl Into<String>,
        topology: Option<Topology>,
        faulty: Vec<(String, f64)>,
        foreign: Foreign,
    ) -> Self {
        let source = source.into();
        Self(Arc::new(Inner { matrix, source, topology, faulty, foreign, last: Mutex::default() }))
    }

    /// Maps the ranks of `block`, which are placed as without a matrix.
    pub(super) fn place(
        &self,
        size: u32,
        nodes: &[Node],
        rooms: &[Room],
        block: &[Run],
    ) -> Result<(Vec<Run>, Talked), Refusal> {
        let inner = &*self.0;
        inner.check(size)?;
        let block: Vec<u32> =
            block.iter().flat_map(|run| std::iter::repeat_n(run.node as u32, run.ranks as usize)).collect();
        let mut capacities = vec![0u32; nodes.len()];
        block.iter().for_each(|node| capacities[*node as usize] += 1);
        for (capacity, room) in capacities.iter_mut().zip(rooms) {
            *capacity = (*capacity).max(room.slots.unwrap_or(0).min(room.most));
        }
        let key = Key { size, names: nodes.iter().map(|node| node.name.clone()).collect(), capacities, block };
        let mut last = inner.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (talked, host_of) = match &*last {
            Some((known, talked, host_of)) if *known == key => (talked.clone(), host_of.clone()),
            _ => {
                let (talked, host_of) = inner.mapped(&key)?;
                *last = Some((key, talked.clone(), host_of.clone()));
                (talked, host_of)
            }
        };
        let mut runs = Vec::new();
        host_of.iter().for_each(|node| add(&mut runs, Run { node: *node as usize, ranks: 1 }));
        Ok((runs, talked))
    }

    /// Orders the ranks of each node onto its processors. `node_of` is the node of each rank. Returns the place of each rank
    /// among those of its node, none if all are by number, and a line for `--explain`.
    pub fn ordered(&self, node_of: &[u32]) -> Result<(Vec<u32>, String), Refusal> {
        let inner = &*self.0;
        inner.check(u32::try_from(node_of.len()).unwrap_or(u32::MAX))?;
        let nodes = node_of.iter().max().map_or(0, |last| *last as usize + 1);
        let mut ranks_of: Vec<Vec<usize>> = vec![Vec::new(); nodes];
        let mut local_of = Vec::with_capacity(node_of.len());
        for (rank, node) in node_of.iter().enumerate() {
            let ranks = &mut ranks_of[*node as usize];
            local_of.push(ranks.len() as u32);
            ranks.push(rank);
        }
        let refused = |reason| Refusal::new(format!("{}: {reason}", inner.source), "start fewer ranks");
        let collector = |ranks: &Vec<usize>| Collector::new(ranks.len() as u32).map_err(refused);
        let mut collectors = ranks_of.iter().map(collector).collect::<Result<Vec<_>, _>>()?;
        for pair in inner.matrix.pairs() {
            let (from, to) = (pair.from as usize, pair.to as usize);
            if node_of[from] == node_of[to] {
                collectors[node_of[from] as usize].add(local_of[from], local_of[to], pair.traffic).map_err(refused)?;
            }
        }
        let mut place_of = local_of.clone();
        let (mut before, mut after, mut bytes) = (0, 0, 0);
        for (ranks, collector) in ranks_of.iter().zip(collectors) {
            let found = order(&collector.finish(), SEED);
            (before, after, bytes) = (before + found.before, after + found.after, bytes + found.bytes);
            ranks.iter().zip(found.place_of).for_each(|(rank, place)| place_of[*rank] = place);
        }
        let levels = |sum: u128| if bytes == 0 { 0.0 } else { sum as f64 / bytes as f64 };
        let line = format!(
            "levels per byte within nodes: {:.3} by number, {:.3} in the order of this plan",
            levels(before),
            levels(after)
        );
        if place_of == local_of {
            place_of.clear();
        }
        Ok((place_of, line))
    }
}

impl Inner {
    /// Refuses a job of fewer ranks than the matrix has.
    fn check(&self, size: u32) -> Result<(), Refusal> {
        let ranks = self.matrix.ranks();
        if ranks <= size {
            return Ok(());
        }
        let text = format!("{} is of {ranks} ranks, and the job has {size}", self.source);
        Err(Refusal::new(text, format!("start {ranks} ranks, or record a matrix of {size} ranks")))
    }

    fn mapped(&self, key: &Key) -> Result<(Talked, Vec<u32>), Refusal> {
        let flat;
        let topology = match &self.topology {
            Some(topology) => topology,
            None => {
                let count = u32::try_from(key.names.len()).unwrap_or(u32::MAX);
                flat = Topology::flat(count).map_err(|error| Refusal::new(error.to_string(), "name fewer hosts"))?;
                &flat
            }
        };
        let places = topology.places_of(key.names.iter().map(String::as_str)).map_err(|error| {
            Refusal::new(
                format!("--topology: {error}"),
                "describe all hosts of the job in the topology, or leave it out",
            )
        })?;
        let matrix = of_size(&self.matrix, key.size);
        let matrix = matrix.as_ref().unwrap_or(&self.matrix);
        let mut capacities = key.capacities.clone();
        let mut outages = vec![0.0f64; topology.places() as usize];
        // Messages keep away from hosts that the job does not use, too.
        let faulty = self.faulty.iter().map(|(name, probability)| (name.as_str(), *probability));
        for ((_, probability), place) in faulty.clone().zip(topology.named_places(faulty.clone().map(|(name, _)| name)))
        {
            place.into_iter().for_each(|place| outages[place as usize] = probability);
        }
        let faulty: BTreeMap<&str, f64> = faulty.collect();
        let block: BTreeSet<u32> = key.block.iter().copied().collect();
        for (at, place) in places.iter().enumerate() {
            if let Some(probability) = faulty.get(key.names[at].as_str()) {
                outages[*place as usize] = *probability;
                // Hosts that may fail get ranks only where block placement puts some.
                capacities[at] = if block.contains(&(at as u32)) { capacities[at] } else { 0 };
            }
        }
        let of_places = outages.iter().any(|probability| *probability > 0.0).then_some(&outages[..]);
        let job = Job { matrix, topology, places: &places, capacities: &capacities, outages: of_places, seed: SEED };
        let foreign = (self.foreign)(&job);
        let of_foreign = match &foreign {
            Ok(Some(host_of)) => Some(format!("{:.3} hops per byte", figures(&job, host_of).hops_per_byte())),
            Ok(None) => None,
            Err(why) => Some(format!("no mapping: {why}")),
        };
        let Mapped { host_of, after, before, exposed_after, exposed_before, chosen } =
            map_from(&job, &key.block, foreign.unwrap_or_default());
        let name = |place: u32| {
            let at = places.iter().position(|of_host| *of_host == place);
            let of_topology = || topology.names().get(place as usize).cloned();
            at.map(|at| key.names[at].clone()).or_else(of_topology).unwrap_or_else(|| format!("place {place}"))
        };
        let link = |metrics: &Metrics| metrics.heaviest_link.map(|link| topology.link_name(link, &name));
        let network = if self.topology.is_some() { topology.text() } else { "unknown, all hosts equally far apart" };
        let how = match chosen {
            Chosen::Mapped => "by recursive bipartition and exchanges",
            Chosen::Relieved => "by recursive bipartition, and exchanges that relieve the heaviest link",
            Chosen::Folded => "by the digits of the ranks' numbers, and exchanges",
            Chosen::Foreign => "by Scotch, and exchanges",
            Chosen::Improved => "block placement after exchanges: all other placements make a link heavier",
            Chosen::Block => "block placement: no other one was found that is better and makes nothing worse",
        };
        let figures = |metrics: &Metrics| {
            [
                format!("{:.3}", metrics.hops_per_byte()),
                bytes(u128::from(metrics.heaviest)),
                bytes(metrics.between_hosts),
            ]
        };
        let rows = ["hops per byte", "heaviest link", "between nodes"];
        let both = figures(&before).into_iter().zip(figures(&after)).zip(rows);
        let mut lines = vec![format!("network: {network}"), format!("mapping: {how}")];
        lines.push(format!("{:<16} {:>12} {:>12}", "", "block", "this plan"));
        lines.extend(both.map(|((block, this), row)| format!("{row:<16} {block:>12} {this:>12}")));
        if job.outages.is_some() {
            let [block, this] = [&exposed_before, &exposed_after].map(|exposure| percent(exposure.probability()));
            lines.push(format!("{:<16} {block:>12} {this:>12}", "risk of an abort"));
            lines.push(exposed(chosen, &exposed_before, &exposed_after, &name));
        }
        lines.extend(of_foreign.map(|text| format!("scotch_gmap, before exchanges: {text}")));
        lines.extend(link(&after).map(|link| format!("the heaviest link is {link}")));
        let remark = (chosen == Chosen::Block && before.bytes > 0)
            .then(|| format!("--map-by comm: {} gives no better placement than block", self.source));
        Ok((Talked { lines, remark }, host_of))
    }
}

/// Returns the line that names the hosts that may fail and that the plan needs, and says what they have decided.
fn exposed(chosen: Chosen, before: &Exposure, after: &Exposure, name: &dyn Fn(u32) -> String) -> String {
    let named = |exposure: &Exposure| first_of(exposure.places(), EXPOSED_SHOWN, |place| name(*place));
    match (before.is_none(), after.is_safer_than(before)) {
        (true, _) => "neither block placement nor this plan needs a host that may fail".to_owned(),
        (_, true) if after.is_none() => {
            format!("taken because it needs no host that may fail; block placement needs {}", named(before))
        }
        (_, true) => format!(
            "taken because it is aborted less often: it needs {}, and block placement {}",
            named(after),
            named(before)
        ),
        (_, false) if chosen == Chosen::Block => {
            format!("no other placement was found that is safer; it needs {}", named(before))
        }
        (_, false) => {
            format!("chosen for fewer hops; it uses the same hosts that may fail as block placement: {}", named(after))
        }
    }
}

/// Formats a probability.
fn percent(probability: f64) -> String {
    format!("{:.1} %", probability * 100.0)
}

/// Returns the matrix with this number of ranks: a matrix may end before the last ranks, if they send nothing.
fn of_size(matrix: &Matrix, size: u32) -> Option<Matrix> {
    if matrix.ranks() == size {
        return None;
    }
    let mut collector = Collector::new(size).ok()?;
    collector.merge(matrix, 0).ok()?;
    collector.add(size - 1, size - 1, Traffic::default()).ok()?;
    Some(collector.finish())
}

/// Formats a number of bytes.
fn bytes(count: u128) -> String {
    nla::figures::bytes(u64::try_from(count).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use placement::matrix::Collector;

    use super::super::{Rule, place};
    use super::*;

    /// Two pairs of ranks that talk: 0 and 2, 1 and 3.
    fn crossed() -> Matrix {
        let mut collector = Collector::default();
        for (from, to) in [(0, 2), (2, 0), (1, 3), (3, 1)] {
            collector.add(from, to, Traffic { bytes: 1000, messages: 1 }).unwrap();
        }
        collector.finish()
    }

    fn placed(size: u32, hosts: &[(&str, u32)], faulty: &[&str]) -> Result<(Vec<usize>, Talked), String> {
        let nodes: Vec<Node> = hosts.iter().map(|(name, slots)| Node::named(*name).with_slots(*slots)).collect();
        let faulty = faulty.iter().map(|name| ((*name).to_owned(), 0.5)).collect();
        let talk = Talk::new(crossed(), "the matrix m", None, faulty, |_| Ok(None));
        let rule = Rule::Comm { per_node: None, talk };
        let placement = place(size, &nodes, &rule).map_err(|error| error.to_string())?;
        let nodes = placement.runs().iter().flat_map(|run| std::iter::repeat_n(run.node, run.ranks as usize)).collect();
        Ok((nodes, placement.talked.unwrap()))
    }

    #[test]
    fn partners_share_a_node() {
        let (nodes, talked) = placed(4, &[("a", 2), ("b", 2)], &[]).unwrap();
        assert_eq!((nodes[0], nodes[1]), (nodes[2], nodes[3]));
        assert_ne!(nodes[0], nodes[1]);
        assert_eq!(talked.remark, None);
        assert!(talked.lines.contains(&"between nodes         4.00 kB          0 B".to_owned()), "{talked:?}");
    }

    #[test]
    fn partners_get_neighbouring_processors() {
        let talk = Talk::new(crossed(), "the matrix m", None, Vec::new(), |_| Ok(None));
        let ordered = |node_of: &[u32]| talk.ordered(node_of).map_err(|error| error.to_string());
        let (place_of, line) = ordered(&[0; 4]).unwrap();
        assert_eq!((place_of[0] / 2, place_of[1] / 2), (place_of[2] / 2, place_of[3] / 2));
        assert_eq!(line, "levels per byte within nodes: 2.000 by number, 1.000 in the order of this plan");
        // Two partners on each node: there is nothing to choose, and messages between nodes do not count.
        let (place_of, line) = ordered(&[0, 1, 0, 1, 1, 1]).unwrap();
        assert_eq!(place_of, [0; 0]);
        assert_eq!(line, "levels per byte within nodes: 1.000 by number, 1.000 in the order of this plan");
        assert_eq!(ordered(&[0; 3]).unwrap_err(), "the matrix m is of 4 ranks, and the job has 3");
    }

    #[test]
    fn a_matrix_may_end_before_the_last_rank() {
        let (nodes, _) = placed(6, &[("a", 3), ("b", 3)], &[]).unwrap();
        assert_eq!((nodes[0], nodes[1]), (nodes[2], nodes[3]));
        let error = placed(3, &[("a", 4)], &[]).unwrap_err();
        assert_eq!(error, "the matrix m is of 4 ranks, and the job has 3");
    }

    #[test]
    fn the_better_of_two_mappings_counts() {
        let hosts = ["a", "b"].map(|name| Node::named(name).with_slots(2));
        let lines = |foreign: Foreign| {
            let talk = Talk::new(crossed(), "m", None, Vec::new(), foreign);
            let placement = place(4, &hosts, &Rule::Comm { per_node: None, talk }).unwrap();
            placement.talked.unwrap().lines.join("\n")
        };
        let failed = lines(|_| Err("it crashed".to_owned()));
        assert!(failed.contains("scotch_gmap, before exchanges: no mapping: it crashed"), "{failed}");
        let worse = lines(|_| Ok(Some(vec![0, 0, 1, 1])));
        assert!(worse.contains("scotch_gmap, before exchanges: 2.000 hops per byte"), "{worse}");
        assert!(!worse.contains("by Scotch") && worse.contains("0.000"), "{worse}");
    }

    #[test]
    fn places_stay_when_hosts_are_left_out() {
        // On a ring of four hosts the last one is beside the first, also if the second one is not used.
        let torus = Topology::torus(&[4]).unwrap().with_hosts(["a", "b", "c", "d"].into_iter());
        let mut collector = Collector::new(2).unwrap();
        collector.add(0, 1, Traffic { bytes: 8, messages: 1 }).unwrap();
        let talk = Talk::new(collector.finish(), "m", Some(torus), vec![("b".to_owned(), 0.5)], |_| Ok(None));
        let nodes = ["a", "c", "d"].map(|name| Node::named(name).with_slots(1));
        let placement = place(2, &nodes, &Rule::Comm { per_node: None, talk }).unwrap();
        let used: Vec<usize> = placement.runs().iter().map(|run| run.node).collect();
        assert!(used.contains(&2), "{used:?}");
        let lines = placement.talked.unwrap().lines;
        for line in [
            "hops per byte           2.000        1.000",
            "risk of an abort       50.0 %        0.0 %",
            "taken because it needs no host that may fail; block placement needs b",
        ] {
            assert!(lines.contains(&line.to_owned()), "{lines:#?}");
        }
    }

    #[test]
    fn nodes_that_may_fail_get_no_ranks() {
        let (nodes, _) = placed(4, &[("a", 2), ("b", 2), ("c", 2)], &["c"]).unwrap();
        assert!(nodes.iter().all(|node| *node < 2), "{nodes:?}");
        // Block placement needs one of the two hosts that may fail: no mapping puts ranks on the other one.
        let (nodes, talked) = placed(4, &[("a", 2), ("c", 2), ("b", 2)], &["b", "c"]).unwrap();
        assert!(nodes.iter().all(|node| *node < 2), "{nodes:?}");
        let why = "chosen for fewer hops; it uses the same hosts that may fail as block placement: c";
        assert!(talked.lines.contains(&why.to_owned()), "{talked:?}");
    }
}
