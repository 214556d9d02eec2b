//! The notices that the root gives the launcher.

use std::time::Duration;

use pmi::{Rank, Ranks};

use crate::core::binding::BindingReport;
use crate::core::cause::{Failure, Outcome};
use crate::core::ids::{AgentId, NamespaceId};
use crate::core::leftovers::{FileReport, LeftProcesses};
use crate::core::low_limits::LowLimits;
use crate::core::message::Killed;
use crate::core::survey::{Survey, SurveyCause, Wait};

/// A step of the session, for progress, reports and logs.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// All agents have joined; ranks are being started.
    Joined,
    /// All agents have the session's files; ranks are being started.
    Staged,
    /// All ranks of a namespace were started. The number is that of the ranks.
    Started(NamespaceId, u32),
    /// The first rank of a namespace has spoken PMI.
    Contact(NamespaceId),
    /// A fence was released, or a ring, which has no entries.
    Released {
        /// The namespace.
        namespace: NamespaceId,
        /// The fence's number.
        number: u32,
        /// The number of entries that were put.
        entries: usize,
        /// Bytes of the update that all agents get.
        bytes: usize,
        /// The time since the first report of an arrival.
        took: Duration,
    },
    /// All ranks have ended.
    RanksEnded,
    /// A failure was reported.
    Failure(Failure),
    /// A rank has failed, or an agent was lost, and other ranks go on.
    GoesOn(Failure),
    /// A signal or timeout is about to end the session. Some ranks failed before, while the others
    /// went on: [`Outcome::Survived`].
    WentOn(Outcome),
    /// After a failure all ranks are being ended, to start again.
    Restarting {
        /// The first cause.
        first: Failure,
        /// The number of other failures.
        others: u64,
        /// How often the ranks will have started again.
        number: u32,
        /// How often they may.
        of: u32,
        /// How long the ranks of lost agents may run on, at most. The ranks start again afterwards.
        wait: Duration,
    },
    /// All ranks start again. All other notices name the job's ranks as those of the first namespace; their output has this
    /// one.
    Restarted(NamespaceId),
    /// This rank has failed and starts again, while the others go on.
    Reviving {
        /// The failure.
        failure: Failure,
        /// How often ranks of the session have started again, this start included.
        number: u32,
        /// How often they may.
        of: u32,
        /// How long the ranks of a lost agent may run on, at most. They start again afterwards.
        wait: Duration,
    },
    /// Ranks failed and cannot restart: they have restarted this often, which is the limit (`--max-restarts`).
    NoRestartLeft(u32),
    /// The ranks of lost agents could not be placed on other nodes: the job cannot start again.
    NoSpare,
    /// All ranks start again, on these agents. The placement differs from the one before.
    Moved(Vec<(AgentId, Ranks)>),
    /// The session is being ended: the ranks get this signal, and SIGKILL after the grace. The outcome is no success, and
    /// final.
    Ending(Outcome, i32, Duration),
    /// The readers of the launcher's output have not read for this time: what was not written is dropped.
    OutputDropped(Duration),
    /// An agent was lost shortly after the launcher had not run for this time, the dead time or longer.
    Stopped(Duration),
    /// These agents are silent for so long, and their machines answer. At most once a minute.
    Silent(Vec<(AgentId, Duration)>),
    /// The answer to a survey, what the session itself waits for, and why it was made.
    Surveyed(Box<Survey>, Vec<Wait>, SurveyCause),
    /// Ranks of a namespace have left, and others run on.
    RanksLeft {
        /// The namespace.
        namespace: NamespaceId,
        /// The ranks that have ended.
        left: Ranks,
        /// The ranks that run.
        running: Ranks,
        /// The time since the first rank ended.
        time: Duration,
    },
    /// An agent has removed or found files that its ranks have left in /dev/shm.
    FilesLeft(AgentId, FileReport),
    /// An agent waits for the kernel to start or to end a process.
    Busy(AgentId, String),
    /// An agent has refused a process that joined as this rank while another one is that rank. The text names both.
    SecondJoiner(AgentId, Rank, String),
    /// An agent has chosen the processors of its ranks.
    Bound(AgentId, Box<BindingReport>),
    /// Agents give their ranks lower limits than the user's shell has.
    LowLimits(LowLimits),
    /// Ranks were killed when their grace was over.
    Killed(Killed),
    /// Agents ended this many processes that outlived their ranks. The list names those that exceeded the grace, which comes last.
    Leftovers(u64, Vec<LeftProcesses>, Duration),
}

impl Notice {
    /// Names the first namespace in place of `job`, a later start of the job.
    pub(super) fn name_job(&mut self, job: NamespaceId) {
        let name = |namespace: &mut NamespaceId| {
            if *namespace == job {
                *namespace = NamespaceId::FIRST;
            }
        };
        match self {
            Self::Started(namespace, _) | Self::Contact(namespace) | Self::Released { namespace, .. } => {
                name(namespace)
            }
            Self::Killed(killed) => name(&mut killed.namespace),
            Self::RanksLeft { namespace, .. } => name(namespace),
            Self::Surveyed(survey, ..) => survey.namespaces.iter_mut().for_each(|one| name(&mut one.namespace)),
            Self::Failure(failure) | Self::Reviving { failure, .. } | Self::Restarting { first: failure, .. } => {
                name(&mut failure.namespace);
            }
            Self::Joined
            | Self::Staged
            // A job whose ranks survive failures (`--on-failure continue`) does not restart.
            | Self::GoesOn(_)
            | Self::WentOn(_)
            | Self::RanksEnded
            | Self::Restarted(_)
            | Self::NoRestartLeft(_)
            | Self::NoSpare
            | Self::Moved(_)
            | Self::Ending(..)
            | Self::OutputDropped(..)
            | Self::Stopped(_)
            | Self::Silent(_)
            | Self::FilesLeft(..)
            | Self::Busy(..)
            | Self::SecondJoiner(..)
            | Self::Bound(..)
            | Self::LowLimits(_)
            | Self::Leftovers(..) => {}
        }
    }
}
