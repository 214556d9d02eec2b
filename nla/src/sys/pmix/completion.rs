//! Answers to upcalls, from any thread.

use std::ffi::{CString, c_char, c_void};
use std::ptr;

use serde::{Deserialize, Serialize};

use super::FUNCTIONS;
use super::abi::{
    DUPLICATE_KEY, ERROR, Infos, NOT_FOUND, NOT_SUPPORTED, OUT_OF_RESOURCE, PARTIAL_SUCCESS, Process, RawBuffer,
    RawInfo, RawPosted, SUCCESS, Status, TIMEOUT, VALUE, Value,
};

/// A function with which libpmix frees what it was passed.
pub(super) type Release = Option<extern "C" fn(*mut c_void)>;
/// `pmix_modex_cbfunc_t`
pub(super) type ModexDone = unsafe extern "C" fn(Status, *const c_char, usize, *mut c_void, Release, *mut c_void);
/// `pmix_op_cbfunc_t`
pub(super) type OperationDone = unsafe extern "C" fn(Status, *mut c_void);
/// `pmix_lookup_cbfunc_t`
pub(super) type LookupDone = unsafe extern "C" fn(Status, *mut RawPosted, usize, *mut c_void);
/// `pmix_spawn_cbfunc_t`
pub(super) type SpawnDone = unsafe extern "C" fn(Status, *const c_char, *mut c_void);
/// `pmix_info_cbfunc_t`
pub(super) type InfoDone = unsafe extern "C" fn(Status, *mut RawInfo, usize, *mut c_void, Release, *mut c_void);

/// The reason why a call has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CallError {
    /// Any other reason than those below.
    Error,
    /// The requested data does not exist.
    NotFound,
    /// The request is not supported.
    NotSupported,
    /// The time that the rank has set is over.
    TimedOut,
    /// Too many calls wait, or too much data is stored.
    Exhausted,
    /// The key has a value.
    Taken,
}

impl CallError {
    fn status(self) -> Status {
        match self {
            Self::Error => ERROR,
            Self::NotFound => NOT_FOUND,
            Self::NotSupported => NOT_SUPPORTED,
            Self::TimedOut => TIMEOUT,
            Self::Exhausted => OUT_OF_RESOURCE,
            Self::Taken => DUPLICATE_KEY,
        }
    }
}

/// The result of a call. One that does not fit the call counts as a failure.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// It has failed.
    Failed(CallError),
    /// An operation without a result has succeeded.
    Done,
    /// Of a fence or a modex: the data.
    Data(Vec<u8>),
    /// Of a lookup: what was found. An empty list is a failure.
    Found(Vec<Posted>),
    /// Of a spawn: the name of the new namespace.
    Spawned(String),
    /// Of a group that is made.
    Group {
        /// The number that only this group has.
        number: u64,
        /// Its members.
        members: Vec<Process>,
        /// The data of all nodes.
        data: Vec<u8>,
    },
    /// Of a query: the known keys and their values. The flag says whether all keys are known.
    Answered(Vec<(String, Value)>, bool),
}

impl Outcome {
    /// The status of a call that should have had another outcome.
    fn status(&self) -> Status {
        if let Self::Failed(error) = self { error.status() } else { ERROR }
    }
}

/// A published value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Posted {
    /// The rank that has published it.
    pub process: Process,
    /// The key.
    pub key: String,
    /// The value as libpmix packs it.
    pub packed: Vec<u8>,
}

/// The callback of one call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Callback {
    Modex(ModexDone),
    Operation(OperationDone),
    /// The call has a time, so a timer of libpmix ends it.
    TimedConnect(OperationDone),
    Lookup(LookupDone),
    Spawn(SpawnDone),
    Group(InfoDone),
    Query(InfoDone),
}

/// Completes a call, from any thread, once.
#[derive(Debug)]
pub struct Completion {
    pub(super) callback: Callback,
    pub(super) data: *mut c_void,
}

// SAFETY: libpmix lets the host call back from any thread.
unsafe impl Send for Completion {}

/// Frees a boxed value that was passed to libpmix.
extern "C" fn release<T>(boxed: *mut c_void) {
    // SAFETY: `boxed` came from `Box::into_raw` of this type; libpmix calls this once.
    drop(unsafe { Box::from_raw(boxed.cast::<T>()) });
}

