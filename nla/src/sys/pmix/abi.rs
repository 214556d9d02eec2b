//! The C types of libpmix, as versions 4 to 6 lay them out, and the values that are passed in them.
//!
//! Source: `pmix_common.h` and `pmix_server.h` of OpenPMIx 4.2.2 and 5.0.11.

use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

/// `pmix_status_t`.
pub(super) type Status = c_int;

/// Success.
pub(super) const SUCCESS: Status = 0;
/// The call has succeeded, and its callback will not be called.
pub(super) const OPERATION_SUCCEEDED: Status = -157;
/// The call is not supported.
pub(super) const NOT_SUPPORTED: Status = -47;
/// A general error.
pub(super) const ERROR: Status = -1;
/// The requested data was not found.
pub(super) const NOT_FOUND: Status = -46;
/// The time for the call is over.
pub(super) const TIMEOUT: Status = -24;
/// There is no room for another one.
pub(super) const OUT_OF_RESOURCE: Status = -29;
/// The key has a value.
pub(super) const DUPLICATE_KEY: Status = -53;
/// Only a part of the requested data was found.
pub(super) const PARTIAL_SUCCESS: Status = -52;
/// `PMIX_RANK_WILDCARD`: all ranks of a namespace.
pub(super) const WILDCARD: u32 = u32::MAX - 1;
/// `PMIX_RANK_VALID`: greater numbers have special meanings.
const RANK_VALID: u32 = u32::MAX - 50;
/// `PMIX_MAX_NSLEN`.
const NAMESPACE_BYTES_MAX: usize = 255;
/// `PMIX_MAX_KEYLEN`.
const KEY_BYTES_MAX: usize = 511;

/// A process as PMIx names it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Process {
    /// The name of its namespace, of at most 255 bytes.
    pub namespace: String,
    /// Its rank; `None` stands for all ranks of the namespace.
    pub rank: Option<u32>,
}

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawProcess {
    namespace: [c_char; NAMESPACE_BYTES_MAX + 1],
    rank: u32,
}

impl RawProcess {
    /// Names a process. A longer namespace is cut, so that no process has the name.
    pub(super) fn new(process: &Process) -> Self {
        let mut namespace = [0; NAMESPACE_BYTES_MAX + 1];
        for (to, byte) in namespace[..NAMESPACE_BYTES_MAX].iter_mut().zip(process.namespace.bytes()) {
            *to = byte as c_char;
        }
        Self { namespace, rank: process.rank.unwrap_or(WILDCARD) }
    }

    /// The name of its namespace, as C reads it.
    pub(super) fn namespace(&self) -> *const c_char {
        self.namespace.as_ptr()
    }

    /// Reads the name. `None` if it is not UTF-8 or its rank is one of the special ones.
    pub(super) fn read(&self) -> Option<Process> {
        let namespace = text(&self.namespace)?;
        match self.rank {
            WILDCARD => Some(Process { namespace, rank: None }),
            rank if rank < RANK_VALID => Some(Process { namespace, rank: Some(rank) }),
            _ => None,
        }
    }
}

/// Reads a C string of at most `max` bytes. `None` if it is null, longer or not UTF-8.
pub(super) fn c_text(raw: *const c_char, max: usize) -> Option<String> {
    if raw.is_null() {
        return None;
    }
    // SAFETY: libpmix passes C strings, which live until the upcall returns.
    let bytes = unsafe { CStr::from_ptr(raw) }.to_bytes();
    if bytes.len() > max { None } else { String::from_utf8(bytes.to_vec()).ok() }
}

/// Reads an array of C strings that ends with a null. `None` if it is longer than `max`.
pub(super) fn c_array(array: *const *const c_char, max: usize) -> Option<Vec<Vec<u8>>> {
    let mut texts = Vec::new();
    if array.is_null() {
        return Some(texts);
    }
    loop {
        // SAFETY: the array ends with a null, which was not reached.
        let text = unsafe { *array.add(texts.len()) };
        if text.is_null() {
            return Some(texts);
        }
        if texts.len() == max {
            return None;
        }
        // SAFETY: each is a C string.
        texts.push(unsafe { CStr::from_ptr(text) }.to_bytes().to_vec());
    }
}

/// Reads a C array of characters up to its NUL or its end.
fn text(array: &[c_char]) -> Option<String> {
    let bytes: Vec<u8> = array.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8(bytes).ok()
}

