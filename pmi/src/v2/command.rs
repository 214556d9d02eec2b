//! [`Command`]: one request of PMI-2.
//!
//! Parsing borrows from the payload except where a doubled `;` must be undoubled. It checks only the form; the engine
//! checks lengths, reserved keys and the order of calls. Fields, including `cmd`, may come in any order, and unknown ones
//! are ignored: MPICH >= 4.1 and older clients send different fields in different orders.

use std::borrow::Cow;

use thiserror::Error;

use super::pairs::{self, Pairs};
use super::spawn::{self, SpawnError};
use crate::request::SpawnRequest;
use crate::wire::{fields, frame};

/// A request of a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command<'a> {
    /// `fullinit`: a rank initialises. The server already knows all of its fields.
    FullInit {
        /// `pmijobid`: the value of `PMI_JOBID` in the environment; not sent by MPICH >= 4.1.
        job: Option<Cow<'a, [u8]>>,
        /// `pmirank`, or `srcid` from clients that find `PMI_ID`. MPICH >= 4.1 sends -1 if it finds no rank.
        rank: Option<i32>,
        /// `threaded`; not sent by MPICH >= 4.1.
        threaded: Option<bool>,
    },
    /// `job-getid`.
    JobId,
    /// `info-getjobattr`.
    JobAttribute {
        /// `key`.
        key: Cow<'a, [u8]>,
    },
    /// `info-putnodeattr`.
    NodePut {
        /// `key`.
        key: Cow<'a, [u8]>,
        /// `value`.
        value: Cow<'a, [u8]>,
    },
    /// `info-getnodeattr`.
    NodeGet {
        /// `key`.
        key: Cow<'a, [u8]>,
        /// `wait`: withholds the reply until a rank has put the key.
        wait: bool,
    },
    /// `kvs-put`.
    Put {
        /// `key`.
        key: Cow<'a, [u8]>,
        /// `value`.
        value: Cow<'a, [u8]>,
    },
    /// `kvs-fence`.
    Fence,
    /// `kvs-get`.
    Get {
        /// `jobid`: the job of the board; empty or absent for the rank's own.
        job: Cow<'a, [u8]>,
        /// `srcid`: the rank that may have put the key; -1 if unknown.
        source: i32,
        /// `key`.
        key: Cow<'a, [u8]>,
    },
    /// `finalize`.
    Finalize,
    /// `abort`.
    Abort {
        /// `exitcode`, sent by MPICH >= 4.1 and not by older clients.
        code: Option<i32>,
        /// `message` (MPICH >= 4.1) or `msg`; empty if absent.
        message: Cow<'a, [u8]>,
    },
    /// `spawn`.
    Spawn(SpawnRequest),
    /// `name-publish`.
    Publish {
        /// `name`.
        service: Cow<'a, [u8]>,
        /// `port`.
        port: Cow<'a, [u8]>,
    },
    /// `name-lookup`.
    Lookup {
        /// `name`.
        service: Cow<'a, [u8]>,
    },
    /// `name-unpublish`.
    Unpublish {
        /// `name`.
        service: Cow<'a, [u8]>,
    },
    /// `job-connect`.
    Connect {
        /// `jobid`.
        job: Cow<'a, [u8]>,
    },
    /// `job-disconnect`.
    Disconnect {
        /// `jobid`.
        job: Cow<'a, [u8]>,
    },
    /// `ring`, of Slurm's `PMIX_Ring`.
    Ring {
        /// `ring-left`: the value for the left neighbour.
        left: Cow<'a, [u8]>,
        /// `ring-right`: the value for the right neighbour.
        right: Cow<'a, [u8]>,
    },
    /// `scela-segment`, sent by our own libpmi.
    Segment,
    /// `scela-fence`, sent by our own libpmi: encoded puts follow the frame.
    FenceInSegment {
        /// `puts`: the length of the encoded puts.
        puts_bytes: usize,
    },
    /// Any other command; not empty.
    Unknown {
        /// The command's name.
        name: Cow<'a, [u8]>,
    },
}

