//! Writes the files of ranks that agents send at the end of a session.
//!
//! A thread writes them to a directory of their own inside the user's, under numbers. When all have arrived, they get their
//! names: only then is it known which names several ranks have. No name of a rank leads out of the user's directory, and no link
//! there is followed. A file of the same name is replaced. If the session ends before all have arrived, nothing of them is left.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use bytes::Bytes;
use nla::core::limits::COLLECTED_FILES_MAX;
use nla::core::{AgentId, CollectPlan, Collected, CollectedFile, StageUp, UNFINISHED_PREFIX, one_line};
use nla::figures;
use nla::link::Receipt;
use nla::sys::Below;
use nla::tasks::Tasks;
use pmi::Rank;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::cluster::hosts::fold_within;
use crate::run::output::OutputEvent;
use crate::run::rank_locations::RankLocations;

/// Files that are open at a time. Further ones are opened for each message.
const FILES_OPEN_MAX: usize = 256;
/// The most reasons why files are missing that are reported, and the most bytes of a list of hosts.
const REASONS_MAX: usize = 8;
const HOSTS_BYTES_MAX: usize = 200;
/// How long the files of a collection that is given up may take to be removed.
const ABANDON_TIME: Duration = Duration::from_secs(5);

/// An order to the thread.
enum Order {
    Take(Bytes, Receipt),
    End,
}

/// The state of the thread before it starts.
type Waiting = (Receiver<Order>, Writing);

/// How a collection has ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum CollectionEnd {
    /// No message had arrived.
    NotBegun,
    /// The files that have arrived have their names, and what failed was reported.
    Finished,
    /// It was given up, and nothing of it is left.
    Removed,
    /// It was given up, and its file system does not answer: unfinished files may be left.
    Left,
}

/// The sending side. The thread starts with the first message.
#[derive(Clone)]
pub(crate) struct Collector {
    orders: Sender<Order>,
    waiting: Rc<RefCell<Option<Waiting>>>,
    /// Resolves when the thread has ended: to true if it has given the files their final names.
    finished: Rc<RefCell<Option<oneshot::Receiver<bool>>>>,
    flow: Arc<Flow>,
    events: UnboundedSender<OutputEvent>,
    tasks: Tasks,
}

/// How far the thread is, in bytes of messages.
#[derive(Debug, Default)]
struct Flow {
    queued: AtomicU64,
    done: AtomicU64,
    is_abandoned: AtomicBool,
}

impl Collector {
    /// Prepares the thread. `directories` has one for each pattern of the plan. `label` is the session's.
    pub(crate) fn new(
        plan: &CollectPlan,
        directories: Vec<PathBuf>,
        label: &str,
        locations: &Arc<RankLocations>,
        events: UnboundedSender<OutputEvent>,
        tasks: &Tasks,
    ) -> Self {
        // Bounded by the windows of the links that fill it.
        let (orders, incoming) = channel();
        let patterns = plan.patterns().iter().map(|pattern| pattern.text()).collect();
        let name = format!("{UNFINISHED_PREFIX}{label}-{}", std::process::id());
        let writing = Writing::new(patterns, directories, name, Arc::clone(locations), plan.bytes_max());
        let waiting = Rc::new(RefCell::new(Some((incoming, writing))));
        Self { orders, waiting, finished: Rc::default(), flow: Arc::default(), events, tasks: tasks.clone() }
    }

    /// Takes a message of an agent.
    pub(crate) fn take(&self, message: Bytes, receipt: Receipt) {
        self.flow.queued.fetch_add(message.len() as u64, Ordering::Relaxed);
        self.order(Order::Take(message, receipt));
    }

    /// Gives the files their names: [`OutputEvent::Done`] follows.
    pub(crate) fn end(&self) {
        self.order(Order::End);
    }

    /// Gives up what has not got its name: the files that have arrived are removed. Returns when that is done, after a few seconds
    /// at the latest. Does nothing after the end.
    pub(crate) async fn abandon(&self) -> CollectionEnd {
        self.flow.is_abandoned.store(true, Ordering::Relaxed);
        self.waiting.borrow_mut().take();
        let _ = self.orders.send(Order::End);
        let finished = self.finished.borrow_mut().take();
        let Some(finished) = finished else { return CollectionEnd::NotBegun };
        match timeout(ABANDON_TIME, finished).await {
            Ok(Ok(true)) => CollectionEnd::Finished,
            // The files of a thread that has panicked are removed as well.
            Ok(Ok(false) | Err(_)) => CollectionEnd::Removed,
            Err(_) => CollectionEnd::Left,
        }
    }

