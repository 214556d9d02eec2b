//! The calls that libpmix makes. None of them blocks.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use pmi::PostRange;
use serde::{Deserialize, Serialize};

use super::abi::{
    ERROR, NOT_FOUND, NOT_SUPPORTED, OPERATION_SUCCEEDED, Process, RawInfo, RawProcess, RawProgram, RawQuery, SUCCESS,
    Status, c_array, c_text,
};
use super::completion::{Callback, Completion, InfoDone, LookupDone, ModexDone, OperationDone, SpawnDone, packed};
use super::second::both_processes;
use crate::sys::reap::{kill, refusal_text};

/// Bytes of a text that a rank passes to an abort; a longer one is left out.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Words of a command line, or variables of an environment, in a spawn.
const WORDS_MAX: usize = 65_536;
/// Bytes of a path.
const PATH_BYTES_MAX: usize = 4096;
/// Keys of one publication, lookup or query.
const KEYS_MAX: usize = 4096;

/// A program of a spawn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// The words of its command line; the first one is the program. Not empty.
    pub argv: Vec<Vec<u8>>,
    /// Variables that are set: `NAME=VALUE`.
    pub environment: Vec<Vec<u8>>,
    /// The working directory, if it is not the spawning rank's.
    pub wdir: Option<String>,
    /// The number of ranks.
    pub nprocs: u32,
}

/// A key that a rank queries.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Question {
    /// The key.
    pub key: String,
    /// The namespace that it is about, if the rank names one.
    pub namespace: Option<String>,
}

/// A request or report of a rank.
#[derive(Debug)]
pub enum Upcall {
    /// A rank has initialized PMIx.
    Joined(Process),
    /// A second process has joined as this rank, and was killed: the report, without the rank and the host. Once for each rank.
    SecondJoiner(Process, String),
    /// A rank has finalized PMIx. It goes on when the call is completed.
    Finalized(Process, Completion),
    /// A rank has called `PMIx_Abort`. It goes on when the call is completed.
    Abort {
        /// The rank.
        process: Process,
        /// Its status.
        code: i32,
        /// Its message; may be empty.
        message: String,
        /// Completes it.
        done: Completion,
    },
    /// All ranks of this node that take part have arrived at a fence.
    Fence {
        /// All ranks that take part, on all nodes.
        members: Vec<Process>,
        /// The data of this node's ranks.
        data: Vec<u8>,
        /// The data of all nodes is to be returned.
        collect: bool,
        /// How long to wait for the other nodes, in seconds; 0: for ever.
        timeout_s: u32,
        /// Completes the fence.
        done: Completion,
    },
    /// A rank of this node asks for the data that a rank of another node has put.
    Modex {
        /// The other rank.
        process: Process,
        /// Answers with its data.
        done: Completion,
    },
    /// Answers [`Server::ask`](super::Server::ask).
    Got {
        /// The number of the call.
        call: u64,
        /// The rank's data, if it has put any.
        data: Option<Vec<u8>>,
    },
    /// A rank publishes values.
    Publish {
        /// The rank.
        process: Process,
        /// The keys, and the values as libpmix packs them.
        entries: Vec<(String, Vec<u8>)>,
        /// Each is removed when it is read.
        once: bool,
        /// The ranks that can look them up.
        range: PostRange,
        /// Completes it.
        done: Completion,
    },
    /// A rank looks up values.
    Lookup {
        /// The rank.
        process: Process,
        /// The keys.
        keys: Vec<Vec<u8>>,
        /// The answer waits until all are published.
        wait: bool,
        /// How long to wait, in seconds; 0: for ever.
        timeout_s: u32,
        /// Answers.
        done: Completion,
    },
    /// A rank removes what it has published.
    Unpublish {
        /// The rank.
        process: Process,
        /// The keys.
        keys: Vec<Vec<u8>>,
        /// Completes it.
        done: Completion,
    },
    /// A rank spawns others.
    Spawn {
        /// The rank.
        process: Process,
        /// The programs.
        programs: Vec<Program>,
        /// Answers with the name of the namespace.
        done: Completion,
    },
    /// All ranks of this node that take part connect themselves with ranks of other namespaces, or disconnect.
    Connect {
        /// All ranks that take part, on all nodes.
        members: Vec<Process>,
        /// They disconnect.
        ends: bool,
        /// How long to wait for the other nodes, in seconds; 0: for ever.
        timeout_s: u32,
        /// Completes it.
        done: Completion,
    },
    /// All ranks of this node that take part make or dissolve a group.
    Group {
        /// Its name.
        name: String,
        /// All ranks that take part, on all nodes.
        members: Vec<Process>,
        /// They dissolve it.
        ends: bool,
        /// How long to wait for the other nodes, in seconds; 0: for ever.
        timeout_s: u32,
        /// The data of this node's ranks.
        data: Vec<u8>,
        /// Completes it.
        done: Completion,
    },
    /// A rank queries keys that libpmix does not know. libpmix does not say which rank.
    Query {
        /// The keys.
        questions: Vec<Question>,
        /// Answers.
        done: Completion,
    },
}

