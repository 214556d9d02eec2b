//! What an MPI library needs to find scela-run, beyond the PMI socket that each rank has.
//!
//! Open MPI 3 and 4 speak PMIx, and PMI-1 in their flux components: these load the libpmi that
//! FLUX_PMI_LIBRARY_PATH names wherever FLUX_JOB_ID is set. So ranks of such a program, and no
//! others, are given these two. Open MPI 5 has no such components.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nla::core::{CommandPlan, SessionPlan, Variable};
use thiserror::Error;

use crate::plan::Plan;
use crate::plan::elf::{self, Needs};
use crate::plan::environment::is_set;
use crate::plan::machine::Machine;
use crate::plan::request::Mpi;

/// Names our libpmi, wherever it lies.
pub const LIBRARY_VARIABLE: &str = "SCELA_PMI_LIBRARY";

/// Open MPI's variable for the library that its flux components load.
pub(crate) const FLUX_LIBRARY: &str = "FLUX_PMI_LIBRARY_PATH";
/// Open MPI's variable for the job's number; that it is set says that Flux launched the program.
const FLUX_JOB: &str = "FLUX_JOB_ID";
/// Open MPI's variable for the ways in which ranks talk.
const WAYS: &str = "OMPI_MCA_btl";
/// Ways that do without shared memory. Open MPI names its files there after the host and a rank's
/// number on its node: ranks of two nodes on one host would write into each other's.
const WAYS_OF_NODES: &str = "tcp,self";

/// The names of our libpmi.
const LIBRARIES: [&str; 2] = ["libpmi.so.0", "libpmi.so"];
/// What Slurm's libpmi, which talks to srun only, is linked with.
const SLURM: &str = "libslurm";

/// Open MPI's libraries of this ABI that programs name: itself, and those for Fortran and C++,
/// where linkers leave out what is not called directly.
const OPEN_MPI: [&str; 6] = [
    "libmpi.so.40",
    "libmpi_mpifh.so.40",
    "libmpi_usempif08.so.40",
    "libmpi_usempi_ignore_tkr.so.40",
    "libmpi_cxx.so.40",
    "liboshmem.so.40",
];
/// The part of Open MPI that has its own launcher's client; Open MPI 5 has no such part.
const OPEN_RTE: &str = "libopen-rte.so";

/// Why the ranks cannot be given what their MPI library needs.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum MpiError {
    /// There is no libpmi.
    #[error(
        "'{program}' is to run with Open MPI, which needs ScELA's libpmi.so, and that was not found\n  \
         looked for {} in {}\n  \
         hint: install it beside scela-run or in ../lib, or name it in {LIBRARY_VARIABLE}; \
         '--mpi none' starts the ranks without it",
        LIBRARIES.join(" and "),
        places.join(", ")
    )]
    NoLibrary {
        /// The program, as typed.
        program: String,
        /// Where was looked.
        places: Vec<String>,
    },
    /// The user has named something that is not there.
    #[error("{LIBRARY_VARIABLE} names '{path}', which is not a file\n  hint: name ScELA's libpmi.so, or unset it")]
    NotALibrary {
        /// What it names.
        path: String,
    },
}

/// Gives each command of the plan what its MPI library needs. What the user sets goes before.
pub fn provide(plan: &mut Plan, machine: &Machine) -> Result<(), MpiError> {
    let session = &plan.settings.session;
    let mut needing = plan.settings.first.commands.iter_mut().filter(|command| match plan.options.mpi {
        Mpi::None => false,
        Mpi::OpenMpi => true,
        Mpi::Auto => version(session, command) == Some(OpenMpi::ThroughPmi),
    });
    let Some(first) = needing.next() else { return Ok(()) };
    let named = machine.environment.iter().find(|(name, _)| name == LIBRARY_VARIABLE).map(|(_, path)| path.as_os_str());
    let library = match named.filter(|path| !path.is_empty()) {
        Some(path) => {
            let path = machine.wdir.join(path);
            let there = path.is_file();
            there.then_some(path.clone()).ok_or_else(|| MpiError::NotALibrary { path: path.display().to_string() })?
        }
        None => library(&machine.program, &is_ours).map_err(|places| MpiError::NoLibrary {
            program: String::from_utf8_lossy(&first.program).into_owned(),
            places,
        })?,
    };
    let nodes = plan.options.agents_as_nodes && !is_set(&machine.environment, WAYS);
    for command in std::iter::once(first).chain(needing) {
        // Later ones win.
        command.set.splice(0..0, variables(machine.session, &library, nodes));
    }
    Ok(())
}

