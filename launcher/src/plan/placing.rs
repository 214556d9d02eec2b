//! Reads the files that decide which node a rank gets: communication matrices, topologies, saved rank maps.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufReader, Write as _};
use std::path::{Path, PathBuf};

use litemap::LiteMap;
use nla::sys::{self, Rewrite};
use placement::faults::{History, Outage, PROBABILITY_MIN, ordered, safest_order};
use placement::limits::{MATRIX_RANKS_MAX, TOPOLOGY_BYTES_MAX};
use placement::matrix::{Collector, Matrix, MatrixError};
use placement::topology::Topology;

use crate::cluster::fault_history;
use crate::cluster::hosts::{self, first_of, fold};
use crate::cluster::manager::Manager;
use crate::cluster::node_list::{HostOptions, Node, NodeList};
use crate::cluster::placement::talk::Talk;
use crate::cluster::placement::{MAP_BYTES_MAX, MapBy, scotch};
use crate::cluster::system::{Process, System};
use crate::plan::machine::Machine;
use crate::plan::request::Request;
use crate::plan::{Plan, binding};
use crate::refusal::Refusal;

/// The first line of a saved rank map, before the names of the hosts.
const HOSTS_LINE: &str = "# hosts ";

/// Bytes of the names of hosts in a message.
const NAMES_BYTES_MAX: usize = 120;

/// The number of hosts that may fail that a note names.
const FAULTY_SHOWN: usize = 4;

/// The note if `--avoid-faults` finds no history.
pub(crate) const NO_HISTORY: &str = "--avoid-faults has no effect: there is no history of faults, as neither XDG_STATE_HOME nor \
                                     HOME is an absolute path; --fault-history names a file";

/// Reads the files that the options name, and puts what they contain into the options. Adds lines for the user to
/// `remarks`.
///
/// Returns the nodes in the order in which they are to be used.
pub(super) fn provide(
    request: &mut Request,
    nodes: NodeList,
    machine: &Machine,
    remarks: &mut Vec<String>,
) -> Result<NodeList, Refusal> {
    if let NodeList::Local { .. } = nodes {
        let HostOptions { avoid_faults, fault_history, .. } = &request.options.hosts;
        let typed = [("--avoid-faults", *avoid_faults), ("--fault-history", fault_history.is_some())];
        let without_effect = typed.iter().filter(|(_, is_typed)| *is_typed);
        let note = |option: &str| format!("{option} has no effect: all ranks run on this machine");
        remarks.extend(without_effect.map(|(option, _)| note(option)));
    }
    // A topology without names is about the list as it was typed.
    let listed: Vec<String> = nodes.nodes().iter().map(|node| node.name.clone()).collect();
    let (nodes, faulty) = match request.options.hosts.avoid_faults {
        true => without_faults(request, nodes, remarks)?,
        false => (nodes, Vec::new()),
    };
    let options = &mut request.options;
    let process = Process { environment: &machine.environment };
    if let Some(file) = options.hosts.rankmap.as_ref().and_then(|map| map.to_str()?.strip_prefix('@')) {
        let path = machine.wdir.join(file);
        options.hosts.rankmap = Some(saved(&path, &nodes, &process, remarks)?);
    }
    if options.hosts.map_by != MapBy::Comm {
        return Ok(nodes);
    }
    let is_local = matches!(nodes, NodeList::Local { .. });
    if is_local && !binding::has_order(&binding::policy(&options.binding, &nodes)) {
        let why = "all ranks run on this machine, and are not bound; --bind-to core would order them onto its cores";
        remarks.push(format!("--map-by comm has no effect: {why}"));
        return Ok(nodes);
    }
    // The parser requires it.
    let Some(path) = &options.hosts.comm_matrix else { return Ok(nodes) };
    let matrix = matrix(&machine.wdir.join(path)).map_err(|error| {
        let text = format!("option '--comm-matrix': '{}': {}", path.display(), chain(&error));
        Refusal::new(text, "'--profile-comm FILE' records one; 'scela comm show FILE' prints it")
    })?;
    let topology = match &options.hosts.topology {
        Some(typed) => Some(topology(typed, machine, &process)?),
        None if is_local => None,
        None => of_manager(&nodes, &process, remarks),
    };
    let topology = topology.map(|topology| topology.with_hosts(listed.iter().map(String::as_str)));
    let source = format!("the matrix {}", path.display());
    options.hosts.talk = Some(Talk::new(matrix, source, topology, faulty, scotch::ask));
    Ok(nodes)
}

