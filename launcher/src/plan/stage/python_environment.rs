//! Python environments: what a node needs besides the directory to run the environment's interpreter.
//!
//! A virtual environment has packages and a link to an interpreter, which finds its standard library beside its own file. So the
//! interpreter and the library are sent in a directory of their own, and the texts in the environment that name places get the
//! names of the copies: `home` in pyvenv.cfg, and the first lines of scripts.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use super::tree::{Rules, Sent, Tree, unreadable};
use crate::plan::elf;
use crate::refusal::Refusal;

/// The file that makes a directory a virtual environment.
const SETTINGS: &str = "pyvenv.cfg";
/// The setting that names the directory of the interpreter.
const HOME: &str = "home";
/// Longer scripts are sent as they are.
const SCRIPT_BYTES_MAX: u64 = 64 * 1024;
/// The lines of a script that may name the interpreter. pip writes two of a shell before a long path.
const SCRIPT_LINES: usize = 3;
/// The directories of the standard library that programs do not import: packages of the base, which the environment does not
/// see, tests, files for linking, and programs.
const LEFT_OUT: [&str; 8] =
    ["site-packages", "dist-packages", "test", "idlelib", "turtledemo", "ensurepip", "lib2to3", "pydoc_data"];
/// The beginning of the name of the directory with files for linking.
const LINKING: &str = "config-";

/// A virtual environment, and its base on this machine.
pub(super) struct Environment {
    /// The directory, as the user names it.
    typed: PathBuf,
    /// The directory without links.
    directory: PathBuf,
    /// The interpreter's file.
    pub(super) interpreter: PathBuf,
    /// The directory of the standard library.
    library: PathBuf,
    /// The name of the copy of the base, in the directory of the staged files.
    pub(super) base: Vec<u8>,
}

impl Environment {
    /// Finds the base of an environment, whose copy is called `name`. `None` if the directory is no virtual environment.
    pub(super) fn of(typed: &Path, name: &[u8]) -> Result<Option<Self>, Refusal> {
        let directory = typed.canonicalize().map_err(|error| unreadable(typed, &error))?;
        let text = elf::beginning(&directory.join(SETTINGS), SCRIPT_BYTES_MAX);
        if text.is_empty() {
            return Ok(None);
        }
        let refused = |why: &str| {
            let text = format!("option '--stage-dir': '{}' is a Python environment, and {why}", typed.display());
            Refusal::new(text, "make it again with 'python -m venv'").of_system()
        };
        let interpreter =
            ["python", "python3"].iter().find_map(|name| directory.join("bin").join(name).canonicalize().ok());
        let interpreter = interpreter.ok_or_else(|| refused("its bin/python is missing"))?;
        if interpreter.starts_with(&directory) {
            // It has an interpreter of its own.
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&text);
        let setting = |name: &str| {
            let mut settings = text.lines().filter_map(|line| line.split_once('='));
            settings.find(|(known, _)| known.trim() == name).map(|(_, value)| value.trim().to_owned())
        };
        let version = setting("version").or_else(|| setting("version_info")).unwrap_or_default();
        let version: Vec<_> = version.split('.').take(2).collect();
        let version = format!("python{}", version.join("."));
        // The prefixes of the interpreter's file and of `home`, which may be a link.
        let home = setting(HOME).map(PathBuf::from);
        let prefixes = [interpreter.parent().and_then(Path::parent), home.as_deref().and_then(Path::parent)];
        let libraries = prefixes
            .into_iter()
            .flatten()
            .flat_map(|prefix| ["lib", "lib64"].map(|lib| prefix.join(lib).join(&version)));
        let library = libraries.into_iter().find(|library| library.join("os.py").is_file());
        let library =
            library.ok_or_else(|| refused(&format!("the standard library of its {version} was not found")))?;
        let base = [name, b".base"].concat();
        Ok(Some(Self { typed: typed.to_owned(), directory, interpreter, library, base }))
    }

    /// Returns the copy of the interpreter, to which links in the environment lead.
    pub(super) fn sent(&self) -> Sent {
        let name = self.interpreter.file_name().unwrap_or(OsStr::new("python"));
        let copy = [&self.base[..], b"/bin/", name.as_bytes()].concat();
        Sent { original: self.interpreter.clone(), copy }
    }

