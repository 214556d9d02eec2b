//! Takes the session's files from the parent: forwards their bytes to the children as they arrive, and writes them to a
//! directory of this agent.
//!
//! A thread writes, because the disk may be slow. A block's receipt is dropped when all children's links and the thread have taken
//! it; this lets the parent send more. So memory has at most a window of blocks, and the slowest member sets the pace. The
//! directory lives as long as the thread, which ends with the session.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::future::pending;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::core::{Room, SessionPlan, StageError, StagePart, StagePlan, StageStream, Variable};
use crate::link::{Link, Receipt};
use crate::sys::{StageDirectory, StageNote, StageRoom, stage_room};
use crate::tasks::Tasks;
use crate::wire::Lane;

/// How long the directory may take to be removed. Then the guardian removes it, once this process has exited.
const REMOVE_TIME: Duration = Duration::from_secs(5);

/// Bytes of the files, and their receipt. An empty block ends the files.
type Block = (Bytes, Arc<Receipt>);

/// The destination of the bytes.
pub(super) enum StageHub {
    /// The session's plan has not arrived. Blocks are stored, within the window of the link.
    Early(Vec<(Bytes, Receipt)>),
    /// They go to the children and to this agent's thread.
    Open {
        /// All children.
        children: Vec<Link>,
        /// The thread.
        own: mpsc::UnboundedSender<Block>,
    },
}

impl StageHub {
    /// Takes a block from the parent.
    pub(super) fn push(&mut self, bytes: Bytes, receipt: Receipt) {
        match self {
            Self::Early(blocks) => blocks.push((bytes, receipt)),
            Self::Open { children, own } => {
                let receipt = Arc::new(receipt);
                for child in children.iter() {
                    child.send(Lane::Stage, bytes.clone(), Receipt::holding(Arc::clone(&receipt)));
                }
                // A thread that has failed has reported that.
                let _ = own.send((bytes, receipt));
            }
        }
    }
}

/// The session's files on this agent.
pub(super) struct Staging {
    /// Takes the parent's blocks.
    pub(super) hub: Rc<RefCell<StageHub>>,
    /// The directory with all files, or why there is none.
    outcome: Option<oneshot::Receiver<Result<PathBuf, String>>>,
    /// Closed when the directory is removed.
    removed: Option<oneshot::Receiver<()>>,
}

impl Staging {
    pub(super) fn new() -> Self {
        Self { hub: Rc::new(RefCell::new(StageHub::Early(Vec::new()))), outcome: None, removed: None }
    }

    /// Begins to write the files of `session`, and to forward them to `children`. Fails if there can be no thread.
    pub(super) fn begin(
        &mut self,
        session: &SessionPlan,
        children: Vec<Link>,
        note: StageNote,
        tasks: &Tasks,
    ) -> Result<(), String> {
        // Bounded by the window of the parent's link: a block counts against it until the thread has taken the block.
        let (own, mut blocks) = mpsc::unbounded_channel();
        let early = self.hub.replace(StageHub::Open { children, own });
        let (finish, outcome) = oneshot::channel();
        let (remove, removed) = oneshot::channel();
        let (plan, places) = (session.stage.clone(), places(&session.environment));
        let work = move || {
            let _removed: oneshot::Sender<()> = remove;
            match receive(&plan, &places, note, &mut blocks) {
                Ok(directory) => {
                    // The agent may be leaving.
                    let _ = finish.send(Ok(directory.path().to_owned()));
                    // Until the end of the session.
                    while blocks.blocking_recv().is_some() {}
                }
                Err(why) => drop(finish.send(Err(why))),
            }
        };
        tasks.spawn_thread("stage", work).map_err(|error| format!("the files cannot be stored: {error}"))?;
        (self.outcome, self.removed) = (Some(outcome), Some(removed));
        if let StageHub::Early(blocks) = early {
            blocks.into_iter().for_each(|(bytes, receipt)| self.hub.borrow_mut().push(bytes, receipt));
        }
        Ok(())
    }

    /// Waits until all files are in their directory, once. Cancel-safe.
    pub(super) async fn finished(&mut self) -> Result<PathBuf, String> {
        let Some(outcome) = &mut self.outcome else { return pending().await };
        let outcome = outcome.await;
        self.outcome = None;
        match outcome {
            Ok(outcome) => outcome,
            // The thread has panicked. Its report ends this agent.
            Err(_) => pending().await,
        }
    }

