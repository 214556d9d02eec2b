//! [`Client`]: the requests that no shared memory answers, in the protocol that the server speaks.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use pmi::client::ClientError;
use pmi::limits::{KEYLEN_MAX, KVSNAME_MAX, VALLEN_MAX};
use pmi::v1::client::Maxes;
use pmi::v1::command::Command;
use pmi::v1::reply::ReplyLine;
use pmi::v2::client::{InitError, Ring};
use pmi::{Board, Epoch, JobAttributes, Mapping, Puts, Rank, Ranks, SpawnRequest, SpawnedJob, v1, v2};

use crate::environment::{Environment, ServerAddress};
use crate::error::Error;
use crate::member::Member;
use crate::replies::FenceEnd;
use crate::segment::Segment;
use crate::socket::Socket;

/// A PMI protocol: the one that a library prefers, or that a server speaks.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Version {
    /// PMI-1.
    One,
    /// PMI-2; as a preference, with PMI-1 for servers that speak nothing else.
    Two,
}

/// A connection to a server, or its substitute in a process without one.
#[derive(Debug)]
pub(crate) enum Client {
    /// No server: the job consists of this process.
    Singleton(Board),
    V1(v1::Client<Socket>),
    V2(v2::Client<Socket>),
}

/// Makes a request that both protocols have; `$alone` is the result without a server.
macro_rules! ask_server {
    ($client_or_none:expr, $client:ident => $request:expr, $alone:expr) => {
        match $client_or_none {
            Self::Singleton(_) => $alone,
            Self::V1($client) => Ok($request?),
            Self::V2($client) => Ok($request?),
        }
    };
}

/// A key with its value.
type Entry = (Vec<u8>, Vec<u8>);

/// The buffer sizes of ScELA's server, which are the least that other servers have.
pub const SCELA_MAXES: Maxes = Maxes { kvsname: KVSNAME_MAX, key: KEYLEN_MAX, value: VALLEN_MAX };