    /// Returns the parts of a text in the environment that names the interpreter or the environment. `relative` is its path in it.
    /// `name` is the name of the environment's copy.
    pub(super) fn text(&self, name: &[u8], relative: &Path, path: &Path) -> Option<Vec<Vec<u8>>> {
        if relative == Path::new(SETTINGS) {
            let text = elf::beginning(path, SCRIPT_BYTES_MAX);
            return Some(settings_parts(&text, &[b"/", &self.base[..], b"/bin"].concat()));
        }
        if relative.parent() != Some(Path::new("bin"))
            || fs::metadata(path).is_ok_and(|found| found.len() > SCRIPT_BYTES_MAX)
        {
            return None;
        }
        let text = elf::beginning(path, SCRIPT_BYTES_MAX);
        let places = [&self.typed, &self.directory].map(|place| [place.as_os_str().as_bytes(), b"/"].concat());
        script_parts(&text, &places, &[b"/", name, b"/"].concat())
    }

    /// Reads the base: its interpreter and its standard library.
    pub(super) fn read_base(&self) -> Result<Tree, Refusal> {
        let find = |path: &Path| fs::metadata(path).map_err(|error| unreadable(path, &error));
        let mut tree = Tree::new(self.base.clone(), &[]);
        let library = find(&self.library)?;
        let bin = tree.add_directory(0, OsStr::new("bin"), &library)?;
        let name = self.interpreter.file_name().unwrap_or(OsStr::new("python"));
        tree.add_file(bin, name, &self.interpreter, &find(&self.interpreter)?)?;
        let lib = tree.add_directory(0, OsStr::new("lib"), &library)?;
        let name = self.library.file_name().unwrap_or(OsStr::new("python"));
        let own = tree.add_directory(lib, name, &library)?;
        let leaves_out = |name: &OsStr, depth: usize| {
            depth == 0
                && (LEFT_OUT.iter().any(|left_out| name == *left_out)
                    || name.as_bytes().starts_with(LINKING.as_bytes()))
        };
        let rules = Rules { leaves_out: &leaves_out, text: &|_, _| None, follows_links: true };
        tree.read(own, &self.library, &self.library, &rules, 3)?;
        Ok(tree)
    }
}

/// Returns the parts of pyvenv.cfg around the directory of the staged files, with another `home`.
fn settings_parts(text: &[u8], home: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let key = line.split(|byte| *byte == b'=').next().unwrap_or_default();
        let last = parts.len() - 1;
        if key.trim_ascii() == HOME.as_bytes() && parts.len() == 1 {
            parts[last].extend_from_slice(b"home = ");
            parts.push([home, b"\n"].concat());
        } else {
            parts[last].extend_from_slice(line);
        }
    }
    parts
}

/// Returns the parts of a script around the directory of the staged files, if its first lines name one of `places`. There `copy`
/// follows the directory.
fn script_parts(text: &[u8], places: &[Vec<u8>], copy: &[u8]) -> Option<Vec<Vec<u8>>> {
    if !text.starts_with(b"#!") {
        return None;
    }
    let ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    let (mut head, rest) = text.split_at(ends.take(SCRIPT_LINES).last().unwrap_or(text.len()));
    let mut parts = vec![Vec::new()];
    while let Some(byte) = head.first() {
        let last = parts.len() - 1;
        match places.iter().find_map(|place| head.strip_prefix(&place[..])) {
            Some(after) => {
                parts.push(copy.to_vec());
                head = after;
            }
            None => {
                parts[last].push(*byte);
                head = &head[1..];
            }
        }
    }
    let last = parts.len() - 1;
    parts[last].extend_from_slice(rest);
    (parts.len() > 1).then_some(parts)
}

