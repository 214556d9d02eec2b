//! What can be wrong with an option's value.

use std::time::Duration;

use nla::core::CachePolicy;
use nla::core::limits::RANKS_MAX;
use sim::Pattern;

use super::error::thousands;
use super::host_values::EXEC_CHOICE;
use super::simulation::{FANOUTS_MAX, pattern_name};
use super::values::{ENV_NAMES_MAX, LABEL_BYTES_MAX};
use crate::plan::request::Mpi;

/// What is wrong with an option's value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueProblem {
    /// Nothing where there must be something.
    #[error("the value is empty")]
    Empty,
    /// Not digits.
    #[error("'{value}' is not a whole number")]
    NotANumber {
        /// As typed.
        value: String,
    },
    /// A number outside its bounds.
    #[error("{value} is out of range, it must be {} to {}", thousands(*.min), thousands(*.max))]
    OutOfRange {
        /// As typed.
        value: String,
        /// The least that is allowed.
        min: u32,
        /// The greatest that is allowed.
        max: u32,
    },
    /// Neither seconds nor a number with a unit.
    #[error("'{value}' is not a length of time")]
    NotATime {
        /// As typed.
        value: String,
    },
    /// No time at all, where it must be more.
    #[error("'{value}' is no time at all")]
    NoTime {
        /// As typed.
        value: String,
        /// What there is where the option is left out.
        without: &'static str,
    },
    /// More than the option's bound.
    #[error("'{value}' is too long, the most is {} hours", max.as_secs() / 3600)]
    TimeTooLong {
        /// As typed.
        value: String,
        /// The bound.
        max: Duration,
    },
    /// A variable without a name.
    #[error("the variable's name is empty")]
    EnvNameEmpty,
    /// A comma with nothing on one side of it.
    #[error("'{value}' has an empty name in its list")]
    EnvListGap {
        /// As typed.
        value: String,
    },
    /// More names than anyone types.
    #[error("the list has more than {} names", thousands(ENV_NAMES_MAX as u32))]
    EnvListTooLong,
    /// A pattern where one name is expected.
    #[error("'{value}' is a pattern, and only one variable's name is understood")]
    EnvPattern {
        /// As typed.
        value: String,
    },
    /// Looks like ranks, but cannot be.
    #[error("'{value}' is not a list of ranks")]
    NotRanks {
        /// As typed.
        value: String,
    },
    /// A range that goes down.
    #[error("the ranks {first}-{last} go downwards")]
    RanksReversed {
        /// The number before the dash.
        first: u32,
        /// The number behind it.
        last: u32,
    },
    /// A rank that no session can have.
    #[error("rank {rank} is out of range, ranks go from 0 to {}", thousands(RANKS_MAX - 1))]
    RankTooLarge {
        /// As typed.
        rank: String,
    },
    /// No policy of this name.
    #[error("there is no policy '{value}', only {}", CachePolicy::ALL.map(CachePolicy::name).join(", "))]
    CacheUnknown {
        /// As typed.
        value: String,
        /// The policy that it looks like.
        near: Option<CachePolicy>,
    },
    /// A bound for a policy that has none.
    #[error("the policy '{policy}' has no bound on its entries")]
    CacheUnbounded {
        /// The policy.
        policy: CachePolicy,
    },
    /// Not nodes and ranks on each.
    #[error("'{value}' is not a number of nodes, an 'x' and a number of ranks on each")]
    NotASize {
        /// As typed.
        value: String,
    },
    /// Not a short time.
    #[error("'{value}' is not a latency")]
    NotALatency {
        /// As typed.
        value: String,
    },
    /// Not bytes per second.
    #[error("'{value}' is not a number of bytes per second")]
    NotABandwidth {
        /// As typed.
        value: String,
    },
    /// No pattern of this name.
    #[error("there is no pattern '{value}', only 1:2, 1:p, fence and none")]
    PatternUnknown {
        /// As typed.
        value: String,
        /// The one that it looks like.
        near: Option<Pattern>,
    },
    /// A list that is too long.
    #[error("the list has more than {FANOUTS_MAX} fan-outs")]
    FanoutsTooMany,
    /// None of the words that there are.
    #[error("there is no {what} '{value}', only {}", choices.join(", "))]
    ChoiceUnknown {
        /// What is chosen.
        what: &'static str,
        /// As typed.
        value: String,
        /// The words that there are.
        choices: Vec<&'static str>,
        /// The one that it looks like.
        near: Option<&'static str>,
    },
    /// `exec:` without a command.
    #[error("'{value}' has no command behind its ':'")]
    CommandMissing {
        /// As typed.
        value: String,
    },
    /// Neither an address nor a name.
    #[error("'{value}' is neither an IP address nor the name of a host")]
    NotAnAddress {
        /// As typed.
        value: String,
    },
    /// Not what Linux calls an interface.
    #[error("'{value}' is not the name of a network interface")]
    NotAnInterface {
        /// As typed.
        value: String,
    },
    /// Not two ports.
    #[error("'{value}' is not a first port, a ':' and a last port")]
    NotPorts {
        /// As typed.
        value: String,
    },
    /// A range of ports that goes down.
    #[error("the ports {first}:{last} go downwards")]
    PortsReversed {
        /// The number before the colon.
        first: u16,
        /// The number behind it.
        last: u16,
    },
    /// No MPI library of this name.
    #[error("there is no kind '{value}' of MPI library here, only auto, none and openmpi")]
    MpiUnknown {
        /// As typed.
        value: String,
        /// The kind that it looks like.
        near: Option<Mpi>,
    },
    /// A label past its bound.
    #[error("the label has {bytes} bytes, the most is {LABEL_BYTES_MAX}")]
    LabelTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A label with something else than `[A-Za-z0-9._-]` in it, or `[._-]` first.
    #[error("the label '{value}' is not letters, digits, '.', '_' and '-', beginning with a letter or digit")]
    LabelCharacter {
        /// As typed.
        value: String,
    },
}

