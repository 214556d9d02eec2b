//! [`Engine`]: what each line of a rank does, and what each answer becomes.
//!
//! The rules are told in [`super::server`].

use std::sync::Arc;

use super::command::{Command, ParseError};
use super::pending::Pending;
use super::reply::Reply;
use super::server::Facts;
use super::spawn::{SpawnError, SpawnReader};
use crate::board::check_put;
use crate::limits::{ABORT_MESSAGE_BYTES_MAX, PORT_BYTES_MAX, SERVICE_BYTES_MAX};
use crate::{Answer, Board, NameError, Rank, Request, SpawnOrder};

/// A conversation without its line buffer, so that a line can be borrowed while it is handled.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    pub(super) facts: Arc<Facts>,
    pub(super) rank: Rank,
    appnum: i32,
    pub(super) phase: Phase,
    awaited: Option<Awaited>,
    pending: Pending,
    spawn: Option<Box<SpawnReader>>,
}

/// How far the rank has come.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    New,
    Active,
    Finalized,
    Broken,
}

/// The answer that is owed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Awaited {
    Released,
    Published,
    Found,
    Unpublished,
    Spawned {
        /// How many error codes the client expects.
        ranks: u64,
    },
}

impl Engine {
    pub(super) fn new(facts: Arc<Facts>, rank: Rank, appnum: i32) -> Self {
        let (phase, awaited, spawn) = (Phase::New, None, None);
        Self { facts, rank, appnum, phase, awaited, pending: Pending::default(), spawn }
    }

    /// Whether an answer is owed, and no line may be handled before it came.
    pub(super) fn is_waiting(&self) -> bool {
        self.awaited.is_some()
    }

    /// Handles a line, without its newline.
    pub(super) fn handle(&mut self, line: &[u8], board: &Board, out: &mut Vec<u8>) -> Option<Request> {
        if self.spawn.is_some() || SpawnReader::begins(line) {
            if !SpawnReader::is_given_up_by(line) {
                return self.on_spawn_line(line, out);
            }
            self.spawn = None;
        }
        if line.iter().all(|&byte| byte == b' ') {
            return None;
        }
        match Command::parse(line) {
            Ok(command) => self.on_command(command, board, out),
            Err(ParseError::Field { reply, reason }) => {
                Reply::Refused(reply, reason).write(out);
                None
            }
            Err(error @ ParseError::NoCommand) => Some(self.break_off(error.to_string())),
        }
    }

    fn on_command(&mut self, command: Command<'_>, board: &Board, out: &mut Vec<u8>) -> Option<Request> {
        let reply = match command {
            Command::Get { key, .. } => return self.on_get(key, board, out),
            Command::Put { key, value, .. } => return self.on_put(key, value, out),
            Command::BarrierIn { group } => return self.on_barrier_in(group, out),
            Command::Init { version, .. } => return self.on_init(version, out),
            Command::Finalize => return self.on_finalize(out),
            Command::Abort { code, message } => {
                return Some(Request::Abort { code: code.unwrap_or(1), message: readable(message) });
            }
            Command::Publish { service, port } => return self.on_publish(service, port, out),
            Command::Lookup { service } => return self.on_lookup(service, out),
            Command::Unpublish { service } => return self.on_unpublish(service, out),
            Command::GetByIndex { index } => return self.on_get_by_index(index, board, out),
            Command::Maxes => Reply::Maxes,
            Command::Appnum => Reply::Appnum(self.appnum),
            Command::Kvsname => Reply::Kvsname(&self.facts.kvsname),
            Command::UniverseSize => Reply::UniverseSize(self.facts.universe_size),
            // All names mean the namespace's one board, so a further space is that board too.
            Command::CreateKvs => Reply::NewKvs(&self.facts.kvsname),
            Command::DestroyKvs => Reply::KvsDestroyed,
            Command::Initack { .. } => Reply::Unsupported(b"initack"),
            Command::Unknown { name } => Reply::Unsupported(name),
        };
        reply.write(out);
        None
    }

    fn on_init(&mut self, version: u32, out: &mut Vec<u8>) -> Option<Request> {
        if version != 1 {
            Reply::InitRefused.write(out);
            return None;
        }
        Reply::Init.write(out);
        // Intel MPI initialises more than once, without finalising in between.
        let joins = self.phase != Phase::Active;
        self.phase = Phase::Active;
        joins.then_some(Request::Joined)
    }