/// Returns the path of a program in the directory `directory`, relative to it. The program's own file may be a link, which is not
/// followed: an interpreter finds its environment by the link.
pub(super) fn inside(directory: &Path, program: &Path) -> Option<Vec<u8>> {
    let name = program.file_name()?;
    let place = program.parent()?.canonicalize().ok()?;
    let place = place.strip_prefix(directory.canonicalize().ok()?).ok()?.join(name);
    Some(OsString::from(place).into_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(parts: Option<Vec<Vec<u8>>>) -> Option<String> {
        parts.map(|parts| parts.iter().map(|part| String::from_utf8_lossy(part)).collect::<Vec<_>>().join("@"))
    }

    #[test]
    fn settings_name_the_copy_of_the_interpreter() {
        let text = b"home = /usr/bin\ninclude-system-site-packages = false\nhome=/x\n";
        let parts = settings_parts(text, b"/v.base/bin");
        let expected = "home = @/v.base/bin\ninclude-system-site-packages = false\nhome=/x\n";
        assert_eq!(shown(Some(parts)).as_deref(), Some(expected));
        assert_eq!(shown(Some(settings_parts(b"x = 1", b"/b"))).as_deref(), Some("x = 1"));
    }

    #[test]
    fn scripts_name_the_copy_of_the_environment() {
        let places = [b"/opt/v/".to_vec(), b"/real/v/".to_vec()];
        let parts = |text: &str| shown(script_parts(text.as_bytes(), &places, b"/v/"));
        assert_eq!(parts("#!/opt/v/bin/python\nimport x\n").as_deref(), Some("#!@/v/bin/python\nimport x\n"));
        let long = "#!/bin/sh\n'''exec' \"/real/v/bin/python\" \"$0\" \"$@\"\n' '''\n/opt/v/x";
        assert_eq!(
            parts(long).as_deref(),
            Some("#!/bin/sh\n'''exec' \"@/v/bin/python\" \"$0\" \"$@\"\n' '''\n/opt/v/x")
        );
        for other in ["#!/usr/bin/python3\n", "\x7fELF/opt/v/", "", "#!\n\n\n/opt/v/"] {
            assert_eq!(parts(other), None, "{other}");
        }
    }

    #[test]
    fn only_the_settings_and_the_scripts_of_an_environment_are_changed() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path();
        fs::create_dir(top.join("bin")).unwrap();
        fs::write(top.join(SETTINGS), "home = /usr/bin\n").unwrap();
        let script = format!("#!{}/bin/python\n", top.display());
        for name in ["bin/tool", "tool"] {
            fs::write(top.join(name), &script).unwrap();
        }
        let environment = Environment {
            typed: top.to_owned(),
            directory: top.to_owned(),
            interpreter: PathBuf::new(),
            library: PathBuf::new(),
            base: b"v.base".to_vec(),
        };
        let text = |name: &str| shown(environment.text(b"v", Path::new(name), &top.join(name)));
        assert_eq!(text(SETTINGS).as_deref(), Some("home = @/v.base/bin\n"));
        assert_eq!(text("bin/tool").as_deref(), Some("#!@/v/bin/python\n"));
        assert_eq!(text("tool"), None);
    }

    #[test]
    fn an_environment_needs_a_base() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path();
        let of = || Environment::of(top, b"v").map(|found| found.is_some()).map_err(|refusal| refusal.to_string());
        assert_eq!(of(), Ok(false));
        fs::write(top.join(SETTINGS), "home = /nowhere/bin\nversion = 3.99.1\n").unwrap();
        assert!(of().unwrap_err().contains("is a Python environment, and its bin/python is missing"));
        let base = tempfile::tempdir().unwrap();
        fs::create_dir_all(base.path().join("bin")).unwrap();
        fs::create_dir(top.join("bin")).unwrap();
        fs::write(base.path().join("bin/python3.99"), "x").unwrap();
        std::os::unix::fs::symlink(base.path().join("bin/python3.99"), top.join("bin/python")).unwrap();
        assert!(of().unwrap_err().contains("the standard library of its python3.99 was not found"));
        let library = base.path().join("lib/python3.99");
        for directory in ["test", "json/test", "config-3.99", "site-packages"] {
            fs::create_dir_all(library.join(directory)).unwrap();
        }
        fs::write(library.join("os.py"), "").unwrap();
        let found = Environment::of(top, b"v").unwrap().unwrap();
        let tree = found.read_base().unwrap().staged;
        let paths: Vec<_> = tree.entries.iter().map(|entry| String::from_utf8(tree.path(entry)).unwrap()).collect();
        let below = "v.base/lib/python3.99";
        let expected = [
            "v.base/bin".to_owned(),
            "v.base/bin/python3.99".to_owned(),
            "v.base/lib".to_owned(),
            below.to_owned(),
            format!("{below}/json"),
            format!("{below}/json/test"),
            format!("{below}/os.py"),
        ];
        assert_eq!((paths, found.sent().copy), (expected.to_vec(), b"v.base/bin/python3.99".to_vec()));
    }

    #[test]
    fn a_program_in_a_directory_is_named_by_its_link() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("bin")).unwrap();
        std::os::unix::fs::symlink("/bin/sh", place.path().join("bin/python")).unwrap();
        let of = |program: PathBuf| inside(place.path(), &program);
        assert_eq!(of(place.path().join("bin/../bin/python")), Some(b"bin/python".to_vec()));
        assert_eq!(of("/bin/sh".into()), None);
    }
}