/// The hosts that may fail, by the user's history of faults.
#[derive(Debug)]
pub(crate) struct Faults {
    outages: BTreeMap<String, Outage>,
    now_s: u64,
}

impl Faults {
    /// Reads the history. Returns `None` if there is no place for one.
    pub(crate) fn of_user(options: &HostOptions) -> Result<Option<Self>, Refusal> {
        let Some(path) = fault_history::path(options, |name| std::env::var_os(name)) else { return Ok(None) };
        let now_s = fault_history::now_s();
        let history = fault_history::read(&path, now_s).map_err(|error| {
            let text = format!("option '--avoid-faults': '{}' cannot be used: {error}", path.display());
            Refusal::new(text, "name another file with --fault-history, or remove this one").of_system()
        })?;
        Ok(Some(Self::at(&history, now_s)))
    }

    fn at(history: &History, now_s: u64) -> Self {
        let outages = history.outages(now_s).into_iter();
        let likely = outages.filter(|(_, outage)| outage.probability >= PROBABILITY_MIN);
        Self { outages: likely.map(|(name, outage)| (name.to_owned(), outage)).collect(), now_s }
    }

    fn has(&self, name: &str) -> bool {
        self.outages.contains_key(name)
    }

    /// Returns the probability that a host fails. It is 0 for hosts that are not among those that may fail.
    fn probability(&self, name: &str) -> f64 {
        self.outages.get(name).map_or(0.0, |outage| outage.probability)
    }

    /// Returns the names, the likeliest to fail first.
    pub(crate) fn likeliest(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.outages.iter().map(|(name, outage)| (name.as_str(), outage.probability)).collect();
        names.sort_by(|one, other| other.1.total_cmp(&one.1));
        names.into_iter().map(|(name, _)| name).collect()
    }

    /// Describes those of the hosts that may fail, the first ones in words.
    pub(crate) fn words_of(&self, names: &[&str]) -> String {
        let known: Vec<_> = names.iter().filter_map(|name| Some((*name, self.outages.get(*name)?))).collect();
        first_of(&known, FAULTY_SHOWN, |(name, outage)| {
            let hours = self.now_s.saturating_sub(outage.last_s) / 3600;
            let times = if outage.events == 1 { "once,".to_owned() } else { format!("{} times, last", outage.events) };
            format!("{name} ({:.0} %, lost {times} {hours} h ago)", outage.probability * 100.0)
        })
    }
}

