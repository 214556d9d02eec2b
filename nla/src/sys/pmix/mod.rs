//! libpmix, loaded at run time, as the server of one node's ranks.
//!
//! libpmix has one server per process, and calls the host (this process) on a thread of its own. These upcalls never
//! block: each becomes an [`Upcall`] in a channel, and is answered from any thread later. The contract is that of
//! `pmix_server.h`; `docs/design` says why the library is not linked.

mod abi;
mod accept;
mod completion;
mod library;
mod second;
mod upcalls;

use std::ffi::{CStr, CString, c_char, c_void};
use std::io;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use self::abi::{Infos, OPERATION_SUCCEEDED, RawCpuset, RawProcess, SUCCESS, Status};
pub use self::abi::{Process, ProcessEntry, Value};
use self::completion::OperationDone;
pub use self::completion::{CallError, Completion, Outcome, Posted};
pub use self::library::PmixError;
use self::library::{Functions, load};
pub use self::upcalls::{Program, Question, Upcall};
use self::upcalls::{UPCALLS, forget_connected, is_connected, module, report, slice};

/// A variable's name and its value.
pub type Variable = (Vec<u8>, Vec<u8>);

/// The beginning of the error if the directory of a session's files cannot be made.
pub const NO_DIRECTORY: &str = "no directory can be made in";
/// How long libpmix may take to register a namespace or a rank.
const REGISTER_TIME: Duration = Duration::from_secs(60);

/// The functions of the loaded library, for upcalls and completions.
static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// libpmix as the server of this process.
pub struct Server {
    functions: Functions,
}

