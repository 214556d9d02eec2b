//! The variables by which an MPI library finds scela-run, beyond the PMI socket that each rank has.
//!
//! Open MPI 3 and 4 speak PMIx, and PMI-1 in their flux components. If FLUX_JOB_ID is set, these components load the
//! libpmi that FLUX_PMI_LIBRARY_PATH names. So ranks of such a program, and no others, get these two variables. Open
//! MPI 5 has no flux components. Programs that were built for Slurm's libpmi get ScELA's by LD_PRELOAD.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nla::core::Variable;

use crate::plan::Plan;
use crate::plan::elf;
use crate::plan::environment::is_set;
use crate::plan::machine::Machine;
use crate::plan::mpi_user::{Library, MpiUser};
use crate::plan::request::Mpi;
use crate::refusal::Refusal;

/// The user's variable for the path of ScELA's libpmi.
pub const LIBRARY_VARIABLE: &str = "SCELA_PMI_LIBRARY";

/// Open MPI's variable for the library that its flux components load.
pub(crate) const FLUX_LIBRARY: &str = "FLUX_PMI_LIBRARY_PATH";
/// Open MPI's variable for the job's number. If it is set, Open MPI assumes that Flux launched the program.
const FLUX_JOB: &str = "FLUX_JOB_ID";
/// Open MPI's variable for the byte transfer layers between ranks.
pub(super) const BTL: &str = "OMPI_MCA_btl";
/// The byte transfer layers without shared memory. Open MPI names its shared files after the host and a rank's number
/// on its node: ranks of two nodes on one host would write into each other's files.
pub(super) const BTL_WITHOUT_SHARED_MEMORY: &str = "tcp,self";

/// The file names of ScELA's libpmi.
const LIBRARIES: [&str; 2] = ["libpmi.so.0", "libpmi.so"];
/// How the name of PMI-1's library begins.
pub(super) const LIBPMI: &str = "libpmi.so";
/// The loader's variable for libraries that it loads before those that a program needs.
pub(super) const PRELOAD: &str = "LD_PRELOAD";
/// The library that Slurm's libpmi is linked with. That libpmi talks to srun only.
pub(crate) const SLURM: &str = "libslurm";

/// Open MPI's libraries of this ABI that programs name: its main library, and those for Fortran and C++. Linkers leave
/// out libraries that a program does not call directly, so a program may name only one of the latter.
const OPEN_MPI: [&str; 6] = [
    "libmpi.so.40",
    "libmpi_mpifh.so.40",
    "libmpi_usempif08.so.40",
    "libmpi_usempi_ignore_tkr.so.40",
    "libmpi_cxx.so.40",
    "liboshmem.so.40",
];
/// Open MPI's library with the client of its own launcher. Open MPI 5 has no such library.
const OPEN_RTE: &str = "libopen-rte.so";

/// Adds the variables that its MPI library needs to each command of the plan. Variables set by the user take
/// precedence. `users` has the files of each command that may call MPI.
pub(super) fn provide(plan: &mut Plan, machine: &Machine, users: &[Vec<MpiUser>]) -> Result<(), Refusal> {
    let loads = |users: &[MpiUser], is_wanted: fn(&MpiUser) -> bool| {
        users.iter().any(|user| version(&user.libraries) == Some(OpenMpi::ThroughPmi) && is_wanted(user))
    };
    let needing: Vec<usize> = (0..plan.settings.first.commands.len())
        .filter(|at| match plan.options.mpi {
            Mpi::None | Mpi::Pmix => false,
            Mpi::OpenMpi => true,
            Mpi::Auto => loads(&users[*at], |_| true),
        })
        .collect();
    let Some(first) = needing.first() else { return Ok(()) };
    let is_certain =
        plan.options.mpi == Mpi::OpenMpi || needing.iter().any(|at| loads(&users[*at], |user| user.is_certain));
    let library = match own_libpmi(machine)? {
        Ok(library) => library,
        Err(directories) => {
            let program = &plan.settings.first.commands[*first].program;
            let refusal = no_library(&String::from_utf8_lossy(program), &directories);
            if is_certain {
                return Err(refusal);
            }
            // The script may not use MPI.
            let user = users[*first].iter().find(|user| version(&user.libraries) == Some(OpenMpi::ThroughPmi));
            plan.remarks.extend(user.map(|user| user.left_out(&refusal)));
            return Ok(());
        }
    };
    let without_shared_memory = plan.options.agents_as_nodes && !is_set(&machine.environment, BTL);
    for at in needing {
        // Of equal names the last one wins, so these come before the user's.
        let variables = variables(machine.session, &library, without_shared_memory);
        plan.settings.first.commands[at].set.splice(0..0, variables);
    }
    plan.settings.session.rank_sessions = plan.settings.session.rank_sessions.of_yielding_ranks();
    Ok(())
}