/// Orders the nodes so that those that sessions have lost lately are last, and leaves out those that neither the ranks nor
/// `--spares` need. Returns also all hosts that may fail, listed or not, with their probabilities.
fn without_faults(
    request: &Request,
    nodes: NodeList,
    remarks: &mut Vec<String>,
) -> Result<(NodeList, Vec<(String, f64)>), Refusal> {
    let options = &request.options;
    let NodeList::Named { nodes: listed, allocation } = nodes else { return Ok((nodes, Vec::new())) };
    let Some(faults) = Faults::of_user(&options.hosts)? else {
        remarks.push(NO_HISTORY.to_owned());
        return Ok((NodeList::Named { nodes: listed, allocation }, Vec::new()));
    };
    let is_faulty: Vec<bool> = listed.iter().map(|node| faults.has(&node.name)).collect();
    let ranks: Option<u64> = request.commands.iter().map(|command| command.nprocs.map(u64::from)).sum();
    let slots: Option<Vec<u64>> = listed.iter().map(|node| options.ppn.or(node.slots).map(u64::from)).collect();
    let slots_or_one = slots.clone().unwrap_or_else(|| vec![1; listed.len()]);
    let (order, faulty) = ordered(&is_faulty, &slots_or_one, ranks.unwrap_or(u64::MAX));
    let (sound, risky) = order.split_at(listed.len() - faulty);
    let sound_slots: Vec<u64> = sound.iter().map(|at| slots_or_one[*at]).collect();
    let missing = ranks.unwrap_or_default().saturating_sub(sound_slots.iter().sum());
    let of_risky: Vec<_> = risky.iter().map(|at| (slots_or_one[*at], faults.probability(&listed[*at].name))).collect();
    // `--spares` keeps the first of those that the ranks do not need.
    let risky: Vec<usize> = safest_order(&of_risky, missing).into_iter().map(|at| risky[at]).collect();
    let needed = faulty_needed(&sound_slots, faulty, ranks, slots.is_some(), options.launch.spares as usize);
    if faulty > 0 {
        let names: Vec<&str> = risky.iter().map(|at| listed[*at].name.as_str()).collect();
        let how = if needed == faulty { "used last" } else { "left out unless needed" };
        remarks.push(format!("--avoid-faults: hosts that may fail are {how}: {}", faults.words_of(&names)));
    }
    // Messages may pass hosts that the job does not use.
    let risks = faults.outages.into_iter().map(|(name, outage)| (name, outage.probability)).collect();
    let used: Vec<Node> = sound.iter().chain(&risky[..needed]).map(|at| listed[*at].clone()).collect();
    Ok((NodeList::Named { nodes: used, allocation }, risks))
}

/// Returns how many of the `faulty` hosts that may fail a job needs. `sound` has the slots of the other hosts, in the order in
/// which ranks use them, or 1 for each if the slots are unknown. `ranks` is `None` if the ranks use all slots.
fn faulty_needed(sound: &[u64], faulty: usize, ranks: Option<u64>, are_slots_known: bool, spares: usize) -> usize {
    if sound.is_empty() {
        return faulty;
    }
    let sums = sound.iter().scan(0u64, |sum, slots| {
        *sum = sum.saturating_add(*slots);
        Some(*sum)
    });
    let with_room = ranks.and_then(|ranks| sums.zip(1..).find(|(sum, _)| *sum >= ranks).map(|(_, hosts)| hosts));
    match with_room {
        None if ranks.is_some() && are_slots_known => faulty,
        used => spares.saturating_sub(sound.len() - used.unwrap_or(sound.len())).min(faulty),
    }
}

/// Returns an error with its source.
pub(crate) fn chain(error: &MatrixError) -> String {
    let source = std::error::Error::source(error).map(|source| format!(": {source}"));
    format!("{error}{}", source.unwrap_or_default())
}

/// Reads a communication matrix from a file, or from Open MPI's files PATH.RANK.prof.
pub fn matrix(path: &Path) -> Result<Matrix, MatrixError> {
    let first = of_rank(path, 0);
    if !path.exists() && first.exists() {
        let mut collector = Collector::default();
        for rank in 0..MATRIX_RANKS_MAX {
            let path = of_rank(path, rank);
            // A rank that sends nothing may have no file, but then there is no rank after it without one.
            match sys::open_regular(&path) {
                Ok(file) => collector.read_open_mpi(BufReader::new(file))?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(error.into()),
            }
        }
        return Ok(collector.finish());
    }
    Matrix::read_any(BufReader::new(sys::open_input(path)?))
}

fn of_rank(path: &Path, rank: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{rank}.prof"));
    name.into()
}

/// Expands a list of a topology file.
fn expand(list: &str) -> Result<Vec<String>, String> {
    hosts::expand(list.as_bytes()).map_err(|error| error.to_string())
}