/// The receiver of all upcalls of this process: libpmix passes no pointer of the host's to most of them.
pub(super) static UPCALLS: OnceLock<Sender<Upcall>> = OnceLock::new();

pub(super) fn report(upcall: Upcall) {
    if let Some(upcalls) = UPCALLS.get() {
        // The receiver is dropped only when the process ends.
        let _ = upcalls.send(upcall);
    }
}

/// Reports a call that is answered later.
fn ask(upcall: Upcall) -> Status {
    report(upcall);
    SUCCESS
}

/// Reports an event that needs no answer.
fn tell(upcall: Option<Upcall>) -> Status {
    upcall.map_or(ERROR, |upcall| {
        report(upcall);
        OPERATION_SUCCEEDED
    })
}

/// Reads the name of a process.
fn process(raw: *const RawProcess) -> Option<Process> {
    // SAFETY: libpmix passes a process or null.
    unsafe { raw.as_ref() }?.read()
}

/// Reads the names of processes.
fn processes(raw: *const RawProcess, count: usize) -> Option<Vec<Process>> {
    slice(raw, count).iter().map(RawProcess::read).collect()
}

/// Returns an array of libpmix.
pub(super) fn slice<'a, T>(array: *const T, length: usize) -> &'a [T] {
    if array.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: libpmix passes an array of this length, which lives until the upcall returns.
    unsafe { std::slice::from_raw_parts(array, length) }
}

/// Returns the callback of a call, with its data.
macro_rules! completion {
    ($kind:ident, $done:expr, $data:expr) => {
        match $done {
            Some(done) => Completion { callback: Callback::$kind(done), data: $data },
            None => return ERROR,
        }
    };
}

type Raw = *const RawProcess;
type Infos = *const RawInfo;
type Data = *mut c_void;

/// The ranks that are connected and have not finalized PMIx.
static CONNECTED: Mutex<BTreeSet<Process>> = Mutex::new(BTreeSet::new());

fn connected() -> MutexGuard<'static, BTreeSet<Process>> {
    CONNECTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a rank is connected and has not finalized PMIx. The agent may not have read this yet.
pub(super) fn is_connected(process: &Process) -> bool {
    connected().contains(process)
}

/// Forgets the connected ranks of a namespace that has ended.
pub(super) fn forget_connected(namespace: &str) {
    connected().retain(|process| process.namespace != namespace);
    refused().retain(|process| process.namespace != namespace);
}

/// The ranks as which a second process has joined.
static REFUSED: Mutex<BTreeSet<Process>> = Mutex::new(BTreeSet::new());

fn refused() -> MutexGuard<'static, BTreeSet<Process>> {
    REFUSED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Used instead of `client_connected2`, whose errors version 4 ignores.
