//! [`Engine`]: what each line of a rank does, and what each answer becomes.
//!
//! The rules are told in [`crate::conversation`].

use bytes::Bytes;

use super::command::{Command, ParseError};
use super::reply::Reply;
use super::spawn::{SpawnError, SpawnReader};
use crate::board::check_put;
use crate::limits::{PENDING_BYTES_MAX, PORT_BYTES_MAX, SERVICE_BYTES_MAX};
use crate::rank_state::{PendingFull, Phase, RankState, Version, readable};
use crate::{Answer, Board, LookUp, NameError, Request, SpawnRequest, SpawnedJob};

/// PMI-1's part of a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Engine {
    awaited: Option<Awaited>,
    spawn: Option<Box<SpawnReader>>,
}

/// The answer that is owed.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Awaited {
    Released,
    Got {
        /// The reply if nobody has put the key.
        otherwise: Vec<u8>,
    },
    Published,
    Found,
    Unpublished,
    Spawned {
        /// How many error codes the client expects.
        ranks: u64,
    },
    Segment,
}

impl Engine {
    /// Whether an answer is owed, and no line may be handled before it came.
    pub(crate) fn is_waiting(&self) -> bool {
        self.awaited.is_some()
    }

    /// Handles a line, without its newline.
    pub(crate) fn handle(
        &mut self,
        line: &[u8],
        state: &mut RankState,
        board: &Board,
        out: &mut Vec<u8>,
    ) -> Option<Request> {
        if self.spawn.is_some() || SpawnReader::begins(line) {
            if !SpawnReader::is_aborted_by(line) {
                return self.on_spawn_line(line, state, out);
            }
            self.spawn = None;
        }
        if line.iter().all(|&byte| byte == b' ') {
            return None;
        }
        match Command::parse(line) {
            Ok(command) => self.on_command(command, state, board, out),
            Err(ParseError::Field { reply, reason }) => {
                Reply::Refused(reply, reason).write(out);
                None
            }
            Err(error @ ParseError::NoCommand) => Some(self.break_off(state, error.to_string())),
        }
    }

    fn on_command(
        &mut self,
        command: Command<'_>,
        state: &mut RankState,
        board: &Board,
        out: &mut Vec<u8>,
    ) -> Option<Request> {
        let reply = match command {
            Command::Get { key, .. } => return self.on_get(key, state, board, out),
            Command::Put { key, value, .. } => return on_put(key, value, state, out),
            Command::BarrierIn { group } => return self.on_barrier_in(group, state, out),
            Command::Init { version, .. } => return on_init(version, state, out),
            Command::Finalize => return on_finalize(state, out),
            Command::Abort { code, message } => {
                return Some(Request::Abort { code: code.unwrap_or(1), message: readable(message) });
            }
            Command::Publish { service, port } => return self.on_publish(service, port, state, out),
            Command::Lookup { service } => return self.on_lookup(service, state, out),
            Command::Unpublish { service } => return self.on_unpublish(service, state, out),
            Command::GetByIndex { index } => return on_get_by_index(index, state, board, out),
            Command::Segment => {
                self.awaited = Some(Awaited::Segment);
                return Some(Request::Segment);
            }
            Command::FenceInSegment { puts_bytes } => {
                if puts_bytes > PENDING_BYTES_MAX {
                    return Some(self.break_off(state, format!("put more than {PENDING_BYTES_MAX} bytes at once")));
                }
                state.puts_bytes = Some(puts_bytes);
                return None;
            }
            Command::Maxes => Reply::Maxes,
            Command::Appnum => Reply::Appnum(state.appnum),
            Command::Kvsname => Reply::Kvsname(&state.attributes.kvsname),
            Command::UniverseSize => Reply::UniverseSize(state.attributes.universe_size),
            // All names mean the namespace's one board, so a further space is that board too.
            Command::CreateKvs => Reply::NewKvs(&state.attributes.kvsname),
            Command::DestroyKvs => Reply::KvsDestroyed,
            Command::Initack { .. } => Reply::Unsupported(b"initack"),
            Command::Unknown { name } => Reply::Unsupported(name),
        };
        reply.write(out);
        None
    }

    fn on_barrier_in(&mut self, group: Option<&[u8]>, state: &mut RankState, out: &mut Vec<u8>) -> Option<Request> {
        if group.is_some() {
            // Nobody may send it to a server of PMI 1.1; whoever does (MPICH 5) heeds `rc`.
            Reply::Refused("barrier_out", "groups_are_unsupported").write(out);
            return None;
        }
        if !state.is_active() {
            return Some(self.break_off(state, String::from("entered a barrier without having initialised")));
        }
        self.awaited = Some(Awaited::Released);
        Some(state.fence())
    }