    /// Begins to remove the directory, once. The returned channel closes when it is removed.
    pub(super) fn close(&mut self) -> Option<oneshot::Receiver<()>> {
        self.hub.replace(StageHub::Early(Vec::new()));
        self.removed.take()
    }

    /// Removes the directory, if that was not begun before.
    pub(super) async fn end(&mut self) {
        if let Some(removed) = self.close()
            && timeout(REMOVE_TIME, removed).await.is_err()
        {
            tracing::warn!("the directory of staged files is not removed yet");
        }
    }
}

/// Returns the directories in which that of the staged files may be made, the best first.
fn places(environment: &[Variable]) -> Vec<PathBuf> {
    let chosen =
        environment.iter().find(|(name, _)| name == b"TMPDIR").map(|(_, value)| OsStr::from_bytes(value).into());
    let usual = ["/tmp", "/dev/shm"].map(PathBuf::from);
    chosen.into_iter().filter(|path: &PathBuf| path.is_absolute()).chain(usual).collect()
}

/// Writes all files to a new directory in the first of these places that can have them.
fn receive(
    plan: &StagePlan,
    places: &[PathBuf],
    note: StageNote,
    blocks: &mut mpsc::UnboundedReceiver<Block>,
) -> Result<StageDirectory, String> {
    let directory = make_directory(plan, places, note)?;
    let mut writing = Writing { plan, directory: &directory, open: None };
    let mut stream = StageStream::of(plan);
    while let Some(file) = stream.open_file() {
        // The end of the session drops the sender; then no one reads the error.
        let block = blocks.blocking_recv().map(|(bytes, _receipt)| bytes).filter(|bytes| !bytes.is_empty());
        let block = block.ok_or_else(|| StageError::Incomplete(writing.name(file)).to_string())?;
        let mut bytes = &block[..];
        while let Some(part) = stream.next(&mut bytes) {
            writing.take(part)?;
        }
        if !bytes.is_empty() {
            return Err(StageError::Surplus.to_string());
        }
    }
    Ok(directory)
}

/// Makes the directory, with its own directories, in the first of these places that can have the files.
fn make_directory(plan: &StagePlan, places: &[PathBuf], note: StageNote) -> Result<StageDirectory, String> {
    let mut refusals = Vec::new();
    for place in places {
        let room =
            stage_room(place).map(|StageRoom { may_execute, is_safe, free }| Room { may_execute, is_safe, free });
        let made = match room.map(|room| room.refusal(plan.room())) {
            Ok(None) => StageDirectory::make(place, note).and_then(|made| {
                plan.directories().try_for_each(|name| made.make_inside(Path::new(name)))?;
                Ok(made)
            }),
            Ok(Some(why)) => {
                refusals.push(format!("{} {why}", place.display()));
                continue;
            }
            Err(error) => Err(error),
        };
        match made {
            Ok(made) => return Ok(made),
            Err(error) => refusals.push(format!("{}: {error}", place.display())),
        }
    }
    Err(format!("no directory can have the files: {}", refusals.join("; ")))
}

/// Writes one file after the other.
struct Writing<'a> {
    plan: &'a StagePlan,
    directory: &'a StageDirectory,
    /// The file that is being written, and the hash of its bytes so far.
    open: Option<(File, Sha256)>,
}

