//! Collects files of this agent's ranks once they have ended, and sends them to the launcher.
//!
//! A thread reads them. Each message holds a token until it is with the parent, so the thread has read a few messages more than
//! the network takes. A file that changes while it is read is reported: a process outside the job writes it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use bytes::Bytes;
use pmi::Rank;
use tokio::sync::oneshot;

use super::staging::NICE;
use super::uplink::Uplink;
use crate::core::limits::{COLLECT_ENTRIES_MAX, COLLECTED_FILES_MAX, STAGED_DEPTH_MAX, TEXT_BYTES_MAX};
use crate::core::{
    AgentId, BLOCK_BYTES, CollectPlan, Collected, CollectedFile, StageUp, UNFINISHED_PREFIX, is_relative, matching,
};
use crate::figures;
use crate::link::Receipt;
use crate::sys::{self, Below, BelowEntry};
use crate::tasks::Tasks;
use crate::wire::Lane;

/// Messages that have been read and are not with the parent.
const MESSAGES: usize = 8;

/// A rank, and its working directory.
pub(super) type RankPlace = (Rank, PathBuf);

/// Begins to collect the files of these ranks. The returned channel closes when all are sent.
pub(super) fn begin(
    plan: CollectPlan,
    agent: AgentId,
    ranks: Vec<RankPlace>,
    stage: Option<PathBuf>,
    parent: Uplink,
    tasks: &Tasks,
) -> oneshot::Receiver<()> {
    let (done, ended) = oneshot::channel::<()>();
    let outlet = Outlet::new(move |message, receipt| parent.send(Lane::Stage, message, receipt));
    let report = outlet.clone_for_report();
    let work = move || {
        let _done = done;
        sys::set_thread_nice(NICE);
        Collecting { plan: &plan, agent, outlet, files: 0, bytes: 0, entries: 0, too_large: None }
            .all(&ranks, stage.as_deref());
    };
    if let Err(error) = tasks.spawn_thread("collect", work) {
        let text = format!("files cannot be collected: {error}");
        report(StageUp::Collected(agent, Collected::Failed(text.as_bytes())).message().into());
    }
    ended
}

type Sink = Arc<dyn Fn(Bytes, Receipt) + Send + Sync>;

/// Sends messages as fast as the parent takes them.
struct Outlet {
    send: Sink,
    tokens: Receiver<()>,
    back: Sender<()>,
}

/// A place among the messages under way, which is free again when this is dropped.
struct Token(Sender<()>);

impl Drop for Token {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

impl Outlet {
    fn new(send: impl Fn(Bytes, Receipt) + Send + Sync + 'static) -> Self {
        // Bounded by the number of tokens.
        let (back, tokens) = channel();
        (0..MESSAGES).for_each(|_| {
            let _ = back.send(());
        });
        Self { send: Arc::new(send), tokens, back }
    }

    fn clone_for_report(&self) -> impl Fn(Bytes) + use<> {
        let send = Arc::clone(&self.send);
        move |message| send(message, Receipt::default())
    }

    fn push(&self, message: Vec<u8>) {
        // It never closes: this has a sender.
        let _ = self.tokens.recv();
        (self.send)(message.into(), Receipt::holding(Token(self.back.clone())));
    }
}

/// The end of the search: it has found too much.
struct Full;

struct Collecting<'a> {
    plan: &'a CollectPlan,
    agent: AgentId,
    outlet: Outlet,
    files: usize,
    bytes: u64,
    entries: usize,
    /// The first file that exceeds what is left of the limit, and how many do.
    too_large: Option<(String, usize)>,
}

