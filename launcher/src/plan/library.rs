//! Tells from a program's libraries whether its ranks find scela-run. Otherwise they run silently, each as rank 0 of a job of 1.

use std::path::Path;

use nla::core::{CommandPlan, SessionPlan};

use crate::plan::Plan;
use crate::plan::elf;
use crate::plan::mpi::{self, OpenMpi};
use crate::plan::mpi_user::MpiUser;
use crate::plan::pmix;
use crate::plan::request::Mpi;
use crate::refusal::Refusal;

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

/// Why ranks with a library do not find scela-run.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Reason {
    /// The verb between the program and the library.
    verb: &'static str,
    /// A clause about the library.
    why: &'static str,
    /// The next step to try.
    hint: &'static str,
    /// Whether the file shows it. Otherwise the library only explains why ranks have not spoken PMI.
    is_certain: bool,
}

/// Why the ranks of a command have not spoken PMI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Silence {
    /// The program, its library and the reason, as a sentence without its full stop.
    pub(crate) text: String,
    /// The next step to try.
    pub(crate) hint: &'static str,
    /// Whether the program is linked with an MPI library, so that its ranks should have spoken PMI.
    pub(crate) is_mpi: bool,
    /// Whether a library explains it. Otherwise the program may have had no reason to speak PMI.
    pub(crate) is_explained: bool,
}

/// The usual verb between a program and a library.
const NEEDS: &str = "needs";

/// Refuses a job of several ranks if the files of its programs show that some ranks would not find scela-run. `--mpi none`
/// starts them anyway. `users` has the files of each command that may call MPI.
pub(super) fn check(plan: &Plan, users: &[Vec<MpiUser>]) -> Result<(), Refusal> {
    if plan.size() == 1 || plan.options.mpi == Mpi::None {
        return Ok(());
    }
    let session = &plan.settings.session;
    for (command, users) in plan.settings.first.commands.iter().zip(users) {
        if let Some(user) = users.iter().find(|user| user.is_certain)
            && let Some((library, reason)) = reason_of(session, command, user)
            && reason.is_certain
        {
            let text = format!("{}: its ranks would run as copies of rank 0 of 1", sentence(command, &library, reason));
            return Err(Refusal::new(text, format!("{}; '--mpi none' starts them anyway", reason.hint)));
        }
    }
    check_one_library(&plan.settings.first.commands, users)
}

/// Refuses programs of which some would wait for PMIx and others for PMI.
fn check_one_library(commands: &[CommandPlan], users: &[Vec<MpiUser>]) -> Result<(), Refusal> {
    let certain = |needs_pmix: bool| {
        let has = |user: &MpiUser| {
            user.is_certain && user.uses_mpi() && (pmix::need_of(user) == pmix::Need::Yes) == needs_pmix
        };
        let (command, _) = commands.iter().zip(users).find(|(_, users)| users.iter().any(has))?;
        Some(String::from_utf8_lossy(&command.program))
    };
    let (Some(pmix), Some(pmi)) = (certain(true), certain(false)) else { return Ok(()) };
    let text = format!("'{pmix}' needs PMIx and '{pmi}' PMI: their MPI libraries cannot make them ranks of one job");
    let hint = "build them with the same MPI library, or start each with a scela-run of its own; \
                '--mpi none' starts them anyway";
    Err(Refusal::new(text, hint))
}

/// Returns the first file of MPI that the ranks of a command may well have used.
pub(crate) fn possible_user(users: &[MpiUser]) -> Option<&Path> {
    users.iter().find(|user| !user.is_certain && !user.is_unlikely && user.uses_mpi()).map(|user| &*user.file)
}

/// Returns why the ranks of a command have not spoken PMI. `None` if no library explains it and the program is not linked with
/// an MPI library. `users` has the command's files that may call MPI.
pub(crate) fn explain_silence(session: &SessionPlan, command: &CommandPlan, users: &[MpiUser]) -> Option<Silence> {
    const UNKNOWN: Reason = Reason {
        verb: NEEDS,
        why: "an MPI library that did not look for scela-run",
        hint: "if the program called MPI_Init, build it with another MPI library; if it did not, start it with '--mpi none'",
        is_certain: false,
    };
    let user = users.iter().find(|user| user.is_certain)?;
    let mpi = user.libraries.iter().find(|library| mpi::is_mpi(&library.name));
    let (is_mpi, explained) = (mpi.is_some(), reason_of(session, command, user));
    let is_explained = explained.is_some();
    let (library, reason) = explained.or_else(|| mpi.map(|library| (library.name.clone(), UNKNOWN)))?;
    Some(Silence { text: sentence(command, &library, reason), hint: reason.hint, is_mpi, is_explained })
}

