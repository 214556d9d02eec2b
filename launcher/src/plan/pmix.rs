//! PMIx: which jobs need it, and which libpmix serves them.
//!
//! Open MPI 5 and others find their launcher by PMIx alone. If a program's file shows that it needs PMIx, or with `--mpi pmix`,
//! each node gets a process that serves PMIx with a libpmix that is loaded at run time. The libpmix that the program itself loads
//! is installed on all nodes and has the program's version.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};
use nla::core::{FailurePolicy, PmixPlan};
use nla::sys;

use crate::cluster::node_list::NodeList;
use crate::plan::Plan;
use crate::plan::elf;
use crate::plan::environment::is_set;
use crate::plan::machine::Machine;
use crate::plan::mpi::{BTL, BTL_WITHOUT_SHARED_MEMORY, OpenMpi, version};
use crate::plan::mpi_user::MpiUser;
use crate::plan::request::{Mpi, Request};
use crate::refusal::Refusal;

/// The user's variable for the path of libpmix.
pub const LIBRARY_VARIABLE: &str = "SCELA_PMIX_LIBRARY";
/// MPICH's variable for the version of PMI that it uses: 1, 2, or x for PMIx.
const PMI_VERSION: &str = "MPIR_CVAR_PMI_VERSION";
/// The file name of libpmix.
const LIBRARY: &str = "libpmix.so.2";
/// How the names of libpmix begin.
const PREFIX: &str = "libpmix.so";

/// Whether a job needs PMIx.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// No file shows it.
    No,
    /// A program that may be started, or a module that may be loaded, needs it.
    Perhaps,
    /// The program needs it, or the user says so.
    Yes,
}

/// Returns whether the job needs PMIx. `users` has the files of each command that may call MPI.
pub(super) fn need(plan: &Plan, users: &[Vec<MpiUser>]) -> Need {
    match plan.options.mpi {
        Mpi::Pmix => Need::Yes,
        Mpi::None | Mpi::OpenMpi => Need::No,
        Mpi::Auto => users.iter().flatten().map(need_of).max().unwrap_or(Need::No),
    }
}