impl Collecting<'_> {
    fn all(&mut self, ranks: &[RankPlace], stage: Option<&Path>) {
        self.find(ranks, stage);
        if let Some((first, count)) = self.too_large.take() {
            let most = figures::bytes(self.plan.bytes_max());
            let files = if count == 1 { format!("'{first}'") } else { format!("{count} of them, such as '{first}'") };
            self.report(&format!("they exceed {most} with {files}; --collect-max raises that limit"));
        }
    }

    fn find(&mut self, ranks: &[RankPlace], stage: Option<&Path>) {
        let mut known = BTreeSet::new();
        for (index, pattern) in self.plan.patterns().iter().enumerate() {
            for (rank, place) in ranks {
                let place = if pattern.is_in_stage_directory() { stage } else { Some(place.as_path()) };
                let Some(place) = place else { continue };
                let directory = match Below::open(place) {
                    Ok(directory) => directory,
                    Err(error) => {
                        if known.insert((index, None, place)) {
                            self.report(&format!("'{}' cannot be read: {error}", place.display()));
                        }
                        continue;
                    }
                };
                // Ranks in one directory have the same files: they are the first one's.
                let Ok(identity) = directory.identity() else { continue };
                if !known.insert((index, Some(identity), Path::new(""))) {
                    continue;
                }
                self.entries = 0;
                let components = pattern.components();
                let search = Search { rank: *rank, pattern: index as u32, name: Vec::new() };
                let looked = self.look(&directory, &[&components], &search, 0);
                // The files of other ranks have other directories.
                if looked.is_err() && self.files > COLLECTED_FILES_MAX {
                    return;
                }
            }
        }
    }

    /// Looks for files of a directory that match one of these patterns. An empty pattern matches everything.
    fn look(&mut self, directory: &Below, patterns: &[&[&[u8]]], search: &Search, depth: usize) -> Result<(), Full> {
        let takes_all = patterns.iter().any(|pattern| pattern.is_empty());
        let names: Vec<OsString> = match patterns {
            // A name without a pattern needs no list of the directory.
            [[only, ..]] if !is_pattern(only) => vec![OsStr::from_bytes(only).to_owned()],
            _ => match directory.names() {
                Ok(names) => names,
                Err(error) => {
                    self.report(&format!("'{}' cannot be read: {error}", search.shown(OsStr::new(""))));
                    return Ok(());
                }
            },
        };
        for name in names {
            // The launcher may be bringing files to this directory.
            if name.as_bytes().starts_with(UNFINISHED_PREFIX.as_bytes()) {
                continue;
            }
            self.entries += 1;
            if self.entries > COLLECT_ENTRIES_MAX {
                self.report(&format!("more than {COLLECT_ENTRIES_MAX} files were looked at for one pattern"));
                return Err(Full);
            }
            let found: Vec<_> = patterns.iter().map(|pattern| matching(pattern, name.as_bytes())).collect();
            let is_match = takes_all || found.iter().any(|found| found.is_match);
            let mut below: Vec<&[&[u8]]> = found.iter().flat_map(|found| found.below).flatten().collect();
            if is_match {
                // All that a matching directory has.
                below = vec![&[]];
            }
            if !is_match && below.is_empty() {
                continue;
            }
            let is_named = matches!(patterns, [[only, ..]] if !is_pattern(only));
            match directory.entry(&name) {
                Ok(BelowEntry::Directory(inner)) if !below.is_empty() && depth < STAGED_DEPTH_MAX => {
                    self.look(&inner, &below, &search.below(&name), depth + 1)?;
                }
                Ok(BelowEntry::File(file, found)) if is_match => {
                    self.file(file, found.len(), found.mode() & 0o100 != 0, search, &name)?;
                }
                Ok(BelowEntry::Directory(_) | BelowEntry::File(..) | BelowEntry::Other) => {}
                Err(error) if is_named && error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => self.report(&format!("'{}' cannot be read: {error}", search.shown(&name))),
            }
        }
        Ok(())
    }

    fn file(
        &mut self,
        mut file: File,
        length: u64,
        is_executable: bool,
        search: &Search,
        name: &OsStr,
    ) -> Result<(), Full> {
        let path = search.path(name);
        if !is_relative(&path) {
            self.report(&format!("the name of '{}' is too long", search.shown(name)));
            return Ok(());
        }
        self.files += 1;
        if self.files > COLLECTED_FILES_MAX {
            self.report(&format!("there are more than {COLLECTED_FILES_MAX} files"));
            return Err(Full);
        }
        // A file may be longer than its disk. Smaller ones, of other ranks perhaps, are sent.
        match self.bytes.checked_add(length).filter(|bytes| *bytes <= self.plan.bytes_max()) {
            Some(bytes) => self.bytes = bytes,
            None => {
                self.too_large.get_or_insert_with(|| (search.shown(name), 0)).1 += 1;
                return Ok(());
            }
        }
        self.send(Collected::File(CollectedFile {
            rank: search.rank,
            pattern: search.pattern,
            is_executable,
            name: &path,
        }));
        let mut left = length;
        let mut block = vec![0; BLOCK_BYTES];
        while left > 0 {
            let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK_BYTES);
            match file.read(&mut block[..wanted]) {
                Ok(0) => break,
                Ok(count) => {
                    self.send(Collected::Data(&block[..count]));
                    left -= count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.report(&format!("'{}' cannot be read: {error}", search.shown(name)));
                    return Ok(());
                }
            }
        }
        if left > 0 {
            self.report(&format!("'{}' became shorter while it was read", search.shown(name)));
        } else {
            self.send(Collected::Complete);
        }
        Ok(())
    }

    fn report(&self, why: &str) {
        let end = (0..=why.len().min(TEXT_BYTES_MAX)).rev().find(|at| why.is_char_boundary(*at)).unwrap_or(0);
        self.send(Collected::Failed(&why.as_bytes()[..end]));
    }

    fn send(&self, collected: Collected<'_>) {
        self.outlet.push(StageUp::Collected(self.agent, collected).message());
    }
}

