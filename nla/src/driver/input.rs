//! Passes standard input down: to the children whose ranks read it, and to this agent's ranks.
//!
//! Each block is sent once to every taker. Its receipt is dropped when the slowest taker has taken the block; this lets
//! the parent send more. A rank that has closed its input or has exited takes every block at once.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use litemap::LiteMap;
use pmi::{Rank, Ranks};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::Sender;
use tokio::sync::mpsc;
use tracing::Span;

use crate::link::{Link, Receipt};
use crate::tasks::Tasks;
use crate::wire::Lane;

/// A block and its receipt. An empty block ends the input.
type Block = (Bytes, Arc<Receipt>);

/// The takers of standard input.
pub(super) enum InputHub {
    /// The takers are not known yet. Blocks are stored, within the window of the link.
    Early(Vec<(Bytes, Receipt)>),
    /// The takers are known.
    Open {
        /// Links to children whose ranks read standard input.
        children: Vec<Link>,
        /// This agent's ranks.
        own: Vec<mpsc::UnboundedSender<Block>>,
        /// Blocks for this agent's ranks that have not been started yet.
        waiting: LiteMap<Rank, mpsc::UnboundedReceiver<Block>>,
    },
}

impl InputHub {
    pub(super) fn new() -> Self {
        Self::Early(Vec::new())
    }

    /// Sends the input to `ranks` of this agent and to `children`, starting with the first block.
    pub(super) fn open(&mut self, ranks: &Ranks, children: Vec<Link>) {
        let mut own = Vec::new();
        let mut waiting = LiteMap::new();
        for rank in ranks.iter() {
            // Bounded by the window of the parent's link: a block counts against it until all have taken the block.
            let (sender, receiver) = mpsc::unbounded_channel();
            own.push(sender);
            waiting.insert(rank, receiver);
        }
        let early = std::mem::replace(self, Self::Open { children, own, waiting });
        if let Self::Early(blocks) = early {
            for (bytes, receipt) in blocks {
                self.push(bytes, receipt);
            }
        }
    }

    /// Sends a block to all takers.
    pub(super) fn push(&mut self, bytes: Bytes, receipt: Receipt) {
        match self {
            Self::Early(blocks) => blocks.push((bytes, receipt)),
            Self::Open { children, own, .. } => {
                let receipt = Arc::new(receipt);
                for child in children.iter() {
                    child.send(Lane::Stdin, bytes.clone(), Receipt::holding(Arc::clone(&receipt)));
                }
                own.retain(|taker| taker.send((bytes.clone(), Arc::clone(&receipt))).is_ok());
            }
        }
    }

    /// Connects a rank that has started; `pipe` is the write end of its standard input.
    pub(super) fn connect(&mut self, rank: Rank, pipe: OwnedFd, tasks: &Tasks) {
        if let Self::Open { waiting, .. } = self
            && let Some(blocks) = waiting.remove(&rank)
        {
            match Sender::from_owned_fd_unchecked(pipe) {
                Ok(pipe) => drop(tasks.spawn("rank input", Span::current(), feed(pipe, blocks))),
                Err(error) => tracing::warn!(%rank, %error, "the input of a rank cannot be written"),
            }
        }
    }
}

async fn feed(mut pipe: Sender, mut blocks: mpsc::UnboundedReceiver<Block>) {
    while let Some((bytes, _receipt)) = blocks.recv().await {
        // The rank may have closed its input, which is not a failure.
        if bytes.is_empty() || pipe.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