/// Returns the topology that was typed: words or a file.
pub(crate) fn topology(typed: &OsString, machine: &Machine, system: &dyn System) -> Result<Topology, Refusal> {
    let text = typed.to_string_lossy();
    let hint = "name a file topology.conf or topology.yaml, or write torus:8x8x8, fat-tree:2:36 or dragonfly:9:4:2";
    let refused = |why: String| Refusal::new(format!("option '--topology': {why}"), hint);
    if Topology::is_words(&text) {
        return Topology::parse_words(&text).map_err(|error| refused(error.to_string()));
    }
    let path = machine.wdir.join(typed);
    let bytes = system.file(&path, TOPOLOGY_BYTES_MAX).map_err(|error| refused(format!("'{text}': {error}")))?;
    if bytes.len() > TOPOLOGY_BYTES_MAX {
        return Err(refused(format!("'{text}' is longer than {} MiB", TOPOLOGY_BYTES_MAX >> 20)));
    }
    Topology::parse_file(&String::from_utf8_lossy(&bytes), &expand)
        .map_err(|error| refused(format!("'{text}': {error}")))
}

/// Returns the topology that the resource manager of the job knows. Without one that has all nodes, none is used.
fn of_manager(nodes: &NodeList, system: &dyn System, remarks: &mut Vec<String>) -> Option<Topology> {
    let manager = nodes.allocation().map(|allocation| allocation.manager);
    let unknown =
        "--map-by comm: the network is unknown, so all hosts count as equally far apart; --topology describes it";
    if manager != Some(Manager::Slurm) {
        remarks.push(unknown.to_owned());
        return None;
    }
    let asked = system.answer_soon(&["scontrol", "show", "topology"], TOPOLOGY_BYTES_MAX);
    let found = asked.map_err(|error| error.to_string()).and_then(|bytes| {
        let parsed =
            Topology::parse_file(&String::from_utf8_lossy(&bytes), &expand).map_err(|error| error.to_string())?;
        let names = nodes.nodes().iter().map(|node| node.name.as_str());
        parsed.places_of(names).map_err(|error| error.to_string())?;
        Ok(parsed)
    });
    found.inspect_err(|why| remarks.push(format!("{unknown} (scontrol show topology: {why})"))).ok()
}

/// Returns the rank map of a file of `--save-rankmap`. Adds a remark if it was made for other hosts.
fn saved(path: &Path, nodes: &NodeList, system: &dyn System, remarks: &mut Vec<String>) -> Result<OsString, Refusal> {
    let SavedMap { map, hosts: made_for } = SavedMap::read(path, "-rankmap", system)?;
    let names: Vec<&str> = nodes.nodes().iter().map(|node| node.name.as_str()).collect();
    let is_other = |made_for: &String| !expand(made_for).is_ok_and(|made_for| made_for == names);
    if let Some(made_for) = made_for.filter(is_other) {
        let shown = |list: &str| list.chars().take(NAMES_BYTES_MAX).collect::<String>();
        let made_for = shown(&made_for);
        let now = match names.is_empty() {
            true => "all ranks run on this machine".to_owned(),
            false => format!("these are {}", shown(&in_order(&names))),
        };
        remarks.push(format!("the rank map '{}' was made for the hosts {made_for}, and {now}", path.display()));
    }
    Ok(map.into())
}

/// Returns a list that expands to these names in this order: a rank map counts them.
fn in_order(names: &[&str]) -> String {
    let folded = fold(names);
    if expand(&folded).is_ok_and(|expanded| expanded == names) { folded } else { names.join(",") }
}

/// The contents of a file of `--save-rankmap`.
pub(crate) struct SavedMap {
    /// The node of each rank, as for `-rankmap`.
    pub(crate) map: String,
    /// The list of the hosts that it was made for, if the file has one.
    pub(crate) hosts: Option<String>,
}

