//! [`Client`]: the rank's side of PMI-2 over any stream, against any server.
//!
//! One request, one reply, blocking as the stream blocks. It opens nothing: the caller brings the
//! connected stream (`PMI_FD`), and a lock if several threads call, since no request carries a
//! `thrid`. What is sent is what Slurm's own client sends, whose plug-in reads fields by their place
//! in a `spawn` and insists on three in `fullinit`; Hydra takes that as well.

use std::borrow::Cow;
use std::io::{Read, Write};

use thiserror::Error;

use super::command::Command;
use super::reply::ReplyFrame;
use crate::client::{ClientError, Connection, none_if_refused};
use crate::limits::{ABORT_MESSAGE_BYTES_MAX, PENDING_BYTES_MAX, SPAWN_RANKS_MAX};
use crate::request::SpawnRequestError;
use crate::v1::reply::ReplyLine;
use crate::wire::fields;
use crate::{Rank, SpawnRequest, SpawnedJob, v1};

/// Why a connection could not be initialised.
#[derive(Debug, Error)]
pub enum InitError<S> {
    /// The server does not speak PMI-2. Nothing but the first line was said: the caller may go on
    /// in PMI-1 on this stream.
    #[error("PMI server does not speak version 2")]
    VersionRefused(S),
    /// Anything else.
    #[error(transparent)]
    Failed(#[from] ClientError),
}

/// What a rank learns of itself when it presents itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankInfo {
    /// Its rank.
    pub rank: Rank,
    /// How many ranks its job has.
    pub size: u32,
    /// The number of its command; Slurm says -1 to all.
    pub appnum: i32,
    /// The job that spawned its own, if any did.
    pub spawner: Option<Vec<u8>>,
}

/// A rank's place in the ring, and what its neighbours gave it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ring {
    /// Its position, from 0; the ring has as many as the job has ranks.
    pub position: u32,
    /// What its left neighbour gave to its right.
    pub from_left: Vec<u8>,
    /// What its right neighbour gave to its left.
    pub from_right: Vec<u8>,
}

/// A rank's connection to its PMI server, initialised.
#[derive(Debug)]
pub struct Client<S> {
    connection: Connection<S>,
    /// As it was told to the server.
    job: Option<Vec<u8>>,
    rank_info: RankInfo,
    has_segment: bool,
}

impl<S: Read + Write> Client<S> {
    /// Initialises PMI over a connected stream, as this rank of the job that the environment names
    /// (`PMI_JOBID`; Slurm insists on it).
    ///
    /// `with_segment` asks for the segment on the way, in one round trip: for a server that
    /// announces it ([`crate::segment::VARIABLE`]). Such a one speaks PMI-2, so that
    /// [`InitError::VersionRefused`] does not come of it.
    pub fn init(stream: S, job: Option<&[u8]>, rank: Rank, with_segment: bool) -> Result<Self, InitError<S>> {
        let rank_info = RankInfo { rank, size: 0, appnum: 0, spawner: None };
        let job = job.map(<[u8]>::to_vec);
        let mut client = Self { connection: Connection::over(stream), job, rank_info, has_segment: false };
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
        client.write_line();
        client.connection.flush()?;
        match client.read_line() {
            Ok(()) => {}
            Err(ClientError::Refused { .. }) => return Err(InitError::VersionRefused(client.into_stream())),
            Err(error) => return Err(error.into()),
        }
        client.write_full_init()?;
        client.connection.flush()?;
        client.read_full_init()?;
        Ok(client)
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

    /// What the server told of this rank.
    pub fn rank_info(&self) -> &RankInfo {
        &self.rank_info
    }

    /// Whether the segment's descriptor came with the reply, if [`Client::init`] was to ask for it.
    pub fn has_segment(&self) -> bool {
        self.has_segment
    }

    /// The name of the rank's own job.
    pub fn job_id(&mut self) -> Result<Vec<u8>, ClientError> {
        let id = |reply: &ReplyFrame<'_>| Some(reply.get("jobid")?.into_owned());
        self.ask(&Command::JobId, "request", "job-getid-response", id)
    }

    /// Puts a value under a key; others see it after the next fence.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), ClientError> {
        let put = Command::Put { key: key.into(), value: value.into() };
        self.ask(&put, "put", "kvs-put-response", nothing)
    }

