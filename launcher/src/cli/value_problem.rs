//! Problems of option values.

use std::time::Duration;

use nla::core::CachePolicy;
use nla::core::limits::RANKS_MAX;

use super::limits::{ENV_NAMES_MAX, EXEC_CHOICE, FANOUTS_MAX, LABEL_BYTES_MAX};
use super::text::thousands;
use crate::plan::pattern::PLACEHOLDERS;
use crate::plan::request::Mpi;

/// A problem of an option's value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueProblem {
    /// An empty value.
    #[error("the value is empty")]
    Empty,
    /// Not a whole number.
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
    /// A file pattern with a placeholder that does not exist.
    #[error("'{placeholder}' in '{value}' is unknown; the placeholders are {PLACEHOLDERS}")]
    UnknownPlaceholder {
        /// As typed.
        value: String,
        /// The placeholder, as typed.
        placeholder: String,
    },
    /// Neither seconds nor a number with a unit.
    #[error("'{value}' is not a length of time")]
    NotATime {
        /// As typed.
        value: String,
    },
    /// The time is zero and must be longer.
    #[error("'{value}' is no time")]
    NoTime {
        /// As typed.
        value: String,
        /// The behaviour without the option.
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
    /// An empty name between commas.
    #[error("'{value}' has an empty name in its list")]
    EnvListGap {
        /// As typed.
        value: String,
    },
    /// Too many names.
    #[error("the list has more than {} names", thousands(ENV_NAMES_MAX as u32))]
    EnvListTooLong,
    /// A pattern where one name is expected.
    #[error("'{value}' is a pattern, and only one variable's name is understood")]
    EnvPattern {
        /// As typed.
        value: String,
    },
    /// Digits, commas and dashes that are no list of ranks.
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
        /// The number after it.
        last: u32,
    },
    /// A rank that no session can have.
    #[error("rank {rank} is out of range, ranks go from 0 to {}", thousands(RANKS_MAX - 1))]
    RankTooLarge {
        /// As typed.
        rank: String,
    },
    /// An unknown cache policy.
    #[error("there is no policy '{value}', only {}", CachePolicy::ALL.map(CachePolicy::name).join(", "))]
    CacheUnknown {
        /// As typed.
        value: String,
        /// A similar policy.
        near: Option<CachePolicy>,
    },
    /// A bound for a policy that has none.
    #[error("the policy '{policy}' has no bound on its entries")]
    CacheUnbounded {
        /// The policy.
        policy: CachePolicy,
    },
    /// Not `NODESxPPN`.
    #[error("'{value}' is not a number of nodes, an 'x' and a number of ranks on each")]
    NotASize {
        /// As typed.
        value: String,
    },
    /// Not a latency.
    #[error("'{value}' is not a latency")]
    NotALatency {
        /// As typed.
        value: String,
    },
    /// Not a bandwidth.
    #[error("'{value}' is not a number of bytes per second")]
    NotABandwidth {
        /// As typed.
        value: String,
    },
    /// An unknown pattern.
    #[error("there is no pattern '{value}', only 1:2, 1:p, fence and none")]
    PatternUnknown {
        /// As typed.
        value: String,
        /// A similar one.
        near: Option<&'static str>,
    },
    /// A list that is too long.
    #[error("the list has more than {FANOUTS_MAX} fan-outs")]
    FanoutsTooMany,
    /// Not one of the choices.
    #[error("there is no {what} '{value}', only {}", choices.join(", "))]
    ChoiceUnknown {
        /// The kind of choice.
        what: &'static str,
        /// As typed.
        value: String,
        /// The choices.
        choices: Vec<&'static str>,
        /// A similar one.
        near: Option<&'static str>,
    },
    /// `exec:` without a command.
    #[error("'{value}' has no command after its ':'")]
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
    /// Not a name that Linux accepts for an interface.
    #[error("'{value}' is not the name of a network interface")]
    NotAnInterface {
        /// As typed.
        value: String,
    },
    /// Not a range of ports.
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
        /// The number after it.
        last: u16,
    },
    /// An unknown MPI library.
    #[error("there is no kind '{value}' of MPI library here, only auto, none and openmpi")]
    MpiUnknown {
        /// As typed.
        value: String,
        /// A similar kind.
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
    /// Returns the next step to try.
    pub(super) fn hint(&self, option: &str, called: &str) -> String {
        match self {
            Self::NotANumber { value } => match plain_digits(value) {
                Some(digits) => format!("write all digits: '{option} {digits}'"),
                None => format!("write a number, as in '{option} 4'"),
            },
            Self::UnknownPlaceholder { .. } => format!("write '{option} out.%r' for a file for each rank"),
            Self::OutOfRange { value, min, max } => {
                let is_below =
                    value.starts_with('-') || value.parse::<u64>().is_ok_and(|number| number < u64::from(*min));
                let nearest = if is_below { min } else { max };
                format!("write '{option} {nearest}', or leave '{option}' out")
            }
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
            Self::PatternUnknown { near: Some(near), .. } => format!("did you mean '{near}'?"),
            Self::PatternUnknown { near: None, .. } | Self::FanoutsTooMany => {
                format!("'{called} --help' describes the values of '{option}'")
            }
            Self::MpiUnknown { near: Some(near), .. } => format!("did you mean '{}'?", near.name()),
            Self::MpiUnknown { near: None, .. } => {
                format!("leave '{option}' out: scela-run detects which PMI version a rank speaks")
            }
            Self::ChoiceUnknown { near: Some(near), .. } => format!("did you mean '{near}'?"),
            Self::ChoiceUnknown { choices, .. } if choices.contains(&EXEC_CHOICE) => {
                format!("any command that reaches a host will do, as in {option} 'exec:rsh {{host}}'")
            }
            Self::ChoiceUnknown { near: None, .. } => format!("'{called} --help' describes the values of '{option}'"),
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
                "a variable on the command line may be unset; '{called} --help' describes the values of '{option}'"
            ),
            Self::TimeTooLong { .. } | Self::EnvNameEmpty | Self::EnvListTooLong => {
                format!("'{called} --help' describes the values of '{option}'")
            }
        }
    }
}

/// Returns the digits that a number such as `1e6`, `1,000` or `1_000` stands for.
fn plain_digits(value: &str) -> Option<String> {
    if let Some((digits, zeros)) = value.split_once(['e', 'E']) {
        let zeros = zeros.parse().ok().filter(|zeros| *zeros < 10)?;
        let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        return is_plain.then(|| format!("{digits}{}", "0".repeat(zeros)));
    }
    let digits = value.replace([',', '_', '\''], "");
    let is_plain = digits != value && !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then_some(digits)
}