fn sentence(command: &CommandPlan, library: &str, Reason { verb, why, .. }: Reason) -> String {
    format!("'{}' {verb} {library}, {why}", String::from_utf8_lossy(&command.program))
}

/// Returns the first library of a command's program that explains why ranks do not find scela-run.
fn reason_of(session: &SessionPlan, command: &CommandPlan, user: &MpiUser) -> Option<(String, Reason)> {
    let preloaded = elf::variable(session, command, mpi::PRELOAD).unwrap_or_default();
    let mut preloaded = std::env::split_paths(preloaded).filter_map(|file| Some(file.file_name()?.to_owned()));
    let has_own_libpmi = preloaded.any(|name| name.to_string_lossy().starts_with(mpi::LIBPMI));
    let access = PmiAccess {
        open_mpi: mpi::version(&user.libraries),
        names_libpmi: elf::variable(session, command, mpi::FLUX_LIBRARY).is_some(),
        has_pmix: session.pmix.is_some(),
        loads_slurm_libpmi: mpi::loads_slurm_libpmi(&user.libraries) && !has_own_libpmi,
    };
    user.libraries.iter().find_map(|library| Some((library.name.clone(), reason(&library.name, access)?)))
}

/// Returns why a program with this library does not speak PMI's wire protocol, or `None` if the library does not
/// explain it.
fn reason(library: &str, access: PmiAccess) -> Option<Reason> {
    let possible = |why, hint| Some(Reason { verb: NEEDS, why, hint, is_certain: false });
    // If the user has chosen PMIx or a libpmi, the library may use it: then the file alone proves nothing.
    let is_certain = !access.has_pmix && !access.names_libpmi;
    let certain = |why, hint| Some(Reason { verb: NEEDS, why, hint, is_certain });
    if mpi::is_open_mpi(library) {
        return match (access.open_mpi?, access.names_libpmi) {
            (OpenMpi::ThroughPmix, _) if access.has_pmix => possible(
                "Open MPI 5's library, which was served by PMIx and did not use it",
                "if the program does not call MPI_Init, start it with '--mpi none'",
            ),
            (OpenMpi::ThroughPmix, _) => Some(Reason {
                verb: NEEDS,
                why: "Open MPI 5's library, which finds its launcher by PMIx alone",
                hint: "leave '--mpi' out, or use '--mpi pmix'",
                is_certain: true,
            }),
            (OpenMpi::ThroughPmi, false) => possible(
                "Open MPI's library without the variables by which it finds scela-run",
                "leave '--mpi' out, or use '--mpi openmpi'",
            ),
            (OpenMpi::ThroughPmi, true) => possible(
                "Open MPI's library, which got the variables to find scela-run and did not use them",
                "'ompi_info | grep flux' should name components of pmix and schizo; without them, start the program with \
                 Open MPI's mpirun, or build it with MPICH",
            ),
        };
    }
    match library {
        _ if library.starts_with(mpi::LIBPMI) && access.loads_slurm_libpmi => Some(Reason {
            verb: "would load Slurm's",
            why: "which talks to srun only",
            hint: "install ScELA's libpmi.so beside scela-run or in ../lib, or name it in SCELA_PMI_LIBRARY",
            is_certain,
        }),
        _ if library.starts_with("libpmix.so") && access.has_pmix => possible(
            "which was served by PMIx and was not initialized, or was refused",
            "if the program does not use PMIx, start it with '--mpi none'",
        ),
        _ if library.starts_with("libpmix.so") => {
            possible("which finds its launcher by PMIx", "leave '--mpi' out, or use '--mpi pmix'")
        }
        _ if library.starts_with("libmpi.so.20") => certain(
            "an old Open MPI's library, which finds its launcher by PMIx",
            "start it with Open MPI's mpirun, or build it with Open MPI 4 or later, or MPICH",
        ),
        _ if library.starts_with("libopen-rte.so") => certain(
            "a part of an old Open MPI, which finds its launcher by itself",
            "start it with Open MPI's mpirun, or build it with Open MPI 4 or later, or MPICH",
        ),
        _ if library.starts_with("libcray") => possible(
            "a Cray library, which finds its launcher by PALS or ALPS",
            "start it with Cray's launcher, or build it with MPICH",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::mpi_user;

    #[track_caller]
    fn check(library: &str, access: PmiAccess, expected: Option<(&str, bool)>) {
        let reason = reason(library, access);
        let Some((words, is_certain)) = expected else { return assert_eq!(reason, None, "{library}") };
        let found =
            reason.map(|reason| (format!("{}; {}; {}", reason.verb, reason.why, reason.hint), reason.is_certain));
        assert!(found.as_ref().is_some_and(|found| found.0.contains(words)), "{library}: {found:?}");
        assert!(found.is_some_and(|found| found.1 == is_certain), "{library}");
    }

    #[test]
    fn open_mpi_and_mpich_are_distinguished() {
        let access =
            |open_mpi, names_libpmi| PmiAccess { open_mpi: Some(open_mpi), names_libpmi, ..PmiAccess::default() };
        let with_pmix = PmiAccess { has_pmix: true, ..access(OpenMpi::ThroughPmix, false) };
        check("libmpi.so.40", access(OpenMpi::ThroughPmix, false), Some(("use '--mpi pmix'", true)));
        check("libmpi.so.40", access(OpenMpi::ThroughPmix, true), Some(("Open MPI 5's library", true)));
        check("libmpi.so.40", with_pmix, Some(("was served by PMIx and did not use it", false)));
        check("libmpi.so.40", access(OpenMpi::ThroughPmi, false), Some(("use '--mpi openmpi'", false)));
        check("libmpi_mpifh.so.40", access(OpenMpi::ThroughPmi, true), Some(("ompi_info", false)));
        check("libmpi.so.20", PmiAccess::default(), Some(("an old Open MPI's", true)));
        check("libmpi.so.20", with_pmix, Some(("an old Open MPI's", false)));
        check("libopen-rte.so.12", PmiAccess::default(), Some(("a part of an old Open MPI", true)));
        // The ABI of MPICH, Intel MPI and MVAPICH.
        check("libmpi.so.12", PmiAccess::default(), None);
        check("libmpich.so.12", PmiAccess::default(), None);
    }

    #[test]
    fn programs_for_pmix_and_for_pmi_are_not_one_job() {
        let plan =
            crate::plan::tests::planned("-np 1 ./a : -np 1 ./b : -np 1 ./c", &crate::plan::tests::machine()).unwrap();
        let user = |libraries: &[&str], is_certain| {
            let library = |name: &&str| mpi_user::Library { name: (*name).to_owned(), ..Default::default() };
            let libraries = libraries.iter().map(library).collect();
            vec![MpiUser { file: "/f".into(), is_certain, is_unlikely: false, libraries }]
        };
        let (pmi, other) = (user(&["libmpi.so.12"], true), user(&["libpmi.so.0"], true));
        let pmix = |is_certain| user(&["libmpi.so.12", "libpmix.so.2"], is_certain);
        let check = |users: &[Vec<MpiUser>]| check_one_library(&plan.settings.first.commands, users);
        for users in [
            [pmi.clone(), pmi.clone(), vec![]],
            [pmix(true), vec![], pmix(true)],
            [pmix(true), other, vec![]],
            [pmix(false), pmi.clone(), vec![]],
        ] {
            assert_eq!(check(&users), Ok(()), "{users:?}");
        }
        let refusal = check(&[pmi, vec![], pmix(true)]).unwrap_err();
        let text = "'./c' needs PMIx and './a' PMI: their MPI libraries cannot make them ranks of one job";
        assert_eq!((refusal.to_string(), refusal.early_end().code()), (text.to_owned(), 2));
        assert_eq!(possible_user(&pmix(true)), None);
        assert_eq!(possible_user(&pmix(false)), Some(Path::new("/f")));
        assert_eq!(possible_user(&user(&["libpmi.so.0"], false)), None);
        let unlikely = pmix(false).into_iter().map(|user| MpiUser { is_unlikely: true, ..user }).collect::<Vec<_>>();
        assert_eq!(possible_user(&unlikely), None, "a Python program that does not name mpi4py");
    }

    #[test]
    fn only_slurms_libpmi_explains_silence() {
        let slurm = PmiAccess { loads_slurm_libpmi: true, ..PmiAccess::default() };
        check("libpmi.so.0", PmiAccess::default(), None);
        check("libpmi.so.0", slurm, Some(("would load Slurm's; which talks to srun only", true)));
        check("libpmi2.so.0", slurm, None);
        check("libpmix.so.2", PmiAccess::default(), Some(("use '--mpi pmix'", false)));
        check(
            "libpmix.so.2",
            PmiAccess { has_pmix: true, ..PmiAccess::default() },
            Some(("was served by PMIx", false)),
        );
        check("libcray.so.1", PmiAccess::default(), Some(("PALS or ALPS", false)));
        check("libc.so.6", slurm, None);
    }
}
