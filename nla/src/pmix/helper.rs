//! `scela-pmix`: the process that runs libpmix for the ranks of one node.
//!
//! It translates between the agent's messages and libpmix's calls, and decides nothing. It exits when the agent closes their
//! socket.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use pmi::SpawnCommand;

use super::message::{
    Fact, Outcome, ProcessName, Purpose, Registration, ToAgent, ToHelper, name_of, read_frame, write_frame,
};
use super::registration::{cpuset, infos, local_ranks, plain_maps};
use crate::core::Variable;
use crate::sys;
use crate::sys::pmix::{self, Completion, Posted, Process, ProcessEntry, Program, Server, Upcall, Value};
use crate::tasks::Panics;
use crate::wire::{decode, encode};

/// The calls of libpmix that wait for an answer of the agent, by their numbers.
type Calls = Arc<Mutex<HashMap<u64, Completion>>>;

/// Runs the process. Returns its exit code when the agent has closed the socket.
pub fn run_helper() -> u8 {
    let _ = sys::set_process_name(c"scela-pmix");
    // A resource manager may send signals to all processes of the job.
    sys::block_all_deadly_signals();
    match serve() {
        Ok(()) => sys::pmix::exit_now(0),
        Err(error) => {
            // The agent notices the end of the socket. Without SCELA_LOG, standard error is /dev/null.
            tracing::error!(%error, "scela-pmix ends");
            1
        }
    }
}

/// A message to the agent, or an upcall that becomes one.
enum Outgoing {
    Message(ToAgent),
    Upcall(Upcall),
}

fn serve() -> io::Result<()> {
    sys::forbid_dump()?;
    let socket = sys::pmix::stdin_socket()?;
    let mut from_agent = BufReader::new(socket.try_clone()?);
    let calls = Calls::default();
    let (outgoing, to_send) = channel();
    let tasks = Panics::new("pmix").tasks();
    let of_writer = Arc::clone(&calls);
    tasks.spawn_thread("writer", move || write_all(&to_send, &of_writer, socket))?;
    let mut server = None;
    let mut registered = BTreeSet::new();
    while let Some(message) = read_frame(&mut from_agent)? {
        match (message, &server) {
            (ToHelper::Begin { library, directory, host, namespace }, None) => {
                match begin(&library, &directory, host, namespace, &outgoing, &tasks) {
                    Ok(begun) => {
                        send(&outgoing, ToAgent::Ready(Ok(begun.version())));
                        server = Some((begun, directory));
                    }
                    Err(why) => {
                        send(&outgoing, ToAgent::Ready(Err(why)));
                        // The writer may not have sent the message yet, so do not exit before the agent closes the socket.
                        while read_frame::<ToHelper>(&mut from_agent)?.is_some() {}
                        return Ok(());
                    }
                }
            }
            (ToHelper::Register(registration), Some((server, directory))) => {
                let result = register(server, directory, &registration);
                registered.insert(registration.name.clone());
                send(&outgoing, ToAgent::Registered(registration.name, result));
            }
            (ToHelper::Deregister(namespace), Some((server, _))) => {
                server.deregister(&namespace);
                registered.remove(&namespace);
            }
            (ToHelper::Answer(call, outcome), Some(_)) => {
                let completion = calls.lock().unwrap_or_else(PoisonError::into_inner).remove(&call);
                if let Some(completion) = completion {
                    completion.complete(outcome_of(outcome));
                }
            }
            (ToHelper::Died((namespace, rank)), Some((server, _))) => {
                server.report_death(&Process { namespace, rank });
            }
            (ToHelper::Ended((namespace, rank)), Some((server, _))) => server.end(&Process { namespace, rank }),
            (ToHelper::Ping, Some(_)) => send(&outgoing, ToAgent::Alive),
            (ToHelper::Ask(call, (namespace, rank)), Some((server, _))) => {
                server.ask(&Process { namespace, rank }, call);
            }
            (_, _) => return Err(io::Error::other("a message out of turn")),
        }
    }
    // Removes the files that ranks have asked the server to remove.
    if let Some((server, _)) = &server {
        registered.iter().for_each(|namespace| server.deregister(namespace));
    }
    Ok(())
}