/// Why a payload is not a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum ParseError {
    /// The payload has no command, so there is no reply to it.
    #[error("sent a frame without a command")]
    NoCommand,
    /// The command lacks a field.
    #[error("sent a {command} that lacks a field ({field})")]
    Field {
        /// The name of the command.
        command: &'static str,
        /// The name of the missing field.
        field: &'static str,
    },
    /// A spawn that cannot be parsed or exceeds a bound.
    #[error("sent a spawn that is refused ({0})")]
    Spawn(SpawnError),
}

impl<'a> Command<'a> {
    /// Parses the pairs of a payload.
    pub fn parse(pairs: Pairs<'a>) -> Result<Self, ParseError> {
        let name = pairs.get(b"cmd").unwrap_or_default();
        let need =
            |command, field: &'static str| pairs.get(field.as_bytes()).ok_or(ParseError::Field { command, field });
        let number = |field: &[u8]| pairs.get(field).and_then(|value| fields::number(fields::trim(&value)));
        Ok(match &*name {
            b"" => return Err(ParseError::NoCommand),
            b"kvs-get" => Self::Get {
                job: pairs.get(b"jobid").unwrap_or_default(),
                source: number(b"srcid").unwrap_or(-1),
                key: need("kvs-get", "key")?,
            },
            b"kvs-put" => Self::Put { key: need("kvs-put", "key")?, value: need("kvs-put", "value")? },
            b"kvs-fence" => Self::Fence,
            b"fullinit" => Self::FullInit {
                job: pairs.get(b"pmijobid"),
                rank: number(b"pmirank").or_else(|| number(b"srcid")),
                threaded: pairs.get(b"threaded").map(|value| is_true(&value)),
            },
            b"job-getid" => Self::JobId,
            b"info-getjobattr" => Self::JobAttribute { key: need("info-getjobattr", "key")? },
            b"info-putnodeattr" => {
                let (key, value) = (need("info-putnodeattr", "key")?, need("info-putnodeattr", "value")?);
                Self::NodePut { key, value }
            }
            b"info-getnodeattr" => Self::NodeGet {
                key: need("info-getnodeattr", "key")?,
                wait: pairs.get(b"wait").is_some_and(|value| is_true(&value)),
            },
            b"finalize" => Self::Finalize,
            b"abort" => {
                let message = pairs.get(b"message").or_else(|| pairs.get(b"msg"));
                Self::Abort {
                    code: pairs.get(b"exitcode").and_then(|code| fields::number(fields::trim(&code))),
                    message: message.unwrap_or_default(),
                }
            }
            b"spawn" => Self::Spawn(spawn::parse(pairs).map_err(ParseError::Spawn)?),
            b"name-publish" => {
                let (service, port) = (need("name-publish", "name")?, need("name-publish", "port")?);
                Self::Publish { service, port }
            }
            b"name-lookup" => Self::Lookup { service: need("name-lookup", "name")? },
            b"name-unpublish" => Self::Unpublish { service: need("name-unpublish", "name")? },
            b"job-connect" => Self::Connect { job: need("job-connect", "jobid")? },
            b"job-disconnect" => Self::Disconnect { job: need("job-disconnect", "jobid")? },
            b"ring" => Self::Ring { left: need("ring", "ring-left")?, right: need("ring", "ring-right")? },
            b"scela-segment" => Self::Segment,
            b"scela-fence" => {
                let puts_bytes = pairs.get(b"puts").and_then(|count| fields::number(&count));
                let missing = ParseError::Field { command: "scela-fence", field: "puts" };
                Self::FenceInSegment { puts_bytes: puts_bytes.ok_or(missing)? }
            }
            _ => Self::Unknown { name },
        })
    }

