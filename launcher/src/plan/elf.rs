//! What a program's file says about the libraries that it needs, and which files the dynamic loader
//! would take for them.
//!
//! Only as much of the loader as it takes to tell one library from another of the same name: the
//! program's own search path, LD_LIBRARY_PATH, the loader's cache and its default places. Files are
//! read in the few parts that matter, however large they are.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nla::core::{CommandPlan, Inherit, SessionPlan};
use nla::sys::Image;
use object::Endianness;
use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, FileHeader64};
use object::read::ReadCache;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};

/// Libraries that a file names beyond these are not looked at.
const LIBRARIES_MAX: usize = 1024;
/// Directories that are searched for one library.
const PLACES_MAX: usize = 256;
/// The loader's cache is not looked at beyond this; those of large systems have half a megabyte.
const CACHE_BYTES_MAX: u64 = 16 << 20;
/// Files of the cache that are tried for one name; there is one for each architecture.
const CACHED_MAX: usize = 16;

/// The loader's cache.
const CACHE: &str = "/etc/ld.so.cache";
/// Where the loader looks last.
const DEFAULT_PLACES: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// What a file says about its libraries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// The libraries that it names.
    pub(crate) libraries: Vec<String>,
    /// Its own search path that goes before LD_LIBRARY_PATH, with `:` between directories.
    pub(crate) rpath: Option<String>,
    /// The one that goes behind it; if there is one, the other counts for nothing.
    pub(crate) runpath: Option<String>,
}

impl Needs {
    /// Whether a library is named whose name begins so.
    pub(crate) fn has(&self, prefix: &str) -> bool {
        self.libraries.iter().any(|library| library.starts_with(prefix))
    }
}

/// The file of a command's program, as a rank would start it.
pub(crate) fn program_of(session: &SessionPlan, command: &CommandPlan) -> Option<PathBuf> {
    let inherited = if command.inherit == Inherit::Nothing { &[][..] } else { &session.environment };
    let environment: Vec<_> = command.set.iter().rev().chain(inherited).cloned().collect();
    let image = Image::prepare(&command.program, &[], &environment, &command.wdir).ok()?;
    Some(Path::new(OsStr::from_bytes(&command.wdir)).join(image.path()))
}

/// The value that a variable has for a command's ranks.
pub(crate) fn variable<'a>(session: &'a SessionPlan, command: &'a CommandPlan, name: &str) -> Option<&'a OsStr> {
    let inherits = match &command.inherit {
        Inherit::All => true,
        Inherit::Nothing => false,
        Inherit::Names(names) => names.iter().any(|known| known == name.as_bytes()),
    };
    let inherited = session.environment.iter().filter(|_| inherits);
    let mut known = command.set.iter().rev().chain(inherited);
    known.find(|(known, _)| known == name.as_bytes()).map(|(_, value)| OsStr::from_bytes(value))
}

/// What an ELF file says; `None` for anything else, a script for example.
pub(crate) fn needs(path: &Path) -> Option<Needs> {
    let file = File::open(path).ok().filter(|file| file.metadata().is_ok_and(|file| file.is_file()))?;
    let file = &ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, file).ok()?;
    let dynamic = segments.iter().find_map(|segment| segment.dynamic(endian, file).ok().flatten())?;
    let sections = header.sections(endian, file).ok()?;
    let (_, link) = sections.dynamic(endian, file).ok().flatten()?;
    let strings = sections.strings(endian, file, link).ok()?;
    let texts = |tag| {
        let entries = dynamic.iter().filter(move |entry| entry.tag(endian) == tag).take(LIBRARIES_MAX);
        entries
            .filter_map(|entry| entry.string(endian, strings).ok())
            .map(|text| String::from_utf8_lossy(text).into_owned())
    };
    Some(Needs {
        libraries: texts(DT_NEEDED).collect(),
        rpath: texts(DT_RPATH).next(),
        runpath: texts(DT_RUNPATH).next(),
    })
}

/// The file that the loader would take for a library of a program, and what it needs itself.
/// `library_path` is LD_LIBRARY_PATH as the program will have it.
pub(crate) fn find(
    library: &str,
    program: &Path,
    needs_of_program: &Needs,
    library_path: Option<&OsStr>,
) -> Option<(PathBuf, Needs)> {
    let own = places(program, needs_of_program, library_path).into_iter().map(|place| place.join(library));
    let cached = || cached(&cache(), library);
    let last = DEFAULT_PLACES.iter().map(|place| Path::new(place).join(library));
    // A file for another architecture is passed over, as the loader does it.
    let readable = |path: PathBuf| needs(&path).map(|needs| (path, needs));
    own.map(readable).find_map(|found| found).or_else(|| cached().into_iter().chain(last).find_map(readable))
}