fn send(outgoing: &Sender<Outgoing>, message: ToAgent) {
    // The writer ends only with the process.
    let _ = outgoing.send(Outgoing::Message(message));
}

/// Loads libpmix and starts its server.
fn begin(
    library: &[u8],
    directory: &str,
    host: String,
    namespace: String,
    outgoing: &Sender<Outgoing>,
    tasks: &crate::tasks::Tasks,
) -> Result<Server, String> {
    let text = |text: &str| Value::Text(text.as_bytes().to_vec());
    let infos = [
        ("pmix.srvr.tmpdir", text(directory)),
        ("pmix.sys.tmpdir", text(directory)),
        ("pmix.srv.nspace", text(&namespace)),
        ("pmix.srv.rank", Value::Rank(0)),
        ("pmix.hname", text(&host)),
    ];
    let (upcalls, called) = channel();
    let outgoing = outgoing.clone();
    tasks
        .spawn_thread("upcalls", move || {
            for upcall in called {
                let _ = outgoing.send(Outgoing::Upcall(upcall));
            }
        })
        .map_err(|error| error.to_string())?;
    let library = Path::new(OsStr::from_bytes(library));
    Server::start(library, &infos, upcalls).map_err(|error| format!("{}: {error}", library.display()))
}

/// Registers a namespace and its ranks on this node. Returns the variables by which the ranks find this server. All
/// ranks get the same ones, except for their numbers.
fn register(server: &Server, directory: &str, registration: &Registration) -> Result<Vec<Variable>, String> {
    let maps = plain_maps(registration);
    let local = local_ranks(registration);
    let oversubscribed = local.len() > sys::cores() as u64;
    let (nodes, ranks) = (server.node_map(&maps.nodes), server.process_map(&maps.ranks));
    let locality = |(rank, cpus): &(u32, String)| Some((*rank, server.locality(&cpuset(cpus))?));
    let localities = registration.cpus.iter().filter_map(locality).collect();
    let infos = infos(registration, nodes, ranks, directory, oversubscribed, &localities);
    let process = |rank: u32| Process { namespace: registration.name.clone(), rank: Some(rank) };
    let register = || {
        server.register(&registration.name, local.len() as u32, &infos)?;
        local.iter().try_for_each(|rank| server.expect(&process(rank.0)))?;
        server.environment(&process(local.first().map_or(0, |rank| rank.0)))
    };
    register().map_err(|error| error.to_string())
}

/// Writes all messages to the agent, and stores the calls that the agent will answer.
fn write_all(to_send: &Receiver<Outgoing>, calls: &Calls, socket: impl Write) {
    let mut socket = BufWriter::new(socket);
    let mut last_call = 0;
    let mut keep = |done: Completion| {
        last_call += 1;
        calls.lock().unwrap_or_else(PoisonError::into_inner).insert(last_call, done);
        last_call
    };
    while let Ok(outgoing) = to_send.recv() {
        let message = match outgoing {
            Outgoing::Message(message) => message,
            Outgoing::Upcall(upcall) => match upcall {
                Upcall::Joined(process) => ToAgent::Joined(name_of(process)),
                Upcall::SecondJoiner(process, text) => ToAgent::SecondJoiner(name_of(process), text),
                Upcall::Finalized(process, done) => ToAgent::Finalized(keep(done), name_of(process)),
                Upcall::Abort { process, code, message, done } => {
                    ToAgent::Abort(keep(done), name_of(process), code, message)
                }
                Upcall::Fence { members, data, collect, timeout_s, done } => ToAgent::Fence {
                    call: keep(done),
                    members: members.into_iter().map(name_of).collect(),
                    data: data.into(),
                    collect,
                    timeout_s,
                },
                Upcall::Modex { process, done } => ToAgent::Modex(keep(done), name_of(process)),
                Upcall::Publish { process, entries, once, range, done } => {
                    let publisher = name_of(process);
                    let entry = |(key, packed): (String, Vec<u8>)| {
                        (key.into_bytes(), encode(&(&publisher, serde_bytes::ByteBuf::from(packed))))
                    };
                    let entries = entries.into_iter().map(entry).collect();
                    ToAgent::Publish { call: keep(done), process: publisher.clone(), entries, once, range }
                }
                Upcall::Lookup { process, keys, wait, timeout_s, done } => {
                    ToAgent::Lookup { call: keep(done), process: name_of(process), keys, wait, timeout_s }
                }
                Upcall::Unpublish { process, keys, done } => ToAgent::Unpublish(keep(done), name_of(process), keys),
                Upcall::Spawn { process, programs, done } => {
                    let commands = programs.into_iter().map(command_of).collect();
                    ToAgent::Spawn(keep(done), name_of(process), commands)
                }
                Upcall::Connect { members, ends, timeout_s, done } => {
                    let purpose = if ends { Purpose::Disconnect } else { Purpose::Connect };
                    let members = members.into_iter().map(name_of).collect();
                    ToAgent::Meet { call: keep(done), purpose, members, data: Bytes::new(), timeout_s }
                }
                Upcall::Group { name, members, ends, timeout_s, data, done } => {
                    let purpose = if ends { Purpose::EndOfGroup(name) } else { Purpose::Group(name) };
                    let members = members.into_iter().map(name_of).collect();
                    ToAgent::Meet { call: keep(done), purpose, members, data: data.into(), timeout_s }
                }
                Upcall::Query { questions, done } => ToAgent::Query(keep(done), questions),
                Upcall::Got { call, data } => ToAgent::Got(call, data.map(Into::into)),
            },
        };
        // If the agent has ended, the reader of its messages ends the process.
        if write_frame(&mut socket, &message).and_then(|()| socket.flush()).is_err() {
            return;
        }
    }
}