/// Returns whether a file needs PMIx.
pub(super) fn need_of(user: &MpiUser) -> Need {
    let speaks_pmix = match version(&user.libraries) {
        Some(version) => version == OpenMpi::ThroughPmix,
        // MPICH may be built with PMIx.
        None => user.library(PREFIX).is_some(),
    };
    match speaks_pmix {
        true if user.is_certain => Need::Yes,
        true => Need::Perhaps,
        false => Need::No,
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

/// Plans how the ranks are served by PMIx. `users` has the files of each command that may call MPI.
pub(super) fn provide(
    plan: &mut Plan,
    machine: &Machine,
    nodes: &NodeList,
    users: &[Vec<MpiUser>],
) -> Result<(), Refusal> {
    let options = &plan.options;
    if options.pmi_port {
        let text = "--pmi-port serves PMI by TCP, and this job needs PMIx";
        return Err(Refusal::new(text, "leave --pmi-port out, or serve no PMIx with --mpi none"));
    }
    if plan.settings.session.on_failure == FailurePolicy::RestartRank {
        let text = "'--on-failure restart=rank' starts a rank again while the others go on, and PMIx cannot do that";
        return Err(Refusal::new(text, "use '--on-failure restart', or serve no PMIx with '--mpi none'"));
    }
    let library = library(machine, nodes, users)?;
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
    choose_pmi(plan, users);
    // The secret is drawn when the session starts.
    let library = library.into_os_string().as_bytes().to_vec();
    plan.settings.session.rank_sessions = plan.settings.session.rank_sessions.of_yielding_ranks();
    plan.settings.session.pmix = Some(PmixPlan { library, secret: String::new(), hosts });
    Ok(())
}

/// Has MPICH use PMI-1. MPICH 5 ends with an error if it finds the variables of both PMI and PMIx and no such choice. The user's
/// choice stays, and a program of an MPICH that needs PMIx gets none.
fn choose_pmi(plan: &mut Plan, users: &[Vec<MpiUser>]) {
    let needs_pmix = |user: &MpiUser| need_of(user) == Need::Yes && version(&user.libraries).is_none();
    for (command, users) in plan.settings.first.commands.iter_mut().zip(users) {
        let is_chosen = elf::variable(&plan.settings.session, command, PMI_VERSION).is_some();
        if !is_chosen && !users.iter().any(needs_pmix) {
            command.set.push((PMI_VERSION.into(), "1".into()));
        }
    }
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
fn library(machine: &Machine, nodes: &NodeList, users: &[Vec<MpiUser>]) -> Result<PathBuf, Refusal> {
    if let Some(path) = machine.path_in(LIBRARY_VARIABLE) {
        if elf::needs(&path).is_none() {
            let text = format!("{LIBRARY_VARIABLE} names '{}', which is not a shared library", path.display());
            return Err(Refusal::new(text, "name libpmix.so.2, or unset it").of_system());
        }
        return Ok(path);
    }
    let found = users.iter().flatten().find_map(|user| user.library(PREFIX)?.file.clone());
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

/// Returns a name for each node, by its number. Ranks of equal names are on one node for PMIx, so simulated nodes on one
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
    use crate::plan::elf::Needs;
    use crate::plan::mpi_user::Library;
    use crate::plan::tests::{machine, planned};

    /// A file that names these libraries. Those of Open MPI 5 are on this machine.
    fn user(libraries: &[&str], is_certain: bool) -> MpiUser {
        let file = |name: &str| Some(Path::new("/lib").join(name));
        let library = |name: &&str| Library { name: (*name).to_owned(), file: file(name), needs: Needs::default() };
        MpiUser { is_certain, libraries: libraries.iter().map(library).collect(), ..MpiUser::default() }
    }

    #[test]
    fn a_program_needs_pmix_and_a_script_may_need_it() {
        for (libraries, certain, other) in [
            (&["libmpi.so.40", "libpmix.so.2"][..], Need::Yes, Need::Perhaps),
            (&["libmpi_mpifh.so.40", "libmpi.so.40"], Need::Yes, Need::Perhaps),
            (&["libmpi.so.12", "libpmix.so.2"], Need::Yes, Need::Perhaps),
            (&["libmpi.so.12", "libpmi.so.0"], Need::No, Need::No),
            (&["libmpi_mpifh.so.40"], Need::No, Need::No),
        ] {
            assert_eq!(
                (need_of(&user(libraries, true)), need_of(&user(libraries, false))),
                (certain, other),
                "{libraries:?}"
            );
        }
    }

    #[test]
    fn mpich_uses_pmi_where_both_are_served() {
        let chosen = |words: &str, environment: &[(&str, &str)], users: Vec<MpiUser>| {
            let environment = environment.iter().map(|(name, value)| (name.into(), value.into())).collect();
            let mut plan = planned(words, &Machine { environment, ..machine() }).unwrap();
            choose_pmi(&mut plan, &[users]);
            let command = &plan.settings.first.commands[0];
            let value = elf::variable(&plan.settings.session, command, PMI_VERSION);
            value.map(|value| value.to_string_lossy().into_owned())
        };
        let one = Some("1".to_owned());
        let mpich = || user(&["libmpi.so.12"], true);
        assert_eq!(chosen("-np 2 a", &[], vec![user(&["libmpi.so.40", "libpmix.so.2"], false)]), one);
        assert_eq!(chosen("-np 2 a", &[], vec![user(&["libmpi.so.40", "libpmix.so.2"], true)]), one);
        assert_eq!(chosen("-np 2 a", &[], vec![mpich()]), one);
        assert_eq!(chosen("-np 2 a", &[], vec![user(&["libmpi.so.12", "libpmix.so.2"], true)]), None);
        assert_eq!(chosen("-np 2 a", &[(PMI_VERSION, "2")], vec![mpich()]), Some("2".to_owned()));
        assert_eq!(chosen("-np 2 -env MPIR_CVAR_PMI_VERSION x a", &[], vec![mpich()]), Some("x".to_owned()));
    }

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