/// Has the ranks load ScELA's libpmi instead of Slurm's, which talks to srun only. The loader then needs no other file of
/// that name, wherever the program looks for it.
pub(super) fn replace_slurm(plan: &mut Plan, machine: &Machine, users: &[Vec<MpiUser>]) -> Result<(), Refusal> {
    if plan.options.mpi == Mpi::None {
        return Ok(());
    }
    let session = &plan.settings.session;
    for (command, users) in plan.settings.first.commands.iter_mut().zip(users) {
        let Some(user) = users.iter().find(|user| loads_slurm_libpmi(&user.libraries)) else { continue };
        let library = match own_libpmi(machine)? {
            Ok(library) if is_listable(&library) => library,
            // `library` refuses the job.
            Err(_) if user.is_certain => return Ok(()),
            found => {
                let refusal = not_replaced(&String::from_utf8_lossy(&command.program), found.ok().as_deref());
                if user.is_certain {
                    return Err(refusal);
                }
                plan.remarks.push(user.left_out(&refusal));
                continue;
            }
        };
        let others = elf::variable(session, command, PRELOAD).filter(|others| !others.is_empty());
        let mut value = library.into_os_string();
        if let Some(others) = others {
            value.push(":");
            value.push(others);
        }
        command.set.push((PRELOAD.into(), value.as_bytes().to_vec()));
    }
    Ok(())
}

/// Returns whether LD_PRELOAD can name a file: the loader splits it at blanks and colons.
pub(super) fn is_listable(file: &Path) -> bool {
    !file.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte))
}

fn not_replaced(program: &str, found: Option<&Path>) -> Refusal {
    let why = match found {
        Some(file) => format!("LD_PRELOAD cannot name ScELA's '{}', which has a blank or a colon", file.display()),
        None => "ScELA's was not found".to_owned(),
    };
    let text = format!("'{program}' would load Slurm's libpmi.so, which talks to srun only: {why}");
    let hint =
        format!("name a copy of ScELA's libpmi.so in {LIBRARY_VARIABLE}; '--mpi none' starts the ranks without it");
    Refusal::new(text, hint).of_system()
}

/// Returns whether a program with these libraries loads Slurm's libpmi.
pub(super) fn loads_slurm_libpmi(libraries: &[Library]) -> bool {
    libraries.iter().any(|library| library.name.starts_with(LIBPMI) && library.needs.has(SLURM))
}

/// Returns ScELA's libpmi: the one that the user names, or one near scela-run. The inner error lists the searched directories.
fn own_libpmi(machine: &Machine) -> Result<Result<PathBuf, Vec<String>>, Refusal> {
    let Some(path) = machine.path_in(LIBRARY_VARIABLE) else {
        return Ok(find_libpmi(&machine.program, &is_own_libpmi));
    };
    if !path.is_file() {
        let text = format!("{LIBRARY_VARIABLE} names '{}', which is not a file", path.display());
        return Err(Refusal::new(text, "name ScELA's libpmi.so, or unset it").of_system());
    }
    Ok(Ok(path))
}

fn no_library(program: &str, directories: &[String]) -> Refusal {
    let text = format!(
        "'{program}' is to run with Open MPI, which needs ScELA's libpmi.so, and that was not found\n  \
         looked for {} in {}",
        LIBRARIES.join(" and "),
        directories.join(", ")
    );
    let hint = format!(
        "install it beside scela-run or in ../lib, or name it in {LIBRARY_VARIABLE}; \
         '--mpi none' starts the ranks without it"
    );
    Refusal::new(text, hint).of_system()
}

