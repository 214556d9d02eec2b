//! Reads from a program's ELF file which libraries it needs, and finds the files that the dynamic loader would load.
//!
//! Implements as much of the loader as distinguishes libraries of the same name: the program's own search path,
//! LD_LIBRARY_PATH, the loader's cache and its default directories. Reads only the parts of a file that matter, however
//! large the file is.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nla::core::{CommandPlan, Inherit, SessionPlan};
use nla::sys::{Image, ImageError, open_regular};
use object::Endianness;
use object::elf::{
    DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_STRSZ, DT_STRTAB, FileHeader64, PT_INTERP, PT_LOAD, ProgramHeader64,
};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef, StringTable};

/// The most libraries that are read from one file.
const LIBRARIES_MAX: usize = 1024;
/// The most bytes that are read of one file. Real ones need less than 1 MB: headers, the list of libraries and their names.
const FILE_BYTES_MAX: u64 = 2 << 20;
/// The most bytes of a library's name: the kernel opens no longer path (PATH_MAX).
const NAME_BYTES_MAX: u64 = 4096;
/// The most bytes of a search path, which names many directories.
const SEARCH_PATH_BYTES_MAX: u64 = 256 << 10;
/// Room for nearly all names in a file.
const NAME_BYTES: u64 = 256;
/// The most bytes of a script's first line that are read, as in the kernel (BINPRM_BUF_SIZE).
const FIRST_LINE_BYTES_MAX: u64 = 256;
/// The most directories that are searched for one library.
const DIRECTORIES_MAX: usize = 256;
/// The most bytes that are read of the loader's cache. Large systems have half a megabyte.
const CACHE_BYTES_MAX: u64 = 16 << 20;
/// The maximum number of the cache's files that are tried for one name. The cache has one for each architecture.
const CACHED_MAX: usize = 16;

/// The loader's cache.
const CACHE: &str = "/etc/ld.so.cache";
/// The directories that the loader searches last.
const DEFAULT_DIRECTORIES: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// The libraries that a file needs, and where it wants them searched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// The names of the libraries (DT_NEEDED).
    pub(crate) libraries: Vec<String>,
    /// The search path before LD_LIBRARY_PATH (DT_RPATH), with `:` between directories.
    pub(crate) rpath: Option<String>,
    /// The search path after LD_LIBRARY_PATH (DT_RUNPATH). If it is present, the loader ignores `rpath`.
    pub(crate) runpath: Option<String>,
}

impl Needs {
    /// Returns the needs of a program that loads this file.
    pub(crate) fn of_one(file: &Path, name: &str) -> Self {
        let place = file.parent().map(|place| place.to_string_lossy().into_owned());
        Self { libraries: vec![name.to_owned()], rpath: place, runpath: None }
    }

    /// Returns whether a library's name begins with `prefix`.
    pub(crate) fn has(&self, prefix: &str) -> bool {
        self.libraries.iter().any(|library| library.starts_with(prefix))
    }
}

/// A program or a library: its file, and what this file needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// The file.
    pub(crate) file: PathBuf,
    /// Its needs.
    pub(crate) needs: Needs,
}

/// Returns the program file that a rank of this command would execute: of a script, its interpreter.
pub(crate) fn program_of(session: &SessionPlan, command: &CommandPlan) -> Result<PathBuf, ImageError> {
    let program = file_of(session, command)?;
    interpreter(&first_line(&program)).map_or(Ok(program), |interpreter| find_program(session, command, &interpreter))
}

/// Returns the file of the command's program.
pub(crate) fn file_of(session: &SessionPlan, command: &CommandPlan) -> Result<PathBuf, ImageError> {
    find_program(session, command, &command.program)
}

/// Finds a program as a rank of this command would.
fn find_program(session: &SessionPlan, command: &CommandPlan, program: &[u8]) -> Result<PathBuf, ImageError> {
    let inherited = if command.inherit == Inherit::Nothing { &[][..] } else { &session.environment };
    let environment: Vec<_> = command.set.iter().rev().chain(inherited).cloned().collect();
    let image = Image::prepare(program, &[], &environment, &command.wdir)?;
    Ok(Path::new(OsStr::from_bytes(&command.wdir)).join(image.path()))
}

