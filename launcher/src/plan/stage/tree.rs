//! Reads the directories of `--stage-dir`: their files, directories and links, and their times and modes.
//!
//! A link that stays in its directory is kept. One that leads to something else that is sent leads to the copy. Any other one is
//! refused, as are sockets, FIFOs and devices: nodes could not have the same.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nla::core::limits::{STAGED_DEPTH_MAX, STAGED_ENTRIES_MAX};
use nla::core::{StagedTree, TreeEntry, TreeKind, is_inside};
use nla::driver::StageSource;

use crate::refusal::Refusal;

/// The option whose value is read.
const OPTION: &str = "--stage-dir";

/// A place on this machine that is sent, and where its copy is in the directory of the staged files.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    /// The place, without links.
    pub(super) original: PathBuf,
    /// The copy's path.
    pub(super) copy: Vec<u8>,
}

/// The parts of a text, between which agents put the path of their directory.
pub(super) type TextParts = Vec<Vec<u8>>;

/// Decides about the entries of a directory.
pub(super) struct Rules<'a> {
    /// Returns whether an entry of this name is left out. The number says how many directories of the tree are above it.
    pub(super) leaves_out: &'a dyn Fn(&OsStr, usize) -> bool,
    /// Returns the parts of a text that names its directory. Gets the path relative to the tree.
    pub(super) text: &'a dyn Fn(&Path, &Path) -> Option<TextParts>,
    /// Files to which links lead out are sent in place of the links.
    pub(super) follows_links: bool,
}

/// A directory that is being read.
pub(super) struct Tree {
    pub(super) staged: StagedTree,
    /// The source of each regular file, in the order of the entries.
    pub(super) sources: Vec<StageSource>,
    /// The paths of all files that are named like libraries.
    pub(super) libraries: Vec<PathBuf>,
    /// The other files that are sent.
    sent: Vec<Sent>,
}

impl Tree {
    pub(super) fn new(name: Vec<u8>, sent: &[Sent]) -> Self {
        let staged = StagedTree { name, entries: Vec::new() };
        Self { staged, sources: Vec::new(), libraries: Vec::new(), sent: sent.to_vec() }
    }

    /// Adds a directory. Returns its number, as parents are named.
    pub(super) fn add_directory(&mut self, parent: u32, name: &OsStr, found: &Metadata) -> Result<u32, Refusal> {
        self.add(parent, name, TreeKind::Directory, found)
    }

    /// Adds a regular file.
    pub(super) fn add_file(&mut self, parent: u32, name: &OsStr, path: &Path, found: &Metadata) -> Result<(), Refusal> {
        self.sources.push(StageSource::found(path.to_owned(), found));
        let text = name.as_bytes();
        if text.ends_with(b".so") || text.windows(4).any(|part| part == b".so.") {
            self.libraries.push(path.to_owned());
        }
        self.add(parent, name, TreeKind::File { bytes: found.len() }, found).map(drop)
    }

    fn add(&mut self, parent: u32, name: &OsStr, kind: TreeKind, found: &Metadata) -> Result<u32, Refusal> {
        if self.staged.entries.len() >= STAGED_ENTRIES_MAX {
            let text =
                format!("option '{OPTION}': a directory has more than {STAGED_ENTRIES_MAX} files and directories");
            return Err(Refusal::new(text, "name a smaller one, or pack it into a file for '--stage-file'"));
        }
        let modified = (found.mtime(), u32::try_from(found.mtime_nsec()).unwrap_or_default());
        let mode = (found.mode() & 0o777) as u16;
        self.staged.entries.push(TreeEntry { parent, name: name.as_bytes().to_vec(), kind, mode, modified });
        Ok(self.staged.entries.len() as u32)
    }