/// The directories that are searched before the loader's own, in their order.
fn places(program: &Path, needs: &Needs, library_path: Option<&OsStr>) -> Vec<PathBuf> {
    let rpath = needs.rpath.as_deref().filter(|_| needs.runpath.is_none());
    let origin = program.parent().unwrap_or(Path::new("."));
    let of_program = |list: &str| -> Vec<PathBuf> {
        let places = list.split(':').map(|place| place.replace("${ORIGIN}", "$ORIGIN"));
        let places = places.filter_map(|place| match place.strip_prefix("$ORIGIN") {
            Some(rest) => Some(origin.join(rest.trim_start_matches('/'))),
            // What the loader puts for $LIB and $PLATFORM is its secret.
            None => Some(PathBuf::from(&place)).filter(|_| !place.contains('$')),
        });
        places.collect()
    };
    let of_environment = |list: &OsStr| -> Vec<PathBuf> {
        let places = list.as_bytes().split(|byte| matches!(byte, b':' | b';')).map(OsStr::from_bytes);
        places.map(PathBuf::from).collect()
    };
    let places = rpath.map(of_program).into_iter();
    let places = places.chain(library_path.map(of_environment)).chain(needs.runpath.as_deref().map(of_program));
    // An empty one means the working directory; nobody has his MPI there.
    places.flatten().filter(|place| !place.as_os_str().is_empty()).take(PLACES_MAX).collect()
}

fn cache() -> Vec<u8> {
    let mut bytes = Vec::new();
    // Without a cache there is nothing in it.
    let _ = File::open(CACHE).and_then(|file| file.take(CACHE_BYTES_MAX).read_to_end(&mut bytes));
    bytes
}

/// The files of a library that the loader's cache names. Of its formats, which change, nothing is
/// used but that paths stand in it whole and end with a NUL.
fn cached(cache: &[u8], library: &str) -> Vec<PathBuf> {
    let end = [b"/", library.as_bytes()].concat();
    let texts = cache.split(|byte| *byte == 0).filter(|text| text.ends_with(&end) && text.starts_with(b"/"));
    texts.take(CACHED_MAX).map(|text| PathBuf::from(OsStr::from_bytes(text))).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn needing(rpath: Option<&str>, runpath: Option<&str>) -> Needs {
        Needs { libraries: Vec::new(), rpath: rpath.map(str::to_owned), runpath: runpath.map(str::to_owned) }
    }

    #[track_caller]
    fn check_places(needs: &Needs, library_path: Option<&str>, expected: &[&str]) {
        let found = places(Path::new("/opt/app/bin/a"), needs, library_path.map(OsStr::new));
        assert_eq!(found, expected.iter().map(PathBuf::from).collect::<Vec<_>>());
    }

    #[test]
    fn a_dynamic_program_names_its_libraries() {
        let needs = needs(&std::env::current_exe().unwrap()).unwrap();
        assert!(needs.has("libc."), "{needs:?}");
        assert!(!needs.has("libmpi"), "{needs:?}");
    }

    #[test]
    fn the_loaders_choice_is_found() {
        let program = std::env::current_exe().unwrap();
        let own = needs(&program).unwrap();
        let library = own.libraries.iter().find(|library| library.starts_with("libc.")).unwrap();
        let (path, of_library) = find(library, &program, &own, None).unwrap();
        assert_eq!(path.file_name(), Some(OsStr::new(library)));
        assert!(of_library.has("ld-") || of_library.libraries.is_empty(), "{of_library:?}");
        assert_eq!(find("libnothing.so.7", &program, &own, None), None);
    }

    /// What stands first, and is of this architecture, is taken.
    #[test]
    fn the_environment_goes_before_the_cache() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let program = std::env::current_exe().unwrap();
        let own = needs(&program).unwrap();
        let library = own.libraries.iter().find(|library| library.starts_with("libc.")).unwrap();
        fs::write(first.path().join(library), "not for this architecture").unwrap();
        fs::copy(&program, second.path().join(library)).unwrap();
        let list = std::env::join_paths([first.path(), second.path()]).unwrap();
        let (path, _) = find(library, &program, &own, Some(&list)).unwrap();
        assert_eq!(path, second.path().join(library));
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
            assert_eq!(needs(file.path()), None);
        }
        for path in ["/nonexistent", "/", "/dev/null"] {
            assert_eq!(needs(Path::new(path)), None);
        }
    }

    #[test]
    fn places_stand_in_the_loaders_order() {
        check_places(&needing(None, None), None, &[]);
        check_places(&needing(Some("/r"), None), Some("/e:/f"), &["/r", "/e", "/f"]);
        check_places(&needing(None, Some("/s")), Some("/e;/f"), &["/e", "/f", "/s"]);
        check_places(&needing(Some("/r"), Some("/s")), Some("/e"), &["/e", "/s"]);
        check_places(
            &needing(None, Some("$ORIGIN/../lib:${ORIGIN}:/x")),
            Some(""),
            &["/opt/app/bin/../lib", "/opt/app/bin", "/x"],
        );
        check_places(&needing(None, Some(":/usr/$LIB::/x")), None, &["/x"]);
        let many = vec!["/e"; PLACES_MAX + 1].join(":");
        check_places(&needing(None, None), Some(&many), &["/e"; PLACES_MAX]);
    }

    #[test]
    fn the_cache_is_full_of_paths() {
        let cache =
            b"glibc-ld.so.cache1.1\x02\0\0\0\0\0/lib/libmpi.so.40\0/opt/libmpi.so.40\0libmpi.so.40\0/x/libmpi.so\0";
        let found = cached(cache, "libmpi.so.40");
        assert_eq!(found, ["/lib/libmpi.so.40", "/opt/libmpi.so.40"].map(PathBuf::from));
        assert!(cached(b"", "libmpi.so.40").is_empty());
        let many = b"/lib/libmpi.so.40\0".repeat(CACHED_MAX + 1);
        assert_eq!(cached(&many, "libmpi.so.40").len(), CACHED_MAX);
    }
}
