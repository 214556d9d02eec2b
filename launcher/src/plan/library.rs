//! Which MPI library a program needs, by looking into its file: to explain why no rank has spoken
//! PMI. Without that, a program built for another kind of launcher just runs as so many copies of
//! rank 0 of 1, and nobody says why.

use nla::core::{CommandPlan, SessionPlan};

use crate::plan::elf;
use crate::plan::mpi::{self, OpenMpi};

/// What is known about a command, beside the libraries that its program names.
#[derive(Copy, Clone, Debug, Default)]
struct Facts {
    /// The Open MPI that it is linked with.
    open_mpi: Option<OpenMpi>,
    /// Its ranks were given a libpmi for Open MPI.
    given: bool,
    /// The libpmi.so that it would load is Slurm's.
    slurms: bool,
}

/// The library of a program that explains its silence, as a sentence without its end.
pub(crate) fn explain_silence(session: &SessionPlan, command: &CommandPlan) -> Option<String> {
    let needs = elf::needs(&elf::program_of(session, command)?)?;
    let libpmi = needs.libraries.iter().find(|library| library.starts_with("libpmi.so"));
    let facts = Facts {
        open_mpi: mpi::version(session, command),
        given: elf::variable(session, command, mpi::FLUX_LIBRARY).is_some(),
        slurms: libpmi.is_some_and(|library| mpi::is_slurms(library, session, command)),
    };
    let (library, kind) =
        needs.libraries.into_iter().find_map(|library| kind(&library, facts).map(|kind| (library, kind)))?;
    Some(format!("'{}' needs {library}, {kind}", String::from_utf8_lossy(&command.program)))
}

/// What `library` says about who can launch the program. Only libraries that do not speak PMI's
/// wire protocol, or did not get to it.
fn kind(library: &str, facts: Facts) -> Option<&'static str> {
    const NO_PMIX: &str = "which finds its launcher by PMIx; this version of scela-run does not speak that";
    if mpi::is_open_mpi(library) {
        return match (facts.open_mpi?, facts.given) {
            (OpenMpi::ThroughPmix, _) => Some(
                "Open MPI 5's library, which finds its launcher by PMIx; this version of scela-run does not speak that: start it with Open MPI's mpirun, or build it with Open MPI 4 or MPICH",
            ),
            (OpenMpi::ThroughPmi, false) => {
                Some("Open MPI's library, which was not told of scela-run: say '--mpi openmpi'")
            }
            (OpenMpi::ThroughPmi, true) => Some(
                "Open MPI's library, which was told of scela-run and did not ask for it: 'ompi_info | grep flux' should name components of pmix and schizo; without them, start it with Open MPI's mpirun, or build it with MPICH",
            ),
        };
    }
    const KINDS: [(&str, &str); 4] = [
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
    if library.starts_with("libpmi.so") && facts.slurms {
        return Some(
            "and would load Slurm's, which speaks to srun only; put the directory with ScELA's libpmi.so.0 into LD_LIBRARY_PATH",
        );
    }
    KINDS.iter().find(|(prefix, _)| library.starts_with(prefix)).map(|(_, kind)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(library: &str, facts: Facts, expected: Option<&str>) {
        let told = kind(library, facts);
        match expected {
            None => assert_eq!(told, None, "{library}"),
            Some(expected) => assert!(told.is_some_and(|told| told.contains(expected)), "{library}: {told:?}"),
        }
    }

    #[test]
    fn open_mpi_and_mpich_are_told_apart() {
        let facts = |open_mpi, given| Facts { open_mpi: Some(open_mpi), given, ..Facts::default() };
        check("libmpi.so.40", facts(OpenMpi::ThroughPmix, false), Some("does not speak that: start it with"));
        check("libmpi.so.40", facts(OpenMpi::ThroughPmix, true), Some("Open MPI 5's library"));
        check("libmpi.so.40", facts(OpenMpi::ThroughPmi, false), Some("say '--mpi openmpi'"));
        check("libmpi_mpifh.so.40", facts(OpenMpi::ThroughPmi, true), Some("ompi_info"));
        check("libmpi.so.20", Facts::default(), Some("an old Open MPI's"));
        // The ABI of MPICH, Intel MPI and MVAPICH.
        check("libmpi.so.12", Facts::default(), None);
        check("libmpich.so.12", Facts::default(), None);
    }

    #[test]
    fn a_libpmi_is_no_reason_unless_it_is_slurms() {
        check("libpmi.so.0", Facts::default(), None);
        check("libpmi.so.0", Facts { slurms: true, ..Facts::default() }, Some("speaks to srun only"));
        check("libpmi2.so.0", Facts { slurms: true, ..Facts::default() }, None);
        check("libpmix.so.2", Facts::default(), Some("PMIx"));
        check("libc.so.6", Facts { slurms: true, ..Facts::default() }, None);
    }
}