impl SavedMap {
    /// Reads a file that was named after `@` in the value of `option`.
    pub(crate) fn read(path: &Path, option: &str, system: &dyn System) -> Result<Self, Refusal> {
        let refused = |why: String| {
            let hint = "'--save-rankmap FILE' writes such a file; it has the node of each rank, counted from 0";
            Refusal::new(format!("option '{option}': '{}' {why}", path.display()), hint)
        };
        let bytes = system.file(path, MAP_BYTES_MAX).map_err(|error| refused(format!("cannot be read: {error}")))?;
        if bytes.len() > MAP_BYTES_MAX {
            return Err(refused(format!("is longer than {} MiB", MAP_BYTES_MAX >> 20)));
        }
        let text = String::from_utf8(bytes).map_err(|_| refused("is not text".to_owned()))?;
        let hosts = text.lines().find_map(|line| line.strip_prefix(HOSTS_LINE)).map(str::trim).map(str::to_owned);
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let map = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(",");
        Ok(Self { map, hosts: hosts.filter(|hosts| !hosts.is_empty()) })
    }
}

/// Writes the node of each rank of a plan, which `-rankmap @FILE` reads. `names` are those of the node list. Writes into a device or
/// a FIFO, follows links, and keeps the mode of a file.
pub fn save(plan: &Plan, path: &Path, names: &[&str]) -> Result<(), Refusal> {
    let mut node_of: LiteMap<u32, (u32, usize)> = LiteMap::new();
    for (agent, ranks) in &plan.settings.first.placement {
        let node = plan.node_of_agent.get(agent.0 as usize - 1).copied().unwrap_or_default();
        for (first, end) in ranks.intervals() {
            node_of.insert(*first, (*end, node));
        }
    }
    let mut text = Vec::new();
    // Writing to memory cannot fail. Without a list of hosts, all ranks run on this machine.
    if !names.is_empty() {
        let _ = writeln!(text, "{HOSTS_LINE}{}", in_order(names));
    }
    for (first, (end, node)) in node_of.iter() {
        let _ = writeln!(text, "{}*{node}", end - first);
    }
    let written = Rewrite::open(path).and_then(|file| file.write(|out| out.write_all(&text)));
    written.map_err(|error| {
        let text = format!("option '--save-rankmap': '{}' cannot be written: {error}", path.display());
        let hint = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free space there, or name a file elsewhere",
            _ => "name a file in a directory that you may write to",
        };
        Refusal::new(text, hint).of_system()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::allocation::Allocation;
    use crate::cluster::system::fake::Fake;

    fn named(list: &str, manager: Option<Manager>) -> NodeList {
        let nodes: Vec<Node> = hosts::expand(list.as_bytes()).unwrap().into_iter().map(Node::named).collect();
        let allocation = manager.map(|manager| Allocation {
            manager,
            id: "7".to_owned(),
            nodes: nodes.clone(),
            ranks: None,
            found_by: "X",
        });
        NodeList::Named { nodes, allocation }
    }

    #[test]
    fn slurm_says_how_its_nodes_are_connected() {
        const ASKED: &str = "scontrol show topology";
        let found = |system: &Fake, nodes: &NodeList| {
            let mut remarks = Vec::new();
            let topology = of_manager(nodes, system, &mut remarks);
            (topology.map(|topology| topology.places()), remarks.join("\n"))
        };
        let shown = "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]\nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[3-4]\n";
        let slurm = named("n[1-4]", Some(Manager::Slurm));
        assert_eq!(found(&Fake::default().answer(ASKED, shown), &slurm), (Some(4), String::new()));
        let unknown =
            "--map-by comm: the network is unknown, so all hosts count as equally far apart; --topology describes it";
        let none = "No topology information available";
        let begin = "line 1: the topology has none of tree, block and torus3d";
        let told = format!("{unknown} (scontrol show topology: {begin})");
        assert_eq!(found(&Fake::default().answer(ASKED, none), &slurm), (None, told));
        let strangers = named("n[1-5]", Some(Manager::Slurm));
        let told = format!("{unknown} (scontrol show topology: the topology does not have n5)");
        assert_eq!(found(&Fake::default().answer(ASKED, shown), &strangers), (None, told));
        assert_eq!(found(&Fake::default(), &named("n[1-4]", None)), (None, unknown.to_owned()));
    }

    #[test]
    fn hosts_that_may_fail_are_named_by_their_probability() {
        const HOUR: u64 = 3600;
        let mut history = History::default();
        history.add(0, ["old"].into_iter());
        for at in [4000 * HOUR, 4001 * HOUR] {
            history.add(at, ["n2"].into_iter());
        }
        history.add(4000 * HOUR, ["n1", "n3"].into_iter());
        let faults = Faults::at(&history, 4003 * HOUR);
        assert_eq!(faults.likeliest(), ["n2", "n1", "n3"]);
        assert!(faults.has("n1") && !faults.has("old"));
        assert_eq!(faults.words_of(&["n2"]), "n2 (86 %, lost 2 times, last 2 h ago)");
        assert_eq!(faults.words_of(&["n1", "new"]), "n1 (39 %, lost once, 3 h ago)");
        let many = ["n1", "n2", "n3", "n1", "n2", "n3"];
        assert!(faults.words_of(&many).ends_with(" and 2 more"));
    }

    #[test]
    fn spares_are_sound_hosts_that_ranks_do_not_need() {
        // Five sound hosts with two slots each, and one that may fail.
        let needed = |ranks, spares| faulty_needed(&[2; 5], 1, ranks, true, spares);
        assert_eq!((needed(Some(2), 1), needed(Some(2), 4), needed(Some(2), 5)), (0, 0, 1));
        assert_eq!((needed(Some(10), 0), needed(Some(10), 1), needed(Some(10), 3)), (0, 1, 1));
        // Ranks without room on the sound hosts, or on all slots.
        assert_eq!((needed(Some(11), 0), needed(None, 0), needed(None, 1)), (1, 0, 1));
        // Without slots ranks share hosts.
        assert_eq!(faulty_needed(&[1; 2], 3, Some(8), false, 0), 0);
        assert_eq!(faulty_needed(&[1; 2], 3, Some(1), false, 2), 1);
        assert_eq!(faulty_needed(&[], 3, Some(1), true, 0), 3);
    }

    #[test]
    fn a_saved_rank_map_names_its_hosts() {
        let read = |text: &str, list: &str| {
            let mut remarks = Vec::new();
            let system = Fake::default().file("/map", text);
            let map =
                saved(Path::new("/map"), &named(list, None), &system, &mut remarks).map_err(|why| why.to_string());
            (map, remarks.join("\n"))
        };
        let text = "# hosts n[1-2]\n2*1\n1*0 # a remark\n";
        assert_eq!(read(text, "n[1-2]"), (Ok("2*1,1*0".into()), String::new()));
        let told = "the rank map '/map' was made for the hosts n[1-2], and these are n[1-3]";
        assert_eq!(read(text, "n[1-3]"), (Ok("2*1,1*0".into()), told.to_owned()));
        // The numbers of a map count the hosts in their order.
        let told = "the rank map '/map' was made for the hosts n[1-2], and these are n2,n1";
        assert_eq!(read(text, "n2,n1"), (Ok("2*1,1*0".into()), told.to_owned()));
        assert_eq!(read("# hosts b,a\n1*0\n", "b,a"), (Ok("1*0".into()), String::new()));
        assert_eq!((in_order(&["b", "a"]), in_order(&["n1", "n2", "n3"])), ("b,a".to_owned(), "n[1-3]".to_owned()));
        // A map of this machine, as earlier versions wrote it.
        assert_eq!(read("# hosts \n3*0\n", "n1"), (Ok("3*0".into()), String::new()));
        let error = saved(Path::new("/none"), &named("a", None), &Fake::default(), &mut Vec::new()).unwrap_err();
        assert!(error.to_string().starts_with("option '-rankmap': '/none' cannot be read"), "{error}");
    }
}
