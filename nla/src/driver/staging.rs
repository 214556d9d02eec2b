//! Takes the session's files from the parent: forwards their bytes to the children as they arrive, and hands them to the thread
//! that writes them.
//!
//! A block's receipt is dropped when all children's links and the thread have taken it; this lets the parent send more. So memory
//! has at most a window of blocks, and the slowest member sets the pace. The directory lives as long as the thread, which ends
//! with the session. If nodes have caches, each agent reports what its subtree lacks, and a child gets only that.

use std::cell::RefCell;
use std::future::pending;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::stage_writer::{Block, places, receive};
use super::uplink::Uplink;
use crate::core::{AgentId, ChunkSet, Chunks, InMemory, SessionPlan, StageDown, StageUp};
use crate::link::{Link, Receipt};
use crate::sys::{self, DirectoryNote};
use crate::tasks::Tasks;
use crate::wire::Lane;

/// How long the directory may take to be removed. Then the guardian removes it, once this process has exited.
const REMOVE_TIME: Duration = Duration::from_secs(5);

/// The niceness of threads that read, hash and write files: that of output, and more.
pub(super) const NICE: i32 = 10;

/// The destination of the bytes.
pub(super) enum StageHub {
    /// The session's plan has not arrived. Blocks are stored, within the window of the link.
    Early(Vec<(Bytes, Receipt)>),
    /// They go to the children and to this agent's thread.
    Open(Forwarding),
}

/// The receivers of blocks.
pub(super) struct Forwarding {
    children: Vec<Member>,
    /// The thread.
    own: mpsc::UnboundedSender<Block>,
    /// Set if nodes have caches.
    caches: Option<Caches>,
}

struct Member {
    id: AgentId,
    link: Link,
    /// The chunks that its subtree lacks, once it has reported them.
    needs: Option<ChunkSet>,
}

/// The facts that the report to the parent needs.
struct Caches {
    parent: Uplink,
    /// The number of chunks.
    chunks: usize,
    /// The chunks that this agent lacks, once it knows.
    own: Option<ChunkSet>,
}

impl Forwarding {
    fn push(&self, bytes: Bytes, receipt: Receipt) {
        let receipt = Arc::new(receipt);
        let chunk = match StageDown::parse(&bytes) {
            Some(StageDown::Part(chunk, _)) if self.caches.is_some() => Some(chunk),
            _ => None,
        };
        let takes =
            |needs: Option<&ChunkSet>| chunk.is_none_or(|chunk| needs.is_some_and(|needs| needs.contains(chunk)));
        for child in self.children.iter().filter(|child| takes(child.needs.as_ref())) {
            child.link.send(Lane::Stage, bytes.clone(), Receipt::holding(Arc::clone(&receipt)));
        }
        if takes(self.caches.as_ref().and_then(|caches| caches.own.as_ref())) {
            // A thread that has failed has reported that.
            let _ = self.own.send((bytes, receipt));
        }
    }

    /// Reports what the subtree lacks, once all of it is known. Each report that makes it known is the last one.
    fn report(&self) {
        let Some(Caches { parent, own: Some(own), .. }) = &self.caches else { return };
        let mut needs = own.clone();
        for child in &self.children {
            let Some(of_child) = &child.needs else { return };
            needs.unite(of_child);
        }
        parent.send(Lane::Stage, Bytes::from(StageUp::Needs(needs.as_bytes()).message()), Receipt::default());
    }
}

impl StageHub {
    /// Takes a block from the parent.
    pub(super) fn push(&mut self, bytes: Bytes, receipt: Receipt) {
        match self {
            Self::Early(blocks) => blocks.push((bytes, receipt)),
            Self::Open(forwarding) => forwarding.push(bytes, receipt),
        }
    }

    /// Takes a message of a child. Returns it if it is for the parent.
    pub(super) fn take_from_child(
        &mut self,
        child: AgentId,
        bytes: Bytes,
        receipt: Receipt,
    ) -> Option<(Bytes, Receipt)> {
        match StageUp::parse(&bytes) {
            Some(StageUp::Needs(needs)) => {
                if let Self::Open(forwarding) = self
                    && let Some(caches) = &forwarding.caches
                    && let Some(needs) = ChunkSet::from_bytes(needs, caches.chunks)
                    && let Some(child) =
                        forwarding.children.iter_mut().find(|known| known.id == child && known.needs.is_none())
                {
                    child.needs = Some(needs);
                    forwarding.report();
                }
                None
            }
            Some(StageUp::Collected(..) | StageUp::InMemory(..) | StageUp::Left(..)) => Some((bytes, receipt)),
            None => {
                tracing::warn!(%child, "a message about staged files is malformed");
                None
            }
        }
    }