extern "C" fn client_connected(raw: Raw, _server_object: Data, done: Option<OperationDone>, data: Data) -> Status {
    let Some(process) = process(raw) else { return ERROR };
    // A process that ended without finalizing gives way to the next one.
    if is_connected(&process)
        && let Some((first, second)) = both_processes(&process)
    {
        let text = refusal_text(Some(second), Some(first), "killed");
        // If MPI_Init fails, Open MPI 5 goes on as a job of one rank, with the shared memory of the rank that it is a child of.
        let _ = kill(second.cast_signed(), libc::SIGKILL);
        if refused().insert(process.clone()) {
            report(Upcall::SecondJoiner(process, text));
        }
        return refuse(done, data);
    }
    connected().insert(process.clone());
    tell(Some(Upcall::Joined(process)))
}

/// Makes libpmix close a new connection. Version 5.0 frees it twice if the upcall returns an error, so its callback is used.
/// Version 4 has no callback, so return the error.
fn refuse(done: Option<OperationDone>, data: Data) -> Status {
    let Some(done) = done else { return ERROR };
    // SAFETY: libpmix's own callback with its own data, which is called once and only shifts the event to its thread.
    unsafe { done(ERROR, data) };
    SUCCESS
}

extern "C" fn client_finalized(raw: Raw, _server_object: Data, done: Option<OperationDone>, data: Data) -> Status {
    let done = completion!(Operation, done, data);
    let Some(process) = process(raw) else { return ERROR };
    connected().remove(&process);
    ask(Upcall::Finalized(process, done))
}

extern "C" fn abort(
    raw: Raw,
    _server_object: Data,
    code: c_int,
    message: *const c_char,
    _processes: Raw,
    _count: usize,
    done: Option<OperationDone>,
    data: Data,
) -> Status {
    let done = completion!(Operation, done, data);
    let Some(process) = process(raw) else { return ERROR };
    let message = c_text(message, MESSAGE_BYTES_MAX).unwrap_or_default();
    ask(Upcall::Abort { process, code, message, done })
}

extern "C" fn fence(
    members: Raw,
    count: usize,
    infos: Infos,
    info_count: usize,
    bytes: *mut c_char,
    length: usize,
    done: Option<ModexDone>,
    data: Data,
) -> Status {
    let done = completion!(Modex, done, data);
    let Some(members) = processes(members, count) else { return NOT_SUPPORTED };
    let infos = slice(infos, info_count);
    let collect = infos.iter().any(|info| info.is_true("pmix.collect"));
    let data = slice(bytes.cast_const().cast::<u8>(), length).to_vec();
    ask(Upcall::Fence { members, data, collect, timeout_s: timeout_of(infos), done })
}

extern "C" fn direct_modex(raw: Raw, _infos: Infos, _count: usize, done: Option<ModexDone>, data: Data) -> Status {
    let done = completion!(Modex, done, data);
    let Some(process) = process(raw) else { return NOT_FOUND };
    ask(Upcall::Modex { process, done })
}

extern "C" fn publish(raw: Raw, infos: Infos, count: usize, done: Option<OperationDone>, data: Data) -> Status {
    let done = completion!(Operation, done, data);
    let Some(process) = process(raw).filter(|_| count <= KEYS_MAX) else { return ERROR };
    let infos = slice(infos, count);
    let once = infos.iter().any(RawInfo::is_first_read);
    let Some(range) = infos.iter().find_map(RawInfo::range).map_or(Some(PostRange::Session), range_of) else {
        return NOT_SUPPORTED;
    };
    // Keys of PMIx itself are directives: the range, the user, ...
    let own = infos.iter().filter(|info| info.key().is_some_and(|key| !key.starts_with("pmix.")));
    let Some(entries) = own.map(|info| Some((info.key()?, packed(info.value())?))).collect() else { return ERROR };
    ask(Upcall::Publish { process, entries, once, range, done })
}

/// Returns the ranks that a range of PMIx names. `None` for those of its resource manager, and for a list of ranks.
fn range_of(number: u8) -> Option<PostRange> {
    match number {
        // Undefined, of the session, and global: this session is all that its ranks know.
        0 | 4 | 5 => Some(PostRange::Session),
        2 => Some(PostRange::Node),
        3 => Some(PostRange::Namespace),
        7 => Some(PostRange::Rank),
        _ => None,
    }
}

