//! Reads from a program's file which MPI library it needs, to explain why no rank has spoken PMI. Without this
//! explanation, a program built for another launcher silently runs as many copies of rank 0 of 1.

use nla::core::{CommandPlan, SessionPlan};

use crate::plan::elf;
use crate::plan::mpi::{self, OpenMpi};

/// How a command finds its launcher, beyond the names of its program's libraries.
#[derive(Copy, Clone, Debug, Default)]
struct PmiAccess {
    /// The Open MPI that the program is linked with.
    open_mpi: Option<OpenMpi>,
    /// Whether the ranks' environment names a libpmi for Open MPI.
    names_libpmi: bool,
    /// Whether the ranks are served by PMIx.
    has_pmix: bool,
    /// Whether the program would load Slurm's libpmi.so.
    loads_slurm_libpmi: bool,
}

/// Returns the library that explains why a program does not speak PMI, as a sentence without its full stop. `None` if
/// no library explains it.
pub(crate) fn explain_silence(session: &SessionPlan, command: &CommandPlan) -> Option<String> {
    let needs = elf::needs(&elf::program_of(session, command).ok()?)?;
    let libpmi = needs.libraries.iter().find(|library| library.starts_with("libpmi.so"));
    let access = PmiAccess {
        open_mpi: mpi::version(session, command),
        names_libpmi: elf::variable(session, command, mpi::FLUX_LIBRARY).is_some(),
        has_pmix: session.pmix.is_some(),
        loads_slurm_libpmi: libpmi.is_some_and(|library| mpi::is_slurm_libpmi(library, session, command)),
    };
    let (library, reason) =
        needs.libraries.into_iter().find_map(|library| silence(&library, access).map(|reason| (library, reason)))?;
    Some(format!("'{}' needs {library}, {reason}", String::from_utf8_lossy(&command.program)))
}

/// Returns why a program with this library does not speak PMI's wire protocol, or `None` if the library does not
/// explain it.
fn silence(library: &str, access: PmiAccess) -> Option<&'static str> {
    const NO_PMIX: &str = "which finds its launcher by PMIx; try '--mpi pmix'";
    if access.has_pmix && library.starts_with("libpmix.so") {
        return Some("which was served by PMIx and was not initialized, or was refused");
    }
    if mpi::is_open_mpi(library) {
        return match (access.open_mpi?, access.names_libpmi) {
            (OpenMpi::ThroughPmix, _) if access.has_pmix => {
                Some("Open MPI 5's library, which was served by PMIx and did not use it")
            }
            (OpenMpi::ThroughPmix, _) => Some(
                "Open MPI 5's library, which finds its launcher by PMIx; leave '--mpi none' out, or try '--mpi pmix'",
            ),
            (OpenMpi::ThroughPmi, false) => {
                Some("Open MPI's library without the variables by which it finds scela-run; try '--mpi openmpi'")
            }
            (OpenMpi::ThroughPmi, true) => Some(
                "Open MPI's library, which got the variables to find scela-run and did not use them: 'ompi_info | grep flux' should name components of pmix and schizo; without them, start it with Open MPI's mpirun, or build it with MPICH",
            ),
        };
    }
    const REASONS: [(&str, &str); 4] = [
        ("libpmix.so", NO_PMIX),
        (
            "libmpi.so.20",
            "an old Open MPI's library, which finds its launcher by PMIx; start it with Open MPI's mpirun, or build it with Open MPI 4 or MPICH",
        ),
        (
            "libopen-rte.so",
            "a part of Open MPI, which finds its launcher by PMIx; start it with Open MPI's mpirun, or build it with MPICH",
        ),
        ("libcray", "a Cray library, which finds its launcher by PALS or ALPS"),
    ];
    if library.starts_with("libpmi.so") && access.loads_slurm_libpmi {
        return Some(
            "and would load Slurm's, which speaks to srun only; put the directory with ScELA's libpmi.so.0 into LD_LIBRARY_PATH",
        );
    }
    REASONS.iter().find(|(prefix, _)| library.starts_with(prefix)).map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(library: &str, access: PmiAccess, expected: Option<&str>) {
        let reason = silence(library, access);
        match expected {
            None => assert_eq!(reason, None, "{library}"),
            Some(expected) => assert!(reason.is_some_and(|reason| reason.contains(expected)), "{library}: {reason:?}"),
        }
    }

    #[test]
    fn open_mpi_and_mpich_are_distinguished() {
        let access =
            |open_mpi, names_libpmi| PmiAccess { open_mpi: Some(open_mpi), names_libpmi, ..PmiAccess::default() };
        check("libmpi.so.40", access(OpenMpi::ThroughPmix, false), Some("try '--mpi pmix'"));
        check("libmpi.so.40", access(OpenMpi::ThroughPmix, true), Some("Open MPI 5's library"));
        check("libmpi.so.40", access(OpenMpi::ThroughPmi, false), Some("try '--mpi openmpi'"));
        check("libmpi_mpifh.so.40", access(OpenMpi::ThroughPmi, true), Some("ompi_info"));
        check("libmpi.so.20", PmiAccess::default(), Some("an old Open MPI's"));
        // The ABI of MPICH, Intel MPI and MVAPICH.
        check("libmpi.so.12", PmiAccess::default(), None);
        check("libmpich.so.12", PmiAccess::default(), None);
    }

    #[test]
    fn only_slurms_libpmi_explains_silence() {
        let slurm = PmiAccess { loads_slurm_libpmi: true, ..PmiAccess::default() };
        check("libpmi.so.0", PmiAccess::default(), None);
        check("libpmi.so.0", slurm, Some("speaks to srun only"));
        check("libpmi2.so.0", slurm, None);
        check("libpmix.so.2", PmiAccess::default(), Some("try '--mpi pmix'"));
        check("libpmix.so.2", PmiAccess { has_pmix: true, ..PmiAccess::default() }, Some("was served by PMIx"));
        check("libc.so.6", slurm, None);
    }
}