    /// Returns whether messages were taken that have not been written.
    pub(crate) fn is_pending(&self) -> bool {
        self.flow.queued.load(Ordering::Relaxed) > self.flow.done.load(Ordering::Relaxed)
    }

    /// Returns a number that grows whenever the thread has written something.
    pub(crate) fn progress(&self) -> u64 {
        self.flow.done.load(Ordering::Relaxed)
    }

    fn order(&self, order: Order) {
        let _ = self.orders.send(order);
        let Some((incoming, writing)) = self.waiting.borrow_mut().take() else { return };
        let (events, flow) = (self.events.clone(), Arc::clone(&self.flow));
        let (ended, finished) = oneshot::channel();
        self.finished.replace(Some(finished));
        let started = self.tasks.spawn_thread("collected", move || {
            // After a panic, too, the files are dropped first: whoever waits for `ended` finds them removed.
            let ended = ended;
            let mut writing = writing;
            let is_abandoned = || flow.is_abandoned.load(Ordering::Relaxed);
            while let Ok(Order::Take(message, receipt)) = incoming.recv() {
                if !is_abandoned() {
                    writing.take(&message);
                }
                flow.done.fetch_add(message.len() as u64, Ordering::Relaxed);
                drop(receipt);
            }
            let finishes = !is_abandoned();
            if finishes {
                writing.finish().into_iter().for_each(|event| drop(events.send(event)));
            } else {
                drop(writing);
            }
            let _ = events.send(OutputEvent::Done);
            let _ = ended.send(finishes);
        });
        if let Err(error) = started {
            let text = format!("files of ranks cannot be collected: no thread can be started: {error}");
            let _ = self.events.send(OutputEvent::Failed(text));
            let _ = self.events.send(OutputEvent::Done);
        }
    }
}

/// The user's directory, and the one in it for files that are not complete.
struct Place {
    target: Below,
    unfinished: Below,
}

/// A file that is being written.
struct Unfinished {
    pattern: usize,
    rank: Rank,
    name: Vec<u8>,
    number: String,
    file: Option<File>,
    bytes: u64,
    hash: Sha256,
}

/// A file that is complete.
struct Complete {
    pattern: usize,
    rank: Rank,
    name: Vec<u8>,
    file: Numbered,
}

/// A file that is complete: its number and its hash.
type Numbered = (String, [u8; 32]);

struct Writing {
    patterns: Vec<String>,
    directories: Vec<PathBuf>,
    name: String,
    locations: Arc<RankLocations>,
    bytes_max: u64,
    bytes: u64,
    places: BTreeMap<PathBuf, Place>,
    /// The file that each agent is sending.
    open: HashMap<AgentId, Unfinished>,
    complete: Vec<Complete>,
    count: usize,
    /// The agents of whose ranks files are missing, by the reason.
    failures: BTreeMap<String, BTreeSet<AgentId>>,
}

impl Writing {
    /// Creates the state before the first message. `name` is that of the directory for unfinished files.
    fn new(
        patterns: Vec<String>,
        directories: Vec<PathBuf>,
        name: String,
        locations: Arc<RankLocations>,
        bytes_max: u64,
    ) -> Self {
        Self {
            patterns,
            directories,
            name,
            locations,
            bytes_max,
            bytes: 0,
            places: BTreeMap::new(),
            open: HashMap::new(),
            complete: Vec::new(),
            count: 0,
            failures: BTreeMap::new(),
        }
    }

    fn take(&mut self, message: &[u8]) {
        let Some(StageUp::Collected(agent, collected)) = StageUp::parse(message) else {
            self.fail(AgentId::ROOT, "a message was malformed".to_owned());
            return;
        };
        match collected {
            Collected::File(file) => self.begin(agent, file),
            Collected::Data(bytes) => self.write(agent, bytes),
            Collected::Complete => {
                if let Some(Unfinished { pattern, rank, name, number, hash, .. }) = self.open.remove(&agent) {
                    self.complete.push(Complete { pattern, rank, name, file: (number, hash.finalize().into()) });
                }
            }
            Collected::Failed(why) => {
                self.drop_unfinished(agent);
                self.fail(agent, String::from_utf8_lossy(why).into_owned());
            }
        }
    }

