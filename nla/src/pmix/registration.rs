//! The keys that describe a namespace to libpmix.
//!
//! Open MPI 5 needs the two maps and the values of each local rank; libpmix derives those of other nodes' ranks from the maps.
//! Sources: `prted/pmix/pmix_server_register_fns.c` of PRRTE, `ompi/runtime/ompi_rte.c` of Open MPI.

use std::fmt::Write as _;

use litemap::LiteMap;
use pmi::{JobDescription, Rank, Ranks};

use super::message::Registration;
use crate::sys::pmix::{Process, Value};

type Info = (&'static str, Value);

/// The lists of a namespace's nodes and ranks, in the plain form of which libpmix makes its maps.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlainMaps {
    /// The names of the nodes that have ranks, separated by commas.
    pub(super) nodes: String,
    /// The ranks of each of them: `0,1;2,3`.
    pub(super) ranks: String,
}

/// Lists the nodes that have ranks, in the order of their numbers.
pub(super) fn plain_maps(registration: &Registration) -> PlainMaps {
    let mapping = &registration.job.mapping;
    let mut ranks_of: Vec<Vec<u32>> = vec![Vec::new(); registration.hosts.len()];
    for rank in 0..registration.job.size {
        if let Some(ranks) = mapping.node_of(Rank(rank)).and_then(|node| ranks_of.get_mut(node as usize)) {
            ranks.push(rank);
        }
    }
    let used = || registration.hosts.iter().zip(&ranks_of).filter(|(_, ranks)| !ranks.is_empty());
    let nodes = used().map(|(host, _)| host.as_str()).collect::<Vec<_>>().join(",");
    let ranks = used().map(|(_, ranks)| list(ranks.iter().copied())).collect::<Vec<_>>().join(";");
    PlainMaps { nodes, ranks }
}

fn list(ranks: impl Iterator<Item = u32>) -> String {
    let mut text = String::new();
    for rank in ranks {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{rank}");
    }
    text
}

/// Returns the ranks of the namespace on this node.
pub(super) fn local_ranks(registration: &Registration) -> Ranks {
    let on_node = |rank: &u32| registration.job.mapping.node_of(Rank(*rank)) == Some(registration.node);
    (0..registration.job.size).filter(on_node).map(Rank).collect()
}

/// Returns all keys of the namespace. `nodes` and `ranks` are libpmix's forms of [`PlainMaps`], `directory` that of the
/// session's files, `oversubscribed` says that the node has more ranks than processors. `localities` are libpmix's descriptions
/// of where the bound ranks are, as far as it knows them.
pub(super) fn infos(
    registration: &Registration,
    nodes: Value,
    ranks: Value,
    directory: &str,
    oversubscribed: bool,
    localities: &LiteMap<u32, String>,
) -> Vec<Info> {
    let Registration { name, hosts, node, spawner, job, cpus } = registration;
    let local = local_ranks(registration);
    let host = hosts.get(*node as usize).map_or("", String::as_str);
    // libpmix numbers the nodes by their places in the map.
    let number = nodes_used(registration, *node);
    let peers = Value::Text(list(local.iter().map(|rank| rank.0)).into_bytes());
    let first = local.first().map_or(0, |rank| rank.0);
    let local_size = local.len() as u32;
    let universe = u32::try_from(job.universe).unwrap_or(job.size);
    let mut infos = vec![
        ("pmix.nmap", nodes),
        ("pmix.pmap", ranks.clone()),
        ("pmix.jobid", Value::Text(name.clone().into_bytes())),
        ("pmix.job.size", Value::U32(job.size)),
        ("pmix.univ.size", Value::U32(universe)),
        ("pmix.max.size", Value::U32(job.size)),
        ("pmix.num.nodes", Value::U32(nodes_used(registration, hosts.len() as u32))),
        ("pmix.job.napps", Value::U32(job.programs.len() as u32)),
        ("pmix.local.size", Value::U32(local_size)),
        ("pmix.lpeers", peers.clone()),
        ("pmix.lldr", Value::Rank(first)),
        ("pmix.tmpdir", text(directory)),
        ("pmix.nsdir", text(directory)),
        ("pmix.tdir.rmclean", Value::Bool(true)),
    ];
    if oversubscribed {
        infos.push(("pmix.ndosub", Value::Bool(true)));
    }
    let parent = spawner.clone().map(|(namespace, rank)| Value::Process(Process { namespace, rank }));
    if let Some(parent) = &parent {
        infos.push(("pmix.spawned", Value::Bool(true)));
        infos.push(("pmix.parent", parent.clone()));
    }
    // A node without ranks is in no map and has no number.
    if local_size > 0 {
        infos.push((
            "pmix.node.arr",
            Value::Infos(vec![
                ("pmix.hname", text(host)),
                ("pmix.nodeid", Value::U32(number)),
                ("pmix.local.size", Value::U32(local_size)),
                ("pmix.lpeers", peers),
                ("pmix.lldr", Value::Rank(first)),
            ]),
        ));
    }
    infos.extend(applications(job));
    infos.extend(local.iter().zip(0..).map(|(rank, local_rank)| {
        let (appnum, before) = application_of(job, rank);
        let mut process = vec![
            ("pmix.rank", Value::Rank(rank.0)),
            ("pmix.lrank", Value::U16(local_rank)),
            ("pmix.nrank", Value::U16(local_rank)),
            ("pmix.nodeid", Value::U32(number)),
            ("pmix.hname", text(host)),
            ("pmix.appnum", Value::U32(appnum)),
            ("pmix.apprank", Value::Rank(rank.0 - before)),
            ("pmix.grank", Value::Rank(rank.0)),
            ("pmix.pdir", text(directory)),
            ("pmix.reinc", Value::U32(0)),
        ];
        process.extend(parent.clone().map(|parent| ("pmix.parent", parent)));
        if let Some((_, cpus)) = cpus.iter().find(|(bound, _)| *bound == rank.0) {
            process.push(("pmix.cpuset", text(&cpuset(cpus))));
        }
        process.extend(localities.get(&rank.0).map(|locality| ("pmix.locstr", text(locality))));
        ("pmix.pdata", Value::Infos(process))
    }));
    infos
}

