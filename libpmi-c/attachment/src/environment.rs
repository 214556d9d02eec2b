//! [`Environment`]: what the process was told about PMI when it was started.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;

use thiserror::Error;

/// Where the server is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Server {
    /// Nowhere: the process was not started by a launcher, and is a job of its own.
    Nobody,
    /// At the other end of this descriptor (`PMI_FD`).
    Descriptor(RawFd),
    /// Behind a port (`PMI_PORT`).
    Port {
        /// Its host.
        host: String,
        /// Its number.
        port: u16,
    },
}

/// What the environment says. Parsed whole, before anything is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Environment {
    /// Where the server is.
    pub server: Server,
    /// `PMI_RANK`, or `PMI_ID`, which is the one that counts on a port.
    pub rank: u32,
    /// `PMI_SIZE`. On a port the server tells it.
    pub size: u32,
    /// `PMI_SPAWNED`: whether the job has a parent.
    pub is_spawned: bool,
    /// `PMI_JOBID`, which Slurm's server wants to hear.
    pub job: Option<Vec<u8>>,
    /// The announcement of a segment.
    pub segment: Option<Vec<u8>>,
}

/// The environment makes no sense.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum EnvironmentError {
    /// A variable is not what it must be.
    #[error("environment variable {0} has an invalid value")]
    Invalid(&'static str),
    /// There is a job of several ranks, and no way to its server.
    #[error("PMI_SIZE says that there are other ranks, but there is neither PMI_FD nor PMI_PORT")]
    ServerMissing,
    /// There is a port and no number to present oneself with.
    #[error("there is PMI_PORT, but no PMI_ID")]
    IdMissing,
}

impl Environment {
    /// From the variables' values.
    pub fn read(variable: impl Fn(&'static str) -> Option<OsString>) -> Result<Self, EnvironmentError> {
        let bytes = |name| variable(name).map(OsString::into_vec).filter(|value| !value.is_empty());
        let text = |name| match bytes(name).map(String::from_utf8) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(text)),
            Some(Err(_)) => Err(EnvironmentError::Invalid(name)),
        };
        let number = |name| match text(name)?.map(|text| text.trim().parse::<i32>()) {
            None => Ok(None),
            Some(Ok(number)) if number >= 0 => Ok(Some(number)),
            Some(_) => Err(EnvironmentError::Invalid(name)),
        };
        let server = if let Some(descriptor) = number("PMI_FD")? {
            Server::Descriptor(descriptor)
        } else if let Some(text) = text("PMI_PORT")? {
            let parts = text.trim().rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
            let (host, port) = parts.ok_or(EnvironmentError::Invalid("PMI_PORT"))?;
            Server::Port { host: host.to_owned(), port }
        } else {
            Server::Nobody
        };
        let (rank, id) = (number("PMI_RANK")?, number("PMI_ID")?);
        let size = number("PMI_SIZE")?.unwrap_or(1).unsigned_abs();
        let rank = match server {
            Server::Nobody if size > 1 => return Err(EnvironmentError::ServerMissing),
            Server::Nobody => 0,
            Server::Descriptor(_) => rank.or(id).unwrap_or(0).unsigned_abs(),
            Server::Port { .. } => id.or(rank).ok_or(EnvironmentError::IdMissing)?.unsigned_abs(),
        };
        if matches!(server, Server::Descriptor(_)) && rank >= size {
            return Err(EnvironmentError::Invalid("PMI_RANK"));
        }
        let size = if server == Server::Nobody { 1 } else { size };
        let is_spawned = text("PMI_SPAWNED")?.is_some_and(|spawned| spawned.trim() != "0");
        let segment = bytes(pmi::segment::VARIABLE);
        Ok(Self { server, rank, size, is_spawned, job: bytes("PMI_JOBID"), segment })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, EnvironmentError> {
        Environment::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(*value))
        })
    }

    fn alone() -> Environment {
        Environment { server: Server::Nobody, rank: 0, size: 1, is_spawned: false, job: None, segment: None }
    }

    #[test]
    fn nothing_means_alone() {
        assert_eq!(read(&[]), Ok(alone()));
        assert_eq!(read(&[("PMI_FD", ""), ("PMI_SIZE", "1"), ("PMI_RANK", "7")]), Ok(alone()));
        assert_eq!(read(&[("PMI_SIZE", "2")]), Err(EnvironmentError::ServerMissing));
    }

    #[test]
    fn a_descriptor_goes_first() {
        let all = [
            ("PMI_FD", "10"),
            ("PMI_RANK", "3"),
            ("PMI_SIZE", "4"),
            ("PMI_PORT", "h:1"),
            ("PMI_SPAWNED", "1"),
            ("PMI_JOBID", "77.0"),
            ("SCELA_SEGMENT", "1:5"),
        ];
        let expected = Environment {
            server: Server::Descriptor(10),
            rank: 3,
            size: 4,
            is_spawned: true,
            job: Some(b"77.0".to_vec()),
            segment: Some(b"1:5".to_vec()),
        };
        assert_eq!(read(&all), Ok(expected));
        let few = Environment { server: Server::Descriptor(5), ..alone() };
        assert_eq!(read(&[("PMI_FD", "5"), ("PMI_SPAWNED", "0")]), Ok(few));
    }

    #[test]
    fn a_port_needs_an_id() {
        let server = Server::Port { host: "::1".into(), port: 4711 };
        let expected = Environment { server, rank: 2, ..alone() };
        assert_eq!(read(&[("PMI_PORT", "::1:4711"), ("PMI_ID", "2")]), Ok(expected));
        assert_eq!(read(&[("PMI_PORT", "host:4711")]), Err(EnvironmentError::IdMissing));
    }

    #[test]
    fn nonsense_is_named() {
        let invalid = |name| Err(EnvironmentError::Invalid(name));
        assert_eq!(read(&[("PMI_FD", "x")]), invalid("PMI_FD"));
        assert_eq!(read(&[("PMI_FD", "-1")]), invalid("PMI_FD"));
        assert_eq!(read(&[("PMI_FD", "1"), ("PMI_RANK", "2"), ("PMI_SIZE", "2")]), invalid("PMI_RANK"));
        assert_eq!(read(&[("PMI_FD", "1"), ("PMI_SIZE", "99999999999")]), invalid("PMI_SIZE"));
        for port in ["host", "host:", "host:70000"] {
            assert_eq!(read(&[("PMI_PORT", port), ("PMI_ID", "0")]), invalid("PMI_PORT"), "{port}");
        }
    }
}
