//! [`Lines`]: PMI-1's commands and replies in terms of [`crate::engine`].

use std::borrow::Cow;

use super::command::{Command, ParseError};
use super::reply;
use super::spawn::{SpawnError, SpawnReader};
use crate::engine::{self, Dialect, Operation, Outcome, Refusal, Turn, Violation};
use crate::rank_state::{RankState, Version, readable};
use crate::{Board, Ranks, Request, SpawnRequest};

/// PMI-1's part of a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines {
    /// A spawn of which some lines have arrived.
    spawn: Option<Box<SpawnReader>>,
}

/// The name and the outcome of a spawn that was read.
type ReadSpawn = (Box<SpawnReader>, Result<SpawnRequest, SpawnError>);

impl Lines {
    /// Handles a line, without its newline.
    pub(crate) fn handle(&mut self, line: &[u8], state: &mut RankState, board: &Board, out: &mut Vec<u8>) -> Outcome {
        if self.spawn.is_some() || SpawnReader::begins(line) {
            if !SpawnReader::is_aborted_by(line) {
                let Some((reader, parsed)) = self.read_spawn(line)? else { return Ok(None) };
                let mut turn = Turn { dialect: self, state, board, out };
                return Ok(match parsed {
                    Err(SpawnError::Unsupported) => turn.write(reply::Reply::Unsupported(reader.name())),
                    parsed => turn.spawn(parsed),
                });
            }
            self.spawn = None;
        }
        if is_blank(line) {
            return Ok(None);
        }
        let mut turn = Turn { dialect: self, state, board, out };
        match Command::parse(line) {
            Ok(command) => turn.on_command(command),
            Err(ParseError::Field { reply, reason }) => Ok(turn.write(reply::Reply::Refused(reply, reason))),
            Err(ParseError::NoCommand) => Err(Violation::LineWithoutCommand),
        }
    }

    /// Takes a line of a spawn; `Some` when it was the last one.
    fn read_spawn(&mut self, line: &[u8]) -> Result<Option<ReadSpawn>, Violation> {
        let reader = self.spawn.get_or_insert_default();
        if !reader.is_inside_block() && !SpawnReader::begins(line) {
            return if is_blank(line) { Ok(None) } else { Err(Violation::LineWithoutCommand) };
        }
        let Some(parsed) = reader.read(line) else { return Ok(None) };
        Ok(self.spawn.take().map(|reader| (reader, parsed)))
    }
}

impl Dialect for Lines {
    const VERSION: Version = Version::One;

    fn write(&self, reply: engine::Reply<'_>, out: &mut Vec<u8>) {
        use engine::Reply as From;
        use reply::Reply as To;
        match reply {
            From::Got { value: Some(value), .. } => found(value),
            From::Got { key, value: None } => To::NotFound(key),
            From::Put => To::Put,
            From::Fenced => To::BarrierOut,
            From::Finalized => To::FinalizeAck,
            From::Published => To::Published,
            From::Port(port) => found_port(port),
            From::Unpublished => To::Unpublished,
            From::Spawned(job) if job.all_started() => To::Spawned,
            From::Spawned(job) => To::SpawnedPartly(&job.codes),
            From::Segment => To::Segment(true),
            From::Refused(Operation::Segment, _) => To::Segment(false),
            From::FencedBeside { thread, refusal } => {
                let refusal = refusal.map(refusal_text);
                return To::BarrierOutBeside { thread, refusal: refusal.as_deref() }.write(out);
            }
            From::Refused(operation, Refusal::Name(error)) => To::NameRefused(reply_name(operation), error),
            From::Refused(operation, refusal) => {
                return To::Refused(reply_name(operation), &refusal_text(refusal)).write(out);
            }
            // PMI-1 has no command that leads to these.
            From::NodePut | From::NodeGot(_) | From::JobAttribute(_) | From::Connected | From::Ring { .. } => return,
        }
        .write(out);
    }
}