    /// Waits until all ranks of the job are here; what they put can then be got.
    pub fn fence(&mut self) -> Result<(), ClientError> {
        self.ask(&Command::Fence, "fence", "kvs-fence-response", nothing)
    }

    /// The value of a key, `None` when nobody put it. The job may be empty, which means the rank's
    /// own; `source` is a hint as to who put it, -1 for none.
    pub fn get(&mut self, job: &[u8], source: i32, key: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        let get = Command::Get { job: job.into(), source, key: key.into() };
        none_if_refused(self.ask(&get, "key", "kvs-get-response", value))
    }

    /// An attribute of the job, `PMI_process_mapping` and the like.
    pub fn job_attribute(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        let get = Command::JobAttribute { key: key.into() };
        none_if_refused(self.ask(&get, "key", "info-getjobattr-response", value))
    }

    /// Puts an attribute of the node, for the job's ranks on it.
    pub fn node_put(&mut self, key: &[u8], value: &[u8]) -> Result<(), ClientError> {
        let put = Command::NodePut { key: key.into(), value: value.into() };
        self.ask(&put, "put", "info-putnodeattr-response", nothing)
    }

    /// An attribute of the node; with `wait` not before somebody has put it.
    pub fn node_get(&mut self, key: &[u8], wait: bool) -> Result<Option<Vec<u8>>, ClientError> {
        let get = Command::NodeGet { key: key.into(), wait };
        none_if_refused(self.ask(&get, "key", "info-getnodeattr-response", value))
    }

    /// Publishes a port under a name.
    pub fn publish(&mut self, service: &[u8], port: &[u8]) -> Result<(), ClientError> {
        let publish = Command::Publish { service: service.into(), port: port.into() };
        self.ask(&publish, "service", "name-publish-response", nothing)
    }

    /// The port published under a name, `None` when the server refuses, most likely since there is
    /// none.
    pub fn lookup(&mut self, service: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        let lookup = Command::Lookup { service: service.into() };
        // Slurm's plug-in has the port as `value` only.
        let port = |reply: &ReplyFrame<'_>| reply.found("port").or_else(|| reply.found("value"));
        none_if_refused(self.ask(&lookup, "service", "name-lookup-response", port))
    }

    /// Withdraws a published name.
    pub fn unpublish(&mut self, service: &[u8]) -> Result<(), ClientError> {
        let unpublish = Command::Unpublish { service: service.into() };
        self.ask(&unpublish, "service", "name-unpublish-response", nothing)
    }

    /// `PMIX_Ring`: meets all ranks of the job, gives each neighbour something and takes what they
    /// give.
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