/// The polling interval for an attribute of the node, on a server that cannot delay its reply.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl Client {
    /// Connects as the environment says, and initialises PMI.
    pub(crate) fn open(version: Version, environment: &Environment) -> Result<(Self, Member), Error> {
        match &environment.server {
            ServerAddress::Absent => Ok(singleton(environment)),
            ServerAddress::Descriptor(descriptor) => on_descriptor(version, environment, *descriptor),
            ServerAddress::Port { host, port } => on_port(version, environment, host, *port),
        }
    }

    /// Returns the descriptor of the connection.
    pub(crate) fn descriptor(&mut self) -> Option<RawFd> {
        match self {
            Self::Singleton(_) => None,
            Self::V1(client) => Some(client.stream_mut().descriptor()),
            Self::V2(client) => Some(client.stream_mut().descriptor()),
        }
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        ask_server!(self, client => client.put(key, value), Ok(()))
    }

    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let got = match self {
            Self::Singleton(board) => Ok(board.get(key).map(<[u8]>::to_vec)),
            Self::V1(client) => client.get(key),
            Self::V2(client) => client.get(b"", -1, key),
        };
        match got {
            // A key that cannot be sent cannot have been put either.
            Err(ClientError::Unsendable(_) | ClientError::TooLong(_)) => Ok(None),
            got => Ok(got?),
        }
    }

    /// Returns all entries of the board, some of them twice. Only ScELA's server is asked: Hydra would
    /// kill the job for this request.
    pub(crate) fn entries(&mut self, is_scela: bool) -> Result<Vec<Entry>, Error> {
        match self {
            Self::Singleton(board) => {
                let entries = (0..board.len()).filter_map(|index| board.nth(index));
                Ok(entries.map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
            }
            Self::V1(client) if is_scela => entries_by_index(client.stream_mut()),
            Self::V1(_) | Self::V2(_) => Err(Error::Unsupported),
        }
    }

    /// Waits for all other ranks. With a server, `puts` have been sent to it already.
    pub(crate) fn fence(&mut self, puts: &Puts) -> Result<(), Error> {
        match self {
            Self::Singleton(board) => {
                board.publish(Epoch::merge(puts).map_err(|_| Error::Full)?);
                Ok(())
            }
            Self::V1(client) => Ok(client.barrier()?),
            Self::V2(client) => Ok(client.fence()?),
        }
    }

    /// Sends puts and arrives at the fence of these ranks, or with `None` at that of all ranks. The result waits for the
    /// end of the fence, after the caller has unlocked the connection. `None` if the server serves no other request
    /// meanwhile.
    pub(crate) fn enter_fence(
        &mut self,
        unsent: &[Entry],
        group: Option<(&Ranks, u32)>,
    ) -> Result<Option<FenceEnd>, Error> {
        let Self::V1(client) = self else { return Ok(None) };
        for (key, value) in unsent {
            client.put(key, value)?;
        }
        let end = client.stream_mut().share().expect_end();
        client.enter_barrier(group, end.thread())?;
        Ok(Some(end))
    }

    /// Sends `puts` and arrives at a fence whose release shows in the segment.
    pub(crate) fn fence_in_segment(&mut self, puts: &Puts) -> Result<(), Error> {
        ask_server!(self, client => client.fence_in_segment(puts.bytes()), Err(Error::Unsupported))
    }

    /// Returns the name of the board, which is also the name of the job.
    pub(crate) fn name(&mut self) -> Result<Vec<u8>, Error> {
        match self {
            Self::Singleton(_) => Ok(singleton_name().into_bytes()),
            Self::V1(client) => Ok(client.kvsname()?.into_bytes()),
            Self::V2(client) => Ok(client.job_id()?),
        }
    }

    /// Returns the buffer sizes for names, keys and values.
    pub(crate) fn maxes(&mut self) -> Result<Maxes, Error> {
        match self {
            // In PMI-2 they are constants of the header.
            Self::Singleton(_) | Self::V2(_) => Ok(SCELA_MAXES),
            Self::V1(client) => Ok(clipped(client.maxes()?)),
        }
    }

    pub(crate) fn universe_size(&mut self) -> Result<i32, Error> {
        match self {
            Self::Singleton(_) => Ok(1),
            Self::V1(client) => Ok(client.universe_size()?),
            Self::V2(client) => {
                let size = client.job_attribute(b"universeSize")?;
                Ok(size.and_then(|size| std::str::from_utf8(&size).ok()?.trim().parse().ok()).unwrap_or(-1))
            }
        }
    }

    pub(crate) fn appnum(&mut self) -> Result<i32, Error> {
        match self {
            Self::Singleton(_) => Ok(0),
            Self::V1(client) => Ok(client.appnum()?),
            Self::V2(client) => Ok(client.rank_info().appnum),
        }
    }

    /// Returns an attribute of the job, which the server provides.
    pub(crate) fn job_attribute(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self {
            Self::V2(client) => Ok(client.job_attribute(key)?),
            Self::V1(client) if key == b"universeSize" => Ok(Some(client.universe_size()?.to_string().into_bytes())),
            Self::V1(_) | Self::Singleton(_) => self.get(key),
        }
    }

    /// Puts an attribute of the node. PMI-1 has none; a key with a prefix takes its place, as in Flux's
    /// libpmi2.
    pub(crate) fn node_put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        match self {
            Self::Singleton(board) => {
                board.publish(Epoch::from_entries([(&local_key(key)[..], value)]));
                Ok(())
            }
            Self::V1(client) => Ok(client.put(&local_key(key), value)?),
            Self::V2(client) => Ok(client.node_put(key, value)?),
        }
    }

    /// Returns an attribute of the node. With `wait`, blocks until a rank has put it.
    pub(crate) fn node_get(&mut self, key: &[u8], wait: bool) -> Result<Option<Vec<u8>>, Error> {
        if let Self::V2(client) = self {
            return Ok(client.node_get(key, wait)?);
        }
        loop {
            let found = self.get(&local_key(key))?;
            // A singleton has no other rank that could put it.
            if found.is_some() || !wait || matches!(self, Self::Singleton(_)) {
                return Ok(found);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    pub(crate) fn publish(&mut self, service: &[u8], port: &[u8]) -> Result<(), Error> {
        ask_server!(self, client => client.publish(service, port), Err(Error::Unsupported))
    }

    pub(crate) fn lookup(&mut self, service: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        ask_server!(self, client => client.lookup(service), Err(Error::Unsupported))
    }

    pub(crate) fn unpublish(&mut self, service: &[u8]) -> Result<(), Error> {
        ask_server!(self, client => client.unpublish(service), Err(Error::Unsupported))
    }

    /// Spawns ranks in a new job. PMI-1 does not return the job's name, which is empty then.
    pub(crate) fn spawn(&mut self, order: &SpawnRequest) -> Result<SpawnedJob, Error> {
        match self {
            Self::Singleton(_) => Err(Error::Unsupported),
            Self::V1(client) => {
                client.spawn(order)?;
                let ranks = usize::try_from(order.ranks()).unwrap_or(usize::MAX);
                Ok(SpawnedJob { job: String::new(), codes: vec![0; ranks] })
            }
            Self::V2(client) => Ok(client.spawn(order)?),
        }
    }

    pub(crate) fn ring(&mut self, to_left: &[u8], to_right: &[u8]) -> Result<Ring, Error> {
        match self {
            // A singleton is its own neighbour on both sides.
            Self::Singleton(_) => Ok(Ring { position: 0, from_left: to_right.to_vec(), from_right: to_left.to_vec() }),
            Self::V1(_) => Err(Error::Unsupported),
            Self::V2(client) => Ok(client.ring(to_left, to_right)?),
        }
    }

    /// Returns the client of a PMI-2 server, for requests that only PMI-2 has.
    pub(crate) fn v2(&mut self) -> Result<&mut v2::Client<Socket>, Error> {
        match self {
            Self::Singleton(_) | Self::V1(_) => Err(Error::Unsupported),
            Self::V2(client) => Ok(client),
        }
    }

    pub(crate) fn finalize(&mut self) -> Result<(), Error> {
        ask_server!(self, client => client.finalize(), Ok(()))
    }
}

fn on_descriptor(version: Version, environment: &Environment, descriptor: RawFd) -> Result<(Client, Member), Error> {
    let socket = Socket::inherited(descriptor).map_err(Error::Connection)?;
    let is_scela = socket.is_local()
        && match (&environment.segment, socket.inode()) {
            (Some(announced), Ok(inode)) => pmi::segment::is_announced(announced, inode),
            (None, _) | (_, Err(_)) => false,
        };
    let socket = match version {
        Version::One => socket,
        Version::Two => {
            let job = environment.job.as_deref();
            match v2::Client::init(socket, job, Rank(environment.rank), is_scela) {
                Ok(client) => return Ok(opened_v2(client, environment, is_scela)),
                Err(InitError::VersionRefused(socket)) => socket,
                Err(InitError::Failed(error)) => return Err(error.into()),
            }
        }
    };
    if !is_scela {
        return Ok(opened_v1(v1::Client::init(socket)?, environment, false));
    }
    let (client, _given) = v1::Client::init_with_segment(socket)?;
    Ok(opened_v1(client, environment, true))
}

/// Requests one entry after another, on a connection on which no reply is outstanding.
fn entries_by_index(socket: &mut Socket) -> Result<Vec<Entry>, Error> {
    let mut replies = BufReader::new(socket);
    let (mut entries, mut request, mut line) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        request.clear();
        Command::GetByIndex { index: entries.len() }.write(&mut request);
        replies.get_mut().write_all(&request).map_err(ClientError::from)?;
        line.clear();
        replies.read_until(b'\n', &mut line).map_err(ClientError::from)?;
        let reply = line.strip_suffix(b"\n").ok_or(ClientError::Closed)?;
        let reply = ReplyLine::parse(reply).filter(|reply| reply.name == b"getbyidx_results").ok_or(Error::Broken)?;
        let entry = reply.word("key").zip(reply.last("val")).filter(|_| reply.rc == 0);
        let Some((key, value)) = entry else { return Ok(entries) };
        entries.push((key.to_vec(), value.to_vec()));
    }
}

fn on_port(version: Version, environment: &Environment, host: &str, port: u16) -> Result<(Client, Member), Error> {
    let socket = Socket::connect(host, port).map_err(Error::Connection)?;
    // On a port, the server first expects this rank's number, in a PMI-1 message.
    let (client, size, rank) = v1::Client::init_on_port(socket, Rank(environment.rank))?;
    let client = match version {
        Version::One => client,
        Version::Two => match v2::Client::init(client.into_stream(), environment.job.as_deref(), rank, false) {
            Ok(client) => return Ok(opened_v2(client, environment, false)),
            Err(InitError::VersionRefused(socket)) => v1::Client::init(socket)?,
            Err(InitError::Failed(error)) => return Err(error.into()),
        },
    };
    let (client, member) = opened_v1(client, environment, false);
    Ok((client, Member { rank, size, ..member }))
}

fn opened_v1(mut client: v1::Client<Socket>, environment: &Environment, is_scela: bool) -> (Client, Member) {
    let Environment { rank, size, is_spawned, .. } = *environment;
    let segment = segment(client.stream_mut(), is_scela);
    let member = Member::new(environment, Some(Version::One), Rank(rank), size, is_spawned);
    (Client::V1(client), Member { is_scela, segment, ..member })
}

fn opened_v2(mut client: v2::Client<Socket>, environment: &Environment, is_scela: bool) -> (Client, Member) {
    let segment = segment(client.stream_mut(), is_scela);
    let info = client.rank_info();
    let member = Member::new(environment, Some(Version::Two), info.rank, info.size, info.spawner.is_some());
    let appnum = OnceLock::from(info.appnum);
    (Client::V2(client), Member { is_scela, segment, appnum, ..member })
}

/// Maps the segment whose descriptor ScELA's server has sent. Without a mapping, the server answers all gets.
fn segment(socket: &mut Socket, is_scela: bool) -> Option<Segment> {
    if is_scela { Segment::map(socket.take_descriptor()?).ok() } else { None }
}

/// Creates the board of a job that consists of this process.
fn singleton(environment: &Environment) -> (Client, Member) {
    let attributes = JobAttributes {
        kvsname: singleton_name(),
        spawner: None,
        size: 1,
        universe_size: 1,
        mapping: Mapping::from_nodes([0]).wire_value(),
        preputs: Epoch::default(),
        puts_at_once: false,
    };
    let mut board = Board::new();
    board.publish(attributes.entries());
    (Client::Singleton(board), Member::new(environment, None, Rank(0), 1, false))
}

fn singleton_name() -> String {
    format!("singleton_{}", std::process::id())
}

fn local_key(key: &[u8]) -> Vec<u8> {
    [b"local::", key].concat()
}

/// Reduces another server's buffer sizes so that a put fits into a line of 1,023 bytes. The arithmetic
/// is that of MPICH's client, with which all such servers have been used.
fn clipped(maxes: Maxes) -> Maxes {
    const LINE: usize = 1024;
    const AROUND: usize = 30;
    // Room for one byte and its NUL, whatever the server says.
    let Maxes { kvsname, key, value } = maxes;
    let (kvsname, key, value) = (kvsname.max(2), key.max(2), value.max(2));
    if kvsname.saturating_add(key).saturating_add(value).saturating_add(AROUND) <= LINE {
        return Maxes { kvsname, key, value };
    }
    let key = key.min(256);
    Maxes { kvsname, key, value: LINE.saturating_sub(kvsname.saturating_add(key + AROUND)).max(2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_sizes_of_other_servers_are_reduced_as_mpich_does() {
        let check = |advertised: [usize; 3], expected: [usize; 3]| {
            let [kvsname, key, value] = advertised;
            let clipped = clipped(Maxes { kvsname, key, value });
            assert_eq!([clipped.kvsname, clipped.key, clipped.value], expected);
        };
        check([256, 64, 1024], [256, 64, 674]);
        check([64, 64, 1024], [64, 64, 866]);
        check([64, 64, 128], [64, 64, 128]);
        check([4096, 300, 9], [4096, 256, 2]);
        check([0, 0, 0], [2, 2, 2]);
        check([usize::MAX; 3], [usize::MAX, 256, 2]);
    }
}