impl Server {
    /// Loads the library and initializes the server with `infos`. Upcalls go to `upcalls`. Call it once per process.
    pub fn start(library: &Path, infos: &[(&'static str, Value)], upcalls: Sender<Upcall>) -> Result<Self, PmixError> {
        let server = Self { functions: load(library)? };
        let _ = FUNCTIONS.set(server.functions);
        if UPCALLS.set(upcalls).is_err() {
            return Err(PmixError { call: "PMIx_server_init", text: "it was called before".to_owned() });
        }
        // libpmix copies the table, but its manual does not say when.
        let module = Box::leak(Box::new(module()));
        let mut infos = Infos::new(infos);
        // SAFETY: the types are those of the header; the infos live during the call, which is synchronous.
        let status = unsafe { (server.functions.init)(module, infos.as_mut_ptr(), infos.len()) };
        server.check("PMIx_server_init", status)?;
        Ok(server)
    }

    /// The library's name and version.
    pub fn version(&self) -> String {
        // SAFETY: it takes nothing and returns a string of the library.
        let text = unsafe { (self.functions.version)() };
        if text.is_null() {
            return "libpmix".to_owned();
        }
        // SAFETY: the string is a constant of the library.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// Registers a namespace with `local` ranks on this node, and waits until that is done.
    pub fn register(&self, namespace: &str, local: u32, infos: &[(&'static str, Value)]) -> Result<(), PmixError> {
        let name = RawProcess::new(&Process { namespace: namespace.to_owned(), rank: None });
        let mut infos = Infos::new(infos);
        let local = i32::try_from(local).unwrap_or(i32::MAX);
        let result = self.operation("PMIx_server_register_nspace", |done, data| {
            // SAFETY: the types are those of the header. The name and the infos live until the callback.
            unsafe {
                let register = self.functions.register_nspace;
                register(name.namespace(), local, infos.as_mut_ptr(), infos.len(), Some(done), data)
            }
        });
        if result.is_err() {
            // The library may read them later.
            std::mem::forget(infos);
        }
        result
    }

    /// Forgets a namespace.
    pub fn deregister(&self, namespace: &str) {
        forget_connected(namespace);
        let name = RawProcess::new(&Process { namespace: namespace.to_owned(), rank: None });
        let _ = self.operation("PMIx_server_deregister_nspace", |done, data| {
            // SAFETY: the types are those of the header; the name lives until the callback.
            unsafe { (self.functions.deregister_nspace)(name.namespace(), Some(done), data) };
            SUCCESS
        });
    }

    /// Expects a rank of this user on this node.
    pub fn expect(&self, process: &Process) -> Result<(), PmixError> {
        let raw = RawProcess::new(process);
        let (user, group) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        self.operation("PMIx_server_register_client", |done, data| {
            // SAFETY: the types are those of the header; the name lives until the callback.
            unsafe { (self.functions.register_client)(&raw const raw, user, group, ptr::null_mut(), Some(done), data) }
        })
    }

    /// Forgets a rank whose process has ended, and removes the files that it has asked the server to remove.
    ///
    /// Does nothing for a rank that is connected: libpmix would not see the end of its connection, and would wait for it in
    /// each fence.
    pub fn end(&self, process: &Process) {
        if is_connected(process) {
            return;
        }
        let raw = RawProcess::new(process);
        let _ = self.operation("PMIx_server_deregister_client", |done, data| {
            // SAFETY: the types are those of the header; the name lives until the callback.
            unsafe { (self.functions.deregister_client)(&raw const raw, Some(done), data) };
            SUCCESS
        });
    }

    /// Returns the variables by which a rank finds this server.
    pub fn environment(&self, process: &Process) -> Result<Vec<Variable>, PmixError> {
        let raw = RawProcess::new(process);
        let mut environment: *mut *mut c_char = ptr::null_mut();
        // SAFETY: the types are those of the header. An environment that is null is empty.
        let status = unsafe { (self.functions.setup_fork)(&raw const raw, &raw mut environment) };
        self.check("PMIx_server_setup_fork", status)?;
        let mut variables = Vec::new();
        let mut next = environment;
        // The array is not freed: only libpmix knows its allocator. It has some hundred bytes.
        // SAFETY: the array of C strings ends with a null.
        while let Some(text) = unsafe { next.as_ref() }.filter(|text| !text.is_null()) {
            // SAFETY: each is a C string.
            let bytes = unsafe { CStr::from_ptr(*text) }.to_bytes();
            if let Some(at) = bytes.iter().position(|byte| *byte == b'=') {
                variables.push((bytes[..at].to_vec(), bytes[at + 1..].to_vec()));
            }
            // SAFETY: the null was not reached.
            next = unsafe { next.add(1) };
        }
        Ok(variables)
    }

    /// Notifies the ranks of this node that have registered for such events that a rank has died.
    pub fn report_death(&self, process: &Process) {
        const PROC_ABORTED: Status = -7;
        const RANGE_LOCAL: u8 = 2;
        let raw = RawProcess::new(process);
        let mut infos = Infos::new(&[("pmix.evproc", Value::Process(process.clone()))]);
        let result = self.operation("PMIx_Notify_event", |done, data| {
            // SAFETY: the types are those of the header. The name and the infos live until the callback.
            unsafe {
                let notify = self.functions.notify_event;
                notify(PROC_ABORTED, &raw const raw, RANGE_LOCAL, infos.as_mut_ptr(), infos.len(), Some(done), data)
            }
        });
        if result.is_err() {
            // The library may read them later.
            std::mem::forget(infos);
        }
    }

    /// Asks a rank of this node for its data. [`Upcall::Got`] with the number `call` answers, once the rank has put it.
    pub fn ask(&self, process: &Process, call: u64) {
        extern "C" fn response(status: Status, bytes: *mut c_char, length: usize, data: *mut c_void) {
            let bytes = || slice(bytes.cast_const().cast::<u8>(), length).to_vec();
            report(Upcall::Got { call: data as u64, data: (status == SUCCESS).then(bytes) });
        }
        let raw = RawProcess::new(process);
        // SAFETY: the types are those of the header. The library copies the name during the call; `call` is only a number.
        let status = unsafe { (self.functions.dmodex_request)(&raw const raw, Some(response), call as *mut c_void) };
        if status != SUCCESS {
            report(Upcall::Got { call, data: None });
        }
    }

    /// Makes libpmix's form of a list of nodes.
    pub fn node_map(&self, nodes: &str) -> Value {
        self.map(nodes, self.functions.generate_regex)
    }

    /// Makes libpmix's form of the lists of ranks of all nodes.
    pub fn process_map(&self, ranks: &str) -> Value {
        self.map(ranks, self.functions.generate_ppn)
    }

    /// Describes where these processors (`hwloc:0,2-3`) are on this node. `None` if libpmix does not know.
    pub fn locality(&self, cpus: &str) -> Option<String> {
        let cpus = CString::new(cpus).ok()?;
        let mut set = RawCpuset { source: ptr::null_mut(), bitmap: ptr::null_mut() };
        let mut locality: *mut c_char = ptr::null_mut();
        // SAFETY: the types are those of the header. The bitmap, some words, is not freed: only libpmix's hwloc can.
        let status = unsafe {
            match (self.functions.parse_cpuset)(cpus.as_ptr(), &raw mut set) {
                SUCCESS => (self.functions.locality)(&raw const set, &raw mut locality),
                error => error,
            }
        };
        // SAFETY: the result is a C string.
        (status == SUCCESS && !locality.is_null()).then(|| unsafe { CStr::from_ptr(locality) }.to_string_lossy().into())
    }

    fn map(&self, plain: &str, make: unsafe extern "C" fn(*const c_char, *mut *mut c_char) -> Status) -> Value {
        let raw = || Value::Map(format!("raw:{plain}").into_bytes());
        let Ok(text) = CString::new(plain) else { return raw() };
        let mut made: *mut c_char = ptr::null_mut();
        // SAFETY: the types are those of the header; the result is a C string, or the beginning of a blob is.
        let status = unsafe { make(text.as_ptr(), &raw mut made) };
        if status != SUCCESS || made.is_null() {
            return raw();
        }
        // SAFETY: as above.
        let made = unsafe { CStr::from_ptr(made) }.to_bytes();
        // A compressed blob contains NULs, and libpmix does not return its length.
        if made.starts_with(b"blob:") { raw() } else { Value::Map(made.to_vec()) }
    }

    /// Makes a call that ends by its callback, or at once with `OPERATION_SUCCEEDED` or an error.
    fn operation(
        &self,
        call: &'static str,
        make: impl FnOnce(OperationDone, *mut c_void) -> Status,
    ) -> Result<(), PmixError> {
        extern "C" fn done(status: Status, data: *mut c_void) {
            // SAFETY: `data` came from `Box::into_raw` below; the library calls back at most once.
            let done = unsafe { Box::from_raw(data.cast::<Sender<Status>>()) };
            // The caller may have given up.
            let _ = done.send(status);
        }
        let (sender, completed): (Sender<Status>, Receiver<Status>) = channel();
        let data: *mut c_void = Box::into_raw(Box::new(sender)).cast();
        let made = make(done, data);
        if made != SUCCESS {
            // SAFETY: it came from `Box::into_raw`, and no callback follows.
            drop(unsafe { Box::from_raw(data.cast::<Sender<Status>>()) });
        }
        let status = match made {
            SUCCESS => completed
                .recv_timeout(REGISTER_TIME)
                .map_err(|_| PmixError { call, text: format!("no answer within {} s", REGISTER_TIME.as_secs()) })?,
            OPERATION_SUCCEEDED => SUCCESS,
            error => error,
        };
        self.check(call, status)
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), PmixError> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: it takes any number and returns a string of the library.
        let text = unsafe { (self.functions.error_string)(status) };
        let text = if text.is_null() {
            String::new()
        } else {
            // SAFETY: the string is a constant of the library.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(PmixError { call, text: format!("{text} ({status})") })
    }
}

/// Ends the process at once. Libraries' own cleanup is left out: libpmix's may wait for its threads.
pub fn exit_now(code: u8) -> ! {
    // SAFETY: it does not return.
    unsafe { libc::_exit(code.into()) }
}

/// Returns a second descriptor of standard input, which is a socket.
pub fn stdin_socket() -> io::Result<std::os::unix::net::UnixStream> {
    use std::os::fd::AsFd;
    Ok(std::io::stdin().as_fd().try_clone_to_owned()?.into())
}
