//! The file with which this node is described to hwloc in the ranks, as Hydra does it: without one, each rank of MPICH reads
//! hundreds of files in /sys.
//!
//! The file is written when the first rank asks for it.

use std::cell::OnceCell;
use std::sync::Arc;

use super::node_topology::hwloc_xml;
use crate::core::{NamespacePlan, SessionPlan};
use crate::sys::{RANK_FILE_PATH, RankFile};

/// How the names of hwloc's variables begin. With them users choose another topology.
const HWLOC: &[u8] = b"HWLOC_";

/// The file that all ranks of this agent inherit.
pub(super) struct TopologyFile {
    /// `None` if ranks find the topology themselves.
    file: Option<Arc<RankFile>>,
    /// Whether the file was written.
    is_written: OnceCell<bool>,
}

impl TopologyFile {
    /// Creates the file, which is empty.
    pub(super) fn new() -> Self {
        let file = RankFile::new();
        let file =
            file.inspect_err(|error| tracing::warn!(%error, "ranks cannot share a file with the node's topology"));
        Self { file: file.ok().map(Arc::new), is_written: OnceCell::new() }
    }

    /// Returns the file, which the ranks inherit.
    pub(super) fn file(&self) -> Option<Arc<RankFile>> {
        self.file.clone()
    }

    /// Returns the file's path for ranks, and writes the file first if needed. `None` if the node has no such file.
    pub(super) fn path(&self) -> Option<&'static str> {
        let write = || {
            let written = self.file.as_ref().zip(hwloc_xml()).map(|(file, text)| file.fill(text.as_bytes()));
            written.is_some_and(|result| {
                result.inspect_err(|error| tracing::warn!(%error, "the node's topology cannot be written")).is_ok()
            })
        };
        self.is_written.get_or_init(write).then_some(RANK_FILE_PATH)
    }
}

/// Returns whether hwloc in the ranks of `plan` is to find the topology by variables of its own, as the user has asked.
pub(super) fn is_left_to_hwloc(session: &SessionPlan, plan: &NamespacePlan) -> bool {
    let set = plan.commands.iter().flat_map(|command| &command.set);
    session.environment.iter().chain(set).any(|(name, _)| name.starts_with(HWLOC))
}
