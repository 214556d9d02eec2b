//! Reads the files that decide which node a rank gets: communication matrices, topologies, saved rank maps.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Write as _};
use std::path::{Path, PathBuf};

use litemap::LiteMap;
use nla::sys;
use placement::limits::{MATRIX_RANKS_MAX, TOPOLOGY_BYTES_MAX};
use placement::matrix::{Collector, Matrix, MatrixError};
use placement::topology::Topology;

use crate::cluster::hosts::{self, fold, fold_within};
use crate::cluster::manager::Manager;
use crate::cluster::node_list::NodeList;
use crate::cluster::placement::talk::Talk;
use crate::cluster::placement::{MAP_BYTES_MAX, MapBy};
use crate::cluster::system::{Process, System};
use crate::plan::Plan;
use crate::plan::machine::Machine;
use crate::plan::request::Options;
use crate::refusal::Refusal;

/// The first line of a saved rank map, before the names of the hosts.
const HOSTS_LINE: &str = "# hosts ";

/// Bytes of the names of hosts in a message.
const NAMES_BYTES_MAX: usize = 120;

/// Reads the files that the options name, and puts what they contain into the options. Adds lines for the user to
/// `remarks`.
pub(super) fn provide(
    options: &mut Options,
    nodes: &NodeList,
    machine: &Machine,
    remarks: &mut Vec<String>,
) -> Result<(), Refusal> {
    let process = Process { environment: &machine.environment };
    if let Some(file) = options.hosts.rankmap.as_ref().and_then(|map| map.to_str()?.strip_prefix('@')) {
        let path = machine.wdir.join(file);
        options.hosts.rankmap = Some(saved(&path, nodes, &process, remarks)?);
    }
    if options.hosts.map_by != MapBy::Comm {
        return Ok(());
    }
    if let NodeList::Local { .. } = nodes {
        remarks.push("--map-by comm has no effect: all ranks run on this machine".to_owned());
        return Ok(());
    }
    // The parser requires it.
    let Some(path) = &options.hosts.comm_matrix else { return Ok(()) };
    let matrix = matrix(&machine.wdir.join(path)).map_err(|error| {
        let text = format!("option '--comm-matrix': '{}': {}", path.display(), chain(&error));
        Refusal::new(text, "'--profile-comm FILE' records one; 'scela comm show FILE' prints it")
    })?;
    let topology = match &options.hosts.topology {
        Some(typed) => Some(topology(typed, machine, &process)?),
        None => of_manager(nodes, &process, remarks),
    };
    options.hosts.talk = Some(Talk::new(matrix, format!("the matrix {}", path.display()), topology, Vec::new()));
    Ok(())
}

/// Returns an error with its source.
fn chain(error: &MatrixError) -> String {
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
    Matrix::read_any(BufReader::new(File::open(path)?))
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
fn topology(typed: &OsString, machine: &Machine, system: &dyn System) -> Result<Topology, Refusal> {
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

/// Returns the rank map of a file of `--save-rankmap`.
fn saved(path: &Path, nodes: &NodeList, system: &dyn System, remarks: &mut Vec<String>) -> Result<OsString, Refusal> {
    let refused = |why: String| {
        let hint = "'--save-rankmap FILE' writes such a file; it has the node of each rank, counted from 0";
        Refusal::new(format!("option '-rankmap': '{}' {why}", path.display()), hint)
    };
    let bytes = system.file(path, MAP_BYTES_MAX).map_err(|error| refused(format!("cannot be read: {error}")))?;
    if bytes.len() > MAP_BYTES_MAX {
        return Err(refused(format!("is longer than {} MiB", MAP_BYTES_MAX >> 20)));
    }
    let text = String::from_utf8(bytes).map_err(|_| refused("is not text".to_owned()))?;
    let made_for = text.lines().find_map(|line| line.strip_prefix(HOSTS_LINE)).map(str::trim);
    let names: Vec<&str> = nodes.nodes().iter().map(|node| node.name.as_str()).collect();
    if let Some(made_for) = made_for.filter(|made_for| *made_for != fold(&names)) {
        let made_for: String = made_for.chars().take(NAMES_BYTES_MAX).collect();
        let now = fold_within(&names, NAMES_BYTES_MAX);
        remarks
            .push(format!("the rank map '{}' was made for the hosts {made_for}, and these are {now}", path.display()));
    }
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    Ok(lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(",").into())
}

/// Writes the node of each rank of a plan, which `-rankmap @FILE` reads. `names` are those of the node list.
pub fn save(plan: &Plan, path: &Path, names: &[&str]) -> Result<(), Refusal> {
    let mut node_of: LiteMap<u32, (u32, usize)> = LiteMap::new();
    for (agent, ranks) in &plan.settings.first.placement {
        let node = plan.node_of_agent.get(agent.0 as usize - 1).copied().unwrap_or_default();
        for (first, end) in ranks.intervals() {
            node_of.insert(*first, (*end, node));
        }
    }
    let mut text = Vec::new();
    // Writing to memory cannot fail.
    let _ = writeln!(text, "{HOSTS_LINE}{}", fold(names));
    for (first, (end, node)) in node_of.iter() {
        let _ = writeln!(text, "{}*{node}", end - first);
    }
    sys::replace_file(path, &text).map_err(|error| {
        let text = format!("option '--save-rankmap': '{}' cannot be written: {error}", path.display());
        Refusal::new(text, "name a file in a directory that you may write to")
    })
}