/// One array of keys for each program. Open MPI reads sizes and first ranks of several programs as text.
fn applications(job: &JobDescription) -> Vec<Info> {
    let mut before = 0;
    let mut firsts = Vec::new();
    let mut infos: Vec<Info> = Vec::new();
    for (appnum, program) in (0..).zip(&job.programs) {
        infos.push((
            "pmix.app.arr",
            Value::Infos(vec![
                ("pmix.appnum", Value::U32(appnum)),
                ("pmix.app.size", Value::U32(program.nprocs)),
                ("pmix.aldr", Value::Rank(before)),
                ("pmix.wdir", Value::Text(program.wdir.clone())),
                ("pmix.app.argv", Value::Text(program.argv.join(&b' '))),
            ]),
        ));
        firsts.push(before);
        before += program.nprocs;
    }
    if job.programs.len() > 1 {
        let words = |numbers: Vec<u32>| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        infos.push(("OMPI_APP_SIZES", text(&words(job.programs.iter().map(|program| program.nprocs).collect()))));
        infos.push(("OMPI_FIRST_RANKS", text(&words(firsts))));
    }
    infos
}

/// Returns the number of the program that a rank runs, and the number of ranks before it.
fn application_of(job: &JobDescription, rank: Rank) -> (u32, u32) {
    let mut before = 0;
    for (appnum, program) in (0..).zip(&job.programs) {
        if rank.0 < before + program.nprocs {
            return (appnum, before);
        }
        before += program.nprocs;
    }
    (0, 0)
}

/// Returns the number of nodes before `end` that have ranks.
fn nodes_used(registration: &Registration, end: u32) -> u32 {
    let used = |node: &u32| registration.job.mapping.local_size(*node) > 0;
    (0..end).filter(used).count() as u32
}

/// Returns PMIx's name of a set of processors.
pub(super) fn cpuset(cpus: &str) -> String {
    format!("hwloc:{cpus}")
}

