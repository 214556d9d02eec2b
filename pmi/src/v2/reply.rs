//! [`Reply`]: every frame that the server sends to a rank, and [`ReplyFrame`], a frame as a client reads it.
//!
//! Each reply satisfies what MPI libraries require:
//!
//! - `cmd=` comes first and is the request's name followed by `-response`. Then comes the request's `thrid`, unchanged, if
//!   it had one: a threaded client finds the waiting thread by it.
//! - `rc` is always present, since all clients but MPICH >= 4.1 fail without it. It is 0 or 1 and last, as in the frames
//!   of the clients' own servers.
//! - Truth values are `TRUE` and `FALSE`; anything else is an error.
//! - A `;` in a value is doubled. MPICH >= 4.1 cannot parse that, nor any replacement for it.
//! - No value except `errcodes` is longer than 1024 bytes (older clients fail to read the frame). None is empty (MPICH >=
//!   4.1 fails), except one that was put empty.
//! - `errmsg` consists of printable ASCII without a `;`.

use std::borrow::Cow;
use std::io::Write;

use super::command::truth;
use super::pairs::{self, Pairs};
use crate::limits::{ATTRIBUTE_BYTES_MAX, ECHO_BYTES_MAX};
use crate::wire::{fields, frame};

/// A reply to a rank.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Reply<'a> {
    /// The rank is initialised.
    FullInit {
        /// The rank.
        rank: u32,
        /// The namespace's size.
        size: u32,
        /// The number of its command.
        appnum: i32,
        /// The namespace that spawned the rank's own. A client that finds it takes itself as spawned.
        spawner: Option<&'a str>,
    },
    /// The namespace's name.
    JobId(&'a str),
    /// The value of a job's attribute, if there is one of that name.
    JobAttribute(Option<&'a [u8]>),
    /// A node's attribute was stored.
    NodePut,
    /// The value of a node's attribute, if there is one of that name.
    NodeGot(Option<&'a [u8]>),
    /// A put was stored.
    Put,
    /// The fence is complete.
    Fenced,
    /// The value of a key, if a rank has put it. Only MPICH >= 4.1 takes an absent key as an error, since it misses the
    /// value.
    Got(Option<&'a [u8]>),
    /// The rank is finalised.
    Finalized,
    /// Children were started: the name of their namespace and a code for each requested child. Codes that are all 0 are
    /// left out. Older clients look for the codes in the wrong place, and MPICH >= 4.1 does not look for them.
    Spawned {
        /// The children's namespace.
        job: &'a str,
        /// A code for each child.
        codes: &'a [i32],
    },
    /// A name was published.
    Published,
    /// The port that is published under a name: MPICH reads `port`, Slurm's client `value`.
    Port(&'a [u8]),
    /// The name is not published.
    NoPort,
    /// The name is no longer published.
    Unpublished,
    /// A job of that name exists. It has no copy of the rank's entries.
    Connected,
    /// A connection to a job was ended.
    Disconnected,
    /// The rank's position in the ring and its neighbours' values.
    Ring {
        /// The position.
        position: u32,
        /// The left neighbour's value.
        from_left: &'a [u8],
        /// The right neighbour's value.
        from_right: &'a [u8],
    },
    /// The segment's descriptor comes with this frame.
    Segment,
    /// A request was refused; the command's name and the reason.
    Refused(&'static str, &'a str),
    /// The command is unknown. Hydra kills the job instead; Slurm does not reply.
    Unsupported(&'a [u8]),
}

impl Reply<'_> {
    /// Appends the frame with the `thrid` of its request. A reply that exceeds a frame becomes a refusal.
    pub fn write(&self, thread: Option<&[u8]>, out: &mut Vec<u8>) {
        if !self.write_if_it_fits(thread, out) {
            // A refusal always fits: its text and the thread are bounded.
            let _ = self.refusal("reply too long").write_if_it_fits(thread, out);
        }
    }

    #[must_use]
    fn write_if_it_fits(&self, thread: Option<&[u8]>, out: &mut Vec<u8>) -> bool {
        let start = frame::begin(out);
        out.extend_from_slice(b"cmd=");
        match self {
            Self::Unsupported(command) => write_word(command, out),
            _ => out.extend_from_slice(self.command().as_bytes()),
        }
        out.extend_from_slice(b"-response;");
        if let Some(thread) = thread {
            pairs::write("thrid", thread, out);
        }
        match self.write_fields(out) {
            Ok(()) => out.extend_from_slice(b"rc=0;"),
            Err(why) => {
                out.extend_from_slice(b"rc=1;errmsg=");
                write_words(why, out);
                out.push(b';');
            }
        }
        frame::end(start, out)
    }

    /// Appends the fields of this kind of reply. Returns the reason of a refusal as an error.
    fn write_fields(&self, out: &mut Vec<u8>) -> Result<(), &str> {
        match *self {
            // The hot path.
            Self::Got(value) | Self::NodeGot(value) | Self::JobAttribute(value) => {
                pairs::write("found", truth(value.is_some()), out);
                if let Some(value) = value {
                    pairs::write("value", value, out);
                }
            }
            Self::FullInit { rank, size, appnum, spawner } => {
                print(out, format_args!("pmi-version=2;pmi-subversion=0;rank={rank};size={size};appnum={appnum};"));
                if let Some(spawner) = spawner {
                    pairs::write("spawner-jobid", spawner.as_bytes(), out);
                }
                out.extend_from_slice(b"debugged=FALSE;pmiverbose=FALSE;");
            }
            Self::JobId(job) => pairs::write("jobid", job.as_bytes(), out),
            Self::Spawned { job, codes } => {
                pairs::write("jobid", job.as_bytes(), out);
                write_codes(codes, out);
            }
            Self::Port(port) => {
                pairs::write("port", port, out);
                pairs::write("value", port, out);
            }
            Self::NoPort => {
                pairs::write("found", truth(false), out);
                return Err("name is not published");
            }
            Self::Connected => pairs::write("kvscopy", truth(false), out),
            Self::Ring { position, from_left, from_right } => {
                print(out, format_args!("ring-count={position};"));
                pairs::write("ring-left", from_left, out);
                pairs::write("ring-right", from_right, out);
            }
            Self::Refused(_, why) => return Err(why),
            Self::Unsupported(_) => return Err("unsupported"),
            Self::NodePut
            | Self::Put
            | Self::Fenced
            | Self::Finalized
            | Self::Published
            | Self::Unpublished
            | Self::Disconnected
            | Self::Segment => {}
        }
        Ok(())
    }

    /// Returns the name of the command that this replies to.
    fn command(&self) -> &'static str {
        match *self {
            Self::FullInit { .. } => "fullinit",
            Self::JobId(_) => "job-getid",
            Self::JobAttribute(_) => "info-getjobattr",
            Self::NodePut => "info-putnodeattr",
            Self::NodeGot(_) => "info-getnodeattr",
            Self::Put => "kvs-put",
            Self::Fenced => "kvs-fence",
            Self::Got(_) => "kvs-get",
            Self::Finalized => "finalize",
            Self::Spawned { .. } => "spawn",
            Self::Published => "name-publish",
            Self::Port(_) | Self::NoPort => "name-lookup",
            Self::Unpublished => "name-unpublish",
            Self::Connected => "job-connect",
            Self::Disconnected => "job-disconnect",
            Self::Ring { .. } => "ring",
            Self::Segment => "scela-segment",
            Self::Refused(command, _) => command,
            Self::Unsupported(_) => "unsupported",
        }
    }

    /// Returns a refusal of the same request.
    fn refusal<'a>(&self, why: &'a str) -> Reply<'a> {
        Reply::Refused(self.command(), why)
    }
}

/// Appends the codes, unless all are 0.
fn write_codes(codes: &[i32], out: &mut Vec<u8>) {
    let failed = codes.iter().filter(|&&code| code != 0).count();
    if failed == 0 {
        return;
    }
    print(out, format_args!("nerrs={failed};errcodes="));
    for (index, code) in codes.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        print(out, format_args!("{code}"));
    }
    out.push(b';');
}