/// A value, with its type for PMIx.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// `PMIX_BOOL`
    Bool(bool),
    /// `PMIX_STRING`. Bytes behind a NUL are lost.
    Text(Vec<u8>),
    /// `PMIX_UINT16`
    U16(u16),
    /// `PMIX_UINT32`
    U32(u32),
    /// `PMIX_SIZE`
    Size(usize),
    /// `PMIX_PROC_RANK`
    Rank(u32),
    /// `PMIX_PROC`
    Process(Process),
    /// `PMIX_DATA_ARRAY` of `PMIX_PROC`.
    Processes(Vec<Process>),
    /// `PMIX_BYTE_OBJECT`. libpmix takes a copy and frees it.
    Bytes(Vec<u8>),
    /// `PMIX_REGEX`: a list of nodes, or of ranks by node.
    Map(Vec<u8>),
    /// `PMIX_DATA_ARRAY` of `PMIX_INFO`.
    Infos(Vec<(&'static str, Value)>),
    /// `PMIX_DATA_ARRAY` of `PMIX_PROC_INFO`.
    Table(Vec<ProcessEntry>),
}

/// A row of a table of processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessEntry {
    /// The process.
    pub process: Process,
    /// The name of its node.
    pub host: String,
    /// Its program.
    pub program: Vec<u8>,
    /// Its pid; 0 if it is not known.
    pub pid: u32,
    /// It has ended.
    pub has_ended: bool,
}

// Numbers of `pmix_data_type_t`.
const BOOL: u16 = 1;
const STRING: u16 = 3;
const SIZE: u16 = 4;
const INT: u16 = 6;
const INT32: u16 = 9;
const UINT: u16 = 11;
const UINT16: u16 = 13;
const UINT32: u16 = 14;
const PROC: u16 = 22;
const INFO: u16 = 24;
pub(super) const VALUE: u16 = 21;
const BYTE_OBJECT: u16 = 27;
const PROC_INFO: u16 = 38;
const DATA_ARRAY: u16 = 39;
const PROC_RANK: u16 = 40;
const REGEX: u16 = 49;

/// `pmix_byte_object_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ByteObject {
    bytes: *mut c_char,
    size: usize,
}

/// `pmix_data_array_t`.
#[repr(C)]
struct DataArray {
    kind: u16,
    size: usize,
    array: *mut c_void,
}

/// The union of `pmix_value_t`. Its largest member, `pmix_envar_t`, has three words.
#[repr(C)]
#[derive(Clone, Copy)]
union RawData {
    flag: bool,
    string: *mut c_char,
    uint16: u16,
    uint32: u32,
    size: usize,
    process: *mut RawProcess,
    bytes: ByteObject,
    array: *mut DataArray,
    words: [usize; 3],
}

/// `pmix_value_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawValue {
    kind: u16,
    data: RawData,
}

/// `pmix_info_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawInfo {
    key: [c_char; KEY_BYTES_MAX + 1],
    flags: u32,
    value: RawValue,
}

const _: () = assert!(size_of::<RawProcess>() == 260 && size_of::<RawValue>() == 32 && size_of::<RawInfo>() == 552);

/// `pmix_proc_info_t`.
#[repr(C)]
struct RawEntry {
    process: RawProcess,
    host: *mut c_char,
    program: *mut c_char,
    pid: i32,
    exit_code: c_int,
    state: u8,
}

const _: () = assert!(size_of::<RawEntry>() == 296);

/// `pmix_query_t`.
#[repr(C)]
pub(super) struct RawQuery {
    pub(super) keys: *const *const c_char,
    pub(super) qualifiers: *const RawInfo,
    pub(super) qualifier_count: usize,
}

/// `pmix_pdata_t`.
#[repr(C)]
pub(super) struct RawPosted {
    process: RawProcess,
    key: [c_char; KEY_BYTES_MAX + 1],
    value: RawValue,
}

const _: () = assert!(size_of::<RawPosted>() == 808);

impl RawPosted {
    /// An entry whose value is to be filled in.
    pub(super) fn new(process: &Process, key: &str) -> Self {
        let value = RawValue { kind: 0, data: RawData { words: [0; 3] } };
        Self { process: RawProcess::new(process), key: raw_key(key), value }
    }