fn text(text: &str) -> Value {
    Value::Text(text.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use pmi::{Mapping, ProgramDescription};

    use super::*;

    fn registration(nodes: &[u32], programs: &[u32]) -> Registration {
        let program = |nprocs: &u32| ProgramDescription {
            nprocs: *nprocs,
            argv: vec![b"a.out".to_vec(), b"x".to_vec()],
            wdir: b"/w".to_vec(),
        };
        Registration {
            name: "s.job".to_owned(),
            hosts: ["n0", "n1", "n2"].map(str::to_owned).to_vec(),
            node: 1,
            spawner: Some(("s.parent".to_owned(), Some(5))),
            job: JobDescription {
                kvsname: "job".to_owned(),
                size: nodes.len() as u32,
                universe: -1,
                spawner: None,
                mapping: Mapping::from_nodes(nodes.iter().copied()),
                programs: programs.iter().map(program).collect(),
            },
            cpus: Vec::new(),
        }
    }

    fn find<'a>(infos: &'a [Info], key: &str) -> Vec<&'a Value> {
        infos.iter().filter(|(name, _)| *name == key).map(|(_, value)| value).collect()
    }

    #[test]
    fn nodes_without_ranks_are_in_no_map() {
        let maps = plain_maps(&registration(&[0, 2, 0, 2], &[4]));
        assert_eq!((maps.nodes.as_str(), maps.ranks.as_str()), ("n0,n2", "0,2;1,3"));
    }

    #[test]
    fn a_node_has_the_number_of_its_place_in_the_map() {
        let keys = |nodes: &[u32]| infos(&registration(nodes, &[2]), text(""), text(""), "/", false, &LiteMap::new());
        for (nodes, number) in [([0, 1], 1), ([1, 2], 0)] {
            let keys = keys(&nodes);
            let arrays: Vec<_> = ["pmix.node.arr", "pmix.pdata"].iter().flat_map(|key| find(&keys, key)).collect();
            assert_eq!(arrays.len(), 2, "{arrays:?}");
            for array in arrays {
                let Value::Infos(array) = array else { panic!("{array:?}") };
                assert_eq!(find(array, "pmix.nodeid"), [&Value::U32(number)]);
            }
        }
        assert!(find(&keys(&[0, 2]), "pmix.node.arr").is_empty());
    }

    #[test]
    fn each_rank_here_has_its_numbers() {
        let localities = [(3, "NM0".to_owned())].into_iter().collect();
        let mut registration = registration(&[0, 1, 0, 1], &[1, 3]);
        registration.cpus = vec![(3, "0,2-3".to_owned())];
        let infos = infos(&registration, text("nodes"), text("ranks"), "/tmp/d", true, &localities);
        assert_eq!(find(&infos, "pmix.job.size"), [&Value::U32(4)]);
        assert_eq!(find(&infos, "pmix.num.nodes"), [&Value::U32(2)]);
        assert_eq!(find(&infos, "pmix.lpeers"), [&text("1,3")]);
        assert_eq!(find(&infos, "pmix.ndosub"), [&Value::Bool(true)]);
        assert_eq!(find(&infos, "OMPI_APP_SIZES"), [&text("1 3")]);
        assert_eq!(find(&infos, "OMPI_FIRST_RANKS"), [&text("0 1")]);
        assert_eq!(find(&infos, "pmix.app.arr").len(), 2);
        let numbers: Vec<_> = find(&infos, "pmix.pdata")
            .iter()
            .map(|rank| {
                let Value::Infos(rank) = rank else { panic!("{rank:?}") };
                ["pmix.rank", "pmix.lrank", "pmix.appnum", "pmix.apprank"].map(|key| find(rank, key)[0].clone())
            })
            .collect();
        let expected =
            |rank, local, app, in_app| [Value::Rank(rank), Value::U16(local), Value::U32(app), Value::Rank(in_app)];
        assert_eq!(numbers, [expected(1, 0, 1, 0), expected(3, 1, 1, 2)]);
        let ranks = find(&infos, "pmix.pdata");
        let [Value::Infos(unbound), Value::Infos(bound)] = ranks[..] else { panic!("{ranks:?}") };
        assert!(find(unbound, "pmix.cpuset").is_empty() && find(unbound, "pmix.locstr").is_empty());
        assert_eq!(find(bound, "pmix.cpuset"), [&text("hwloc:0,2-3")]);
        assert_eq!(find(bound, "pmix.locstr"), [&text("NM0")]);
    }

    #[test]
    fn only_a_spawned_namespace_has_a_parent() {
        let mut registration = registration(&[1], &[1]);
        let infos_of =
            |registration: &Registration| infos(registration, text(""), text(""), "/", false, &LiteMap::new());
        let parent = Value::Process(Process { namespace: "s.parent".to_owned(), rank: Some(5) });
        let infos = infos_of(&registration);
        assert_eq!(find(&infos, "pmix.parent"), [&parent]);
        let [Value::Infos(rank)] = find(&infos, "pmix.pdata")[..] else { panic!("{infos:?}") };
        assert_eq!(find(rank, "pmix.parent"), [&parent]);
        registration.spawner = None;
        let infos = infos_of(&registration);
        assert!(find(&infos, "pmix.parent").is_empty() && find(&infos, "pmix.spawned").is_empty());
        assert!(find(&infos, "pmix.ndosub").is_empty() && find(&infos, "OMPI_APP_SIZES").is_empty());
    }
}