    fn fail(&mut self, agent: AgentId, why: String) {
        // It may have the names of files, which are the ranks' choice.
        let why = one_line(why);
        if self.failures.len() < REASONS_MAX || self.failures.contains_key(&why) {
            self.failures.entry(why).or_default().insert(agent);
        }
    }

    fn begin(&mut self, agent: AgentId, file: CollectedFile<'_>) {
        self.drop_unfinished(agent);
        let pattern = file.pattern as usize;
        self.count += 1;
        if self.count > COLLECTED_FILES_MAX {
            return self.fail(agent, format!("there are more than {COLLECTED_FILES_MAX} files"));
        }
        let Some(directory) = self.directories.get(pattern).cloned() else {
            return self.fail(agent, "a file has no pattern".to_owned());
        };
        let number = self.count.to_string();
        let created =
            self.place(&directory).and_then(|place| place.unfinished.create(OsStr::new(&number), file.is_executable));
        match created {
            Ok(created) => {
                let created = (self.open.len() < FILES_OPEN_MAX).then_some(created);
                let name = file.name.to_vec();
                self.open.insert(
                    agent,
                    Unfinished { pattern, rank: file.rank, name, number, file: created, bytes: 0, hash: Sha256::new() },
                );
            }
            Err(error) => self.fail(agent, format!("'{}' cannot be written: {error}", directory.display())),
        }
    }

