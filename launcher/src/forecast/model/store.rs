//! Measured constants in a file of the user's cache directory, as JSON.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Constants;

/// The largest file that is read, in bytes; one has some 200.
pub const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The version of the file's fields. Raised when a field goes or gets another meaning.
const VERSION: u32 = 1;

/// The file's fields. Others are passed over, so that a later version may add some.
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
}

/// Why a file of constants is of no use.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It is there and cannot be read.
    #[error("it cannot be read")]
    Read(#[source] io::Error),
    /// It is larger than [`FILE_BYTES_MAX`].
    #[error("it is larger than {FILE_BYTES_MAX} bytes")]
    TooLarge,
    /// It is not such a file.
    #[error("it is not a file of constants")]
    Malformed(#[source] serde_json::Error),
    /// Another scela-run wrote it.
    #[error("its version is {version}, and this scela-run reads {VERSION}")]
    Version {
        /// The version.
        version: u32,
    },
    /// Something in it cannot be.
    #[error("a number in it is out of bounds")]
    OutOfBounds,
}

/// Constants to be used, and what the user should hear about where they come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Measured ones, else the default.
    pub constants: Constants,
    /// Why there are none, though there is a file: one line without its end.
    pub remark: Option<String>,
}

/// Where the constants are kept: `scela/model.json` in `$XDG_CACHE_HOME` if that is an absolute path,
/// else in `$HOME/.cache`. None if neither is there. `variable` looks up the environment.
pub fn path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let directory = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = directory("XDG_CACHE_HOME").or_else(|| Some(directory("HOME")?.join(".cache")))?;
    Some(cache.join("scela").join("model.json"))
}

/// Returns the constants that the user has measured, else the default.
pub fn of_user() -> Loaded {
    match path(|name| std::env::var_os(name)) {
        Some(path) => load(&path),
        None => Loaded { constants: Constants::default(), remark: None },
    }
}

/// The constants in the file at `path`; the default if there is no such file, and with a remark if there
/// is one that is of no use.
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

/// The constants in the file at `path`; none if there is no such file.
pub fn read(path: &Path) -> Result<Option<Constants>, StoreError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::Read(error)),
    };
    // A pipe or device would have us wait.
    if !file.metadata().map_err(StoreError::Read)?.is_file() {
        return Err(StoreError::Read(io::Error::other("it is not a regular file")));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(StoreError::Read)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(StoreError::TooLarge);
    }
    decode(&bytes).map(Some)
}

/// Writes `constants` into the file at `path`, whole or not at all, and makes its directories. Whoever
/// reads it meanwhile reads the old or the new one.
pub fn write(path: &Path, constants: &Constants) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let written = fs::write(&beside, encode(constants)).and_then(|()| fs::rename(&beside, path));
    written.inspect_err(|_| {
        // What could not be written is of no use, and there may be nothing to remove.
        let _ = fs::remove_file(&beside);
    })
}

/// The file's bytes. Times are within [`CONSTANT_MAX`](super::CONSTANT_MAX), or are cut.
fn encode(constants: &Constants) -> Vec<u8> {
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
        sessions_max: constants.sessions_max,
    };
    let mut bytes = serde_json::to_vec_pretty(&stored).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// What [`encode`] wrote.
fn decode(bytes: &[u8]) -> Result<Constants, StoreError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    // The version first: another one may have other fields.
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
        sessions_max: stored.sessions_max,
        measured: true,
    };
    if constants.is_valid() { Ok(constants) } else { Err(StoreError::OutOfBounds) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Constants {
        Constants { shared_cores: Some(2), cores: 2, measured: true, ..Constants::default() }
    }

    #[test]
    fn where_it_is() {
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
    fn what_is_written_is_read() {
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
    fn the_file_reads_like_this() {
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
  "sessions_max": 128
}
"#;
        assert_eq!(text, expected);
        let later = text.replace("\"version\": 1,", "\"version\": 1, \"more\": [],");
        assert_eq!(decode(later.as_bytes()).ok(), Some(measured()));
    }

    #[test]
    fn bad_files_give_a_remark_and_the_default() {
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
        let remark = load(directory.path()).remark.expect("a directory is no such file");
        assert!(remark.contains(": it cannot be read: it is not a regular file;"), "{remark}");
    }
}