/// Returns the first bytes of a file, `bytes_max` at most. Empty for a file that cannot be read, or is not a regular one.
pub(super) fn beginning(path: &Path, bytes_max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Unreadable files name nothing.
    let _ = open_regular(path).and_then(|file| file.take(bytes_max).read_to_end(&mut bytes));
    bytes
}

/// Returns the beginning of a file's first line. Empty for a file that cannot be read.
fn first_line(path: &Path) -> Vec<u8> {
    let bytes = beginning(path, FIRST_LINE_BYTES_MAX);
    bytes.split(|byte| *byte == b'\n').next().unwrap_or_default().to_vec()
}

/// Returns the interpreter that a script's first line names: a path, or the name that `env` looks up in PATH.
pub(super) fn interpreter(line: &[u8]) -> Option<Vec<u8>> {
    let mut words = line.strip_prefix(b"#!")?.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let interpreter = words.next()?;
    if !interpreter.ends_with(b"/env") {
        return Some(interpreter.to_vec());
    }
    // Options of env, and variables that it sets.
    words.find(|word| !word.starts_with(b"-") && !word.contains(&b'=')).map(<[u8]>::to_vec)
}

/// Returns the value of a variable in the environment of a command's ranks.
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

/// A file of which at most [`FILE_BYTES_MAX`] can be read: its headers may claim parts of any size, and name one part often.
#[derive(Copy, Clone)]
struct Parts<'a> {
    cache: &'a ReadCache<File>,
    /// How many bytes may still be read.
    left: &'a Cell<u64>,
}

impl<'a> ReadRef<'a> for Parts<'a> {
    fn len(self) -> Result<u64, ()> {
        self.cache.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.left.set(self.left.get().checked_sub(size).ok_or(())?);
        self.cache.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        // The search of the cache asks the processor what it can do, which takes 20 us in a virtual machine.
        let bytes_max = range.end.checked_sub(range.start).ok_or(())?.min(SEARCH_PATH_BYTES_MAX);
        let mut size = NAME_BYTES.min(bytes_max);
        loop {
            let bytes = self.read_bytes_at(range.start, size)?;
            match bytes.iter().position(|&byte| byte == delimiter) {
                Some(end) => return Ok(&bytes[..end]),
                None if size == bytes_max => return Err(()),
                None => size = size.saturating_mul(8).min(bytes_max),
            }
        }
    }
}

/// The kinds of program files.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Linkage {
    /// It names the dynamic loader, which loads its libraries.
    Dynamic,
    /// The kernel starts it without a loader.
    Static,
    /// It is no 64-bit ELF file: a script, for example.
    Unknown,
}

/// Returns how a program file is linked.
pub(crate) fn linkage(path: &Path) -> Linkage {
    let has_loader = || {
        let (cache, left) = (ReadCache::new(open_regular(path).ok()?), Cell::new(FILE_BYTES_MAX));
        let file = Parts { cache: &cache, left: &left };
        let header = FileHeader64::<Endianness>::parse(file).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, file).ok()?;
        Some(segments.iter().any(|segment| segment.p_type(endian) == PT_INTERP))
    };
    match has_loader() {
        Some(true) => Linkage::Dynamic,
        Some(false) => Linkage::Static,
        None => Linkage::Unknown,
    }
}