    /// Returns the places in a directory of the user's, which is made if there is none.
    fn place(&mut self, directory: &Path) -> io::Result<&Place> {
        if !self.places.contains_key(directory) {
            let target = Below::make(directory)?;
            let unfinished = target.directory(OsStr::new(&self.name))?;
            self.places.insert(directory.to_owned(), Place { target, unfinished });
        }
        self.places.get(directory).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write(&mut self, agent: AgentId, bytes: &[u8]) {
        // The file could not be created.
        let Some(unfinished) = self.open.get_mut(&agent) else { return };
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        unfinished.bytes += bytes.len() as u64;
        unfinished.hash.update(bytes);
        let directory = &self.directories[unfinished.pattern];
        let written = match (&mut unfinished.file, self.places.get(directory)) {
            _ if self.bytes > self.bytes_max => Err(io::Error::other(format!(
                "the files of all ranks exceed {}; --collect-max raises that limit",
                figures::bytes(self.bytes_max)
            ))),
            (Some(file), _) => file.write_all(bytes),
            (None, Some(place)) => {
                place.unfinished.append(OsStr::new(&unfinished.number)).and_then(|mut file| file.write_all(bytes))
            }
            (None, None) => Err(io::ErrorKind::NotFound.into()),
        };
        if let Err(error) = written {
            let text = format!("'{}' cannot be written: {error}", directory.display());
            self.drop_unfinished(agent);
            self.fail(agent, text);
        }
    }

    fn drop_unfinished(&mut self, agent: AgentId) {
        if let Some(unfinished) = self.open.remove(&agent)
            && let Some(place) =
                self.directories.get(unfinished.pattern).and_then(|directory| self.places.get(directory))
        {
            let _ = place.unfinished.remove(OsStr::new(&unfinished.number));
            // Others may take its room.
            self.bytes -= unfinished.bytes;
        }
    }

    /// Gives the files their names, and returns what is to be reported.
    fn finish(mut self) -> Vec<OutputEvent> {
        let left: Vec<AgentId> = self.open.keys().copied().collect();
        for agent in left {
            self.drop_unfinished(agent);
            self.fail(agent, "a file has not arrived completely".to_owned());
        }
        let complete = std::mem::take(&mut self.complete);
        let matched: BTreeSet<usize> = complete.iter().map(|file| file.pattern).collect();
        let mut names: BTreeMap<(PathBuf, Vec<u8>), BTreeMap<Rank, Numbered>> = BTreeMap::new();
        for Complete { pattern, rank, name, file } in complete {
            let directory = self.directories[pattern].clone();
            // Two patterns may match one file.
            let twice = names.entry((directory.clone(), name)).or_default().insert(rank, file);
            twice.into_iter().for_each(|twice| self.remove(&directory, &twice));
        }
        for ((directory, _), ranks) in &mut names {
            // Ranks that share a directory have the same files, whatever their hosts are.
            let mut hashes = ranks.values().map(|(_, hash)| *hash);
            let first = hashes.next();
            if hashes.all(|hash| Some(hash) == first) {
                while let Some((_, twice)) = (ranks.len() > 1).then(|| ranks.pop_last()).flatten() {
                    self.remove(directory, &twice);
                }
            }
        }
        let mut taken: BTreeSet<(PathBuf, Vec<u8>)> =
            names.iter().filter(|(_, ranks)| ranks.len() == 1).map(|(name, _)| name.clone()).collect();
        let mut failed = BTreeSet::new();
        for ((directory, name), ranks) in &names {
            let Some(place) = self.places.get(directory) else { continue };
            for (rank, (number, _)) in ranks {
                let mut own = name.clone();
                while ranks.len() > 1 && (own == *name || taken.contains(&(directory.clone(), own.clone()))) {
                    own.extend(format!(".{rank}").bytes());
                }
                if ranks.len() > 1 {
                    taken.insert((directory.clone(), own.clone()));
                }
                if let Err(error) = settle(place, number, &own) {
                    let path = directory.join(OsStr::from_bytes(&own));
                    failed.insert(format!("'{}' cannot be written: {error}", path.display()));
                    let _ = place.unfinished.remove(OsStr::new(number));
                }
            }
        }
        failed.into_iter().for_each(|why| self.fail(AgentId::ROOT, why));
        self.reports(&matched)
    }

    /// Removes a file that is complete.
    fn remove(&self, directory: &Path, (number, _): &Numbered) {
        if let Some(place) = self.places.get(directory) {
            let _ = place.unfinished.remove(OsStr::new(number));
        }
    }

    fn reports(&self, matched: &BTreeSet<usize>) -> Vec<OutputEvent> {
        let mut events = Vec::new();
        if self.failures.is_empty() {
            let unmatched: Vec<_> = (0..self.patterns.len()).filter(|pattern| !matched.contains(pattern)).collect();
            let text = |pattern: usize| format!("warning: no file of a rank matches '{}'", self.patterns[pattern]);
            events.extend(unmatched.into_iter().map(|pattern| OutputEvent::Noted(text(pattern))));
        }
        for (why, agents) in &self.failures {
            let hosts: BTreeSet<&str> = agents
                .iter()
                .filter(|agent| **agent != AgentId::ROOT)
                .map(|agent| self.locations.of_agent(*agent))
                .collect();
            let on =
                if hosts.is_empty() { String::new() } else { format!(" from {}", fold_within(hosts, HOSTS_BYTES_MAX)) };
            events.push(OutputEvent::Failed(format!("files were not collected{on}: {why}")));
        }
        events
    }
}

/// Removes the files that did not get their final names.
impl Drop for Writing {
    fn drop(&mut self) {
        for place in self.places.values() {
            for name in place.unfinished.names().unwrap_or_default() {
                let _ = place.unfinished.remove(&name);
            }
            let _ = place.target.remove_directory(OsStr::new(&self.name));
        }
    }
}

/// Moves a complete file to its name, whose directories are made.
fn settle(place: &Place, number: &str, name: &[u8]) -> io::Result<()> {
    let mut components: Vec<OsString> =
        name.split(|byte| *byte == b'/').map(|component| OsString::from_vec(component.to_vec())).collect();
    let Some(last) = components.pop() else { return Err(io::ErrorKind::InvalidFilename.into()) };
    let mut inner: Option<Below> = None;
    for component in components {
        let directory = inner.as_ref().unwrap_or(&place.target).directory(&component)?;
        inner = Some(directory);
    }
    place.unfinished.rename(OsStr::new(number), inner.as_ref().unwrap_or(&place.target), &last)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    struct World {
        place: tempfile::TempDir,
        writing: Writing,
    }

    impl World {
        fn new(bytes_max: u64) -> Self {
            let place = tempfile::tempdir().unwrap();
            let locations = RankLocations::of_agents("front".into(), vec!["n1".into(), "n2".into(), "n3".into()]);
            let patterns = vec!["*".to_owned(), "b*".to_owned()];
            let directories = vec![place.path().join("to"); 2];
            let writing =
                Writing::new(patterns, directories, format!("{UNFINISHED_PREFIX}x"), Arc::new(locations), bytes_max);
            Self { place, writing }
        }

        fn send(&mut self, agent: u32, collected: Collected<'_>) {
            self.writing.take(&StageUp::Collected(AgentId(agent), collected).message());
        }

        fn begin(&mut self, agent: u32, rank: u32, pattern: u32, name: &str) {
            let file = CollectedFile { rank: Rank(rank), pattern, is_executable: false, name: name.as_bytes() };
            self.send(agent, Collected::File(file));
        }

        fn file(&mut self, agent: u32, rank: u32, name: &str) {
            self.begin(agent, rank, 0, name);
            self.send(agent, Collected::Data(format!("of {rank}").as_bytes()));
            self.send(agent, Collected::Complete);
        }

        /// Returns the files with their texts, and the reports.
        fn finish(self) -> (Vec<String>, Vec<String>) {
            let reports = self.writing.finish().into_iter().map(|event| match event {
                OutputEvent::Failed(text) | OutputEvent::Noted(text) => text,
                other => panic!("{other:?}"),
            });
            let reports = reports.map(|text| text.replace(&self.place.path().display().to_string(), "PLACE")).collect();
            (texts(&self.place.path().join("to")), reports)
        }
    }

    /// Returns the files below a directory with their texts, and its empty directories.
    fn texts(top: &Path) -> Vec<String> {
        let (mut files, mut left) = (Vec::new(), vec![top.to_owned()]);
        while let Some(directory) = left.pop() {
            let entries: Vec<_> = fs::read_dir(&directory).into_iter().flatten().flatten().collect();
            if entries.is_empty() && directory != top {
                files.push(format!("{}/", directory.strip_prefix(top).unwrap().display()));
            }
            for path in entries.iter().map(fs::DirEntry::path) {
                if path.is_dir() && !path.is_symlink() {
                    left.push(path);
                } else {
                    let name = path.strip_prefix(top).unwrap();
                    files.push(format!("{} {}", name.display(), fs::read_to_string(&path).unwrap_or_default()));
                }
            }
        }
        files.sort();
        files
    }

    /// Sends these messages to a collector, ends or abandons it, and returns its end, what is left, and the reports.
    fn collected(messages: &[Collected<'_>], ends: bool) -> (CollectionEnd, Vec<String>, Vec<String>) {
        let place = tempfile::tempdir().unwrap();
        let to = place.path().join("to");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let panics = nla::tasks::Panics::new("test");
            let (events, mut output) = tokio::sync::mpsc::unbounded_channel();
            let locations = Arc::new(RankLocations::of_agents("front".into(), vec!["n1".into()]));
            let pattern = nla::core::CollectPattern::new(b"*").unwrap();
            let plan = CollectPlan::new(vec![pattern], 1000).unwrap();
            let collector = Collector::new(&plan, vec![to.clone()], "x", &locations, events, &panics.tasks());
            for message in messages {
                collector.take(StageUp::Collected(AgentId(1), *message).message().into(), Receipt::default());
            }
            let mut reports = Vec::new();
            if ends {
                collector.end();
                while let Some(event) = output.recv().await
                    && !matches!(event, OutputEvent::Done)
                {
                    reports.push(format!("{event:?}"));
                }
            }
            (collector.abandon().await, texts(&to), reports)
        })
    }