    /// Adds everything in the directory `path`, which is `depth` directories below that of the staged files, and `below`
    /// directories below the one that was named.
    pub(super) fn read(
        &mut self,
        parent: u32,
        top: &Path,
        path: &Path,
        rules: &Rules<'_>,
        depth: usize,
    ) -> Result<(), Refusal> {
        if depth > STAGED_DEPTH_MAX {
            let text = format!(
                "option '{OPTION}': '{}' has more than {STAGED_DEPTH_MAX} directories above it",
                path.display()
            );
            return Err(Refusal::new(text, "name a directory of fewer levels"));
        }
        let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut names: Vec<OsString> =
            entries.map_err(|error| unreadable(path, &error))?.iter().map(fs::DirEntry::file_name).collect();
        // The same chunks each time.
        names.sort();
        let below = path.strip_prefix(top).map_or(0, |below| below.components().count());
        for name in names.into_iter().filter(|name| !(rules.leaves_out)(name, below)) {
            let entry = path.join(&name);
            let found = fs::symlink_metadata(&entry).map_err(|error| unreadable(&entry, &error))?;
            if found.is_dir() {
                let own = self.add_directory(parent, &name, &found)?;
                self.read(own, top, &entry, rules, depth + 1)?;
            } else if found.is_symlink() {
                self.add_link(parent, &name, &entry, rules, depth)?;
            } else if found.is_file() {
                let relative = entry.strip_prefix(top).unwrap_or(&entry);
                match (rules.text)(relative, &entry) {
                    Some(parts) => {
                        let parts = parts.into_iter().map(Into::into).collect();
                        self.add(parent, &name, TreeKind::Text { parts }, &found)?;
                    }
                    None => self.add_file(parent, &name, &entry, &found)?,
                }
            } else {
                let text =
                    format!("option '{OPTION}': '{}' is neither a file, a directory nor a link", entry.display());
                return Err(Refusal::new(text, "remove it, or name another directory").of_system());
            }
        }
        Ok(())
    }

    fn add_link(
        &mut self,
        parent: u32,
        name: &OsStr,
        path: &Path,
        rules: &Rules<'_>,
        depth: usize,
    ) -> Result<(), Refusal> {
        let target = fs::read_link(path).map_err(|error| unreadable(path, &error))?.into_os_string().into_vec();
        let found = fs::symlink_metadata(path).map_err(|error| unreadable(path, &error))?;
        // Up to the directory itself, which is one level below that of the staged files.
        let target = if is_inside(&target, depth - 1) { Some(target) } else { self.copy_of(path, depth) };
        if let Some(target) = target {
            return self.add(parent, name, TreeKind::Link { target }, &found).map(drop);
        }
        if rules.follows_links
            && let Ok(found) = fs::metadata(path)
        {
            // Directories are not followed: they could lead anywhere.
            return if found.is_file() { self.add_file(parent, name, path, &found) } else { Ok(()) };
        }
        let leads = fs::read_link(path).unwrap_or_default();
        let text = format!(
            "option '{OPTION}': the link '{}' leads to '{}', which is not sent",
            path.display(),
            leads.display()
        );
        Err(Refusal::new(text, "stage that too, or replace the link by what it leads to, for example with 'cp -rL'")
            .of_system())
    }

    /// Returns the target of a link to the copy of what the link at `path` leads to, if that is sent.
    fn copy_of(&self, path: &Path, depth: usize) -> Option<Vec<u8>> {
        let leads = path.canonicalize().ok()?;
        let (sent, rest) = self.sent.iter().find_map(|sent| Some((sent, leads.strip_prefix(&sent.original).ok()?)))?;
        let mut target = b"../".repeat(depth);
        target.extend_from_slice(&sent.copy);
        if !rest.as_os_str().is_empty() {
            target.push(b'/');
            target.extend_from_slice(rest.as_os_str().as_bytes());
        }
        is_inside(&target, depth).then_some(target)
    }
}