/// The position of a search.
struct Search {
    rank: Rank,
    pattern: u32,
    /// The path of the directory, with a slash at its end if it is not empty.
    name: Vec<u8>,
}

impl Search {
    fn path(&self, name: &OsStr) -> Vec<u8> {
        [&self.name, name.as_bytes()].concat()
    }

    fn below(&self, name: &OsStr) -> Self {
        let mut path = self.path(name);
        path.push(b'/');
        Self { name: path, ..*self }
    }

    fn shown(&self, name: &OsStr) -> String {
        String::from_utf8_lossy(&self.path(name)).into_owned()
    }
}

/// Whether a component matches other names than its own.
fn is_pattern(component: &[u8]) -> bool {
    component.iter().any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::Mutex;

    use super::*;
    use crate::core::CollectPattern;

    /// Returns what is sent, a line for each message.
    fn collected(patterns: &[&str], bytes_max: u64, ranks: &[RankPlace], stage: Option<&Path>) -> Vec<String> {
        let patterns = patterns.iter().map(|text| CollectPattern::new(text.as_bytes()).unwrap()).collect();
        let plan = CollectPlan::new(patterns, bytes_max).unwrap();
        let sent = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&sent);
        let outlet = Outlet::new(move |message: Bytes, _receipt| {
            let line = match StageUp::parse(&message) {
                Some(StageUp::Collected(AgentId(7), collected)) => match collected {
                    Collected::File(CollectedFile { rank, pattern, is_executable, name }) => {
                        format!("{rank} {pattern} {is_executable} {}", String::from_utf8_lossy(name))
                    }
                    Collected::Data(bytes) => format!("{} bytes", bytes.len()),
                    Collected::Complete => "complete".to_owned(),
                    Collected::Failed(why) => format!("failed: {}", String::from_utf8_lossy(why)),
                },
                other => panic!("{other:?}"),
            };
            sink.lock().unwrap().push(line);
        });
        Collecting { plan: &plan, agent: AgentId(7), outlet, files: 0, bytes: 0, entries: 0, too_large: None }
            .all(ranks, stage);
        sent.lock().unwrap().clone()
    }

    #[test]
    fn files_that_match_are_sent_once() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path();
        fs::create_dir_all(top.join("out/deep")).unwrap();
        fs::write(top.join("out/a.dat"), vec![1; BLOCK_BYTES + 1]).unwrap();
        fs::write(top.join("out/deep/b.dat"), "").unwrap();
        fs::write(top.join("other"), "x").unwrap();
        let ranks = [(Rank(3), top.to_owned()), (Rank(4), top.join("."))];
        let lines = collected(&["out/*.dat"], 1 << 20, &ranks, None);
        assert_eq!(lines, ["3 0 false out/a.dat", "65536 bytes", "1 bytes", "complete"]);
        // A directory that matches, and a pattern for the directory of the staged files.
        let lines = collected(&["o*t", "$SCELA_STAGE_DIR/b*"], 1 << 20, &ranks[..1], Some(&top.join("out/deep")));
        let expected =
            ["3 0 false out/a.dat", "65536 bytes", "1 bytes", "complete", "3 0 false out/deep/b.dat", "complete"];
        assert_eq!(lines[..6], expected);
        assert_eq!(lines[6..], ["3 1 false b.dat", "complete"]);
        assert_eq!(collected(&["none", "$SCELA_STAGE_DIR/b*"], 9, &ranks, None), Vec::<String>::new());
    }

    #[test]
    fn files_that_are_being_brought_back_are_left_out() {
        let place = tempfile::tempdir().unwrap();
        let unfinished = place.path().join(format!("res/{UNFINISHED_PREFIX}x"));
        fs::create_dir_all(&unfinished).unwrap();
        fs::write(unfinished.join("1"), "x").unwrap();
        fs::write(place.path().join("res/a"), "").unwrap();
        let ranks = [(Rank(0), place.path().to_owned())];
        for pattern in ["*", "**", "res/.*", "res/.scela-collect-x"] {
            let lines = collected(&[pattern], 99, &ranks, None);
            let expected: &[&str] = if pattern.starts_with('*') { &["0 0 false res/a", "complete"] } else { &[] };
            assert_eq!(lines, expected, "{pattern}");
        }
    }

    #[test]
    fn links_are_not_followed() {
        let (place, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(other.path().join("secret"), "x").unwrap();
        symlink(other.path(), place.path().join("directory")).unwrap();
        symlink(other.path().join("secret"), place.path().join("file")).unwrap();
        let ranks = [(Rank(0), place.path().to_owned())];
        for pattern in ["directory/secret", "file", "*", "**/*"] {
            let lines = collected(&[pattern], 99, &ranks, None);
            assert!(lines.iter().all(|line| line.starts_with("failed")), "{pattern}: {lines:?}");
        }
    }

    #[test]
    fn what_cannot_be_collected_is_reported() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("a"), vec![0; 60]).unwrap();
        fs::write(place.path().join("b"), vec![0; 60]).unwrap();
        let ranks = [(Rank(0), place.path().to_owned()), (Rank(1), "/nowhere".into()), (Rank(2), "/nowhere".into())];
        let lines = collected(&["*"], 100, &ranks, None);
        assert_eq!(
            lines,
            [
                "0 0 false a",
                "60 bytes",
                "complete",
                "failed: '/nowhere' cannot be read: No such file or directory (os error 2)",
                "failed: they exceed 100 B with 'b'; --collect-max raises that limit"
            ]
        );
        // Longer than the disk, before the files of another rank.
        let sparse = place.path().join("0");
        fs::create_dir(&sparse).unwrap();
        for name in ["a", "b"] {
            fs::File::create(sparse.join(name)).unwrap().set_len(20 << 30).unwrap();
        }
        let both = [(Rank(1), sparse.clone()), (Rank(0), place.path().to_owned())];
        let lines = collected(&["?"], 100, &both, None);
        let told = "failed: they exceed 100 B with 5 of them, such as 'a'; --collect-max raises that limit";
        assert_eq!(lines, ["0 0 false a", "60 bytes", "complete", told]);
        let lines = collected(&["c"], 100, &ranks, None);
        assert_eq!(lines, ["failed: '/nowhere' cannot be read: No such file or directory (os error 2)"]);
    }
}