/// Reads the libraries that a 64-bit ELF file needs. Returns `None` for any other file, a script for example.
pub(crate) fn needs(path: &Path) -> Option<Needs> {
    let (cache, left) = (ReadCache::new(open_regular(path).ok()?), Cell::new(FILE_BYTES_MAX));
    let file = Parts { cache: &cache, left: &left };
    let header = FileHeader64::<Endianness>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, file).ok()?;
    let dynamic = segments.iter().find_map(|segment| segment.dynamic(endian, file).ok().flatten())?;
    // As the loader does: a stripped file may have no table of sections.
    let value = |tag| Some(dynamic.iter().find(|entry| entry.tag(endian) == tag)?.val(endian));
    let (address, bytes) = (value(DT_STRTAB)?, value(DT_STRSZ)?);
    let at = segments.iter().find_map(|segment| place_of(address, segment, endian))?;
    let strings = StringTable::new(file, at, at.checked_add(bytes)?);
    let texts = |tag| {
        let entries = dynamic.iter().filter(move |entry| entry.tag(endian) == tag).take(LIBRARIES_MAX);
        entries
            .filter_map(|entry| entry.string(endian, strings).ok())
            .map(|text| String::from_utf8_lossy(text).into_owned())
    };
    Some(Needs {
        libraries: texts(DT_NEEDED).filter(|name| name.len() as u64 <= NAME_BYTES_MAX).collect(),
        rpath: texts(DT_RPATH).next(),
        runpath: texts(DT_RUNPATH).next(),
    })
}

/// Returns where in the file the byte with this address lies, if the segment has it.
fn place_of(address: u64, segment: &ProgramHeader64<Endianness>, endian: Endianness) -> Option<u64> {
    let into = address.checked_sub(segment.p_vaddr(endian))?;
    let has = segment.p_type(endian) == PT_LOAD && into < segment.p_filesz(endian);
    has.then(|| segment.p_offset(endian).checked_add(into)).flatten()
}

/// Returns the file that the loader would load for a program's library, and the libraries that this file needs.
/// `library_path` is LD_LIBRARY_PATH in the program's environment.
pub(crate) fn find(
    library: &str,
    program: &Path,
    needs_of_program: &Needs,
    library_path: Option<&OsStr>,
) -> Option<(PathBuf, Needs)> {
    let program = Object { file: program.to_owned(), needs: needs_of_program.clone() };
    find_below(library, &[&program], library_path).map(|Object { file, needs }| (file, needs))
}

/// Returns what the loader would load for a library that the first object of `chain` needs. Each object was loaded for the one
/// that follows it; the last is the program.
pub(crate) fn find_below(library: &str, chain: &[&Object], library_path: Option<&OsStr>) -> Option<Object> {
    let searched = directories(chain, library_path);
    let own = searched.into_iter().map(|directory| directory.join(library));
    let cached = || cached(&beginning(Path::new(CACHE), CACHE_BYTES_MAX), library);
    let last = DEFAULT_DIRECTORIES.iter().map(|directory| Path::new(directory).join(library));
    // Like the loader, skip files for other architectures.
    let readable = |file: PathBuf| needs(&file).map(|needs| Object { file, needs });
    own.map(readable).find_map(|found| found).or_else(|| cached().into_iter().chain(last).find_map(readable))
}

/// Returns the directories that the loader searches before its cache, in order, for a library that the first object of `chain`
/// needs: DT_RPATH of all of them, unless the first has DT_RUNPATH; LD_LIBRARY_PATH; DT_RUNPATH of the first.
fn directories(chain: &[&Object], library_path: Option<&OsStr>) -> Vec<PathBuf> {
    let of_object = |object: &Object, list: &str| -> Vec<PathBuf> {
        let origin = object.file.parent().unwrap_or(Path::new("."));
        let directories = list.split(':').map(|directory| directory.replace("${ORIGIN}", "$ORIGIN"));
        let directories = directories.filter_map(|directory| match directory.strip_prefix("$ORIGIN") {
            Some(rest) => Some(origin.join(rest.trim_start_matches('/'))),
            // Only the loader knows its values of $LIB and $PLATFORM.
            None => Some(PathBuf::from(&directory)).filter(|_| !directory.contains('$')),
        });
        directories.collect()
    };
    let of_environment = |list: &OsStr| -> Vec<PathBuf> {
        let directories = list.as_bytes().split(|byte| matches!(byte, b':' | b';')).map(OsStr::from_bytes);
        directories.map(PathBuf::from).collect()
    };
    let first = chain.first().copied();
    let runpath = first.and_then(|object| Some(of_object(object, object.needs.runpath.as_deref()?)));
    let with_rpath = chain.iter().filter(|object| runpath.is_none() && object.needs.runpath.is_none());
    let rpaths = with_rpath.filter_map(|object| Some(of_object(object, object.needs.rpath.as_deref()?)));
    let directories = rpaths.chain(library_path.map(of_environment)).chain(runpath.clone());
    // An empty entry means the working directory, where no MPI library is installed.
    let mut seen = BTreeSet::new();
    let mut is_new = |directory: &PathBuf| !directory.as_os_str().is_empty() && seen.insert(directory.clone());
    directories.flatten().filter(|directory| is_new(directory)).take(DIRECTORIES_MAX).collect()
}