impl Completion {
    /// Hands the result to the ranks that wait.
    pub fn complete(self, outcome: Outcome) {
        let data = self.data;
        match (self.callback, outcome) {
            (Callback::Modex(done), outcome) => {
                let (status, bytes) = match outcome {
                    Outcome::Data(bytes) => (SUCCESS, bytes),
                    other => (other.status(), Vec::new()),
                };
                let bytes = Box::new(bytes);
                let first = if bytes.is_empty() { ptr::null() } else { bytes.as_ptr().cast() };
                let length = bytes.len();
                // SAFETY: libpmix has passed `done` and `data` for this call; the bytes live until it calls `release`.
                unsafe { done(status, first, length, data, Some(release::<Vec<u8>>), Box::into_raw(bytes).cast()) };
            }
            // The timer of libpmix reports this timeout, and the call must not be completed twice.
            (Callback::TimedConnect(_), Outcome::Failed(CallError::TimedOut)) => {}
            (Callback::Operation(done) | Callback::TimedConnect(done), outcome) => {
                let status = if outcome == Outcome::Done { SUCCESS } else { outcome.status() };
                // SAFETY: libpmix has passed both for this call.
                unsafe { done(status, data) };
            }
            (Callback::Lookup(done), outcome) => {
                let (status, mut found) = match outcome {
                    Outcome::Found(found) => (SUCCESS, found.iter().filter_map(unpacked).collect()),
                    other => (other.status(), Vec::new()),
                };
                let status = if status == SUCCESS && found.is_empty() { NOT_FOUND } else { status };
                // SAFETY: libpmix has passed `done` and `data` for this call. It packs the entries before it returns.
                unsafe { done(status, found.as_mut_ptr(), found.len(), data) };
            }
            (Callback::Spawn(done), outcome) => {
                let (status, name) = match outcome {
                    Outcome::Spawned(name) => (SUCCESS, CString::new(name).unwrap_or_default()),
                    other => (other.status(), CString::default()),
                };
                let name = if status == SUCCESS { name.into_raw() } else { ptr::null_mut() };
                // SAFETY: libpmix has passed `done` and `data` for this call. It may read the name later, which is not
                // freed: there is one for each spawn.
                unsafe { done(status, name, data) };
            }
            (Callback::Query(done), outcome) => {
                let (status, infos) = match outcome {
                    Outcome::Answered(infos, true) => (SUCCESS, infos),
                    Outcome::Answered(infos, false) => (PARTIAL_SUCCESS, infos),
                    other => (other.status(), Vec::new()),
                };
                complete_infos((done, data), status, Infos::new(&infos));
            }
            (Callback::Group(done), outcome) => {
                let (status, infos) = match outcome {
                    Outcome::Group { number, members, data } => {
                        let number = ("pmix.grp.ctxid", Value::Size(number as usize));
                        let mut infos = vec![number, ("pmix.grp.mbrs", Value::Processes(members))];
                        if !data.is_empty() {
                            infos.push(("pmix.grp.endpt", Value::Bytes(data)));
                        }
                        (SUCCESS, infos)
                    }
                    Outcome::Done => (SUCCESS, Vec::new()),
                    other => (other.status(), Vec::new()),
                };
                complete_infos((done, data), status, Infos::new(&infos));
            }
        }
    }
}

fn complete_infos((done, data): (InfoDone, *mut c_void), status: Status, infos: Infos) {
    let mut infos = Box::new(infos);
    let (first, count) = (infos.as_mut_ptr(), infos.len());
    // SAFETY: libpmix has passed `done` and `data` for this call; the infos live until it calls `release`.
    unsafe { done(status, first, count, data, Some(release::<Infos>), Box::into_raw(infos).cast()) };
}

/// Returns a published value for libpmix. The memory that the value points to is not freed: not every version of libpmix has a
/// function for that.
fn unpacked(posted: &Posted) -> Option<RawPosted> {
    let functions = FUNCTIONS.get()?;
    let mut raw = RawPosted::new(&posted.process, &posted.key);
    let mut bytes = posted.packed.clone();
    let base: *mut c_char = bytes.as_mut_ptr().cast();
    // SAFETY: the end of the bytes is in the same allocation.
    let end = unsafe { base.add(bytes.len()) };
    let mut buffer = RawBuffer { base, pack: end, unpack: base, allocated: bytes.len(), used: bytes.len() };
    let mut count = 1;
    // SAFETY: the types are those of the header. The buffer has the bytes, which only this call reads.
    let status =
        unsafe { (functions.data_unpack)(ptr::null(), &raw mut buffer, raw.value_mut(), &raw mut count, VALUE) };
    (status == SUCCESS && count == 1).then_some(raw)
}

/// Packs a value of libpmix.
pub(super) fn packed(value: *const c_void) -> Option<Vec<u8>> {
    let functions = FUNCTIONS.get()?;
    let none = ptr::null_mut();
    let mut buffer = RawBuffer { base: none, pack: none, unpack: none, allocated: 0, used: 0 };
    // SAFETY: the types are those of the header. The value is one of libpmix.
    let status = unsafe { (functions.data_pack)(ptr::null(), &raw mut buffer, value, 1, VALUE) };
    if status != SUCCESS || buffer.base.is_null() {
        return None;
    }
    // SAFETY: libpmix has allocated and written `used` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(buffer.base.cast::<u8>(), buffer.used) }.to_vec();
    // SAFETY: the host frees the buffer (PMIX_DATA_BUFFER_DESTRUCT).
    unsafe { libc::free(buffer.base.cast()) };
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn note(status: Status, data: *mut c_void) {
        // SAFETY: the test passes a pointer to such a list.
        unsafe { &mut *data.cast::<Vec<Status>>() }.push(status);
    }

    #[track_caller]
    fn check(callback: Callback, outcome: Outcome, expected: &[Status]) {
        let mut noted: Vec<Status> = Vec::new();
        Completion { callback, data: (&raw mut noted).cast() }.complete(outcome);
        assert_eq!(noted, expected);
    }

    #[test]
    fn only_a_connection_with_a_time_of_its_own_leaves_its_timeout_to_libpmix() {
        let timed_out = || Outcome::Failed(CallError::TimedOut);
        check(Callback::TimedConnect(note), timed_out(), &[]);
        check(Callback::TimedConnect(note), Outcome::Done, &[SUCCESS]);
        check(Callback::TimedConnect(note), Outcome::Failed(CallError::Error), &[ERROR]);
        // Another node has set the time.
        check(Callback::Operation(note), timed_out(), &[TIMEOUT]);
    }
}