    /// Appends the frame whose payload [`Command::parse`] parses as this command. Appends nothing and returns `false` if
    /// it exceeds a frame.
    #[must_use]
    pub fn write(&self, out: &mut Vec<u8>) -> bool {
        let start = frame::begin(out);
        let mut write = |name: &[u8], fields: &[(&str, &[u8])]| {
            pairs::write("cmd", name, out);
            for (field, value) in fields {
                pairs::write(field, value, out);
            }
        };
        match self {
            Self::FullInit { job, rank, threaded } => {
                let rank = rank.map(|rank| rank.to_string());
                let job = job.as_ref().map(|job| ("pmijobid", &**job));
                let rank = rank.as_ref().map(|rank| ("pmirank", rank.as_bytes()));
                let threaded = threaded.map(|threaded| ("threaded", truth(threaded)));
                write(b"fullinit", &[job, rank, threaded].into_iter().flatten().collect::<Vec<_>>());
            }
            Self::JobId => write(b"job-getid", &[]),
            Self::JobAttribute { key } => write(b"info-getjobattr", &[("key", key)]),
            Self::NodePut { key, value } => write(b"info-putnodeattr", &[("key", key), ("value", value)]),
            Self::NodeGet { key, wait } => write(b"info-getnodeattr", &[("key", key), ("wait", truth(*wait))]),
            Self::Put { key, value } => write(b"kvs-put", &[("key", key), ("value", value)]),
            Self::Fence => write(b"kvs-fence", &[]),
            Self::Get { job, source, key } => {
                // Hydra 5 ends the job when a field is empty.
                let job = (!job.is_empty()).then_some(("jobid", &**job));
                let source = source.to_string();
                let (source, key) = (Some(("srcid", source.as_bytes())), Some(("key", &**key)));
                write(b"kvs-get", &[job, source, key].into_iter().flatten().collect::<Vec<_>>());
            }
            Self::Finalize => write(b"finalize", &[]),
            Self::Abort { code, message } => {
                let code = code.map(|code| code.to_string());
                let code = code.as_ref().map(|code| ("exitcode", code.as_bytes()));
                // MPICH >= 4.1 refuses empty fields.
                let message = (!message.is_empty()).then_some(("message", &**message));
                // Without `isworld`, Slurm's plug-in ignores the abort.
                let world = Some(("isworld", truth(true)));
                write(b"abort", &[world, code, message].into_iter().flatten().collect::<Vec<_>>());
            }
            Self::Spawn(order) => {
                write(b"spawn", &[]);
                spawn::write(order, out);
            }
            Self::Publish { service, port } => {
                write(b"name-publish", &[("name", service), ("port", port), ("infokeycount", b"0")]);
            }
            Self::Lookup { service } => write(b"name-lookup", &[("name", service), ("infokeycount", b"0")]),
            Self::Unpublish { service } => write(b"name-unpublish", &[("name", service), ("infokeycount", b"0")]),
            Self::Connect { job } => write(b"job-connect", &[("jobid", job)]),
            Self::Disconnect { job } => write(b"job-disconnect", &[("jobid", job)]),
            Self::Ring { left, right } => {
                write(b"ring", &[("ring-count", b"1"), ("ring-left", left), ("ring-right", right)]);
            }
            Self::Segment => write(b"scela-segment", &[]),
            Self::FenceInSegment { puts_bytes } => {
                write(b"scela-fence", &[("puts", puts_bytes.to_string().as_bytes())])
            }
            Self::Unknown { name } => write(name, &[]),
        }
        frame::end(start, out)
    }
}

/// Clients write `TRUE`; Slurm's plug-in accepts it in any case.
fn is_true(value: &[u8]) -> bool {
    value.eq_ignore_ascii_case(b"TRUE")
}

/// Returns a truth value as all clients and servers expect it.
pub(super) fn truth(value: bool) -> &'static [u8] {
    if value { b"TRUE" } else { b"FALSE" }
}

#[cfg(test)]
mod tests;
