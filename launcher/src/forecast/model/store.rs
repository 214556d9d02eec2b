//! Stores measured constants as JSON in a file of the user's cache directory.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nla::sys;
use serde::{Deserialize, Serialize};
use sim::BoardCosts;
use thiserror::Error;

use super::Constants;

/// The largest file that is read, in bytes. A file normally has about 200.
pub const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The version of the file's fields. Raised when a field is removed or gets another meaning.
const VERSION: u32 = 1;

/// The file's fields. Unknown fields are ignored, so that a later version may add some. A new field of `board` takes a new version:
/// scenarios use its type, too, and must not have misspelt fields.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    version: u32,
    tc_ns: u64,
    tssh_ns: u64,
    trecv_ns: u64,
    tclient_ns: u64,
    tlogin_ns: u64,
    cores: u32,
    shared_cores: Option<u32>,
    sessions_max: u32,
    /// Files of earlier versions have none.
    #[serde(default)]
    board: BoardCosts,
}

/// Why a file of constants cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file exists and cannot be read.
    #[error("it cannot be read")]
    Read(#[source] io::Error),
    /// The file is larger than [`FILE_BYTES_MAX`].
    #[error("it is larger than {FILE_BYTES_MAX} bytes")]
    TooLarge,
    /// The file is not JSON with the expected fields.
    #[error("it is not a file of constants")]
    Malformed(#[source] serde_json::Error),
    /// A scela-run with another version of the fields wrote the file.
    #[error("its version is {version}, and this scela-run reads {VERSION}")]
    Version {
        /// The file's version.
        version: u32,
    },
    /// A constant is out of its bounds.
    #[error("a number in it is out of bounds")]
    OutOfBounds,
}

/// The constants to use, and a note about an unusable file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The measured constants, or the default.
    pub constants: Constants,
    /// Why a file that exists was not used: one line without its end.
    pub remark: Option<String>,
}

/// Returns the file of the constants: `scela/model.json` in `$XDG_CACHE_HOME` if that is an absolute path, else in
/// `$HOME/.cache`. Returns `None` if neither is an absolute path. `variable` looks up the environment.
pub fn path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let directory = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = directory("XDG_CACHE_HOME").or_else(|| Some(directory("HOME")?.join(".cache")))?;
    Some(cache.join("scela").join("model.json"))
}

/// Returns the constants that the user has measured, or the default.
pub fn of_user() -> Loaded {
    match path(|name| std::env::var_os(name)) {
        Some(path) => load(&path),
        None => Loaded { constants: Constants::default(), remark: None },
    }
}

/// Loads the constants from the file at `path`. Returns the default if the file does not exist, and the default with a
/// note if it cannot be used.
pub fn load(path: &Path) -> Loaded {
    match read(path) {
        Ok(constants) => Loaded { constants: constants.unwrap_or_default(), remark: None },
        Err(error) => {
            let cause = std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
            let remark = format!(
                "the measured constants in '{}' are not used: {error}{cause}; 'scela-run --calibrate HOSTS' writes \
                 them anew",
                path.display().to_string().escape_debug()
            );
            Loaded { constants: Constants::default(), remark: Some(remark) }
        }
    }
}

/// Reads the constants from the file at `path`. Returns `None` if the file does not exist.
pub fn read(path: &Path) -> Result<Option<Constants>, StoreError> {
    let file = match sys::open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::Read(error)),
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(StoreError::Read)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(StoreError::TooLarge);
    }
    decode(&bytes).map(Some)
}

/// Writes `constants` to the file at `path` and creates its directories. The file is replaced atomically: a concurrent
/// reader gets the old or the new constants. No link of another user in a directory like /tmp leads the file elsewhere.
pub fn write(path: &Path, constants: &Constants) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        sys::Below::make(directory)?;
    }
    sys::replace_file(path, &encode(constants))
}

