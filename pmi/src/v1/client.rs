//! [`Client`]: the rank's side of PMI-1 over any stream.
//!
//! Each call writes one request and blocks until its reply is read, if the stream blocks. The caller provides the
//! connected stream (`PMI_FD`, or one end of a pair).

use std::io::{Read, Write};

use super::command::Command;
use super::reply::ReplyLine;
use super::spawn::write_spawn;
pub use crate::client::ClientError;
use crate::client::{Connection, none_if_refused, unexpected};
use crate::request::SpawnRequest;
use crate::{Rank, Ranks};

/// The maxima that a server advertises: sizes of C buffers, including the terminating NUL.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Maxes {
    /// The size of a key-value space's name.
    pub kvsname: usize,
    /// The size of a key.
    pub key: usize,
    /// The size of a value.
    pub value: usize,
}

const INIT: Command<'static> = Command::Init { version: 1, subversion: 1 };

/// A rank's connection to its PMI server, initialised.
#[derive(Debug)]
pub struct Client<S> {
    connection: Connection<S>,
    /// Requested when first needed.
    kvsname: Option<String>,
}

impl<S: Read + Write> Client<S> {
    /// Initialises PMI over a connected stream.
    pub fn init(stream: S) -> Result<Self, ClientError> {
        let mut client = Self::unjoined(stream);
        client.join()?;
        Ok(client)
    }

    /// Initialises PMI and requests the segment in one round trip. Returns whether the segment's descriptor came with
    /// the second reply.
    ///
    /// For servers that announce the segment ([`crate::segment::VARIABLE`]); others may end the job.
    pub fn init_with_segment(stream: S) -> Result<(Self, bool), ClientError> {
        let mut client = Self::unjoined(stream);
        INIT.write(&mut client.connection.request);
        Command::Segment.write(&mut client.connection.request);
        client.connection.flush()?;
        client.reply("response_to_init", |_| Some(()))?;
        let given = none_if_refused(client.reply("scela_segment_result", |_| Some(Some(()))))?;
        Ok((client, given.is_some()))
    }

    /// Sends `initack` as `rank` on a connection to a port and initialises PMI. Also returns the namespace's size and
    /// this process's rank, which have no other source in this mode.
    pub fn init_on_port(stream: S, rank: Rank) -> Result<(Self, u32, Rank), ClientError> {
        let mut client = Self::unjoined(stream);
        client.send(Command::Initack { rank: rank.0 })?;
        client.reply("initack", |_| Some(()))?;
        let number =
            |field: &'static str| move |reply: ReplyLine<'_>| crate::wire::fields::number::<u32>(reply.word(field)?);
        let size = client.reply("set", number("size"))?;
        let rank = Rank(client.reply("set", number("rank"))?);
        client.reply("set", number("debug"))?;
        client.join()?;
        Ok((client, size, rank))
    }

    /// Initialises PMI again on the same connection, after [`Client::finalize`].
    pub fn join(&mut self) -> Result<(), ClientError> {
        self.ask(INIT, "response_to_init", |_| Some(()))
    }

