//! Which MPI library a program needs, by looking into its file: to explain why no rank has spoken
//! PMI. Without that, a program built for another kind of launcher just runs as so many copies of
//! rank 0 of 1, and nobody says why.

use std::fs;
use std::path::{Path, PathBuf};

use nla::core::{CommandPlan, Inherit, SessionPlan};
use nla::sys::Image;
use object::Endianness;
use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};

/// Programs beyond this are not looked at.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// The library of a program that explains its silence, as a sentence without its end.
pub(crate) fn explain_silence(session: &SessionPlan, command: &CommandPlan) -> Option<String> {
    let path = locate(session, command)?;
    let (library, kind) = needed(&path)?.into_iter().find_map(|name| kind(&name).map(|kind| (name, kind)))?;
    Some(format!("'{}' needs {library}, {kind}", String::from_utf8_lossy(&command.program)))
}

/// What `library` says about who can launch the program. Only libraries that do not speak PMI's
/// wire protocol.
fn kind(library: &str) -> Option<&'static str> {
    const KINDS: [(&str, &str); 7] = [
        ("libpmix.so", "which finds its launcher by PMIx; this version of scela-run speaks PMI-1"),
        (
            "libmpi.so.40",
            "Open MPI's library, which finds its launcher by PMIx; this version of scela-run speaks PMI-1: start it with Open MPI's mpirun, or build it with MPICH",
        ),
        (
            "libmpi.so.20",
            "an old Open MPI's library, which finds its launcher by PMIx; start it with Open MPI's mpirun, or build it with MPICH",
        ),
        (
            "libopen-rte.so",
            "a part of Open MPI, which finds its launcher by PMIx; start it with Open MPI's mpirun, or build it with MPICH",
        ),
        ("libpmi2.so", "a library that speaks to Slurm; start it with srun --mpi=pmi2"),
        ("libpmi.so", "a library that speaks to Slurm; start it with srun"),
        ("libcray", "a Cray library, which finds its launcher by PALS or ALPS"),
    ];
    KINDS.iter().find(|(prefix, _)| library.starts_with(prefix)).map(|(_, kind)| *kind)
}

fn locate(session: &SessionPlan, command: &CommandPlan) -> Option<PathBuf> {
    let inherited = if command.inherit == Inherit::Nothing { &[][..] } else { &session.environment };
    let environment: Vec<_> = command.set.iter().rev().chain(inherited).cloned().collect();
    let image = Image::prepare(&command.program, &[], &environment, &command.wdir).ok()?;
    let wdir = Path::new(std::ffi::OsStr::new(std::str::from_utf8(&command.wdir).ok()?));
    Some(wdir.join(image.path()))
}

/// The libraries that an ELF program names; `None` for anything else, a script for example.
fn needed(path: &Path) -> Option<Vec<String>> {
    if fs::metadata(path).ok()?.len() > FILE_BYTES_MAX {
        return None;
    }
    let bytes = fs::read(path).ok()?;
    let header = FileHeader64::<Endianness>::parse(&*bytes).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, &*bytes).ok()?;
    let dynamic = segments.iter().find_map(|segment| segment.dynamic(endian, &*bytes).ok().flatten())?;
    let sections = header.sections(endian, &*bytes).ok()?;
    let (_, link) = sections.dynamic(endian, &*bytes).ok().flatten()?;
    let strings = sections.strings(endian, &*bytes, link).ok()?;
    let names = dynamic.iter().filter(|entry| entry.tag(endian) == DT_NEEDED);
    Some(
        names
            .filter_map(|entry| entry.string(endian, strings).ok())
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_names_its_libraries() {
        let libraries = needed(&std::env::current_exe().unwrap()).unwrap();
        assert!(libraries.iter().any(|name| name.starts_with("libc.")), "{libraries:?}");
        assert!(libraries.iter().all(|name| kind(name).is_none()));
    }

    #[test]
    fn other_files_name_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for content in [
            &b""[..],
            b"#!/bin/sh\nexit 0\n",
            b"\x7fELF\x02\x01\x01 and then rubbish, rubbish, rubbish, rubbish, rubbish",
        ] {
            fs::write(file.path(), content).unwrap();
            assert_eq!(needed(file.path()), None);
        }
        assert_eq!(needed(Path::new("/nonexistent")), None);
    }

    #[test]
    fn open_mpi_and_mpich_are_told_apart() {
        assert!(kind("libmpi.so.40").unwrap().contains("Open MPI"));
        assert_eq!(kind("libmpi.so.12"), None, "the ABI of MPICH, Intel MPI and MVAPICH");
        assert_eq!(kind("libmpich.so.12"), None);
    }
}