impl ValueProblem {
    /// The next step to try.
    pub(super) fn hint(&self, option: &str, called: &str) -> String {
        match self {
            Self::NotANumber { .. } => format!("write a number, as in '{option} 4'"),
            Self::NotATime { .. } => {
                format!("write seconds, or a number with s, m or h, as in '{option} 1.5h'")
            }
            Self::NoTime { without, .. } => format!("leave '{option}' out for {without}"),
            Self::EnvListGap { .. } => format!("write names and commas only: '{option} HOME,PATH'"),
            Self::EnvPattern { .. } => format!("give '{option}' once for each variable"),
            Self::NotRanks { .. } | Self::RanksReversed { .. } | Self::RankTooLarge { .. } => {
                format!("write ranks as in '{option} 0,3-5'; put ./ before a file's name")
            }
            Self::CacheUnknown { near: Some(near), .. } => format!("did you mean '{near}'?"),
            Self::CacheUnknown { near: None, .. } => format!("leave '{option}' out"),
            Self::CacheUnbounded { .. } => format!("leave '{option}' out, or say '--cache hcmab-lru'"),
            Self::NotASize { .. } => format!("write it as in '{option} 1024x64'"),
            Self::NotALatency { .. } => format!("write a number with ns, us, ms or s, as in '{option} 25us'"),
            Self::NotABandwidth { .. } => format!("write a number with k, M, G or T, as in '{option} 12.5G'"),
            Self::PatternUnknown { near: Some(near), .. } => format!("did you mean '{}'?", pattern_name(*near)),
            Self::PatternUnknown { near: None, .. } | Self::FanoutsTooMany => {
                format!("'{called} --help' tells what '{option}' takes")
            }
            Self::MpiUnknown { near: Some(near), .. } => format!("did you mean '{}'?", near.name()),
            Self::MpiUnknown { near: None, .. } => {
                format!("leave '{option}' out: which PMI a rank speaks is heard from itself")
            }
            Self::ChoiceUnknown { near: Some(near), .. } => format!("did you mean '{near}'?"),
            Self::ChoiceUnknown { choices, .. } if choices.contains(&EXEC_CHOICE) => {
                format!("any command that reaches a host will do, as in {option} 'exec:rsh {{host}}'")
            }
            Self::ChoiceUnknown { near: None, .. } => format!("'{called} --help' tells what '{option}' takes"),
            Self::CommandMissing { .. } => {
                format!("write the command that reaches a host, as in {option} 'exec:kubectl exec -i {{host}} --'")
            }
            Self::NotAnAddress { .. } => {
                format!("write it without a port, as in '{option} 10.1.0.5'; '--port-range' is about ports")
            }
            Self::NotAnInterface { .. } => {
                format!("'ip link' lists them, as in '{option} ib0'; '--connect-back' takes an address")
            }
            Self::NotPorts { .. } | Self::PortsReversed { .. } => {
                format!("write two ports, 1 to 65535, as in '{option} 50000:50999'")
            }
            Self::LabelTooLong { .. } | Self::LabelCharacter { .. } => {
                "a label names the session; to begin each line with its rank use '-prepend-rank'".to_owned()
            }
            Self::Empty => format!(
                "a variable on the command line may be unset; '{called} --help' tells what \
                 '{option}' takes"
            ),
            Self::OutOfRange { .. } | Self::TimeTooLong { .. } | Self::EnvNameEmpty | Self::EnvListTooLong => {
                format!("'{called} --help' tells what '{option}' takes")
            }
        }
    }
}
