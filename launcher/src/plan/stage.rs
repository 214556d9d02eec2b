//! The files that every node gets before ranks start: those of `--stage`, `--stage-file` and `--stage-dir`, and the library of
//! `--profile-comm`.
//!
//! `--stage` names the program of each command and all libraries that the dynamic loader would load for it, found by reading
//! their ELF files. No program is run for that. Left out are the libraries that must fit the node itself: the C library with its
//! loader, which is named in the program, and those of drivers.

mod python_environment;
mod tree;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use nla::core::limits::STAGED_FILES_MAX;
use nla::core::{
    CommandPlan, SessionPlan, StageError, StagePlan, StagedFile, StagedKind, StagedTree, in_stage_directory,
    staged_program,
};
use nla::driver::StageSource;
use nla::figures::{self, counted};

use self::python_environment::{Environment, inside};
use self::tree::{Rules, Sent, Tree};
use crate::plan::Plan;
use crate::plan::elf::{self, Object};
use crate::plan::profile;
use crate::refusal::Refusal;

/// A file for all nodes, as the user typed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageFile {
    /// The file. May be relative to the launcher's own directory.
    pub path: PathBuf,
    /// Its name in the directory of the staged files.
    pub name: Vec<u8>,
}

/// The beginnings of the names of libraries that nodes must have of their own: of glibc and musl, their loaders, and of drivers,
/// which must fit the kernel of the node.
const LEFT_OUT: [&str; 19] = [
    "ld-linux",
    "ld64.so",
    "ld-musl-",
    "ld.so",
    "libc.so",
    "libc.musl-",
    "libm.so",
    "libmvec.so",
    "libpthread.so",
    "libdl.so",
    "librt.so",
    "libresolv.so",
    "libutil.so",
    "libanl.so",
    "libnsl.so",
    "libnss_",
    "libthread_db.so",
    "libcuda.so",
    "libnvidia-",
];

/// Adds the files that the options ask for to the plan, and the library by which ranks are profiled if nodes are to get it.
pub(super) fn provide(plan: &mut Plan, wdir: &Path, traced: Option<&Path>) -> Result<(), Refusal> {
    let mut files = Files::default();
    let Plan { settings, options, .. } = plan;
    let directories: Vec<(PathBuf, &[u8])> =
        options.stage_dirs.iter().map(|StageFile { path, name }| (wdir.join(path), &name[..])).collect();
    for command in &mut settings.first.commands {
        command.staged = in_directories(command, &directories);
        if options.stage && command.staged.is_none() {
            command.staged = Some(staged_program(&files.add_program(&settings.session, command)?));
        }
    }
    for StageFile { path, name } in &options.stage_files {
        files.add("--stage-file", &wdir.join(path), StagedKind::File, name.clone())?;
    }
    if let Some(library) = traced {
        files.add("--profile-comm", library, StagedKind::File, profile::STAGED_NAME.into())?;
    }
    files.add_directories(&directories)?;
    let Files { staged, mut sources, trees, in_trees } = files;
    sources.extend(in_trees);
    let stage = StagePlan::new(staged, trees, options.stage_cache).map_err(refused)?;
    let (count, bytes) = (sources.len(), stage.lengths().fold(0, u64::saturating_add));
    if !stage.is_empty() && plan.options.verbose > 0 {
        plan.remarks.push(format!("every node gets {}, {}", counted(count as u64, "file"), figures::bytes(bytes)));
    }
    settings.session.stage = stage;
    plan.files = sources;
    Ok(())
}

fn refused(error: StageError) -> Refusal {
    let hint = match error {
        StageError::Name(_) | StageError::Reserved(_) | StageError::Twice(_) => {
            "--stage-file FILE=NAME and --stage-dir DIR=NAME choose a name"
        }
        _ => "name fewer or other files",
    };
    Refusal::new(format!("files cannot be staged: {error}"), hint)
}

/// Returns the path of the program's copy, if the program is in one of the directories that are sent, or is named by the variable of
/// the directory of the staged files.
fn in_directories(command: &CommandPlan, directories: &[(PathBuf, &[u8])]) -> Option<Vec<u8>> {
    if let Some(path) = in_stage_directory(&command.program) {
        return Some(path.strip_prefix(b"/")?.to_vec()).filter(|path| !path.is_empty());
    }
    // A name without a slash is searched in PATH.
    let program = Some(&command.program).filter(|program| program.contains(&b'/'))?;
    let program = Path::new(OsStr::from_bytes(&command.wdir)).join(OsStr::from_bytes(program));
    directories.iter().find_map(|(directory, name)| Some([name, &inside(directory, &program)?[..]].join(&b'/')))
}