/// Encodes the file's content.
pub fn encode(constants: &Constants) -> Vec<u8> {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let stored = Stored {
        version: VERSION,
        tc_ns: ns(constants.tc),
        tssh_ns: ns(constants.tssh),
        trecv_ns: ns(constants.trecv),
        tclient_ns: ns(constants.tclient),
        tlogin_ns: ns(constants.tlogin),
        cores: constants.cores,
        shared_cores: constants.shared_cores,
        sessions_max: constants.shells_max,
        board: constants.board,
    };
    let mut bytes = serde_json::to_vec_pretty(&stored).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// Decodes the file's content. Constants out of their bounds are an error.
pub fn decode(bytes: &[u8]) -> Result<Constants, StoreError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    // The version is decoded first, because another version may have other fields.
    let Versioned { version } = serde_json::from_slice(bytes).map_err(StoreError::Malformed)?;
    if version != VERSION {
        return Err(StoreError::Version { version });
    }
    let stored: Stored = serde_json::from_slice(bytes).map_err(StoreError::Malformed)?;
    let constants = Constants {
        tc: Duration::from_nanos(stored.tc_ns),
        tssh: Duration::from_nanos(stored.tssh_ns),
        trecv: Duration::from_nanos(stored.trecv_ns),
        tclient: Duration::from_nanos(stored.tclient_ns),
        tlogin: Duration::from_nanos(stored.tlogin_ns),
        cores: stored.cores,
        shared_cores: stored.shared_cores,
        shells_max: stored.sessions_max,
        board: stored.board,
        measured: true,
    };
    if constants.is_valid() { Ok(constants) } else { Err(StoreError::OutOfBounds) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn measured() -> Constants {
        Constants { shared_cores: Some(2), cores: 2, measured: true, ..Constants::default() }
    }

    #[test]
    fn the_file_is_in_the_cache_directory() {
        let place = |xdg: &str, home: &str| {
            let (xdg, home) = (xdg.to_owned(), home.to_owned());
            path(move |name| match name {
                "XDG_CACHE_HOME" => Some(OsString::from(xdg.clone())),
                "HOME" => Some(OsString::from(home.clone())),
                _ => None,
            })
        };
        assert_eq!(place("/c", "/h"), Some("/c/scela/model.json".into()));
        assert_eq!(place("", "/h"), Some("/h/.cache/scela/model.json".into()));
        assert_eq!(place("relative", "/h"), Some("/h/.cache/scela/model.json".into()));
        assert_eq!(place("", ""), None);
        assert_eq!(path(|_| None), None);
    }

    #[test]
    fn written_constants_are_read_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a/b/model.json");
        assert_eq!(load(&path), Loaded { constants: Constants::default(), remark: None });
        for constants in [measured(), Constants { shared_cores: None, ..measured() }] {
            write(&path, &constants).expect("it can be written");
            assert_eq!(load(&path), Loaded { constants, remark: None });
        }
        let names: Vec<_> = fs::read_dir(directory.path().join("a/b")).expect("it is there").collect();
        assert_eq!(names.len(), 1, "nothing else is left: {names:?}");
        assert!(write(&path.join("c"), &measured()).is_err(), "a file is no directory");
    }

    #[test]
    fn links_with_the_name_of_a_temporary_file_are_not_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, other) = (directory.path().join("model.json"), directory.path().join("other"));
        fs::write(&other, "other").expect("it can be written");
        for suffix in ["", "-0", "-1"] {
            let name = format!("model.json.{}{suffix}", std::process::id());
            std::os::unix::fs::symlink(&other, directory.path().join(name)).expect("a link");
        }
        write(&path, &measured()).expect("it can be written");
        assert_eq!(load(&path), Loaded { constants: measured(), remark: None });
        assert_eq!(fs::read_to_string(&other).ok().as_deref(), Some("other"));
    }

    #[test]
    fn the_file_is_readable_json() {
        let text = String::from_utf8(encode(&measured())).expect("text");
        let expected = r#"{
  "version": 1,
  "tc_ns": 180000000,
  "tssh_ns": 20000000,
  "trecv_ns": 300000,
  "tclient_ns": 700000,
  "tlogin_ns": 40000000,
  "cores": 2,
  "shared_cores": 2,
  "sessions_max": 128,
  "board": {
    "byte_received_ps": 830,
    "byte_sent_ps": 845,
    "byte_hashed_ps": 53,
    "byte_copied_ps": 130,
    "byte_packed_ps": 1200,
    "byte_unpacked_ps": 300,
    "entry_merged": 100
  }
}
"#;
        assert_eq!(text, expected);
        let later = text.replace("\"version\": 1,", "\"version\": 1, \"more\": [],");
        assert_eq!(decode(later.as_bytes()).ok(), Some(measured()));
    }

    #[test]
    fn unusable_files_give_a_remark_and_the_default() {
        let good = String::from_utf8(encode(&measured())).expect("text");
        let large = " ".repeat(FILE_BYTES_MAX as usize) + &good;
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("model.json");
        for (text, why) in [
            ("", "it is not a file of constants: EOF while parsing"),
            ("\0\u{ff}", "it is not a file of constants: "),
            ("[1]", "it is not a file of constants: "),
            ("{\"version\": 1}", "it is not a file of constants: missing field `tc_ns`"),
            ("{\"version\": 2}", "its version is 2, and this scela-run reads 1"),
            (&good.replace("180000000", "-1"), "it is not a file of constants: invalid value"),
            (&good.replace("180000000", "3600000000001"), "a number in it is out of bounds"),
            (&good.replace("40000000", "400000000"), "a number in it is out of bounds"),
            (&good.replace("\"cores\": 2", "\"cores\": 0"), "a number in it is out of bounds"),
            (&large, "it is larger than 65536 bytes"),
        ] {
            fs::write(&path, text).expect("it can be written");
            let Loaded { constants, remark } = load(&path);
            let remark = remark.expect("a remark");
            assert_eq!(constants, Constants::default());
            let begin = format!("the measured constants in '{}' are not used: {why}", path.display());
            assert!(remark.starts_with(&begin), "{remark}");
            assert!(remark.ends_with("; 'scela-run --calibrate HOSTS' writes them anew"), "{remark}");
        }
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        for other in [directory.path(), &fifo] {
            let remark = load(other).remark.expect("it is no such file");
            assert!(remark.contains(": it cannot be read: it is not a regular file;"), "{remark}");
        }
    }
}