/// The refusal of something that cannot be read.
pub(super) fn unreadable(path: &Path, error: &io::Error) -> Refusal {
    let text = format!("option '{OPTION}': '{}' cannot be read: {error}", path.display());
    Refusal::new(text, "check its name and permissions").of_system()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const ALL: Rules<'_> = Rules { leaves_out: &|_, _| false, text: &|_, _| None, follows_links: false };

    fn read(top: &Path, rules: &Rules<'_>, sent: &[Sent]) -> Result<Vec<String>, String> {
        let mut tree = Tree::new(b"t".to_vec(), sent);
        tree.read(0, top, top, rules, 1).map_err(|refusal| refusal.to_string())?;
        let files = tree.staged.entries.iter().filter(|entry| matches!(entry.kind, TreeKind::File { .. })).count();
        assert_eq!(tree.sources.len(), files);
        let shown = |entry: &TreeEntry| {
            let path = String::from_utf8_lossy(&tree.staged.path(entry)).into_owned();
            match &entry.kind {
                TreeKind::Directory => path + "/",
                TreeKind::File { bytes } => format!("{path} {bytes}"),
                TreeKind::Text { parts } => format!("{path} {}", parts.len()),
                TreeKind::Link { target } => format!("{path} -> {}", String::from_utf8_lossy(target)),
            }
        };
        Ok(tree.staged.entries.iter().map(shown).collect())
    }

    #[test]
    fn entries_are_read_in_order_with_links_that_stay_inside() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path();
        fs::create_dir_all(top.join("d/e")).unwrap();
        fs::write(top.join("d/f"), "12345").unwrap();
        fs::write(top.join("a"), "").unwrap();
        symlink("../a", top.join("d/up")).unwrap();
        symlink("d", top.join("z")).unwrap();
        // Absolute, and in a roundabout way.
        symlink(top.join("d/f"), top.join("d/e/far")).unwrap();
        symlink("d/../a", top.join("y")).unwrap();
        let sent = [Sent { original: top.canonicalize().unwrap(), copy: b"t".to_vec() }];
        let expected = [
            "t/a 0",
            "t/d/",
            "t/d/e/",
            "t/d/e/far -> ../../../t/d/f",
            "t/d/f 5",
            "t/d/up -> ../a",
            "t/y -> ../t/a",
            "t/z -> d",
        ];
        assert_eq!(read(top, &ALL, &sent).unwrap(), expected);
        let rules = Rules { leaves_out: &|name, depth| name == "d" && depth == 0, ..ALL };
        assert_eq!(read(top, &rules, &sent).unwrap(), ["t/a 0", "t/y -> ../t/a", "t/z -> d"]);
    }

    #[test]
    fn what_nodes_could_not_have_is_refused() {
        let (place, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let top = place.path();
        fs::write(other.path().join("file"), "x").unwrap();
        let link = top.join("link");
        for target in [other.path().join("file"), "../../etc/passwd".into(), "/nowhere".into()] {
            symlink(&target, &link).unwrap();
            let error = read(top, &ALL, &[]).unwrap_err();
            let expected = format!("the link '{}' leads to '{}', which is not sent", link.display(), target.display());
            assert!(error.contains(&expected), "{error}");
            fs::remove_file(&link).unwrap();
        }
        symlink(other.path().join("file"), &link).unwrap();
        let rules = Rules { follows_links: true, ..ALL };
        assert_eq!(read(top, &rules, &[]).unwrap(), ["t/link 1"]);
        let sent = [Sent { original: other.path().canonicalize().unwrap(), copy: b"other".to_vec() }];
        assert_eq!(read(top, &ALL, &sent).unwrap(), ["t/link -> ../other/file"]);
        nix::unistd::mkfifo(&top.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = read(top, &ALL, &sent).unwrap_err();
        assert!(error.contains("pipe' is neither a file, a directory nor a link"), "{error}");
        let missing = top.join("missing");
        assert!(read(&missing, &ALL, &[]).unwrap_err().contains("missing' cannot be read: No such file"));
    }

    #[test]
    fn depth_is_bounded() {
        let place = tempfile::tempdir().unwrap();
        let chain: PathBuf =
            std::iter::once(place.path().to_owned()).chain((1..STAGED_DEPTH_MAX).map(|_| "d".into())).collect();
        fs::create_dir_all(&chain).unwrap();
        assert_eq!(read(place.path(), &ALL, &[]).unwrap().len(), STAGED_DEPTH_MAX - 1);
        fs::create_dir(chain.join("d")).unwrap();
        assert!(read(place.path(), &ALL, &[]).unwrap_err().contains("directories above it"));
    }
}