/// The files so far, each with its source.
#[derive(Default)]
struct Files {
    staged: Vec<StagedFile>,
    sources: Vec<StageSource>,
    trees: Vec<StagedTree>,
    /// The sources of the files in `trees`, in their order.
    in_trees: Vec<StageSource>,
}

impl Files {
    /// Adds a file, unless it was added under this name before.
    fn add(&mut self, option: &str, path: &Path, kind: StagedKind, name: Vec<u8>) -> Result<(), Refusal> {
        let unreadable = |error| {
            let text = format!("option '{option}': '{}' cannot be read: {error}", path.display());
            Refusal::new(text, "check its name and permissions").of_system()
        };
        let (source, staged) = StageSource::open(path, kind, name).map_err(unreadable)?;
        let same_name = self.staged.iter().position(|other| other.kind == kind && other.name == staged.name);
        match same_name.map(|at| &self.sources[at]) {
            Some(known) if *known == source => Ok(()),
            Some(known) => {
                let (one, other, name) =
                    (known.path().display(), path.display(), String::from_utf8_lossy(&staged.name));
                let text = format!("option '{option}': '{one}' and '{other}' would both be staged as '{name}'");
                Err(Refusal::new(
                    text,
                    "stage them in jobs of their own, or name one of them with '--stage-file FILE=NAME'",
                ))
            }
            None => {
                self.staged.push(staged);
                self.sources.push(source);
                Ok(())
            }
        }
    }

    /// Adds directories under their names, and the bases of Python environments.
    fn add_directories(&mut self, directories: &[(PathBuf, &[u8])]) -> Result<(), Refusal> {
        let mut environments = Vec::new();
        let mut sent = Vec::new();
        for (path, name) in directories {
            let original = path.canonicalize().map_err(|error| tree::unreadable(path, &error))?;
            sent.push(Sent { original, copy: name.to_vec() });
            let environment = Environment::of(path, name)?;
            sent.extend(environment.as_ref().map(Environment::sent));
            environments.push(environment);
        }
        for ((path, name), environment) in directories.iter().zip(&environments) {
            let text = |relative: &Path, file: &Path| environment.as_ref()?.text(name, relative, file);
            let rules = Rules { leaves_out: &|_, _| false, text: &text, follows_links: false };
            let mut tree = Tree::new(name.to_vec(), &sent);
            tree.read(0, path, path, &rules, 1)?;
            let mut libraries = self.add_tree(tree);
            if let Some(environment) = environment {
                libraries.extend(self.add_tree(environment.read_base()?));
                libraries.push(environment.interpreter.clone());
                self.add_needs(libraries, &sent)?;
            }
        }
        Ok(())
    }

    /// Adds a directory that was read. Returns its libraries.
    fn add_tree(&mut self, tree: Tree) -> Vec<PathBuf> {
        self.trees.push(tree.staged);
        self.in_trees.extend(tree.sources);
        tree.libraries
    }

    /// Adds what the interpreter and the extension modules of an environment need. What is in a directory that is sent is found
    /// there. A library that is missing on this machine is not needed: many modules are optional.
    fn add_needs(&mut self, files: Vec<PathBuf>, sent: &[Sent]) -> Result<(), Refusal> {
        let library = StagedKind::Library;
        let mut known: BTreeSet<String> = self
            .staged
            .iter()
            .filter(|file| file.kind == library)
            .map(|file| String::from_utf8_lossy(&file.name).into_owned())
            .collect();
        let mut objects: Vec<Object> =
            files.into_iter().filter_map(|file| Some(Object { needs: elf::needs(&file)?, file })).collect();
        while let Some(object) = objects.pop() {
            for name in &object.needs.libraries {
                if is_left_out(name)
                    || name.contains('/')
                    || known.contains(name)
                    || self.staged.len() >= STAGED_FILES_MAX
                {
                    continue;
                }
                let Some(found) = elf::find_below(name, &[&object], None) else { continue };
                let file = found.file.canonicalize().unwrap_or_else(|_| found.file.clone());
                if sent.iter().any(|sent| file.starts_with(&sent.original)) {
                    continue;
                }
                known.insert(name.clone());
                self.add("--stage-dir", &found.file, library, name.clone().into_bytes())?;
                objects.push(found);
            }
        }
        Ok(())
    }

