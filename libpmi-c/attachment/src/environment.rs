//! [`Environment`]: the PMI variables that the launcher has set for this process.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;

use thiserror::Error;

/// How to reach the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerAddress {
    /// No server: no launcher started the process, which is a job of one rank.
    Absent,
    /// Through this inherited descriptor (`PMI_FD`).
    Descriptor(RawFd),
    /// Over TCP (`PMI_PORT`).
    Port {
        /// The host name or address.
        host: String,
        /// The port number.
        port: u16,
    },
}

/// The values of the PMI variables, all parsed before anything is connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Environment {
    /// How to reach the server.
    pub server: ServerAddress,
    /// `PMI_RANK` or `PMI_ID`; with a port, `PMI_ID` takes precedence.
    pub rank: u32,
    /// `PMI_SIZE`. With a port, the server sends the size instead.
    pub size: u32,
    /// `PMI_SPAWNED`: whether another job spawned this one.
    pub is_spawned: bool,
    /// `PMI_JOBID`, which Slurm's server expects in a PMI-2 initialisation.
    pub job: Option<Vec<u8>>,
    /// The announcement of a shared segment.
    pub segment: Option<Vec<u8>>,
}

/// Why the PMI variables cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum EnvironmentError {
    /// A variable does not have the expected form.
    #[error("environment variable {0} has an invalid value")]
    Invalid(&'static str),
    /// The job has several ranks, but no variable names a server.
    #[error("PMI_SIZE is more than 1, but neither PMI_FD nor PMI_PORT is set")]
    ServerMissing,
    /// A port is set, but no number by which the server could identify this rank.
    #[error("PMI_PORT is set, but PMI_ID is not")]
    IdMissing,
}

impl Environment {
    /// Parses the values that `variable` returns.
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
            ServerAddress::Descriptor(descriptor)
        } else if let Some(text) = text("PMI_PORT")? {
            let parts = text.trim().rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
            let (host, port) = parts.ok_or(EnvironmentError::Invalid("PMI_PORT"))?;
            ServerAddress::Port { host: host.to_owned(), port }
        } else {
            ServerAddress::Absent
        };
        let (rank, id) = (number("PMI_RANK")?, number("PMI_ID")?);
        let size = number("PMI_SIZE")?.unwrap_or(1).unsigned_abs();
        let rank = match server {
            ServerAddress::Absent if size > 1 => return Err(EnvironmentError::ServerMissing),
            ServerAddress::Absent => 0,
            ServerAddress::Descriptor(_) => rank.or(id).unwrap_or(0).unsigned_abs(),
            ServerAddress::Port { .. } => id.or(rank).ok_or(EnvironmentError::IdMissing)?.unsigned_abs(),
        };
        if matches!(server, ServerAddress::Descriptor(_)) && rank >= size {
            return Err(EnvironmentError::Invalid("PMI_RANK"));
        }
        let size = if server == ServerAddress::Absent { 1 } else { size };
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
        Environment { server: ServerAddress::Absent, rank: 0, size: 1, is_spawned: false, job: None, segment: None }
    }

    #[test]
    fn without_variables_the_process_is_a_singleton() {
        assert_eq!(read(&[]), Ok(alone()));
        assert_eq!(read(&[("PMI_FD", ""), ("PMI_SIZE", "1"), ("PMI_RANK", "7")]), Ok(alone()));
        assert_eq!(read(&[("PMI_SIZE", "2")]), Err(EnvironmentError::ServerMissing));
    }

    #[test]
    fn a_descriptor_takes_precedence_over_a_port() {
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
            server: ServerAddress::Descriptor(10),
            rank: 3,
            size: 4,
            is_spawned: true,
            job: Some(b"77.0".to_vec()),
            segment: Some(b"1:5".to_vec()),
        };
        assert_eq!(read(&all), Ok(expected));
        let few = Environment { server: ServerAddress::Descriptor(5), ..alone() };
        assert_eq!(read(&[("PMI_FD", "5"), ("PMI_SPAWNED", "0")]), Ok(few));
    }

    #[test]
    fn a_port_needs_an_id() {
        let server = ServerAddress::Port { host: "::1".into(), port: 4711 };
        let expected = Environment { server, rank: 2, ..alone() };
        assert_eq!(read(&[("PMI_PORT", "::1:4711"), ("PMI_ID", "2")]), Ok(expected));
        assert_eq!(read(&[("PMI_PORT", "host:4711")]), Err(EnvironmentError::IdMissing));
    }

    #[test]
    fn errors_name_the_invalid_variable() {
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
