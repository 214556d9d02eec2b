//! [`Client`]: the rank's side of PMI-2 over any stream, against any server.
//!
//! Each call writes one request and blocks until its reply is read, if the stream blocks. The caller provides the
//! connected stream (`PMI_FD`), and a lock if several threads call, since requests carry no `thrid`. Requests are those
//! of Slurm's own client: Slurm's plug-in reads the fields of a `spawn` by position and requires three in `fullinit`.
//! Hydra accepts them as well.

use std::borrow::Cow;
use std::io::{Read, Write};

use thiserror::Error;

use super::command::Command;
use super::reply::ReplyFrame;
use crate::client::{ClientError, Connection, none_if_refused, unexpected};
use crate::limits::{ABORT_MESSAGE_BYTES_MAX, SPAWN_RANKS_MAX};
use crate::request::SpawnRequestError;
use crate::v1::reply::ReplyLine;
use crate::wire::fields;
use crate::{Rank, SpawnRequest, SpawnedJob, v1};

/// The reply to the line that requests version 2.
const LINE_REPLY: &str = "response_to_init";

/// Why a connection could not be initialised.
#[derive(Debug, Error)]
pub enum InitError<S> {
    /// The server does not speak PMI-2. Only the first line was sent, so the caller may continue in PMI-1 on this stream.
    #[error("PMI server does not speak version 2")]
    VersionRefused(S),
    /// Another failure.
    #[error(transparent)]
    Failed(#[from] ClientError),
}

/// The attributes of a rank that the server reports in reply to `fullinit`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankInfo {
    /// The rank.
    pub rank: Rank,
    /// The number of ranks of its job.
    pub size: u32,
    /// The number of its command; Slurm sends -1 to all ranks.
    pub appnum: i32,
    /// The job that spawned its own, if there is one.
    pub spawner: Option<Vec<u8>>,
}

/// A rank's position in the ring and its neighbours' values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ring {
    /// The position, from 0 to the number of the job's ranks minus one.
    pub position: u32,
    /// The value that the left neighbour passed to its right.
    pub from_left: Vec<u8>,
    /// The value that the right neighbour passed to its left.
    pub from_right: Vec<u8>,
}

/// A rank's connection to its PMI server, initialised.
#[derive(Debug)]
pub struct Client<S> {
    connection: Connection<S>,
    /// The job as named to the server.
    job: Option<Vec<u8>>,
    rank_info: RankInfo,
    has_segment: bool,
}

impl<S: Read + Write> Client<S> {
    /// Initialises PMI over a connected stream, as this rank of the job that the environment names (`PMI_JOBID`, which
    /// Slurm requires).
    ///
    /// `with_segment` also requests the segment, in the same round trip. It is for servers that announce the segment
    /// ([`crate::segment::VARIABLE`]). Those speak PMI-2, so [`InitError::VersionRefused`] is not returned.
    pub fn init(stream: S, job: Option<&[u8]>, rank: Rank, with_segment: bool) -> Result<Self, InitError<S>> {
        let rank_info = RankInfo { rank, size: 0, appnum: 0, spawner: None };
        let job = job.map(<[u8]>::to_vec);
        let mut client = Self { connection: Connection::new(stream), job, rank_info, has_segment: false };
        if with_segment {
            client.write_line();
            client.write_full_init()?;
            client.write(&Command::Segment, "segment request")?;
            client.connection.flush()?;
            client.read_line()?;
            client.read_full_init()?;
            client.has_segment = client.read_segment()?;
            return Ok(client);
        }
        match client.join() {
            Ok(()) => Ok(client),
            Err(ClientError::Refused { reply: LINE_REPLY, .. }) => Err(InitError::VersionRefused(client.into_stream())),
            Err(error) => Err(error.into()),
        }
    }

    /// Initialises PMI again on the same connection, after [`Client::finalize`] or without.
    pub fn join(&mut self) -> Result<(), ClientError> {
        self.write_line();
        self.connection.flush()?;
        self.read_line()?;
        self.write_full_init()?;
        self.connection.flush()?;
        self.read_full_init()
    }

    /// Returns what the server reported about this rank.
    pub fn rank_info(&self) -> &RankInfo {
        &self.rank_info
    }

    /// Whether the segment's descriptor came with the reply, if [`Client::init`] requested it.
    pub fn has_segment(&self) -> bool {
        self.has_segment
    }

    /// Returns the name of the rank's own job.
    pub fn job_id(&mut self) -> Result<Vec<u8>, ClientError> {
        let id = |reply: &ReplyFrame<'_>| Some(reply.get("jobid")?.into_owned());
        self.ask(&Command::JobId, "request", "job-getid-response", id)
    }