/// Returns the time that a call may take, in seconds; 0: for ever.
fn timeout_of(infos: &[RawInfo]) -> u32 {
    infos.iter().find_map(RawInfo::timeout_s).unwrap_or_default()
}

extern "C" fn lookup(
    raw: Raw,
    keys: *const *const c_char,
    infos: Infos,
    count: usize,
    done: Option<LookupDone>,
    data: Data,
) -> Status {
    let done = completion!(Lookup, done, data);
    let (Some(process), Some(keys)) = (process(raw), c_array(keys, KEYS_MAX)) else { return ERROR };
    let infos = slice(infos, count);
    // `pmix.wait` is a flag or a number of keys. Its presence alone means to wait.
    let wait = infos.iter().any(|info| info.key().as_deref() == Some("pmix.wait"));
    ask(Upcall::Lookup { process, keys, wait, timeout_s: timeout_of(infos), done })
}

extern "C" fn unpublish(
    raw: Raw,
    keys: *const *const c_char,
    _infos: Infos,
    _count: usize,
    done: Option<OperationDone>,
    data: Data,
) -> Status {
    let done = completion!(Operation, done, data);
    let (Some(process), Some(keys)) = (process(raw), c_array(keys, KEYS_MAX)) else { return ERROR };
    ask(Upcall::Unpublish { process, keys, done })
}

extern "C" fn spawn(
    raw: Raw,
    _infos: Infos,
    _info_count: usize,
    programs: *const RawProgram,
    count: usize,
    done: Option<SpawnDone>,
    data: Data,
) -> Status {
    let done = completion!(Spawn, done, data);
    let Some(process) = process(raw) else { return ERROR };
    let Some(programs) = slice(programs, count).iter().map(read_program).collect() else { return ERROR };
    ask(Upcall::Spawn { process, programs, done })
}

fn read_program(raw: &RawProgram) -> Option<Program> {
    let mut argv = c_array(raw.argv, WORDS_MAX)?;
    if argv.is_empty() {
        argv.push(c_text(raw.program, PATH_BYTES_MAX)?.into_bytes());
    }
    let infos = slice(raw.infos, raw.info_count);
    let directory = infos.iter().find(|info| info.key().as_deref() == Some("pmix.wdir")).and_then(RawInfo::text);
    let wdir = directory.or_else(|| c_text(raw.wdir, PATH_BYTES_MAX)).filter(|wdir| !wdir.is_empty());
    let nprocs = u32::try_from(raw.nprocs).ok()?;
    Some(Program { argv, environment: c_array(raw.environment, WORDS_MAX)?, wdir, nprocs })
}

extern "C" fn connect(
    members: Raw,
    count: usize,
    infos: Infos,
    info_count: usize,
    done: Option<OperationDone>,
    data: Data,
) -> Status {
    let timeout_s = timeout_of(slice(infos, info_count));
    let done = if timeout_s > 0 { completion!(TimedConnect, done, data) } else { completion!(Operation, done, data) };
    let Some(members) = processes(members, count) else { return NOT_SUPPORTED };
    ask(Upcall::Connect { members, ends: false, timeout_s, done })
}

extern "C" fn disconnect(
    members: Raw,
    count: usize,
    infos: Infos,
    info_count: usize,
    done: Option<OperationDone>,
    data: Data,
) -> Status {
    let done = completion!(Operation, done, data);
    let Some(members) = processes(members, count) else { return NOT_SUPPORTED };
    let timeout_s = timeout_of(slice(infos, info_count));
    ask(Upcall::Connect { members, ends: true, timeout_s, done })
}