    fn on_get(&mut self, key: &[u8], state: &RankState, board: &Board, out: &mut Vec<u8>) -> Option<Request> {
        if !check_active(state, "get_result", out) {
            return None;
        }
        if key.is_empty() {
            Reply::Refused("get_result", "key_empty").write(out);
            return None;
        }
        match state.look_up(key, board) {
            LookUp::Found(value) => found(&value).write(out),
            LookUp::Absent => Reply::NotFound(key).write(out),
            LookUp::Unknown => {
                let mut otherwise = Vec::new();
                match state.default_value(key) {
                    Some(value) => found(&value).write(&mut otherwise),
                    None => Reply::NotFound(key).write(&mut otherwise),
                }
                self.awaited = Some(Awaited::Got { otherwise });
                return Some(Request::Get { key: Bytes::copy_from_slice(key) });
            }
        }
        None
    }

    fn on_publish(&mut self, service: &[u8], port: &[u8], state: &RankState, out: &mut Vec<u8>) -> Option<Request> {
        let reply = "publish_result";
        if !check_active(state, reply, out) || !is_service(service, reply, out) {
            return None;
        }
        let refusal = if port.is_empty() {
            "port_empty"
        } else if port.len() > PORT_BYTES_MAX {
            "port_too_long"
        } else if port.contains(&b' ') {
            // Whoever looks it up would read up to the blank, or drop the line.
            "port_has_blank"
        } else {
            self.awaited = Some(Awaited::Published);
            return Some(Request::Publish { service: service.to_vec(), port: port.to_vec() });
        };
        Reply::Refused(reply, refusal).write(out);
        None
    }

    fn on_lookup(&mut self, service: &[u8], state: &RankState, out: &mut Vec<u8>) -> Option<Request> {
        let reply = "lookup_result";
        if !check_active(state, reply, out) || !is_service(service, reply, out) {
            return None;
        }
        self.awaited = Some(Awaited::Found);
        Some(Request::Lookup { service: service.to_vec() })
    }

    fn on_unpublish(&mut self, service: &[u8], state: &RankState, out: &mut Vec<u8>) -> Option<Request> {
        let reply = "unpublish_result";
        if !check_active(state, reply, out) || !is_service(service, reply, out) {
            return None;
        }
        self.awaited = Some(Awaited::Unpublished);
        Some(Request::Unpublish { service: service.to_vec() })
    }

    fn on_spawn_line(&mut self, line: &[u8], state: &mut RankState, out: &mut Vec<u8>) -> Option<Request> {
        let reader = self.spawn.get_or_insert_default();
        if !reader.is_inside_block() && !SpawnReader::begins(line) {
            if line.iter().all(|&byte| byte == b' ') {
                return None;
            }
            return Some(self.break_off(state, ParseError::NoCommand.to_string()));
        }
        let outcome = reader.read(line)?;
        let reader = self.spawn.take()?;
        match outcome {
            Err(SpawnError::Unsupported) => Reply::Unsupported(reader.name()).write(out),
            _ if !check_active(state, "spawn_result", out) => {}
            Err(error) => Reply::Refused("spawn_result", &error.to_string()).write(out),
            Ok(order) => return Some(self.on_spawn(order)),
        }
        None
    }

    fn on_spawn(&mut self, order: SpawnRequest) -> Request {
        self.awaited = Some(Awaited::Spawned { ranks: order.ranks() });
        Request::Spawn(order)
    }

    /// Replies with an answer, if it is the one that is owed.
    pub(crate) fn answer(&mut self, answer: Answer, out: &mut Vec<u8>) {
        let Some(awaited) = self.awaited.take() else { return };
        let name_reply = |reply, result: Result<Reply<'_>, NameError>, out: &mut Vec<u8>| {
            result.unwrap_or_else(|error| Reply::NameRefused(reply, error)).write(out);
        };
        match (awaited, answer) {
            (Awaited::Released, Answer::Released) => Reply::BarrierOut.write(out),
            (Awaited::Got { .. }, Answer::Got(Some(value))) => found(&value).write(out),
            (Awaited::Got { otherwise }, Answer::Got(None)) => out.extend_from_slice(&otherwise),
            (Awaited::Published, Answer::Published(result)) => {
                name_reply("publish_result", result.map(|()| Reply::Published), out);
            }
            (Awaited::Found, Answer::Found(result)) => {
                let result = result.as_deref().map(port_reply).map_err(|error| *error);
                name_reply("lookup_result", result, out);
            }
            (Awaited::Unpublished, Answer::Unpublished(result)) => {
                name_reply("unpublish_result", result.map(|()| Reply::Unpublished), out);
            }
            (Awaited::Spawned { ranks }, Answer::Spawned(result)) => {
                spawned_reply(ranks, &result).write(out);
            }
            (Awaited::Segment, Answer::Segment(given)) => Reply::Segment(given).write(out),
            // Not the one: it is still owed.
            (awaited, Answer::Released | Answer::Got(_) | Answer::Published(_) | Answer::Found(_))
            | (awaited, Answer::Unpublished(_) | Answer::Spawned(_) | Answer::Segment(_))
            | (awaited, Answer::Ring { .. } | Answer::NodePut(_) | Answer::NodeGot(_))
            | (awaited, Answer::GotFromJob(_) | Answer::Connected(_)) => self.awaited = Some(awaited),
        }
    }

    fn break_off(&mut self, state: &mut RankState, why: String) -> Request {
        self.spawn = None;
        state.break_off(why)
    }
}