/// Which Open MPI it is, by how it finds its launcher.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum OpenMpi {
    /// 3 or 4.
    ThroughPmi,
    /// 5 or later.
    ThroughPmix,
}

/// The Open MPI that a command's program is linked with, if it is one.
pub(crate) fn version(session: &SessionPlan, command: &CommandPlan) -> Option<OpenMpi> {
    let program = elf::program_of(session, command)?;
    let needs = elf::needs(&program)?;
    let library_path = elf::variable(session, command, "LD_LIBRARY_PATH");
    version_of(&needs, &|library| elf::find(library, &program, &needs, library_path).map(|(_, needs)| needs))
}

/// The same, of what a program's file says. One that is linked with Open MPI's main library, which
/// is not found here, is taken for the old one: that is what most sites have.
fn version_of(program: &Needs, find: &dyn Fn(&str) -> Option<Needs>) -> Option<OpenMpi> {
    program.libraries.iter().find(|library| is_open_mpi(library))?;
    match find(OPEN_MPI[0]) {
        Some(library) if !library.has(OPEN_RTE) => Some(OpenMpi::ThroughPmix),
        Some(_) | None => Some(OpenMpi::ThroughPmi),
    }
}

/// Whether it is a library of Open MPI 3 or later.
pub(crate) fn is_open_mpi(library: &str) -> bool {
    OPEN_MPI.iter().any(|known| library.starts_with(known))
}

/// What Open MPI's flux components look for, and what keeps several nodes on one host apart.
fn variables(session: u64, library: &Path, nodes: bool) -> Vec<Variable> {
    let job = job(session).to_string().into_bytes();
    let mut variables = vec![(FLUX_JOB.into(), job), (FLUX_LIBRARY.into(), library.as_os_str().as_bytes().to_vec())];
    variables.extend(nodes.then(|| (WAYS.into(), WAYS_OF_NODES.into())));
    variables
}

/// A job's number for Open MPI: it names shared memory, so sessions must differ in it.
///
/// Of its 32 bits, the upper half is the "job family", the lower half the job in it. 0 there is a
/// daemon, and bit 15 must not be set: Open MPI 4 keeps names of peers in 15 bits of that half
/// (`ompi_proc_name_to_sentinel`), and then "processes are unable to reach each other".
fn job(session: u64) -> u32 {
    let number = (session ^ session >> 32) as u32 & 0xffff_7fff;
    if number & 0x7fff == 0 { number | 1 } else { number }
}

fn is_ours(path: &Path) -> bool {
    elf::needs(path).is_some_and(|needs| !needs.has(SLURM))
}

/// Whether a library, as a command's program would load it, is one that speaks to Slurm only.
pub(crate) fn is_slurms(library: &str, session: &SessionPlan, command: &CommandPlan) -> bool {
    let Some(program) = elf::program_of(session, command) else { return false };
    let Some(needs) = elf::needs(&program) else { return false };
    let found = elf::find(library, &program, &needs, elf::variable(session, command, "LD_LIBRARY_PATH"));
    found.is_some_and(|(_, needs)| needs.has(SLURM))
}

/// Our libpmi, as seen from scela-run itself, or where it was looked for. One of another launcher's
/// may lie there too.
fn library(scela_run: &Path, is_ours: &dyn Fn(&Path) -> bool) -> Result<PathBuf, Vec<String>> {
    let here = scela_run.parent().unwrap_or(scela_run);
    let above = here.parent().unwrap_or(here);
    let multiarch = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    let places = [here.to_owned(), above.join("lib"), above.join("lib64"), above.join(multiarch)];
    let mut files = places.iter().flat_map(|place| LIBRARIES.map(|name| place.join(name)));
    files.find(|file| is_ours(file)).ok_or_else(|| places.iter().map(|place| place.display().to_string()).collect())
}

#[cfg(test)]
#[path = "mpi_tests.rs"]
mod tests;