    fn on_finalize(&mut self, out: &mut Vec<u8>) -> Option<Request> {
        match self.phase {
            Phase::Active => {
                self.phase = Phase::Finalized;
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
    fn has_joined(&self, reply: &'static str, out: &mut Vec<u8>) -> bool {
        let joined = self.phase == Phase::Active;
        if !joined {
            Reply::Refused(reply, NOT_JOINED).write(out);
        }
        joined
    }

    fn on_put(&mut self, key: &[u8], value: &[u8], out: &mut Vec<u8>) -> Option<Request> {
        if !self.has_joined("put_result", out) {
            return None;
        }
        match check_put(key, value) {
            Err(refusal) => Reply::Refused("put_result", &refusal.to_string()).write(out),
            Ok(()) if self.pending.push(self.rank, key, value) => Reply::Put.write(out),
            Ok(()) => Reply::Refused("put_result", "too_many_bytes_put_between_barriers").write(out),
        }
        None
    }

    fn on_get(&self, key: &[u8], board: &Board, out: &mut Vec<u8>) -> Option<Request> {
        if !self.has_joined("get_result", out) {
            return None;
        }
        if key.is_empty() {
            Reply::Refused("get_result", "key_empty").write(out);
        } else if let Some(value) = self.value_of(key, board) {
            found(value).write(out);
        } else if key == b"universeSize" && self.facts.universe_size >= 0 {
            Reply::Found(self.facts.universe_size.to_string().as_bytes()).write(out);
        } else {
            Reply::NotFound(key).write(out);
        }
        None
    }

    fn value_of<'a>(&'a self, key: &[u8], board: &'a Board) -> Option<&'a [u8]> {
        if key.starts_with(b"PMI_") {
            let mapping = self.facts.mapping.as_deref().map(str::as_bytes);
            return mapping.filter(|_| key == b"PMI_process_mapping");
        }
        let put = self.pending.get(key).or_else(|| board.get(key));
        put.or_else(|| self.facts.preputs.get(key))
    }

    fn on_get_by_index(&self, index: usize, board: &Board, out: &mut Vec<u8>) -> Option<Request> {
        if !self.has_joined("getbyidx_results", out) {
            return None;
        }
        let preputs = &self.facts.preputs;
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

    fn on_barrier_in(&mut self, group: Option<&[u8]>, out: &mut Vec<u8>) -> Option<Request> {
        if group.is_some() {
            // Nobody may send it to a server of PMI 1.1; whoever does (MPICH 5) heeds `rc`.
            Reply::Refused("barrier_out", "groups_are_unsupported").write(out);
            return None;
        }
        if self.phase != Phase::Active {
            return Some(self.break_off(String::from("entered a barrier without having initialised")));
        }
        self.awaited = Some(Awaited::Released);
        Some(Request::Fence { puts: self.pending.take() })
    }

    fn on_publish(&mut self, service: &[u8], port: &[u8], out: &mut Vec<u8>) -> Option<Request> {
        let reply = "publish_result";
        if !self.has_joined(reply, out) || !is_service(service, reply, out) {
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

    fn on_lookup(&mut self, service: &[u8], out: &mut Vec<u8>) -> Option<Request> {
        let reply = "lookup_result";
        if !self.has_joined(reply, out) || !is_service(service, reply, out) {
            return None;
        }
        self.awaited = Some(Awaited::Found);
        Some(Request::Lookup { service: service.to_vec() })
    }

    fn on_unpublish(&mut self, service: &[u8], out: &mut Vec<u8>) -> Option<Request> {
        let reply = "unpublish_result";
        if !self.has_joined(reply, out) || !is_service(service, reply, out) {
            return None;
        }
        self.awaited = Some(Awaited::Unpublished);
        Some(Request::Unpublish { service: service.to_vec() })
    }

    fn on_spawn_line(&mut self, line: &[u8], out: &mut Vec<u8>) -> Option<Request> {
        let reader = self.spawn.get_or_insert_default();
        if !reader.is_inside_block() && !SpawnReader::begins(line) {
            if line.iter().all(|&byte| byte == b' ') {
                return None;
            }
            return Some(self.break_off(ParseError::NoCommand.to_string()));
        }
        let outcome = reader.read(line)?;
        let reader = self.spawn.take()?;
        match outcome {
            Err(SpawnError::Unsupported) => Reply::Unsupported(reader.name()).write(out),
            _ if !self.has_joined("spawn_result", out) => {}
            Err(error) => Reply::Refused("spawn_result", &error.to_string()).write(out),
            Ok(order) => return Some(self.on_spawn(order)),
        }
        None
    }

    fn on_spawn(&mut self, order: SpawnOrder) -> Request {
        self.awaited = Some(Awaited::Spawned { ranks: order.ranks() });
        Request::Spawn(order)
    }

    /// Replies with an answer, if it is the one that is owed.
    pub(super) fn answer(&mut self, answer: Answer, out: &mut Vec<u8>) {
        let Some(awaited) = self.awaited else { return };
        let name_reply = |reply, result: Result<Reply<'_>, NameError>, out: &mut Vec<u8>| {
            result.unwrap_or_else(|error| Reply::NameRefused(reply, error)).write(out);
        };
        match (awaited, answer) {
            (Awaited::Released, Answer::Released) => Reply::BarrierOut.write(out),
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
            (_, Answer::Released | Answer::Published(_) | Answer::Found(_)) => return,
            (_, Answer::Unpublished(_) | Answer::Spawned(_)) => return,
        }
        self.awaited = None;
    }

    /// Ends the conversation from this side.
    pub(super) fn break_off(&mut self, why: String) -> Request {
        self.phase = Phase::Broken;
        self.pending = Pending::default();
        self.spawn = None;
        Request::Broken { why }
    }
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

fn spawned_reply(ranks: u64, result: &Result<Vec<i32>, String>) -> Reply<'_> {
    match result {
        Err(why) => Reply::Refused("spawn_result", why),
        Ok(codes) if codes.iter().all(|&code| code == 0) => Reply::Spawned,
        Ok(codes) if codes.len() as u64 == ranks => Reply::SpawnedPartly(codes),
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

/// A rank's words as they may be shown on a terminal.
fn readable(message: &[u8]) -> String {
    let message = &message[..message.len().min(ABORT_MESSAGE_BYTES_MAX)];
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    String::from_utf8_lossy(message).chars().map(shown).collect()
}