    pub(super) fn value_mut(&mut self) -> *mut c_void {
        (&raw mut self.value).cast()
    }
}

/// `pmix_app_t`.
#[repr(C)]
pub(super) struct RawProgram {
    pub(super) program: *const c_char,
    pub(super) argv: *const *const c_char,
    pub(super) environment: *const *const c_char,
    pub(super) wdir: *const c_char,
    pub(super) nprocs: c_int,
    pub(super) infos: *const RawInfo,
    pub(super) info_count: usize,
}

/// `pmix_cpuset_t`.
#[repr(C)]
pub(super) struct RawCpuset {
    pub(super) source: *mut c_char,
    pub(super) bitmap: *mut c_void,
}

/// `pmix_data_buffer_t`.
#[repr(C)]
pub(super) struct RawBuffer {
    pub(super) base: *mut c_char,
    pub(super) pack: *mut c_char,
    pub(super) unpack: *mut c_char,
    pub(super) allocated: usize,
    pub(super) used: usize,
}

/// Copies bytes into memory that C's `free` frees. Null if there is none.
fn c_copy(bytes: &[u8]) -> *mut c_char {
    // SAFETY: any size is allowed.
    let copy = unsafe { libc::malloc(bytes.len().max(1)) }.cast::<u8>();
    if !copy.is_null() {
        // SAFETY: the new memory has room for all, and overlaps nothing.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len()) };
    }
    copy.cast()
}

fn raw_key(key: &str) -> [c_char; KEY_BYTES_MAX + 1] {
    let mut raw = [0; KEY_BYTES_MAX + 1];
    for (to, byte) in raw[..KEY_BYTES_MAX].iter_mut().zip(key.bytes()) {
        *to = byte as c_char;
    }
    raw
}

impl RawInfo {
    /// Its key.
    pub(super) fn key(&self) -> Option<String> {
        text(&self.key)
    }

    /// Its value, for libpmix.
    pub(super) fn value(&self) -> *const c_void {
        (&raw const self.value).cast()
    }

    /// Its value as text, if it is one.
    pub(super) fn text(&self) -> Option<String> {
        if self.value.kind != STRING {
            return None;
        }
        // SAFETY: `string` is the member that libpmix has set for this type.
        c_text(unsafe { self.value.data.string }, usize::MAX)
    }

    /// Its value as a process, if it is one.
    pub(super) fn process(&self) -> Option<Process> {
        if self.value.kind != PROC {
            return None;
        }
        // SAFETY: `process` is the member that libpmix has set for this type; it may be null.
        unsafe { self.value.data.process.as_ref() }?.read()
    }

    /// Its value as bytes, if it has some.
    pub(super) fn bytes(&self) -> Option<Vec<u8>> {
        if self.value.kind != BYTE_OBJECT {
            return None;
        }
        // SAFETY: `bytes` is the member that libpmix has set for this type.
        let ByteObject { bytes, size } = unsafe { self.value.data.bytes };
        if bytes.is_null() {
            return None;
        }
        // SAFETY: libpmix says how many there are.
        Some(unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), size) }.to_vec())
    }

    /// The seconds of `PMIX_TIMEOUT`, if this is it. Negative numbers stand for no timeout, as 0 does.
    pub(super) fn timeout_s(&self) -> Option<u32> {
        if self.key().as_deref() != Some("pmix.timeout") {
            return None;
        }
        // SAFETY: `uint32` is a member of the size of those that libpmix has set for these types.
        let number = unsafe { self.value.data.uint32 };
        match self.value.kind {
            INT | INT32 => Some(number.cast_signed().max(0).cast_unsigned()),
            UINT | UINT32 => Some(number),
            _ => None,
        }
    }

    /// The number of the range of a publication, if this is one.
    pub(super) fn range(&self) -> Option<u8> {
        // SAFETY: `range` is one byte.
        (self.key().as_deref() == Some("pmix.range")).then(|| unsafe { self.value.data.uint16 }.to_le_bytes()[0])
    }

    /// Whether this is a directive that data is removed when it is read.
    pub(super) fn is_first_read(&self) -> bool {
        const FIRST_READ: u16 = 1;
        // SAFETY: `persist` is one byte.
        self.key().as_deref() == Some("pmix.persist") && unsafe { self.value.data.uint16 } & 0xff == FIRST_READ
    }

    /// Whether this is `key` with the value true.
    pub(super) fn is_true(&self, key: &str) -> bool {
        // SAFETY: `flag` is the member that libpmix has set for this type. It reads it as a byte: 0 or 1.
        self.key().as_deref() == Some(key) && self.value.kind == BOOL && unsafe { self.value.data.uint16 } & 1 == 1
    }
}