    /// Adds the program of a command and its libraries. Returns the program's name among the staged ones.
    fn add_program(&mut self, session: &SessionPlan, command: &CommandPlan) -> Result<Vec<u8>, Refusal> {
        let refused = |error| Refusal::new(format!("option '--stage': {error}"), "").of_system();
        let program = elf::file_of(session, command).map_err(refused)?;
        let name = program.file_name().unwrap_or(OsStr::new("program")).as_bytes().to_vec();
        self.add("--stage", &program, StagedKind::Program, name.clone())?;
        // The loader's $ORIGIN is the directory of the file itself.
        let file = program.canonicalize().unwrap_or(program);
        let library_path = elf::variable(session, command, "LD_LIBRARY_PATH");
        let find = |library: &str, chain: &[&Object]| elf::find_below(library, chain, library_path);
        // Any other file is a script, or needs no library.
        let needs = elf::needs(&file).unwrap_or_default();
        let libraries = closure(Object { file, needs }, &find).map_err(|missing| missing.refusal())?;
        for (library, file) in libraries {
            self.add("--stage", &file, StagedKind::Library, library.into_bytes())?;
        }
        Ok(name)
    }
}

/// Finds a library for the first of these objects. Each object was loaded for the one that follows it; the last is the program.
type Find<'a> = &'a dyn Fn(&str, &[&Object]) -> Option<Object>;

/// A library that cannot be staged.
#[derive(Debug, PartialEq, Eq)]
struct Missing {
    library: String,
    needed_by: PathBuf,
}

impl Missing {
    fn refusal(&self) -> Refusal {
        let Self { library, needed_by } = self;
        let (text, hint) = match library.contains('/') {
            false => ("was not found on this machine", "name its directory in LD_LIBRARY_PATH, or leave '--stage' out"),
            true => ("is needed by its path, so a staged one would not be loaded", "leave '--stage' out"),
        };
        let text = format!("option '--stage': '{library}', which '{}' needs, {text}", needed_by.display());
        Refusal::new(text, hint).of_system()
    }
}

/// Returns the names and files of all libraries that the loader would load for a program, in its order, without those that are
/// left out.
fn closure(program: Object, find: Find<'_>) -> Result<Vec<(String, PathBuf)>, Missing> {
    // Each object with the index of the one for which it was loaded.
    let mut objects = vec![(program, None)];
    let (mut known, mut libraries) = (BTreeSet::new(), Vec::new());
    let mut next = 0;
    while let Some((object, _)) = objects.get(next) {
        let chain: Vec<&Object> =
            std::iter::successors(Some(next), |at| objects[*at].1).map(|at| &objects[at].0).collect();
        let mut found = Vec::new();
        for library in object.needs.libraries.iter().filter(|library| !is_left_out(library)) {
            // The loader loads each name once. The plan refuses more files than this.
            if libraries.len() > STAGED_FILES_MAX || !known.insert(library.clone()) {
                continue;
            }
            let missing = || Missing { library: library.clone(), needed_by: object.file.clone() };
            let one = Some(library).filter(|library| !library.contains('/'));
            let one = one.and_then(|library| find(library, &chain)).ok_or_else(missing)?;
            libraries.push((library.clone(), one.file.clone()));
            found.push((one, Some(next)));
        }
        objects.extend(found);
        next += 1;
    }
    Ok(libraries)
}

fn is_left_out(library: &str) -> bool {
    LEFT_OUT.iter().any(|beginning| library.starts_with(beginning))
}

