//! The communication profile of `--profile-comm`: the rows that ranks have handed over, as a matrix file.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use nla::core::{NamespacePlan, ProfileRows};
use placement::matrix::{Collector, Traffic};

use super::report_file::{FifoReport, ReportFile};
use crate::plan::Plan;

/// The schedules of collective operations, which docs/profiling.md describes.
const SCHEDULES: &str = "collectives by schedule: barrier and scan doubling; bcast, reduce, gather, scatter binomial; \
                         allreduce recursive doubling; allgather(v) ring; alltoall(v,w), reduce_scatter pairwise; others linear";

/// The profile while it is put together.
#[derive(Debug)]
pub(super) struct CommProfile {
    file: Option<ReportFile>,
    counts_collectives: bool,
    size: u32,
    mapping: Option<String>,
    rows: ProfileRows,
    matrix: Collector,
    /// Why the matrix is not complete although all rows have arrived.
    refused: Option<String>,
}

impl CommProfile {
    /// Creates the file, if the user asked for one. This happens before anything starts, so that an error ends scela-run early.
    pub(super) fn open(plan: &Plan) -> io::Result<Option<Rc<RefCell<Self>>>> {
        let Some(path) = &plan.options.profile_comm else { return Ok(None) };
        Ok(Some(Rc::new(RefCell::new(Self {
            file: Some(ReportFile::open("the communication profile", path)?),
            counts_collectives: plan.options.profile_collectives != Some(false),
            size: 0,
            mapping: None,
            rows: ProfileRows::new(0),
            matrix: Collector::default(),
            refused: None,
        }))))
    }

    /// Begins anew, with a launch of this job.
    pub(super) fn begin(&mut self, job: &NamespacePlan) {
        self.size = job.size;
        self.mapping = job.mapping.wire_value();
        self.rows = ProfileRows::new(job.size);
        let matrix = Collector::new(job.size).map_err(|reason| self.refused = Some(reason.to_string()));
        self.matrix = matrix.unwrap_or_default();
    }

    /// Takes a message of agents. What is damaged counts as missing.
    pub(super) fn take(&mut self, message: &[u8]) {
        let Self { rows, matrix, refused, .. } = self;
        let taken = rows.take(message, |entry| {
            let traffic = Traffic { bytes: entry.traffic.bytes, messages: entry.traffic.messages };
            if refused.is_none()
                && let Err(reason) = matrix.add(entry.from.0, entry.to.0, traffic)
            {
                *refused = Some(reason.to_string());
            }
        });
        if let Err(error) = taken {
            tracing::warn!(%error, "a message with communication profiles is ignored");
        }
    }

    /// Writes the file, or returns what a FIFO is to get. Without a profile of any rank, the file keeps its contents. Returns a remark
    /// about what is missing, too. An error is a sentence for the user.
    pub(super) fn write(&mut self) -> Result<(Option<String>, Option<FifoReport>), String> {
        let Some(file) = self.file.take() else { return Ok((None, None)) };
        let missing = self.rows.missing();
        if missing.len() >= u64::from(self.size) {
            let left = if file.is_new() { "created" } else { "changed" };
            let remark = format!(
                "warning: no rank has written a communication profile; '{}' was not {left}\n  hint: a profile is written in \
                 MPI_Finalize, by programs that are linked with a shared MPI library",
                file.path().display()
            );
            return Ok((Some(remark), None));
        }
        let mut matrix = std::mem::take(&mut self.matrix).finish();
        matrix.add_remark(&format!("{} ranks, by scela-run --profile-comm", self.size));
        matrix.add_remark(if self.counts_collectives { SCHEDULES } else { "collectives are not counted" });
        if let Some(mapping) = &self.mapping {
            matrix.add_remark(&format!("mapping: {mapping}"));
        }
        let outside = self.rows.outside();
        if outside.messages > 0 {
            let (messages, bytes) = (outside.messages, outside.bytes);
            matrix.add_remark(&format!(
                "not in the matrix: {messages} messages of {bytes} bytes to processes of other worlds"
            ));
        }
        let remark = match missing.len() {
            0 => None,
            1 => Some(format!("rank {missing} has written no communication profile")),
            _ => Some(format!("ranks {missing} have written no communication profiles")),
        };
        if !missing.is_empty() {
            matrix.add_remark(&format!("without a profile: {missing}"));
        }
        let fifo = file.write(|out| matrix.write(out))?;
        if let Some(reason) = &self.refused {
            return Err(format!("the communication profile is not complete: {reason}"));
        }
        Ok((remark.map(|remark| format!("warning: {remark}")), fifo))
    }
}