impl Writing<'_> {
    fn name(&self, file: usize) -> String {
        self.plan.files().get(file).map(|file| String::from_utf8_lossy(&file.name).into_owned()).unwrap_or_default()
    }

    fn take(&mut self, part: StagePart<'_>) -> Result<(), String> {
        let (StagePart::Bytes(file, _) | StagePart::Digest(file, _)) = part;
        let (name, directory) = (self.name(file), self.directory.path().display());
        let failed = |error: io::Error| format!("'{name}' cannot be written to {directory}: {error}");
        let (mut open, mut hash) = match self.open.take() {
            Some(open) => open,
            None => {
                // The stream has the files of the plan.
                let staged = self.plan.files().get(file).ok_or_else(|| StageError::Surplus.to_string())?;
                (
                    self.directory
                        .create(Path::new(OsStr::from_bytes(&staged.path())), staged.is_executable)
                        .map_err(failed)?,
                    Sha256::new(),
                )
            }
        };
        match part {
            StagePart::Bytes(_, bytes) => {
                open.write_all(bytes).map_err(failed)?;
                hash.update(bytes);
                self.open = Some((open, hash));
            }
            StagePart::Digest(_, digest) if hash.finalize()[..] == digest => {}
            StagePart::Digest(..) => return Err(StageError::Damaged(name).to_string()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::core::{StagedFile, StagedKind};

    const CONTENTS: [&[u8]; 3] = [b"program", b"", b"library"];

    fn plan() -> StagePlan {
        let file = |kind, name: &str, bytes: &[u8]| StagedFile {
            kind,
            name: name.into(),
            bytes: bytes.len() as u64,
            is_executable: kind == StagedKind::Program,
        };
        let files = [(StagedKind::Program, "a"), (StagedKind::File, "none"), (StagedKind::Library, "libx.so")];
        StagePlan::new(files.iter().zip(CONTENTS).map(|((kind, name), bytes)| file(*kind, name, bytes)).collect())
            .unwrap()
    }

    fn stream() -> Vec<u8> {
        CONTENTS.iter().flat_map(|bytes| [*bytes, &Sha256::digest(bytes)].concat()).collect()
    }

    fn received(stream: &[u8], places: &[PathBuf]) -> Result<StageDirectory, String> {
        let (sender, mut blocks) = mpsc::unbounded_channel();
        for block in stream.chunks(9).chain([&b""[..]]) {
            sender.send((Bytes::copy_from_slice(block), Arc::default())).unwrap();
        }
        receive(&plan(), places, StageNote::unread().unwrap(), &mut blocks)
    }

    fn is_empty(place: &Path) -> bool {
        std::fs::read_dir(place).unwrap().next().is_none()
    }

    #[test]
    fn files_are_written_to_a_directory_that_ends_with_its_value() {
        let place = tempfile::tempdir().unwrap();
        let directory = received(&stream(), &[place.path().to_owned()]).unwrap();
        let path = |name: &str| directory.path().join(name);
        let found = ["bin/a", "none", "lib/libx.so"].map(|name| std::fs::read(path(name)).unwrap());
        assert_eq!(found.each_ref().map(Vec::as_slice), CONTENTS);
        assert_eq!(std::fs::metadata(path("bin/a")).unwrap().permissions().mode() & 0o777, 0o700);
        drop(directory);
        assert!(is_empty(place.path()));
    }

    #[test]
    fn damaged_cut_and_long_streams_leave_nothing() {
        let place = tempfile::tempdir().unwrap();
        let check = |stream: &[u8], expected: &str| {
            assert_eq!(received(stream, &[place.path().to_owned()]).unwrap_err(), expected);
            assert!(is_empty(place.path()));
        };
        let mut damaged = stream();
        damaged[3] ^= 1;
        check(&damaged, "'a' was damaged on its way: its SHA-256 is wrong");
        check(&stream()[..stream().len() - 1], "'libx.so' has not arrived completely");
        check(b"", "'a' has not arrived completely");
        check(&[&stream()[..], b"x"].concat(), "more bytes arrived than the files have");
    }

    #[test]
    fn the_first_place_that_can_have_the_files_is_taken() {
        let place = tempfile::tempdir().unwrap();
        let (missing, good) = (place.path().join("missing"), place.path().to_owned());
        let directory = received(&stream(), &[missing.clone(), good]).unwrap();
        assert_eq!(directory.path().parent(), Some(place.path()));
        let why = received(&stream(), &[missing.clone(), "/proc".into()]).unwrap_err();
        let expected = format!("no directory can have the files: {}: No such file or directory", missing.display());
        assert!(why.starts_with(&expected) && why.contains("; /proc "), "{why}");
    }

    #[test]
    fn the_users_directory_is_the_first_place() {
        let of = |value: &str| places(&[(b"A".to_vec(), b"/a".to_vec()), (b"TMPDIR".to_vec(), value.into())]);
        assert_eq!(of("/scratch"), ["/scratch", "/tmp", "/dev/shm"].map(PathBuf::from));
        assert_eq!(of("relative"), ["/tmp", "/dev/shm"].map(PathBuf::from));
        assert_eq!(places(&[]), of(""));
    }
}
