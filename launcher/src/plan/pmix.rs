//! PMIx: which jobs need it, and which libpmix serves them.
//!
//! Open MPI 5 and others find their launcher by PMIx alone. If a program's file shows that it needs PMIx, or with `--mpi pmix`,
//! each node gets a process that serves PMIx with a libpmix that is loaded at run time. The libpmix that the program itself loads
//! is installed on all nodes and has the program's version.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};
use nla::core::{CommandPlan, FailurePolicy, PmixPlan, SessionPlan};
use nla::sys;

use crate::cluster::node_list::NodeList;
use crate::plan::Plan;
use crate::plan::elf::{self, Needs};
use crate::plan::environment::is_set;
use crate::plan::machine::Machine;
use crate::plan::mpi::{self, BTL, BTL_WITHOUT_SHARED_MEMORY, OpenMpi, is_mpi, version};
use crate::plan::request::{Mpi, Request};
use crate::refusal::Refusal;

/// The user's variable for the path of libpmix.
pub const LIBRARY_VARIABLE: &str = "SCELA_PMIX_LIBRARY";
/// The file name of libpmix.
const LIBRARY: &str = "libpmix.so.2";
/// The most libraries between a program and libpmix: Fortran's libmpi, libmpi itself and libopen-pal.
const LEVELS_MAX: u32 = 3;

/// Returns whether the job needs PMIx.
pub(super) fn is_needed(plan: &Plan) -> bool {
    let session = &plan.settings.session;
    match plan.options.mpi {
        Mpi::Pmix => true,
        Mpi::None | Mpi::OpenMpi => false,
        Mpi::Auto => plan.settings.first.commands.iter().any(|command| speaks_pmix(session, command)),
    }
}

fn speaks_pmix(session: &SessionPlan, command: &CommandPlan) -> bool {
    match version(session, command) {
        Some(version) => version == OpenMpi::ThroughPmix,
        // MPICH may be built with PMIx.
        None => mpi::user(session, command).is_some_and(|(program, needs)| {
            let library_path = elf::variable(session, command, "LD_LIBRARY_PATH");
            needs.has("libpmix.so") || libpmix_below(&program, &needs, library_path, LEVELS_MAX).is_some()
        }),
    }
}

/// Returns the request with one agent on each node, as PMIx needs it; `None` if `plan` has that.
pub(super) fn with_one_agent_per_node(request: &Request, plan: &Plan) -> Result<Option<Request>, Refusal> {
    let nodes = plan.settings.nodes.values().copied().max().map_or(0, |last| last + 1);
    if plan.agents() == nodes {
        return Ok(None);
    }
    let mut request = request.clone();
    if request.options.agents_per_node.replace(1).is_some_and(|typed| typed != 1) {
        let text = "a job that is served by PMIx has one agent on each node, and --agents-per-node asks for more";
        return Err(Refusal::new(text, "leave --agents-per-node out"));
    }
    Ok(Some(request))
}

/// Plans how the ranks are served by PMIx.
pub(super) fn provide(plan: &mut Plan, machine: &Machine, nodes: &NodeList) -> Result<(), Refusal> {
    let options = &plan.options;
    if options.pmi_port {
        let text = "--pmi-port serves PMI by TCP, and this job is served by PMIx";
        return Err(Refusal::new(text, "leave --pmi-port out, or serve no PMIx with --mpi none"));
    }
    if plan.settings.session.on_failure == FailurePolicy::RestartRank {
        let text = "'--on-failure restart=rank' starts a rank again while the others go on, and PMIx cannot do that";
        return Err(Refusal::new(text, "use '--on-failure restart', or serve no PMIx with '--mpi none'"));
    }
    let library = library(plan, machine, nodes)?;
    if let (NodeList::Local { .. }, Some(path)) = (nodes, machine.path_in("TMPDIR")) {
        check_temporary(&path)?;
    }
    let hosts = hosts(plan, nodes);
    if options.agents_as_nodes && !is_set(&machine.environment, BTL) {
        // The last of several equal names counts, so insert this one before the user's.
        for command in &mut plan.settings.first.commands {
            command.set.insert(0, (BTL.into(), BTL_WITHOUT_SHARED_MEMORY.into()));
        }
    }
    // The secret is drawn when the session starts.
    let library = library.into_os_string().as_bytes().to_vec();
    plan.settings.session.rank_sessions = plan.settings.session.rank_sessions.of_yielding_ranks();
    plan.settings.session.pmix = Some(PmixPlan { library, secret: String::new(), hosts });
    Ok(())
}