fn on_init(version: u32, state: &mut RankState, out: &mut Vec<u8>) -> Option<Request> {
    state.version = match version {
        1 => Version::One,
        2 => Version::Two,
        _ => {
            Reply::InitRefused.write(out);
            return None;
        }
    };
    Reply::Init(version).write(out);
    // In PMI-2 this line only chooses the protocol; who comes says so in a `fullinit`.
    if version == 1 { state.join() } else { None }
}

fn on_finalize(state: &mut RankState, out: &mut Vec<u8>) -> Option<Request> {
    match state.phase {
        Phase::Active => {
            state.phase = Phase::Finalized;
            Reply::FinalizeAck.write(out);
            Some(Request::Finalized)
        }
        Phase::Finalized => {
            Reply::FinalizeAck.write(out);
            None
        }
        Phase::New | Phase::Broken => {
            Reply::Refused("finalize_ack", NOT_JOINED).write(out);
            None
        }
    }
}

/// Whether the rank may use the board and the names; tells it if not.
fn check_active(state: &RankState, reply: &'static str, out: &mut Vec<u8>) -> bool {
    let joined = state.is_active();
    if !joined {
        Reply::Refused(reply, NOT_JOINED).write(out);
    }
    joined
}

fn on_put(key: &[u8], value: &[u8], state: &mut RankState, out: &mut Vec<u8>) -> Option<Request> {
    if !check_active(state, "put_result", out) {
        return None;
    }
    match check_put(key, value) {
        Err(refusal) => Reply::Refused("put_result", &refusal.to_string()).write(out),
        // No line could ask for it.
        Ok(()) if key.contains(&b' ') => Reply::Refused("put_result", "key_has_blank").write(out),
        Ok(()) => match state.put(key, value) {
            Ok(request) => {
                Reply::Put.write(out);
                return request;
            }
            Err(PendingFull) => Reply::Refused("put_result", "too_many_bytes_put_between_barriers").write(out),
        },
    }
    None
}

fn on_get_by_index(index: usize, state: &RankState, board: &Board, out: &mut Vec<u8>) -> Option<Request> {
    if !check_active(state, "getbyidx_results", out) {
        return None;
    }
    if !board.is_whole() {
        Reply::Refused("getbyidx_results", "the_board_is_not_held_whole_here").write(out);
        return None;
    }
    let preputs = &state.attributes.preputs;
    let prepared = || preputs.iter().nth(index.checked_sub(board.len())?);
    match board.nth(index).or_else(prepared) {
        Some((key, value)) if is_one_line(key) && is_one_line(value) => {
            Reply::Entry { index, key, value }.write(out);
        }
        Some(_) => Reply::Refused("getbyidx_results", "entry_has_newline").write(out),
        None => Reply::NoMoreEntries.write(out),
    }
    None
}

const NOT_JOINED: &str = "not_initialized";

/// A value, unless it came by an interface that is not made of lines and would tear this one.
fn found(value: &[u8]) -> Reply<'_> {
    if is_one_line(value) { Reply::Found(value) } else { Reply::Refused("get_result", "value_has_newline") }
}

/// A port, unless it came by an interface that allows in it what would tear a line of this one.
fn port_reply(port: &[u8]) -> Reply<'_> {
    if is_one_line(port) && !port.is_empty() && !port.contains(&b' ') {
        Reply::Port(port)
    } else {
        Reply::Refused("lookup_result", "port_is_not_one_word")
    }
}

fn is_one_line(bytes: &[u8]) -> bool {
    !bytes.contains(&b'\n')
}

fn spawned_reply(ranks: u64, result: &Result<SpawnedJob, String>) -> Reply<'_> {
    match result {
        Err(why) => Reply::Refused("spawn_result", why),
        Ok(SpawnedJob { codes, .. }) if codes.iter().all(|&code| code == 0) => Reply::Spawned,
        Ok(SpawnedJob { codes, .. }) if codes.len() as u64 == ranks => Reply::SpawnedPartly(codes),
        Ok(_) => Reply::Refused("spawn_result", "some_processes_were_not_started"),
    }
}

/// Whether a service's name can be one; tells the rank if not.
fn is_service(service: &[u8], reply: &'static str, out: &mut Vec<u8>) -> bool {
    let refusal = if service.is_empty() {
        "service_empty"
    } else if service.len() > SERVICE_BYTES_MAX {
        "service_too_long"
    } else {
        return true;
    };
    Reply::Refused(reply, refusal).write(out);
    false
}
