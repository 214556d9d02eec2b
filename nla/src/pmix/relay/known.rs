//! A namespace with ranks on this node, and its fences of all ranks.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use pmi::{Puts, Rank, Ranks, Request};

use super::Step;
use crate::core::NamespaceId;
use crate::pmix::message::{Outcome, ProcessName, ToHelper};
use crate::sys::pmix::CallError;

/// The beginning of the key of a node's data on the board. The number of the node follows.
const KEY: &str = "pmix-node-";
/// Bytes of the fence's number before the data.
const NUMBER_BYTES: usize = 4;

/// A namespace that has ranks here.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) id: NamespaceId,
    /// Its name for PMIx.
    pub(super) name: String,
    pub(super) size: u32,
    /// The number of this node.
    pub(super) node: u32,
    /// The numbers of all nodes that have ranks.
    pub(super) nodes: Vec<u32>,
    /// The ranks here that have not ended.
    pub(super) own: Ranks,
    /// The ranks here that have ended.
    pub(super) ended: Ranks,
    /// The ranks here that are connected to `scela-pmix`: they have joined PMIx and not finalized it.
    pub(super) connected: Ranks,
    /// The ranks that have died.
    pub(super) dead: Ranks,
    /// The number of fences of all ranks that this node has entered.
    pub(super) fences: u32,
    /// The fence of all ranks that is under way, and those that follow.
    pub(super) open: VecDeque<Fence>,
}

/// A fence of all ranks of a namespace.
#[derive(Debug)]
pub(super) struct Fence {
    pub(super) call: u64,
    pub(super) collect: bool,
    /// This node's data, until the fence is entered.
    pub(super) data: Bytes,
    pub(super) number: u32,
    /// The ranks here that have not been released.
    pub(super) left: Ranks,
    pub(super) failed: bool,
    /// The nodes whose data is still to be got.
    pub(super) to_get: VecDeque<u32>,
    /// The rank that gets it.
    pub(super) getter: Rank,
    pub(super) collected: BytesMut,
}

impl Known {
    /// Whether these are all ranks of the namespace.
    pub(super) fn is_whole(&self, members: &[ProcessName]) -> bool {
        let of_this = members.iter().all(|(name, _)| *name == self.name);
        let every = || {
            let ranks: Ranks = members.iter().filter_map(|(_, rank)| rank.map(Rank)).collect();
            ranks == Ranks::range(0..self.size)
        };
        !members.is_empty() && of_this && (members.iter().any(|(_, rank)| rank.is_none()) || every())
    }

    /// Lets all ranks here enter the first open fence.
    pub(super) fn enter(&mut self, steps: &mut Vec<Step>) {
        let Some(fence) = self.open.front_mut() else { return };
        fence.left = self.own.clone();
        if fence.collect {
            fence.to_get = self.nodes.iter().copied().collect();
        }
        let data = std::mem::take(&mut fence.data);
        let mut puts = Puts::new();
        if let Some(first) = self.own.first() {
            fence.getter = first;
            if fence.collect && !data.is_empty() {
                let mut value = Vec::with_capacity(NUMBER_BYTES + data.len());
                value.put_u32_le(fence.number);
                value.extend_from_slice(&data);
                puts.push(first, key_of(self.node).as_bytes(), &value);
            }
        }
        for rank in self.own.iter() {
            let puts = std::mem::take(&mut puts);
            steps.push(Step::Ask(self.id, rank, Request::Fence { puts, in_segment: false }));
        }
    }

    /// Takes the next step of the first open fence. Begins the next fence if this one is complete.
    pub(super) fn advance(&mut self, steps: &mut Vec<Step>) {
        let Some(fence) = self.open.front_mut().filter(|fence| fence.left.is_empty()) else { return };
        if let Some(node) = fence.to_get.front().filter(|_| !fence.failed) {
            let key = key_of(*node).into_bytes().into();
            steps.push(Step::Ask(self.id, fence.getter, Request::Get { key }));
            return;
        }
        let data = Outcome::Data(std::mem::take(&mut fence.collected).freeze());
        let outcome = if fence.failed { Outcome::Failed(CallError::Error) } else { data };
        steps.push(Step::Send(ToHelper::Answer(fence.call, outcome)));
        self.open.pop_front();
        self.enter(steps);
    }
}

impl Fence {
    /// Takes the data of the next node. Ignores the entry of an older fence: the node has no data for this one.
    pub(super) fn on_got(&mut self, value: Option<&[u8]>) {
        self.to_get.pop_front();
        if let Some((number, data)) = value.and_then(<[u8]>::split_first_chunk::<NUMBER_BYTES>)
            && u32::from_le_bytes(*number) == self.number
        {
            self.collected.extend_from_slice(data);
        }
    }
}

fn key_of(node: u32) -> String {
    format!("{KEY}{node}")
}
