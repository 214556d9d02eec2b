//! Asks pools for their states.

use super::commands::{answer, asked, broken};
use super::directory;
use super::message::{ToClient, ToController};
use super::status::{PoolReport, Selection};
use crate::refusal::Refusal;

/// The states of pools.
#[derive(Default, Debug)]
pub(super) struct Found {
    /// The pools that have answered, with the selected nodes and jobs.
    pub reports: Vec<PoolReport>,
    /// The reasons of those that have not.
    pub refused: Vec<Refusal>,
    /// Selected nodes and jobs that do not exist.
    pub unknown: Vec<Refusal>,
}

impl Found {
    /// Asks a pool, or all of them. Fails if the pool cannot be asked.
    pub(super) fn of(pool: Option<&str>, selection: &Selection) -> Result<Self, Refusal> {
        let (mut reports, mut refused) = (Vec::new(), Vec::new());
        match pool {
            Some(pool) => reports.push(state(pool)?),
            None => {
                for answer in directory::names()?.iter().filter_map(|name| state_unless_ended(name)) {
                    match answer {
                        Ok(report) => reports.push(report),
                        Err(refusal) => refused.push(refusal),
                    }
                }
            }
        }
        let unknown = selection.unknown(pool, &reports);
        let reports = reports.into_iter().map(|report| selection.of(report)).collect();
        Ok(Self { reports, refused, unknown })
    }
}

/// Returns the state of a pool, or `None` if the pool has ended.
fn state_unless_ended(pool: &str) -> Option<Result<PoolReport, Refusal>> {
    let controller = directory::controller(pool);
    let answer = state(pool);
    if answer.is_ok() {
        return Some(answer);
    }
    // The socket of a pool that has ended refuses connections.
    directory::connect(pool).ok()?;
    // The next pool may have its name.
    Some(if directory::controller(pool) == controller { answer } else { state(pool) })
}

/// Returns the state of a pool, its nodes and its jobs.
pub(super) fn state(pool: &str) -> Result<PoolReport, Refusal> {
    let controller = asked(pool, &ToController::Status)?;
    let (mut state, mut nodes, mut jobs) = (None, Vec::new(), Vec::new());
    loop {
        match answer(&controller, pool)? {
            Some(ToClient::Pool(pool)) => state = Some(pool),
            Some(ToClient::Node(node)) => nodes.push(node),
            Some(ToClient::Job(job)) => jobs.push(job),
            Some(ToClient::Done) => break,
            _ => return Err(broken(pool, &"it has ended")),
        }
    }
    state.map(|pool| PoolReport::new(pool, nodes, jobs)).ok_or_else(|| broken(pool, &"it gave no answer"))
}