/// Checks the directory in which an agent on this machine makes the directory of `scela-pmix`. Other nodes have their own.
fn check_temporary(path: &Path) -> Result<(), Refusal> {
    let problem = match path.is_dir() {
        true => access(path, AccessFlags::W_OK | AccessFlags::X_OK).err().map(|error| error.desc().to_owned()),
        false => Some("it is not a directory".to_owned()),
    };
    let Some(problem) = problem else { return Ok(()) };
    let text = format!("PMIx needs a directory in '{}', which TMPDIR names: {problem}", path.display());
    Err(Refusal::new(text, "create it, or name another one in TMPDIR, or unset TMPDIR to use /tmp").of_system())
}

/// Returns the libpmix that the user names, else the one that a program of the job loads, else what the loader finds on each
/// node.
fn library(plan: &Plan, machine: &Machine, nodes: &NodeList) -> Result<PathBuf, Refusal> {
    if let Some(path) = machine.path_in(LIBRARY_VARIABLE) {
        if elf::needs(&path).is_none() {
            let text = format!("{LIBRARY_VARIABLE} names '{}', which is not a shared library", path.display());
            return Err(Refusal::new(text, "name libpmix.so.2, or unset it").of_system());
        }
        return Ok(path);
    }
    let session = &plan.settings.session;
    let found = plan.settings.first.commands.iter().find_map(|command| loaded_by(session, command));
    if found.is_none() && matches!(nodes, NodeList::Local { .. }) && !is_installed(machine) {
        let text = format!("the job needs PMIx, and {LIBRARY} was not found on this machine");
        let hint =
            format!("name the {LIBRARY} of its MPI library in {LIBRARY_VARIABLE}, or serve no PMIx with '--mpi none'");
        return Err(Refusal::new(text, hint));
    }
    Ok(found.unwrap_or_else(|| LIBRARY.into()))
}

/// Returns whether the loader finds libpmix for scela-run on this machine.
fn is_installed(machine: &Machine) -> bool {
    let needs = elf::needs(&machine.program).unwrap_or_default();
    let library_path = machine.environment.iter().find(|(name, _)| name == "LD_LIBRARY_PATH");
    elf::find(LIBRARY, &machine.program, &needs, library_path.map(|(_, path)| path.as_os_str())).is_some()
}

/// Returns the libpmix that a command's program loads, by itself or through its MPI library.
fn loaded_by(session: &SessionPlan, command: &CommandPlan) -> Option<PathBuf> {
    let (program, needs) = mpi::user(session, command)?;
    let library_path = elf::variable(session, command, "LD_LIBRARY_PATH");
    libpmix_below(&program, &needs, library_path, LEVELS_MAX)
}

/// Returns the libpmix that a file needs, by itself or through MPI libraries down to this many levels below.
fn libpmix_below(file: &Path, needs: &Needs, library_path: Option<&OsStr>, levels: u32) -> Option<PathBuf> {
    if needs.has("libpmix.so") {
        return Some(elf::find(LIBRARY, file, needs, library_path)?.0);
    }
    let below = levels.checked_sub(1)?;
    let mut libraries = needs.libraries.iter().filter(|name| is_mpi(name) || name.starts_with("libopen-pal.so"));
    libraries.find_map(|name| {
        let (path, needs) = elf::find(name, file, needs, library_path)?;
        libpmix_below(&path, &needs, library_path, below)
    })
}

/// Returns a name for each node, by its number. Ranks of equal names are on one node for PMIx, so nodes that are played on one
/// machine have names of their own.
fn hosts(plan: &Plan, nodes: &NodeList) -> Vec<String> {
    let numbers = &plan.settings.nodes;
    let count = numbers.values().copied().max().map_or(0, |last| last as usize + 1);
    let mut hosts = vec![String::new(); count];
    for (agent, node) in numbers {
        let at = plan.node_of_agent.get((agent.0 as usize).saturating_sub(1)).copied().unwrap_or_default();
        hosts[*node as usize] = match nodes {
            NodeList::Local { .. } if count == 1 => sys::host_name(),
            NodeList::Local { .. } => format!("{}-{node}", sys::host_name()),
            NodeList::Named { .. } => nodes.nodes().get(at).map_or_else(|| node.to_string(), |node| node.name.clone()),
        };
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_temporary_directory_must_exist() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(check_temporary(directory.path()), Ok(()));
        for path in ["/nonexistent", "/etc/passwd"] {
            let error = check_temporary(Path::new(path)).unwrap_err();
            let text = format!(
                "PMIx needs a directory in '{path}', which TMPDIR names: it is not a directory\n  \
                 hint: create it, or name another one in TMPDIR, or unset TMPDIR to use /tmp"
            );
            assert_eq!((error.with_hint(), error.early_end().code()), (text, 251));
        }
    }
}