    fn set_own_needs(&mut self, needs: ChunkSet) {
        if let Self::Open(forwarding) = self {
            if let Some(caches) = &mut forwarding.caches {
                caches.own = Some(needs);
            }
            forwarding.report();
        }
    }
}

/// Returns the place of this directory if that is in memory.
fn in_memory<'a>(directory: &'a Path, places: &[PathBuf]) -> Option<InMemory<'a>> {
    let place = directory.parent().filter(|place| sys::is_in_memory(place))?;
    let is = |other: Option<&PathBuf>| other.is_some_and(|other| other == place);
    let is_last = is(places.last()) && !is(places.first());
    Some(InMemory { is_last, place: place.as_os_str().as_bytes() })
}

/// A report of the thread.
enum Report {
    /// The chunks that are not in the cache of this node.
    Needs(ChunkSet),
    /// The directory with all files, or why there is none.
    Done(Result<PathBuf, String>),
}

/// The session's files on this agent.
pub(super) struct Staging {
    /// Takes the parent's blocks.
    pub(super) hub: Rc<RefCell<StageHub>>,
    reports: Option<mpsc::UnboundedReceiver<Report>>,
    /// Closed when the directory is removed.
    removed: Option<oneshot::Receiver<()>>,
}

impl Staging {
    pub(super) fn new() -> Self {
        Self { hub: Rc::new(RefCell::new(StageHub::Early(Vec::new()))), reports: None, removed: None }
    }

    /// Begins to write the files of `session`, and to forward them to `children`. Fails if there can be no thread.
    pub(super) fn begin(
        &mut self,
        agent: AgentId,
        session: &SessionPlan,
        children: Vec<(AgentId, Link)>,
        parent: Uplink,
        note: DirectoryNote,
        tasks: &Tasks,
    ) -> Result<(), String> {
        // Bounded by the window of the parent's link: a block counts against it until the thread has taken the block.
        let (own, mut blocks) = mpsc::unbounded_channel();
        let children = children.into_iter().map(|(id, link)| Member { id, link, needs: None }).collect();
        let chunks = || Chunks::of(&session.stage).chunks.len();
        let caches = session.stage.cache().map(|_| Caches { parent: parent.clone(), chunks: chunks(), own: None });
        let early = self.hub.replace(StageHub::Open(Forwarding { children, own, caches }));
        // Bounded by the two reports of the thread.
        let (reporting, reports) = mpsc::unbounded_channel();
        let (remove, removed) = oneshot::channel();
        let (plan, places) = (session.stage.clone(), places(&session.environment));
        let work = move || {
            let _removed: oneshot::Sender<()> = remove;
            // Hashing takes processor time that ranks of other jobs may need.
            sys::set_thread_nice(NICE);
            let report = |needs| drop(reporting.send(Report::Needs(needs)));
            match receive(&plan, &places, note, &mut blocks, report) {
                Ok(directory) => {
                    if let Some(memory) = in_memory(directory.path(), &places) {
                        let message = StageUp::InMemory(agent, memory).message();
                        parent.send(Lane::Stage, message.into(), Receipt::default());
                    }
                    // The agent may be leaving.
                    let _ = reporting.send(Report::Done(Ok(directory.path().to_owned())));
                    drop(plan);
                    // Until the end of the session.
                    while blocks.blocking_recv().is_some() {}
                    if let Err(left) = directory.remove() {
                        let message = StageUp::Left(agent, left.to_string().as_bytes()).message();
                        parent.send(Lane::Stage, message.into(), Receipt::default());
                    }
                }
                Err(why) => drop(reporting.send(Report::Done(Err(why)))),
            }
        };
        tasks.spawn_thread("stage", work).map_err(|error| format!("the files cannot be stored: {error}"))?;
        (self.reports, self.removed) = (Some(reports), Some(removed));
        if let StageHub::Early(blocks) = early {
            blocks.into_iter().for_each(|(bytes, receipt)| self.hub.borrow_mut().push(bytes, receipt));
        }
        Ok(())
    }

    /// Waits until all files are in their directory, once. Cancel-safe.
    pub(super) async fn finished(&mut self) -> Result<PathBuf, String> {
        let Some(reports) = &mut self.reports else { return pending().await };
        loop {
            match reports.recv().await {
                Some(Report::Needs(needs)) => self.hub.borrow_mut().set_own_needs(needs),
                Some(Report::Done(outcome)) => {
                    self.reports = None;
                    return outcome;
                }
                // The thread has panicked. Its report ends this agent.
                None => return pending().await,
            }
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