/// Keys and values as C reads them, and the memory that they point to.
pub(super) struct Infos {
    raw: Vec<RawInfo>,
    /// Owns what `raw` points to.
    memory: Vec<Box<dyn Any>>,
}

impl Infos {
    pub(super) fn new<K: AsRef<str>>(infos: &[(K, Value)]) -> Self {
        let mut built = Self { raw: Vec::with_capacity(infos.len()), memory: Vec::new() };
        for (key, value) in infos {
            let value = built.value(value);
            built.raw.push(RawInfo { key: raw_key(key.as_ref()), flags: 0, value });
        }
        built
    }

    fn value(&mut self, value: &Value) -> RawValue {
        let mut data = RawData { words: [0; 3] };
        let kind = match value {
            Value::Bool(flag) => {
                data.flag = *flag;
                BOOL
            }
            Value::Text(bytes) => {
                data.string = self.text(bytes).0;
                STRING
            }
            Value::U16(number) => {
                data.uint16 = *number;
                UINT16
            }
            Value::U32(number) => {
                data.uint32 = *number;
                UINT32
            }
            Value::Size(number) => {
                data.size = *number;
                SIZE
            }
            Value::Rank(rank) => {
                data.uint32 = *rank;
                PROC_RANK
            }
            Value::Process(process) => {
                let mut process = Box::new(RawProcess::new(process));
                data.process = &raw mut *process;
                self.memory.push(process);
                PROC
            }
            Value::Map(bytes) => {
                let (bytes, length) = self.text(bytes);
                data.bytes = ByteObject { bytes, size: length + 1 };
                REGEX
            }
            Value::Processes(processes) => {
                let mut raw: Vec<_> = processes.iter().map(RawProcess::new).collect();
                let array = raw.as_mut_ptr().cast();
                let mut array = Box::new(DataArray { kind: PROC, size: raw.len(), array });
                data.array = &raw mut *array;
                self.memory.push(Box::new((array, raw)));
                DATA_ARRAY
            }
            Value::Bytes(bytes) => {
                data.bytes = ByteObject { bytes: c_copy(bytes), size: bytes.len() };
                BYTE_OBJECT
            }
            Value::Infos(infos) => {
                let mut infos = Self::new(infos);
                let array = infos.raw.as_mut_ptr().cast();
                let mut array = Box::new(DataArray { kind: INFO, size: infos.raw.len(), array });
                data.array = &raw mut *array;
                self.memory.push(Box::new((array, infos)));
                DATA_ARRAY
            }
            Value::Table(entries) => {
                let mut raw: Vec<_> = entries.iter().map(|entry| self.entry(entry)).collect();
                let array = raw.as_mut_ptr().cast();
                let mut array = Box::new(DataArray { kind: PROC_INFO, size: raw.len(), array });
                data.array = &raw mut *array;
                self.memory.push(Box::new((array, raw)));
                DATA_ARRAY
            }
        };
        RawValue { kind, data }
    }

    fn entry(&mut self, entry: &ProcessEntry) -> RawEntry {
        const RUNNING: u8 = 5;
        const TERMINATED: u8 = 20;
        RawEntry {
            process: RawProcess::new(&entry.process),
            host: self.text(entry.host.as_bytes()).0,
            program: self.text(&entry.program).0,
            pid: entry.pid.cast_signed(),
            exit_code: 0,
            state: if entry.has_ended { TERMINATED } else { RUNNING },
        }
    }

    /// Returns a C string and its length.
    fn text(&mut self, bytes: &[u8]) -> (*mut c_char, usize) {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let text = CString::new(&bytes[..end]).unwrap_or_default();
        let raw = (text.as_ptr().cast_mut(), end);
        self.memory.push(Box::new(text));
        raw
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut RawInfo {
        if self.raw.is_empty() { ptr::null_mut() } else { self.raw.as_mut_ptr() }
    }

    pub(super) fn len(&self) -> usize {
        self.raw.len()
    }
}