extern "C" fn group(
    operation: c_int,
    name: *const c_char,
    members: Raw,
    count: usize,
    infos: Infos,
    info_count: usize,
    done: Option<InfoDone>,
    data: Data,
) -> Status {
    let done = completion!(Group, done, data);
    let (Some(members), Some(name)) = (processes(members, count), c_text(name, PATH_BYTES_MAX)) else {
        return NOT_SUPPORTED;
    };
    // PMIX_GROUP_CONSTRUCT is 0.
    let ends = operation != 0;
    let infos = slice(infos, info_count);
    // No other node needs to know that a group of local ranks ends. Complete the call at once: otherwise libpmix 5.0 makes a
    // second upcall with the same data, and two completions free the data twice.
    if ends && infos.iter().any(|info| info.is_true("pmix.grp.lcl")) {
        return OPERATION_SUCCEEDED;
    }
    let timeout_s = timeout_of(infos);
    let data = infos.iter().find(|info| info.key().as_deref() == Some("pmix.grp.endpt"));
    let data = data.and_then(RawInfo::bytes).unwrap_or_default();
    ask(Upcall::Group { name, members, ends, timeout_s, data, done })
}

extern "C" fn query(_raw: Raw, queries: *const RawQuery, count: usize, done: Option<InfoDone>, data: Data) -> Status {
    let done = completion!(Query, done, data);
    let Some(questions) = read_queries(slice(queries, count)) else { return ERROR };
    ask(Upcall::Query { questions, done })
}

/// Reads queries. `None` if they have too many keys.
fn read_queries(queries: &[RawQuery]) -> Option<Vec<Question>> {
    let mut questions = Vec::new();
    for query in queries {
        questions.extend(read_query(query)?);
        if questions.len() > KEYS_MAX {
            return None;
        }
    }
    Some(questions)
}

/// Reads one query: a question for each of its keys.
fn read_query(raw: &RawQuery) -> Option<Vec<Question>> {
    let mut namespace = None;
    for info in slice(raw.qualifiers, raw.qualifier_count) {
        match info.key()?.as_str() {
            "pmix.nspace" => namespace = info.text(),
            "pmix.procid" => namespace = info.process().map(|process| process.namespace),
            _ => {}
        }
    }
    let namespace = namespace.filter(|name| !name.is_empty());
    let keys = c_array(raw.keys, KEYS_MAX)?.into_iter();
    keys.map(|key| Some(Question { key: String::from_utf8(key).ok()?, namespace: namespace.clone() })).collect()
}

/// libpmix serves requests to remove files at the end of a rank by itself, but only if its host has this upcall.
extern "C" fn job_control(
    _requestor: Raw,
    _targets: Raw,
    _target_count: usize,
    _directives: Infos,
    _directive_count: usize,
    _done: Data,
    _data: Data,
) -> Status {
    NOT_SUPPORTED
}

/// libpmix asks its host to register for events of other nodes. The host passes all of them on anyway.
extern "C" fn register_events(
    _codes: *const Status,
    _count: usize,
    _infos: Infos,
    _info_count: usize,
    _done: Data,
    _data: Data,
) -> Status {
    OPERATION_SUCCEEDED
}

extern "C" fn deregister_events(_codes: *const Status, _count: usize, _done: Data, _data: Data) -> Status {
    OPERATION_SUCCEEDED
}

/// The table of upcalls. libpmix copies as many slots as its own version knows: 28 in version 4.2, a few more later, none of
/// them before these.
#[repr(C)]
pub(super) struct Module {
    slots: [*const c_void; 64],
}

pub(super) fn module() -> Module {
    let mut slots = [ptr::null(); 64];
    slots[0] = client_connected as *const c_void;
    slots[1] = client_finalized as *const c_void;
    slots[2] = abort as *const c_void;
    slots[3] = fence as *const c_void;
    slots[4] = direct_modex as *const c_void;
    slots[5] = publish as *const c_void;
    slots[6] = lookup as *const c_void;
    slots[7] = unpublish as *const c_void;
    slots[8] = spawn as *const c_void;
    slots[9] = connect as *const c_void;
    slots[10] = disconnect as *const c_void;
    slots[11] = register_events as *const c_void;
    slots[12] = deregister_events as *const c_void;
    slots[15] = query as *const c_void;
    slots[19] = job_control as *const c_void;
    slots[25] = group as *const c_void;
    Module { slots }
}