    #[test]
    fn nothing_is_left_of_a_collection_that_is_abandoned() {
        let file = |name| Collected::File(CollectedFile { rank: Rank(0), pattern: 0, is_executable: false, name });
        let messages = [file(b"a"), Collected::Data(b"1"), Collected::Complete, file(b"b"), Collected::Data(b"2")];
        assert_eq!(collected(&messages, false), (CollectionEnd::Removed, vec![], vec![]));
        assert_eq!(collected(&messages[..3], true), (CollectionEnd::Finished, vec!["a 1".to_owned()], vec![]));
        assert_eq!(collected(&[], false), (CollectionEnd::NotBegun, vec![], vec![]));
    }

    #[test]
    fn no_name_of_a_file_makes_a_line_of_the_report() {
        let mut world = World::new(1000);
        fs::create_dir_all(world.place.path().join("to/d\nscela-run: error: x")).unwrap();
        world.send(1, Collected::Failed(b"'a\nscela-run: error: y' cannot be read: Permission denied"));
        world.file(1, 0, "d\nscela-run: error: x");
        let (_, reports) = world.finish();
        assert_eq!(reports.len(), 2, "{reports:?}");
        assert!(reports.iter().all(|text| !text.contains('\n') && text.contains("\\nscela-run")), "{reports:?}");
    }