    /// Starts further ranks, in a job of their own. The codes are one for each of them.
    pub fn spawn(&mut self, order: &SpawnRequest) -> Result<SpawnedJob, ClientError> {
        let ranks = order.ranks();
        if ranks > u64::from(SPAWN_RANKS_MAX) {
            return Err(SpawnRequestError::Ranks.into());
        }
        let ranks = ranks as usize;
        self.ask(&Command::Spawn(order.clone()), "spawn order", "spawn-response", |reply| {
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

    /// Connects to another job, whose entries can then be got.
    pub fn connect(&mut self, job: &[u8]) -> Result<(), ClientError> {
        let connect = Command::Connect { job: job.into() };
        self.ask(&connect, "job", "job-connect-response", nothing)
    }

    /// Ends a connection to another job.
    pub fn disconnect(&mut self, job: &[u8]) -> Result<(), ClientError> {
        let disconnect = Command::Disconnect { job: job.into() };
        self.ask(&disconnect, "job", "job-disconnect-response", nothing)
    }

    /// Ends the job with a code and some words, cut at [`ABORT_MESSAGE_BYTES_MAX`]. There is no
    /// reply: the caller exits, or waits to be killed.
    pub fn abort(&mut self, exit_code: i32, message: &[u8]) -> Result<(), ClientError> {
        let message = &message[..message.len().min(ABORT_MESSAGE_BYTES_MAX)];
        self.write(&Command::Abort { code: Some(exit_code), message: message.into() }, "message")?;
        self.connection.flush()
    }

    /// Finalises PMI. Slurm closes the connection; with others [`Client::join`] begins anew.
    pub fn finalize(&mut self) -> Result<(), ClientError> {
        self.ask(&Command::Finalize, "request", "finalize-response", nothing)
    }

    /// Asks for the segment; whether its descriptor came with the reply. Only of a server that
    /// announces it.
    pub fn segment(&mut self) -> Result<bool, ClientError> {
        self.write(&Command::Segment, "request")?;
        self.connection.flush()?;
        self.read_segment()
    }

    /// Arrives at a fence with these encoded puts ([`Puts::bytes`](crate::Puts::bytes)), at most
    /// [`PENDING_BYTES_MAX`]. There is no reply: the release shows in the segment.
    pub fn fence_in_segment(&mut self, puts: &[u8]) -> Result<(), ClientError> {
        if puts.len() > PENDING_BYTES_MAX {
            return Err(ClientError::TooLong("batch of puts"));
        }
        self.write(&Command::FenceInSegment { puts_bytes: puts.len() }, "request")?;
        self.connection.flush_with(puts)
    }

    /// The stream, for waiting on it or for sending something that no client should.
    pub fn stream_mut(&mut self) -> &mut S {
        &mut self.connection.stream
    }

    /// Gives the stream back; what was read and not asked for is lost.
    pub fn into_stream(self) -> S {
        self.connection.stream
    }

    fn write_line(&mut self) {
        v1::command::Command::Init { version: 2, subversion: 0 }.write(&mut self.connection.request);
    }

    fn read_line(&mut self) -> Result<(), ClientError> {
        let expected = "response_to_init";
        self.connection
            .line(|line| {
                v1::client::read_reply(line, expected, |reply: ReplyLine<'_>| {
                    let version = reply.word("pmi_version").and_then(fields::number).unwrap_or(2);
                    Some(if version == 2 { Ok(()) } else { Err(version) })
                })
            })??
            // A server of PMI-1 may grant what it has instead of what was asked for.
            .map_err(|version: u32| ClientError::Refused {
                reply: expected,
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

    /// Adds a frame to the request; `what` in it could be too long.
    fn write(&mut self, command: &Command<'_>, what: &'static str) -> Result<(), ClientError> {
        if command.write(&mut self.connection.request) { Ok(()) } else { Err(ClientError::TooLong(what)) }
    }

    /// Waits for a reply, and takes out of it what was asked for.
    fn read<T>(
        &mut self,
        expected: &'static str,
        take: impl FnOnce(&ReplyFrame<'_>) -> Option<T>,
    ) -> Result<T, ClientError> {
        self.connection.frame(|payload| {
            let got = || String::from_utf8_lossy(&payload[..payload.len().min(SHOWN_BYTES_MAX)]).into_owned();
            let unexpected = || ClientError::Unexpected { expected, got: got() };
            let reply = ReplyFrame::parse(payload).ok_or_else(unexpected)?;
            if *reply.name != *expected.as_bytes() {
                return Err(unexpected());
            }
            if reply.rc != 0 {
                return Err(ClientError::Refused { reply: expected, rc: reply.rc, reason: reply.reason() });
            }
            take(&reply).ok_or_else(unexpected)
        })?
    }
}

/// How much of a reply that was not due is shown.
const SHOWN_BYTES_MAX: usize = 1024;

/// Nothing but success is of interest.
fn nothing(_: &ReplyFrame<'_>) -> Option<()> {
    Some(())
}

/// What was found, or that there is none.
fn value(reply: &ReplyFrame<'_>) -> Option<Option<Vec<u8>>> {
    reply.found("value")
}

#[cfg(test)]
mod tests;