/// Returns a program as MPI_Comm_spawn names it. Its variables travel as MPI_Info's `env`.
fn command_of(program: Program) -> SpawnCommand {
    let mut argv = program.argv.into_iter();
    let wdir = program.wdir.map(|wdir| (b"wdir".to_vec(), wdir.into_bytes()));
    let variables = program.environment.into_iter().map(|variable| (b"env".to_vec(), variable));
    SpawnCommand {
        program: argv.next().unwrap_or_default(),
        args: argv.collect(),
        nprocs: program.nprocs,
        info: wdir.into_iter().chain(variables).collect(),
    }
}

/// Returns the result of a call as libpmix takes it.
fn outcome_of(outcome: Outcome) -> pmix::Outcome {
    match outcome {
        Outcome::Failed(why) => pmix::Outcome::Failed(why),
        Outcome::Done => pmix::Outcome::Done,
        Outcome::Data(data) => pmix::Outcome::Data(data.into()),
        Outcome::Spawned(name) => pmix::Outcome::Spawned(name),
        Outcome::Group(number, members, data) => {
            let process = |(namespace, rank)| Process { namespace, rank };
            let members = members.into_iter().map(process).collect();
            pmix::Outcome::Group { number, members, data: data.into() }
        }
        Outcome::Answered(facts, are_all) => {
            let facts = facts.into_iter().map(|(key, fact)| (key, value_of(fact))).collect();
            pmix::Outcome::Answered(facts, are_all)
        }
        Outcome::Found(entries) => {
            let posted = |(key, value): (Vec<u8>, Vec<u8>)| {
                let ((namespace, rank), packed): (ProcessName, serde_bytes::ByteBuf) = decode(&value).ok()?;
                let key = String::from_utf8(key).ok()?;
                Some(Posted { process: Process { namespace, rank }, key, packed: packed.into_vec() })
            };
            pmix::Outcome::Found(entries.into_iter().filter_map(posted).collect())
        }
    }
}

/// Returns a queried value as libpmix takes it.
fn value_of(fact: Fact) -> Value {
    match fact {
        Fact::Text(text) => Value::Text(text.into_bytes()),
        Fact::Ranks(number) => Value::U32(number),
        Fact::Size(number) => Value::Size(number as usize),
        Fact::Table(rows) => Value::Table(
            rows.into_iter()
                .map(|row| {
                    let (namespace, rank) = row.process;
                    let process = Process { namespace, rank };
                    let (host, program, pid, has_ended) = (row.host, row.program, row.pid, row.has_ended);
                    ProcessEntry { process, host, program, pid, has_ended }
                })
                .collect(),
        ),
    }
}
