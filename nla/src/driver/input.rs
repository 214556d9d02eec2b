//! Standard input on its way down: to the children whose ranks take it, and to this agent's own.
//!
//! Each block is passed on once to everybody; its receipt, which lets the parent send more, is let
//! go when the slowest has taken it. A rank that has closed its input, or has ended, takes
//! everything at once.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use pmi::{Rank, Ranks};
use tokio::net::unix::pipe::Sender;
use tokio::sync::mpsc;

use crate::link::{Link, Receipt};
use crate::wire::Lane;

/// A block and what keeps its room taken. An empty block is the end.
type Block = (Bytes, Arc<Receipt>);

/// Where standard input goes from here.
pub(super) enum InputHub {
    /// Nobody has said yet who takes it: kept, within the window of the link.
    Early(Vec<(Bytes, Receipt)>),
    /// To these.
    Open {
        /// Links to children with takers.
        children: Vec<Link>,
        /// Own takers.
        own: Vec<mpsc::UnboundedSender<Block>>,
        /// Blocks for own takers that have not been started yet.
        waiting: BTreeMap<Rank, mpsc::UnboundedReceiver<Block>>,
    },
}

impl InputHub {
    /// Nothing is known yet.
    pub(super) fn new() -> Self {
        Self::Early(Vec::new())
    }

    /// `ranks` of this agent and the `children` take the input.
    pub(super) fn open(&mut self, ranks: &Ranks, children: Vec<Link>) {
        let mut own = Vec::new();
        let mut waiting = BTreeMap::new();
        for rank in ranks.iter() {
            // Bounded by the window of the parent's link: a block's room is free again only when
            // all have taken it.
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

    /// Passes a block on.
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

    /// The rank was started; `pipe` is the writing end of its input.
    pub(super) fn connect(&mut self, rank: Rank, pipe: OwnedFd) {
        if let Self::Open { waiting, .. } = self
            && let Some(blocks) = waiting.remove(&rank)
        {
            match Sender::from_owned_fd_unchecked(pipe) {
                Ok(pipe) => drop(tokio::task::spawn_local(feed(pipe, blocks))),
                Err(error) => tracing::warn!(%rank, %error, "the input of a rank cannot be written"),
            }
        }
    }
}

async fn feed(pipe: Sender, mut blocks: mpsc::UnboundedReceiver<Block>) {
    while let Some((bytes, _receipt)) = blocks.recv().await {
        if bytes.is_empty() {
            return;
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match pipe.try_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    if pipe.writable().await.is_err() {
                        return;
                    }
                }
                // The rank does not read any more; that is its right.
                Err(_) => return,
            }
        }
    }
}