/// Returns the name under which a file is staged if the user gives none; `None` if its path names none.
pub(crate) fn own_name(path: &Path) -> Option<Vec<u8>> {
    Some(path.file_name()?.to_owned().into_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::elf::Needs;

    fn object(file: &str, libraries: &[&str]) -> Object {
        let libraries = libraries.iter().map(|name| (*name).to_owned()).collect();
        Object { file: file.into(), needs: Needs { libraries, ..Needs::default() } }
    }

    /// The closure of a program with the needs `own`, among these libraries.
    fn names(own: &[&str], known: &[(&str, &[&str])]) -> Result<Vec<String>, Missing> {
        let find = |name: &str, _: &[&Object]| {
            let (name, below) = known.iter().find(|(known, _)| *known == name)?;
            Some(object(&format!("/lib/{name}"), below))
        };
        let found = closure(object("/bin/a", own), &find)?;
        Ok(found.into_iter().map(|(name, _)| name).collect())
    }

    #[test]
    fn each_library_is_staged_once_and_those_of_the_node_are_left_out() {
        let known: &[(&str, &[&str])] = &[
            ("liba.so.1", &["libb.so", "libc.so.6", "libm.so.6"]),
            ("libb.so", &["liba.so.1", "libnss_files.so.2", "libstdc++.so.6"]),
            ("libstdc++.so.6", &["ld-linux-x86-64.so.2", "libgcc_s.so.1", "libpthread.so.0"]),
            ("libgcc_s.so.1", &["libdl.so.2", "librt.so.1", "libresolv.so.2"]),
            // Never looked at.
            ("libc.so.6", &["libmissing.so"]),
        ];
        let expected = ["liba.so.1", "libb.so", "libstdc++.so.6", "libgcc_s.so.1"].map(str::to_owned).to_vec();
        assert_eq!(names(&["liba.so.1", "libc.so.6"], known), Ok(expected));
        assert_eq!(names(&[], known), Ok(Vec::new()), "a static program, or a script");
        assert!(!is_left_out("libcurl.so.4") && !is_left_out("libmpi.so.12") && is_left_out("libcuda.so.1"));
    }

    #[test]
    fn the_hint_of_a_name_is_the_option_that_chooses_another() {
        let hint = |error| refused(error).hint().to_owned();
        for error in [StageError::Name, StageError::Reserved, StageError::Twice] {
            assert_eq!(hint(error("a".to_owned())), "--stage-file FILE=NAME and --stage-dir DIR=NAME choose a name");
        }
        assert_eq!(hint(StageError::TooLarge), "name fewer or other files");
    }

    #[test]
    fn a_library_is_searched_for_the_object_that_needs_it() {
        let chains = std::cell::RefCell::new(Vec::new());
        let find = |name: &str, chain: &[&Object]| {
            let files = chain.iter().map(|object| object.file.display().to_string()).collect::<Vec<_>>().join(" ");
            chains.borrow_mut().push(format!("{name}: {files}"));
            Some(object(&format!("/x/{name}"), if name == "one" { &["two"] } else { &[] }))
        };
        closure(object("/bin/a", &["one", "three"]), &find).unwrap();
        assert_eq!(chains.into_inner(), ["one: /bin/a", "three: /bin/a", "two: /x/one /bin/a"]);
    }

    #[test]
    fn a_library_that_is_not_found_is_named_with_the_file_that_needs_it() {
        let missing = names(&["liba.so"], &[("liba.so", &["libgone.so"])]).unwrap_err();
        let text = "option '--stage': 'libgone.so', which '/lib/liba.so' needs, was not found on this machine\n  \
                    hint: name its directory in LD_LIBRARY_PATH, or leave '--stage' out";
        assert_eq!((missing.refusal().with_hint(), missing.refusal().early_end().code()), (text.to_owned(), 251));
        let by_path = names(&["./libx.so"], &[("./libx.so", &[])]).unwrap_err().refusal().to_string();
        assert!(by_path.contains("'./libx.so', which '/bin/a' needs, is needed by its path"), "{by_path}");
    }

    #[test]
    fn the_number_of_libraries_is_bounded() {
        let many: Vec<String> = (0..2 * STAGED_FILES_MAX).map(|number| format!("lib{number}.so")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let known: Vec<(&str, &[&str])> = many.iter().map(|name| (*name, &[][..])).collect();
        assert_eq!(names(&many, &known).unwrap().len(), STAGED_FILES_MAX + 1);
    }

    #[test]
    fn two_files_do_not_share_a_name() {
        let place = tempfile::tempdir().unwrap();
        let (one, other) = (place.path().join("one"), place.path().join("other"));
        std::fs::write(&one, "1").unwrap();
        std::fs::write(&other, "2").unwrap();
        let mut files = Files::default();
        let mut add = |path: &Path, kind| files.add("--stage", path, kind, b"a".to_vec());
        assert_eq!((add(&one, StagedKind::Program), add(&one, StagedKind::Program)), (Ok(()), Ok(())));
        assert_eq!(add(&other, StagedKind::Library), Ok(()));
        let error = add(&other, StagedKind::Program).unwrap_err().to_string();
        assert!(error.ends_with("would both be staged as 'a'"), "{error}");
        assert_eq!((files.staged.len(), files.sources.len()), (2, 2));
    }
}