    #[test]
    fn names_that_several_ranks_have_get_their_numbers() {
        let mut world = World::new(1000);
        world.file(1, 0, "out/a");
        world.file(2, 1, "out/a");
        world.file(2, 1, "out/a.1");
        world.file(3, 2, "b");
        for agent in [1, 2] {
            // As if both had the same directory.
            world.begin(agent, agent, 0, "shared");
            world.send(agent, Collected::Complete);
        }
        let (files, reports) = world.finish();
        assert_eq!(files, ["b of 2", "out/a.0 of 0", "out/a.1 of 1", "out/a.1.1 of 1", "shared "]);
        assert_eq!(reports, ["warning: no file of a rank matches 'b*'"]);
    }

    #[test]
    fn files_of_agents_may_arrive_in_turns() {
        let mut world = World::new(1000);
        world.begin(1, 0, 0, "a");
        world.begin(2, 1, 1, "b");
        world.send(1, Collected::Data(b"1"));
        world.send(2, Collected::Data(b"2"));
        world.send(1, Collected::Data(b"3"));
        world.send(2, Collected::Complete);
        world.send(1, Collected::Complete);
        assert_eq!(world.finish(), (vec!["a 13".to_owned(), "b 2".to_owned()], Vec::new()));
    }

    #[test]
    fn failures_are_folded_by_host_and_leave_nothing_unfinished() {
        let mut world = World::new(5);
        world.send(1, Collected::Failed(b"'x' cannot be read: Permission denied"));
        world.begin(2, 1, 0, "half");
        world.send(2, Collected::Data(b"..."));
        world.send(2, Collected::Failed(b"'x' cannot be read: Permission denied"));
        world.begin(3, 2, 0, "large");
        world.send(3, Collected::Data(b"......"));
        world.begin(1, 2, 0, "open");
        let (files, reports) = world.finish();
        let expected = [
            "files were not collected from n[1-2]: 'x' cannot be read: Permission denied",
            "files were not collected from n3: 'PLACE/to' cannot be written: the files of all ranks exceed 5 B; --collect-max raises that limit",
            "files were not collected from n1: a file has not arrived completely",
        ];
        assert_eq!(files, Vec::<String>::new());
        let mut expected = expected.map(str::to_owned).to_vec();
        expected.sort();
        let mut reports = reports;
        reports.sort();
        assert_eq!(reports, expected);
    }

    #[test]
    fn a_file_that_is_given_up_leaves_its_room_to_others() {
        let mut world = World::new(5);
        world.begin(1, 0, 0, "large");
        world.send(1, Collected::Data(b"......"));
        world.begin(2, 1, 0, "small");
        world.send(2, Collected::Data(b"....."));
        world.send(2, Collected::Complete);
        let (files, reports) = world.finish();
        assert_eq!((files, reports.len()), (vec!["small .....".to_owned()], 1));
    }

    #[test]
    fn no_name_leads_out_and_no_link_is_followed() {
        let mut world = World::new(1000);
        let outside = tempfile::tempdir().unwrap();
        let (to, other) = (world.place.path().join("to"), outside.path().to_owned());
        fs::create_dir_all(&to).unwrap();
        fs::write(other.join("f"), "kept").unwrap();
        symlink(&other, to.join("d")).unwrap();
        symlink(other.join("f"), to.join("l")).unwrap();
        world.file(1, 0, "d/f");
        world.file(1, 0, "l");
        let file = CollectedFile { rank: Rank(0), pattern: 0, is_executable: false, name: b"../g" };
        world.writing.take(&StageUp::Collected(AgentId(1), Collected::File(file)).message());
        let (files, reports) = world.finish();
        assert_eq!(files, ["d ", "l of 0"], "the link to a file was replaced");
        assert!(
            reports.iter().any(|text| text.contains("'PLACE/to/d/f' cannot be written: Not a directory")),
            "{reports:?}"
        );
        assert!(reports.iter().any(|text| text.contains("a message was malformed")), "{reports:?}");
        assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(other.join("f")).unwrap(), "kept");
    }
}