/// Returns the paths of a library in the loader's cache. The cache's formats change; this relies only on paths being
/// stored whole and ending with a NUL.
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
    fn check_directories(needs: &Needs, library_path: Option<&str>, expected: &[&str]) {
        let program = Object { file: "/opt/app/bin/a".into(), needs: needs.clone() };
        let found = directories(&[&program], library_path.map(OsStr::new));
        assert_eq!(found, expected.iter().map(PathBuf::from).collect::<Vec<_>>());
    }

    #[test]
    fn a_script_names_its_interpreter() {
        let named = |line: &str| interpreter(line.as_bytes()).map(|name| String::from_utf8(name).unwrap());
        for (line, expected) in [
            ("#!/opt/venv/bin/python3", Some("/opt/venv/bin/python3")),
            ("#! /bin/sh -e", Some("/bin/sh")),
            ("#!/usr/bin/env python3\r", Some("python3")),
            ("#!/usr/bin/env -S MODE=1 python -u", Some("python")),
            ("#!/usr/bin/env", None),
            ("#!", None),
            ("\x7fELF", None),
            ("", None),
        ] {
            assert_eq!(named(line).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn of_a_script_only_the_first_line_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        std::fs::write(&script, [b"#!/bin/sh\n", &[b'x'; 1000][..]].concat()).unwrap();
        assert_eq!(first_line(&script), b"#!/bin/sh");
        std::fs::write(&script, [b'#'; 1000]).unwrap();
        assert_eq!(first_line(&script).len(), FIRST_LINE_BYTES_MAX as usize);
        assert_eq!(first_line(directory.path()), b"");
    }

    #[test]
    fn a_dynamic_program_names_its_libraries() {
        let needs = needs(&std::env::current_exe().unwrap()).unwrap();
        assert!(needs.has("libc."), "{needs:?}");
        assert!(!needs.has("libmpi"), "{needs:?}");
    }

    #[test]
    fn a_program_without_a_table_of_sections_names_its_libraries() {
        let program = std::env::current_exe().unwrap();
        let mut bytes = fs::read(&program).unwrap();
        // e_shoff, then e_shnum and e_shstrndx.
        bytes[0x28..0x30].fill(0);
        bytes[0x3c..0x40].fill(0);
        let directory = tempfile::tempdir().unwrap();
        let stripped = directory.path().join("stripped");
        fs::write(&stripped, bytes).unwrap();
        assert_eq!(needs(&stripped), needs(&program));
        assert!(needs(&stripped).is_some_and(|needs| needs.has("libc.")));
    }

    #[test]
    fn the_file_that_the_loader_loads_is_found() {
        let program = std::env::current_exe().unwrap();
        let own = needs(&program).unwrap();
        let library = own.libraries.iter().find(|library| library.starts_with("libc.")).unwrap();
        let (path, of_library) = find(library, &program, &own, None).unwrap();
        assert_eq!(path.file_name(), Some(OsStr::new(library)));
        assert!(of_library.has("ld-") || of_library.libraries.is_empty(), "{of_library:?}");
        assert_eq!(find("libnothing.so.7", &program, &own, None), None);
    }

    /// The first file of this architecture is loaded.
    #[test]
    fn library_path_is_searched_before_the_cache() {
        let places = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let program = std::env::current_exe().unwrap();
        let own = needs(&program).unwrap();
        let library = own.libraries.iter().find(|library| library.starts_with("libc.")).unwrap();
        let [foreign, fifo, good] = places.each_ref().map(|place| place.path().join(library));
        fs::write(foreign, "not for this architecture").unwrap();
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::copy(&program, &good).unwrap();
        let list = std::env::join_paths(places.iter().map(tempfile::TempDir::path)).unwrap();
        let (path, _) = find(library, &program, &own, Some(&list)).unwrap();
        assert_eq!(path, good);
    }

    /// A header may claim that the list of libraries is as long as a file without blocks on the disk.
    #[test]
    fn huge_parts_are_not_read() {
        const PT_DYNAMIC: [u8; 4] = [2, 0, 0, 0];
        let mut bytes = fs::read(std::env::current_exe().unwrap()).unwrap();
        let at = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let headers = at(&bytes, 32) as usize;
        let dynamic = (headers..).step_by(56).find(|header| bytes[*header..header + 4] == PT_DYNAMIC).unwrap();
        let end = |size: u64, bytes: &[u8]| at(bytes, dynamic + 8) + size;
        for (size, is_read) in [(FILE_BYTES_MAX - (64 << 10), true), (FILE_BYTES_MAX + 16, false)] {
            bytes[dynamic + 32..dynamic + 40].copy_from_slice(&size.to_le_bytes());
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(file.path(), &bytes).unwrap();
            file.as_file().set_len(end(size, &bytes).max(bytes.len() as u64)).unwrap();
            assert_eq!(needs(file.path()).is_some(), is_read, "{size} bytes");
        }
    }

    /// Returns a program whose list of libraries names `needed`, by their places in `names`.
    fn naming(needed: &[u64], names: &[u8]) -> tempfile::NamedTempFile {
        const PT_LOAD: u32 = 1;
        const PT_DYNAMIC: u32 = 2;
        const HEADERS: u64 = 64 + 2 * 56;
        let entries = needed.iter().map(|at| (1u64, *at));
        let strings = HEADERS + 16 * (needed.len() as u64 + 3);
        let dynamic: Vec<u8> = entries
            .chain([(5, strings), (10, names.len() as u64), (0, 0)])
            .flat_map(|(tag, value)| [tag.to_le_bytes(), value.to_le_bytes()].concat())
            .collect();
        let end = strings + names.len() as u64;
        let segment = |kind: u32, at: u64, size: u64| {
            let words = [at, at, at, size, size, 8].map(u64::to_le_bytes).concat();
            [&kind.to_le_bytes()[..], &4u32.to_le_bytes()[..], &words[..]].concat()
        };
        let mut header = b"\x7fELF\x02\x01\x01".to_vec();
        header.resize(64, 0);
        header[32] = 64;
        header[54] = 56;
        header[56] = 2;
        let loaded = [segment(PT_LOAD, 0, end), segment(PT_DYNAMIC, HEADERS, dynamic.len() as u64)].concat();
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), [&header[..], &loaded[..], &dynamic[..], names].concat()).unwrap();
        file
    }

    #[test]
    fn many_entries_that_share_a_long_string_are_not_read_again_and_again() {
        let length = NAME_BYTES_MAX as usize;
        let names = [b"\0libmpi.so.12\0", &vec![b'x'; length][..], b"\0", &vec![b'x'; 16 << 20][..], b"\0"].concat();
        let (fits, long) = (14, 14 + length as u64 + 1);
        let file = naming(&[1, fits, long], &names);
        let found = needs(file.path()).unwrap().libraries;
        assert_eq!(found.iter().map(String::len).collect::<Vec<_>>(), [12, length]);
        // Each begins at another byte, so none is in the cache.
        let many: Vec<u64> = (0..LIBRARIES_MAX as u64).map(|entry| long + entry * 10_000).collect();
        assert_eq!(needs(naming(&many, &names).path()).unwrap().libraries, [""; 0]);
        let one_longer = naming(&[0], &[&vec![b'x'; length + 1][..], b"\0"].concat());
        assert_eq!(needs(one_longer.path()).unwrap().libraries, [""; 0]);
    }

    /// A static program, as far as the kernel reads it: its only segment is loaded.
    #[test]
    fn a_program_without_a_loader_is_static() {
        let program = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(linkage(&std::env::current_exe().unwrap()), Linkage::Dynamic);
        let file = tempfile::NamedTempFile::new().unwrap();
        let headers = u64::from_le_bytes(program[32..40].try_into().unwrap()) as usize;
        let count = usize::from(u16::from_le_bytes([program[56], program[57]]));
        let mut without = program;
        for header in (headers..).step_by(56).take(count) {
            if without[header..header + 4] == PT_INTERP.0.to_le_bytes() {
                without[header..header + 4].fill(0);
            }
        }
        fs::write(file.path(), &without).unwrap();
        assert_eq!(linkage(file.path()), Linkage::Static);
        for content in [&b""[..], b"#!/bin/sh\n", &without[..40]] {
            fs::write(file.path(), content).unwrap();
            assert_eq!(linkage(file.path()), Linkage::Unknown);
        }
    }

    #[test]
    fn files_other_than_elf_have_no_libraries() {
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
    fn directories_have_the_loaders_order() {
        check_directories(&needing(None, None), None, &[]);
        check_directories(&needing(Some("/r"), None), Some("/e:/f"), &["/r", "/e", "/f"]);
        check_directories(&needing(None, Some("/s")), Some("/e;/f"), &["/e", "/f", "/s"]);
        check_directories(&needing(Some("/r"), Some("/s")), Some("/e"), &["/e", "/s"]);
        check_directories(
            &needing(None, Some("$ORIGIN/../lib:${ORIGIN}:/x")),
            Some(""),
            &["/opt/app/bin/../lib", "/opt/app/bin", "/x"],
        );
        check_directories(&needing(None, Some(":/usr/$LIB::/x")), None, &["/x"]);
        let many: Vec<String> = (0..=DIRECTORIES_MAX).map(|number| format!("/{number}")).collect();
        let first: Vec<&str> = many.iter().map(String::as_str).take(DIRECTORIES_MAX).collect();
        check_directories(&needing(None, None), Some(&many.join(":")), &first);
        check_directories(&needing(Some("/r:/r"), None), Some("/e:/r:/e"), &["/r", "/e"]);
    }

    #[test]
    fn the_rpath_of_all_objects_counts_unless_there_is_a_runpath() {
        let object = |file: &str, rpath, runpath| Object { file: file.into(), needs: needing(rpath, runpath) };
        let program = object("/app/bin/a", Some("$ORIGIN/../lib"), None);
        let check = |library: &Object, below: &Object, expected: &[&str]| {
            let found = directories(&[library, below, &program], Some(OsStr::new("/e")));
            assert_eq!(found, expected.iter().map(PathBuf::from).collect::<Vec<_>>());
        };
        let with_rpath = object("/app/lib/libx.so", Some("$ORIGIN/x"), None);
        let with_runpath = object("/app/lib/liby.so", Some("/ignored"), Some("$ORIGIN/y"));
        check(&with_rpath, &with_rpath, &["/app/lib/x", "/app/bin/../lib", "/e"]);
        check(&with_runpath, &with_rpath, &["/e", "/app/lib/y"]);
        // The DT_RUNPATH of another object is for its own libraries only.
        check(&with_rpath, &with_runpath, &["/app/lib/x", "/app/bin/../lib", "/e"]);
    }

    #[test]
    fn paths_are_found_in_the_cache() {
        let cache =
            b"glibc-ld.so.cache1.1\x02\0\0\0\0\0/lib/libmpi.so.40\0/opt/libmpi.so.40\0libmpi.so.40\0/x/libmpi.so\0";
        let found = cached(cache, "libmpi.so.40");
        assert_eq!(found, ["/lib/libmpi.so.40", "/opt/libmpi.so.40"].map(PathBuf::from));
        assert!(cached(b"", "libmpi.so.40").is_empty());
        let many = b"/lib/libmpi.so.40\0".repeat(CACHED_MAX + 1);
        assert_eq!(cached(&many, "libmpi.so.40").len(), CACHED_MAX);
    }
}