impl Turn<'_, Lines> {
    /// Writes a reply that only PMI-1 has.
    fn write(&mut self, reply: reply::Reply<'_>) -> Option<Request> {
        reply.write(self.out);
        None
    }

    fn on_command(&mut self, command: Command<'_>) -> Outcome {
        use reply::Reply;
        let reply = match command {
            Command::Get { key, .. } => return Ok(self.get(key)),
            Command::Put { key, value, .. } => return Ok(self.on_put(key, value)),
            Command::BarrierIn { group: None, thread: None } => return self.fence(Violation::BarrierBeforeInit),
            Command::BarrierIn { group: None, thread } => {
                return self.fence_beside(None, thread, Violation::BarrierBeforeInit);
            }
            // MPICH 5 sends groups to servers of PMI 1.2 only; our libpmi sends them here.
            Command::BarrierIn { group: Some(group), thread } => match parse_group(group, self.state.attributes.size) {
                Some(group) => return self.fence_beside(Some(group), thread, Violation::BarrierBeforeInit),
                None => Reply::BarrierOutBeside { thread, refusal: Some("group_invalid") },
            },
            Command::Init { version, .. } => return Ok(self.on_init(version)),
            Command::Finalize => return Ok(self.finalize()),
            Command::Abort { code, message } => {
                return Ok(Some(Request::Abort { code: code.unwrap_or(1), message: readable(message) }));
            }
            Command::Publish { service, port } => return Ok(self.on_publish(service, port)),
            Command::Lookup { service } => return Ok(self.lookup(service)),
            Command::Unpublish { service } => return Ok(self.unpublish(service)),
            Command::GetByIndex { index } => return Ok(self.on_get_by_index(index)),
            Command::Segment => return Ok(self.ask(engine::Awaited::Segment, Request::Segment)),
            Command::FenceInSegment { puts_bytes } => return self.fence_in_segment(puts_bytes),
            Command::Maxes => Reply::Maxes,
            Command::Appnum => Reply::Appnum(self.state.appnum),
            Command::Kvsname => Reply::Kvsname(&self.state.attributes.kvsname),
            Command::UniverseSize => Reply::UniverseSize(self.state.attributes.universe_size),
            // Every name means the namespace's only board; the name of a new space does too.
            Command::CreateKvs => Reply::NewKvs(&self.state.attributes.kvsname),
            Command::DestroyKvs => Reply::KvsDestroyed,
            Command::Initack { .. } => Reply::Unsupported(b"initack"),
            Command::Unknown { name } => Reply::Unsupported(name),
        };
        reply.write(self.out);
        Ok(None)
    }

    fn on_init(&mut self, version: u32) -> Option<Request> {
        self.state.version = match version {
            1 => Version::One,
            2 => Version::Two,
            _ => return self.write(reply::Reply::InitRefused),
        };
        self.write(reply::Reply::Init(version));
        // In PMI-2 this line only chooses the protocol; the rank joins with a `fullinit`.
        if version == 1 { self.state.join() } else { None }
    }

    fn on_put(&mut self, key: &[u8], value: &[u8]) -> Option<Request> {
        let is_valid = self.state.is_active() && crate::board::check_put(key, value).is_ok();
        if is_valid && key.contains(&b' ') {
            // No line could ask for this key.
            return self.write(reply::Reply::Refused("put_result", "key_has_blank"));
        }
        self.put(key, value)
    }

    fn on_publish(&mut self, service: &[u8], port: &[u8]) -> Option<Request> {
        if !port.contains(&b' ') || port.len() > crate::limits::PORT_BYTES_MAX {
            return self.publish(service, port);
        }
        // A client that looks it up would read up to the blank, or drop the line.
        if !self.check_service(Operation::Publish, service) {
            return None;
        }
        self.write(reply::Reply::Refused("publish_result", "port_has_blank"))
    }

    fn on_get_by_index(&mut self, index: usize) -> Option<Request> {
        use reply::Reply;
        let refused = |why| Reply::Refused("getbyidx_results", why);
        if !self.state.is_active() {
            return self.write(refused("not_initialized"));
        }
        if !self.board.is_whole() {
            return self.write(refused("the_board_is_not_held_whole_here"));
        }
        let preputs = &self.state.attributes.preputs;
        let preput = || preputs.iter().nth(index.checked_sub(self.board.len())?);
        match self.board.nth(index).or_else(preput) {
            Some((key, value)) if is_one_line(key) && is_one_line(value) => Reply::Entry { index, key, value },
            Some(_) => refused("entry_has_newline"),
            None => Reply::NoMoreEntries,
        }
        .write(self.out);
        None
    }
}

/// Parses a group of ranks below `size`, and its tag. `NODE` is not a group here: libpmi names the ranks.
fn parse_group(group: &[u8], size: u32) -> Option<(Ranks, u32)> {
    let (members, tag) = std::str::from_utf8(group).ok()?.split_once(':')?;
    let tag = tag.parse().ok()?;
    if members == "WORLD" {
        return Some((Ranks::range(0..size), tag));
    }
    let ranks: Ranks = members.parse().ok()?;
    ranks.last().filter(|last| last.0 < size)?;
    Some((ranks, tag))
}

/// Returns the name of the reply to a request.
fn reply_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Put => "put_result",
        Operation::Get => "get_result",
        Operation::Finalize => "finalize_ack",
        Operation::Publish => "publish_result",
        Operation::Lookup => "lookup_result",
        Operation::Unpublish => "unpublish_result",
        Operation::Spawn => "spawn_result",
        Operation::Segment => "scela_segment_result",
        Operation::Fence => "barrier_out",
        // PMI-1 has no such commands.
        Operation::NodePut | Operation::NodeGet | Operation::Connect | Operation::Disconnect | Operation::Ring => {
            "unsupported_result"
        }
    }
}

/// Returns a refusal's text in PMI-1, which has a barrier and a service where PMI-2 has a fence and a name.
fn refusal_text(refusal: Refusal<'_>) -> Cow<'static, str> {
    match refusal {
        Refusal::PendingFull => "too_many_bytes_put_between_barriers".into(),
        Refusal::NameEmpty => "service_empty".into(),
        Refusal::NameTooLong => "service_too_long".into(),
        refusal => refusal.to_string().into(),
    }
}

/// Replies with a value. One with a newline, which PMI-2 and the segment allow, would break the line in two.
fn found(value: &[u8]) -> reply::Reply<'_> {
    if is_one_line(value) {
        reply::Reply::Found(value)
    } else {
        reply::Reply::Refused("get_result", "value_has_newline")
    }
}

/// Replies with a port. One that is not a single word, which PMI-2 allows, would break the line.
fn found_port(port: &[u8]) -> reply::Reply<'_> {
    if is_one_line(port) && !port.is_empty() && !port.contains(&b' ') {
        reply::Reply::Port(port)
    } else {
        reply::Reply::Refused("lookup_result", "port_is_not_one_word")
    }
}

fn is_one_line(bytes: &[u8]) -> bool {
    !bytes.contains(&b'\n')
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(|&byte| byte == b' ')
}