    /// Puts a value under a key; others see it after the next fence.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), ClientError> {
        let put = Command::Put { key: key.into(), value: value.into() };
        self.ask(&put, "put", "kvs-put-response", nothing)
    }

    /// Waits until all ranks of the job have called it. Their puts are then visible.
    pub fn fence(&mut self) -> Result<(), ClientError> {
        self.ask(&Command::Fence, "fence", "kvs-fence-response", nothing)
    }

    /// Returns the value of a key, or `None` if no rank has put it.
    ///
    /// An empty `job` means the rank's own job. `source` is the rank that probably put the key, -1 if unknown.
    pub fn get(&mut self, job: &[u8], source: i32, key: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        let get = Command::Get { job: job.into(), source, key: key.into() };
        none_if_refused(self.ask(&get, "key", "kvs-get-response", value))
    }

    /// Returns an attribute of the job, such as `PMI_process_mapping`.
    pub fn job_attribute(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        let get = Command::JobAttribute { key: key.into() };
        none_if_refused(self.ask(&get, "key", "info-getjobattr-response", value))
    }

    /// Puts an attribute of the node for the job's ranks on it.
    pub fn node_put(&mut self, key: &[u8], value: &[u8]) -> Result<(), ClientError> {
        let put = Command::NodePut { key: key.into(), value: value.into() };
        self.ask(&put, "put", "info-putnodeattr-response", nothing)
    }

    /// Returns an attribute of the node. With `wait`, blocks until a rank has put it.
    pub fn node_get(&mut self, key: &[u8], wait: bool) -> Result<Option<Vec<u8>>, ClientError> {
        let get = Command::NodeGet { key: key.into(), wait };
        none_if_refused(self.ask(&get, "key", "info-getnodeattr-response", value))
    }

    /// Publishes a port under a name.
    pub fn publish(&mut self, service: &[u8], port: &[u8]) -> Result<(), ClientError> {
        let publish = Command::Publish { service: service.into(), port: port.into() };
        self.ask(&publish, "service", "name-publish-response", nothing)
    }

    /// Returns the port that is published under a name, or `None` if the server refuses, most likely because there is
    /// none.
    pub fn lookup(&mut self, service: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        let lookup = Command::Lookup { service: service.into() };
        // Slurm's plug-in sends the port only as `value`.
        let port = |reply: &ReplyFrame<'_>| reply.found("port").or_else(|| reply.found("value"));
        none_if_refused(self.ask(&lookup, "service", "name-lookup-response", port))
    }

    /// Unpublishes a name.
    pub fn unpublish(&mut self, service: &[u8]) -> Result<(), ClientError> {
        let unpublish = Command::Unpublish { service: service.into() };
        self.ask(&unpublish, "service", "name-unpublish-response", nothing)
    }

    /// `PMIX_Ring`: waits until all ranks of the job have called it, and exchanges values with both neighbours.
    pub fn ring(&mut self, to_left: &[u8], to_right: &[u8]) -> Result<Ring, ClientError> {
        let ring = Command::Ring { left: to_left.into(), right: to_right.into() };
        self.ask(&ring, "value", "ring-response", |reply| {
            let value = |name| Some(reply.get(name)?.into_owned());
            Some(Ring {
                position: reply.number("ring-count")?,
                from_left: value("ring-left")?,
                from_right: value("ring-right")?,
            })
        })
    }

    /// Starts further ranks in a job of their own. Returns the job and a code for each rank.
    pub fn spawn(&mut self, spawn: &SpawnRequest) -> Result<SpawnedJob, ClientError> {
        let ranks = spawn.ranks();
        if ranks > u64::from(SPAWN_RANKS_MAX) {
            return Err(SpawnRequestError::Ranks.into());
        }
        let ranks = ranks as usize;
        self.ask(&Command::Spawn(spawn.clone()), "spawn", "spawn-response", |reply| {
            let job = String::from_utf8_lossy(&reply.get("jobid")?).into_owned();
            let codes = match reply.get("errcodes") {
                None => vec![0; ranks],
                Some(codes) => {
                    let codes = codes.split(|&byte| byte == b',').map(|code| fields::number(fields::trim(code)));
                    codes.take(ranks + 1).collect::<Option<Vec<i32>>>()?
                }
            };
            (codes.len() == ranks).then_some(SpawnedJob { job, codes })
        })
    }

    /// Connects to another job, whose entries are then visible.
    pub fn connect(&mut self, job: &[u8]) -> Result<(), ClientError> {
        let connect = Command::Connect { job: job.into() };
        self.ask(&connect, "job", "job-connect-response", nothing)
    }

    /// Ends a connection to another job.
    pub fn disconnect(&mut self, job: &[u8]) -> Result<(), ClientError> {
        let disconnect = Command::Disconnect { job: job.into() };
        self.ask(&disconnect, "job", "job-disconnect-response", nothing)
    }

    /// Ends the job with a code and a message, which is cut at [`ABORT_MESSAGE_BYTES_MAX`]. There is no reply: the caller
    /// exits or waits to be killed.
    pub fn abort(&mut self, exit_code: i32, message: &[u8]) -> Result<(), ClientError> {
        let message = &message[..message.len().min(ABORT_MESSAGE_BYTES_MAX)];
        self.write(&Command::Abort { code: Some(exit_code), message: message.into() }, "message")?;
        self.connection.flush()
    }

    /// Finalises PMI. Slurm then closes the connection; with other servers it stays open for [`Client::join`].
    pub fn finalize(&mut self) -> Result<(), ClientError> {
        self.ask(&Command::Finalize, "request", "finalize-response", nothing)
    }

    /// Requests the segment. Returns whether its descriptor came with the reply. For servers that announce the segment.
    pub fn segment(&mut self) -> Result<bool, ClientError> {
        self.write(&Command::Segment, "request")?;
        self.connection.flush()?;
        self.read_segment()
    }

    /// Arrives at a fence with these encoded puts ([`Puts::bytes`](crate::Puts::bytes)), at most
    /// [`PENDING_BYTES_MAX`](crate::limits::PENDING_BYTES_MAX). There is no reply: the segment shows the release.
    pub fn fence_in_segment(&mut self, puts: &[u8]) -> Result<(), ClientError> {
        Connection::<S>::check_puts(puts)?;
        self.write(&Command::FenceInSegment { puts_bytes: puts.len() }, "request")?;
        self.connection.flush_with(puts)
    }

    /// Returns the stream, to wait on it or to send what this client would not.
    pub fn stream_mut(&mut self) -> &mut S {
        &mut self.connection.stream
    }

    /// Returns the stream; bytes that were read and not used are lost.
    pub fn into_stream(self) -> S {
        self.connection.stream
    }

    fn write_line(&mut self) {
        v1::command::Command::Init { version: 2, subversion: 0 }.write(&mut self.connection.request);
    }

    fn read_line(&mut self) -> Result<(), ClientError> {
        self.connection
            .line(|line| {
                v1::client::read_reply(line, LINE_REPLY, |reply: ReplyLine<'_>| {
                    let version = reply.word("pmi_version").and_then(fields::number).unwrap_or(2);
                    Some(if version == 2 { Ok(()) } else { Err(version) })
                })
            })??
            // A server of PMI-1 may grant its own version instead of the requested one.
            .map_err(|version: u32| ClientError::Refused {
                reply: LINE_REPLY,
                rc: 0,
                reason: format!("version {version} instead"),
            })
    }

    fn write_full_init(&mut self) -> Result<(), ClientError> {
        let job = self.job.clone().map(Cow::Owned);
        let rank = Some(self.rank_info.rank.0.cast_signed());
        self.write(&Command::FullInit { job, rank, threaded: Some(false) }, "job")
    }

    fn read_full_init(&mut self) -> Result<(), ClientError> {
        self.rank_info = self.read("fullinit-response", |reply| {
            Some(RankInfo {
                rank: Rank(reply.number("rank")?),
                size: reply.number("size")?,
                appnum: reply.number("appnum")?,
                spawner: reply.get("spawner-jobid").map(Cow::into_owned),
            })
        })?;
        Ok(())
    }

    fn read_segment(&mut self) -> Result<bool, ClientError> {
        let given = none_if_refused(self.read("scela-segment-response", |_| Some(Some(()))))?;
        Ok(given.is_some())
    }

    fn ask<T>(
        &mut self,
        command: &Command<'_>,
        what: &'static str,
        expected: &'static str,
        take: impl FnOnce(&ReplyFrame<'_>) -> Option<T>,
    ) -> Result<T, ClientError> {
        self.write(command, what)?;
        self.connection.flush()?;
        self.read(expected, take)
    }

    /// Adds a frame to the request. `what` names the part that may make it too long.
    fn write(&mut self, command: &Command<'_>, what: &'static str) -> Result<(), ClientError> {
        if command.write(&mut self.connection.request) { Ok(()) } else { Err(ClientError::TooLong(what)) }
    }

    /// Waits for a reply and returns what `take` finds in it.
    fn read<T>(
        &mut self,
        expected: &'static str,
        take: impl FnOnce(&ReplyFrame<'_>) -> Option<T>,
    ) -> Result<T, ClientError> {
        self.connection.frame(|payload| {
            let reply = ReplyFrame::parse(payload).filter(|reply| *reply.name == *expected.as_bytes());
            let reply = reply.ok_or_else(|| unexpected(expected, payload))?;
            if reply.rc != 0 {
                return Err(ClientError::Refused { reply: expected, rc: reply.rc, reason: reply.reason() });
            }
            take(&reply).ok_or_else(|| unexpected(expected, payload))
        })?
    }
}

/// Takes nothing: the reply only has to be a success.
fn nothing(_: &ReplyFrame<'_>) -> Option<()> {
    Some(())
}

/// Takes the value, or that there is none.
fn value(reply: &ReplyFrame<'_>) -> Option<Option<Vec<u8>>> {
    reply.found("value")
}

#[cfg(test)]
mod tests;