fn print(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a vector cannot fail.
    let _ = out.write_fmt(text);
}

/// Appends any text as a value of 1 to [`ATTRIBUTE_BYTES_MAX`] bytes of printable ASCII without a `;`.
fn write_words(text: &str, out: &mut Vec<u8>) {
    let text = if text.is_empty() { "_" } else { text };
    out.extend(text.bytes().take(ATTRIBUTE_BYTES_MAX).map(|byte| match byte {
        b' ' => b' ',
        b';' => b',',
        byte if byte.is_ascii_graphic() => byte,
        _ => b'_',
    }));
}

/// Appends a command's name with other characters replaced, cut at [`ECHO_BYTES_MAX`] bytes.
fn write_word(text: &[u8], out: &mut Vec<u8>) {
    out.extend(text.iter().take(ECHO_BYTES_MAX).map(|&byte| match byte {
        b';' | b'=' => b'_',
        byte if byte.is_ascii_graphic() => byte,
        _ => b'_',
    }));
}

/// A reply as a client reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplyFrame<'a> {
    /// The reply's name.
    pub name: Cow<'a, [u8]>,
    /// `rc`; 0 if absent.
    pub rc: i32,
    pairs: Pairs<'a>,
}

impl<'a> ReplyFrame<'a> {
    /// Parses a payload. Returns `None` if it has no `cmd=` or its `rc` is not a number.
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let pairs = Pairs::of(payload);
        let name = pairs.get(b"cmd")?;
        let rc = match pairs.get(b"rc") {
            Some(rc) => fields::number(fields::trim(&rc))?,
            None => 0,
        };
        Some(Self { name, rc, pairs })
    }

    /// Returns the value of a field.
    pub fn get(&self, name: &str) -> Option<Cow<'a, [u8]>> {
        self.pairs.get(name.as_bytes())
    }

    /// Returns the number in a field.
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        fields::number(fields::trim(&self.get(name)?))
    }

    /// Returns the value of a field that may not be `found`: `Some(None)` if it was not, `None` if the reply lacks it.
    pub fn found(&self, name: &str) -> Option<Option<Vec<u8>>> {
        if self.get("found").as_deref() == Some(truth(false)) {
            return Some(None);
        }
        self.get(name).map(|value| Some(value.into_owned()))
    }

    /// Returns the reason of a refusal.
    pub fn reason(&self) -> String {
        let reason = self.get("errmsg").unwrap_or(Cow::Borrowed(b"no_reason_given"));
        String::from_utf8_lossy(&reason).into_owned()
    }
}

#[cfg(test)]
mod tests;