/// The versions of Open MPI, by how they find their launcher.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum OpenMpi {
    /// 3 or 4.
    ThroughPmi,
    /// 5 or later.
    ThroughPmix,
}

/// Returns the version of Open MPI among a file's libraries; `None` if there is none. If Open MPI's main library is not on this
/// machine, an old version is assumed: most sites have one.
pub(crate) fn version(libraries: &[Library]) -> Option<OpenMpi> {
    libraries.iter().find(|library| is_open_mpi(&library.name))?;
    match libraries.iter().find(|library| library.name.starts_with(OPEN_MPI[0]) && library.file.is_some()) {
        Some(library) if !library.needs.has(OPEN_RTE) => Some(OpenMpi::ThroughPmix),
        Some(_) | None => Some(OpenMpi::ThroughPmi),
    }
}

/// Returns whether `library` belongs to Open MPI 3 or later.
pub(crate) fn is_open_mpi(library: &str) -> bool {
    OPEN_MPI.iter().any(|known| library.starts_with(known))
}

/// Returns whether `library` is an MPI library or belongs to one: libmpi, libmpich, and their parts for Fortran and C++.
pub(crate) fn is_mpi(library: &str) -> bool {
    // libmpir computes with large numbers.
    (library.starts_with("libmpi") && !library.starts_with("libmpir.")) || library.starts_with("liboshmem.so")
}

/// Returns the variables for Open MPI's flux components and, if wanted, for byte transfer without shared memory.
fn variables(session: u64, library: &Path, without_shared_memory: bool) -> Vec<Variable> {
    let job = job(session).to_string().into_bytes();
    let mut variables = vec![(FLUX_JOB.into(), job), (FLUX_LIBRARY.into(), library.as_os_str().as_bytes().to_vec())];
    variables.extend(without_shared_memory.then(|| (BTL.into(), BTL_WITHOUT_SHARED_MEMORY.into())));
    variables
}

/// Returns the job's number for Open MPI. Open MPI names shared memory after it, so it must differ between sessions.
///
/// The upper half of its 32 bits is the "job family", the lower half the job in that family. A lower half of 0 means a
/// daemon. Bit 15 must not be set: Open MPI 4 stores the names of peers in 15 bits of the lower half
/// (`ompi_proc_name_to_sentinel`) and otherwise fails with "processes are unable to reach each other".
fn job(session: u64) -> u32 {
    let number = (session ^ session >> 32) as u32 & 0xffff_7fff;
    if number & 0x7fff == 0 { number | 1 } else { number }
}

/// Returns whether the file is a library of this architecture and not Slurm's libpmi.
fn is_own_libpmi(path: &Path) -> bool {
    elf::needs(path).is_some_and(|needs| !needs.has(SLURM))
}

/// Returns ScELA's libpmi, which is searched for near `scela_run`. The error lists the searched directories. `is_own`
/// rejects the libpmi of another launcher, which may be installed there too.
fn find_libpmi(scela_run: &Path, is_own: &dyn Fn(&Path) -> bool) -> Result<PathBuf, Vec<String>> {
    find_near(scela_run, &LIBRARIES, is_own)
}

/// Returns the first file of these names near `scela_run` that `is_own` accepts: beside it, or in `../lib` and its variants. The
/// error lists the searched directories.
pub(super) fn find_near(
    scela_run: &Path,
    names: &[&str],
    is_own: &dyn Fn(&Path) -> bool,
) -> Result<PathBuf, Vec<String>> {
    let bin = scela_run.parent().unwrap_or(scela_run);
    let prefix = bin.parent().unwrap_or(bin);
    let multiarch = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    let directories = [bin.to_owned(), prefix.join("lib"), prefix.join("lib64"), prefix.join(multiarch)];
    let mut files = directories.iter().flat_map(|directory| names.iter().map(|name| directory.join(name)));
    let searched = || directories.iter().map(|directory| directory.display().to_string()).collect();
    files.find(|file| is_own(file)).ok_or_else(searched)
}

#[cfg(test)]
#[path = "mpi_tests.rs"]
mod tests;