    /// Puts a value under a key; others see it after the next barrier.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), ClientError> {
        let key = word("key", key)?;
        let value = line("value", value)?;
        let kvsname = self.kvsname()?;
        let put = Command::Put { kvsname: kvsname.as_bytes(), key, value };
        self.ask(put, "put_result", |_| Some(()))
    }

    /// Returns the value of a key, or `None` if no rank has put it. Never waits for a put.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        let key = word("key", key)?;
        let kvsname = self.kvsname()?;
        let get = Command::Get { kvsname: kvsname.as_bytes(), key };
        none_if_refused(self.ask(get, "get_result", |reply| Some(Some(reply.last("value")?.to_vec()))))
    }

    /// Waits until all ranks of the namespace have called it. Their puts are then visible.
    pub fn barrier(&mut self) -> Result<(), ClientError> {
        self.ask(Command::BarrierIn { group: None, thread: None }, "barrier_out", |_| Some(()))
    }

    /// Enters the barrier of these ranks with this tag, or with `None` that of all ranks, and returns at once. Other requests
    /// may follow before the [end](barrier_end), a line with `thread`. ScELA's server only.
    ///
    /// After the barrier of a group, its ranks see each other's puts.
    pub fn enter_barrier(&mut self, group: Option<(&Ranks, u32)>, thread: u32) -> Result<(), ClientError> {
        let group = group.map(|(ranks, tag)| format!("{ranks}:{tag}"));
        self.send(Command::BarrierIn { group: group.as_ref().map(String::as_bytes), thread: Some(thread) })
    }

    /// Arrives at a fence with these encoded puts ([`Puts::bytes`](crate::Puts::bytes)), at most
    /// [`PENDING_BYTES_MAX`](crate::limits::PENDING_BYTES_MAX). There is no reply: the segment shows the release.
    pub fn fence_in_segment(&mut self, puts: &[u8]) -> Result<(), ClientError> {
        Connection::<S>::check_puts(puts)?;
        Command::FenceInSegment { puts_bytes: puts.len() }.write(&mut self.connection.request);
        self.connection.flush_with(puts)
    }

    /// Returns the name of the key-value space. Requests it once.
    pub fn kvsname(&mut self) -> Result<String, ClientError> {
        if let Some(kvsname) = &self.kvsname {
            return Ok(kvsname.clone());
        }
        let kvsname = self.ask(Command::Kvsname, "my_kvsname", |reply| {
            Some(String::from_utf8_lossy(reply.word("kvsname")?).into_owned())
        })?;
        self.kvsname = Some(kvsname.clone());
        Ok(kvsname)
    }

    /// Returns the advertised maxima.
    pub fn maxes(&mut self) -> Result<Maxes, ClientError> {
        self.ask(Command::Maxes, "maxes", |reply| {
            let size = |field| crate::wire::fields::number(reply.word(field)?);
            Some(Maxes { kvsname: size("kvsname_max")?, key: size("keylen_max")?, value: size("vallen_max")? })
        })
    }

    /// Returns the universe's size; negative if unknown.
    pub fn universe_size(&mut self) -> Result<i32, ClientError> {
        self.ask(Command::UniverseSize, "universe_size", |reply| crate::wire::fields::number(reply.word("size")?))
    }

    /// Returns the number of the command that this rank belongs to.
    pub fn appnum(&mut self) -> Result<i32, ClientError> {
        self.ask(Command::Appnum, "appnum", |reply| crate::wire::fields::number(reply.word("appnum")?))
    }

    /// Publishes a port under a name.
    pub fn publish(&mut self, service: &[u8], port: &[u8]) -> Result<(), ClientError> {
        let publish = Command::Publish { service: line("service", service)?, port: line("port", port)? };
        self.ask(publish, "publish_result", |_| Some(()))
    }

    /// Returns the port that is published under a name, or `None` if the server refuses, most likely because there is
    /// none.
    pub fn lookup(&mut self, service: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        let lookup = Command::Lookup { service: line("service", service)? };
        // Hydra sends fields after the port, so read only one word.
        none_if_refused(self.ask(lookup, "lookup_result", |reply| Some(Some(reply.word("port")?.to_vec()))))
    }

    /// Unpublishes a name.
    pub fn unpublish(&mut self, service: &[u8]) -> Result<(), ClientError> {
        let unpublish = Command::Unpublish { service: line("service", service)? };
        self.ask(unpublish, "unpublish_result", |_| Some(()))
    }

    /// Starts further ranks in a namespace of their own.
    pub fn spawn(&mut self, spawn: &SpawnRequest) -> Result<(), ClientError> {
        for command in &spawn.commands {
            line("program", &command.program)?;
            command.args.iter().try_for_each(|arg| line("argument", arg).map(drop))?;
            for (key, value) in &command.info {
                line("info key", key)?;
                line("info value", value)?;
            }
        }
        for (key, value) in &spawn.preputs {
            line("preput key", key)?;
            line("preput value", value)?;
        }
        write_spawn(spawn, &mut self.connection.request);
        self.connection.flush()?;
        self.reply("spawn_result", |_| Some(()))
    }

    /// Ends the namespace with a code. There is no reply: the caller exits or waits to be killed.
    pub fn abort(&mut self, code: i32) -> Result<(), ClientError> {
        self.send(Command::Abort { code: Some(code), message: b"" })
    }

    /// Finalises PMI. The connection stays open for [`Client::join`].
    pub fn finalize(&mut self) -> Result<(), ClientError> {
        self.ask(Command::Finalize, "finalize_ack", |_| Some(()))
    }

    /// Returns the stream, to wait on it or to send what this client would not.
    pub fn stream_mut(&mut self) -> &mut S {
        &mut self.connection.stream
    }

    /// Returns the stream; bytes that were read and not used are lost.
    pub fn into_stream(self) -> S {
        self.connection.stream
    }

    fn unjoined(stream: S) -> Self {
        Self { connection: Connection::new(stream), kvsname: None }
    }

    fn ask<T>(
        &mut self,
        command: Command<'_>,
        expected: &'static str,
        read: impl FnOnce(ReplyLine<'_>) -> Option<T>,
    ) -> Result<T, ClientError> {
        self.send(command)?;
        self.reply(expected, read)
    }

    fn send(&mut self, command: Command<'_>) -> Result<(), ClientError> {
        command.write(&mut self.connection.request);
        self.connection.flush()
    }

    /// Waits for a reply and returns what `read` finds in it.
    fn reply<T>(
        &mut self,
        expected: &'static str,
        read: impl FnOnce(ReplyLine<'_>) -> Option<T>,
    ) -> Result<T, ClientError> {
        self.connection.line(|line| read_reply(line, expected, read))?
    }
}

/// Reads the end of a barrier that was [entered](Client::enter_barrier): its `thread` and its outcome. `None` for any other
/// line. A server that handles one request at a time repeats no `thread`.
pub fn barrier_end(line: &[u8]) -> Option<(Option<u32>, Result<(), ClientError>)> {
    let reply = ReplyLine::parse(line).filter(|reply| reply.name == b"barrier_out")?;
    let thread = reply.word("thrid").and_then(crate::wire::fields::number);
    Some((thread, read_reply(line, "barrier_out", |_| Some(()))))
}

/// Checks a reply and returns what `read` finds in it.
pub(crate) fn read_reply<T>(
    line: &[u8],
    expected: &'static str,
    read: impl FnOnce(ReplyLine<'_>) -> Option<T>,
) -> Result<T, ClientError> {
    let reply = ReplyLine::parse(line).filter(|reply| reply.name == expected.as_bytes());
    let reply = reply.ok_or_else(|| unexpected(expected, line))?;
    if reply.rc != 0 {
        return Err(ClientError::Refused { reply: expected, rc: reply.rc, reason: reply.reason() });
    }
    read(reply).ok_or_else(|| unexpected(expected, line))
}

/// Returns `bytes` if they may be the end of a line.
fn line<'a>(what: &'static str, bytes: &'a [u8]) -> Result<&'a [u8], ClientError> {
    if bytes.contains(&b'\n') { Err(ClientError::Unsendable(what)) } else { Ok(bytes) }
}

/// Returns `bytes` if they may be inside a line.
fn word<'a>(what: &'static str, bytes: &'a [u8]) -> Result<&'a [u8], ClientError> {
    let is_word = !bytes.is_empty() && !bytes.contains(&b' ');
    if is_word { line(what, bytes) } else { Err(ClientError::Unsendable(what)) }
}

#[cfg(test)]
mod tests;
