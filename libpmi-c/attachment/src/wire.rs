//! [`Wire`]: what a server is asked that no shared memory answers, in the protocol that it speaks.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::thread;
use std::time::Duration;

use pmi::client::ClientError;
use pmi::limits::{KEYLEN_MAX, KVSNAME_MAX, VALLEN_MAX};
use pmi::v1::client::Maxes;
use pmi::v1::command::Command;
use pmi::v1::reply::ReplyLine;
use pmi::v2::client::{InitError, Ring};
use pmi::{Board, Epoch, JobAttributes, Mapping, Puts, Rank, SpawnRequest, SpawnedJob, segment, v1, v2};

use crate::environment::{Environment, Server};
use crate::error::Error;
use crate::socket::Socket;

/// The protocol that a library prefers.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Version {
    /// PMI-1.
    One,
    /// PMI-2, or PMI-1 if the server does not speak it.
    Two,
}

/// A connection to a server, or what stands for one.
#[derive(Debug)]
pub(crate) enum Wire {
    /// There is no server: the job is this process.
    Alone(Board),
    One(v1::Client<Socket>),
    Two(v2::Client<Socket>),
}

/// A key and its value.
type Entry = (Vec<u8>, Vec<u8>);

/// What came of connecting.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) wire: Wire,
    pub(crate) rank: Rank,
    pub(crate) size: u32,
    pub(crate) is_spawned: bool,
    /// If it is known without being asked for.
    pub(crate) appnum: Option<i32>,
    /// The server is ours.
    pub(crate) is_ours: bool,
    /// The segment's descriptor.
    pub(crate) segment: Option<OwnedFd>,
}

/// What there is of every number at least, of one's own server exactly.
pub(crate) const OUR_MAXES: Maxes = Maxes { kvsname: KVSNAME_MAX, key: KEYLEN_MAX, value: VALLEN_MAX };

/// How long to wait before a server that cannot withhold a reply is asked again for an attribute of
/// the node.
const ASK_AGAIN: Duration = Duration::from_millis(5);

impl Wire {
    /// Connects as the environment says, and initialises PMI.
    pub(crate) fn open(version: Version, environment: &Environment) -> Result<Opened, Error> {
        match &environment.server {
            Server::Nobody => Ok(alone()),
            Server::Descriptor(descriptor) => on_descriptor(version, environment, *descriptor),
            Server::Port { host, port } => on_port(version, environment, host, *port),
        }
    }

    /// What the server speaks.
    pub(crate) fn protocol(&self) -> Option<Version> {
        match self {
            Self::Alone(_) => None,
            Self::One(_) => Some(Version::One),
            Self::Two(_) => Some(Version::Two),
        }
    }

    /// What to watch to see the server go.
    pub(crate) fn descriptor(&mut self) -> Option<RawFd> {
        match self {
            Self::Alone(_) => None,
            Self::One(client) => Some(client.stream_mut().descriptor()),
            Self::Two(client) => Some(client.stream_mut().descriptor()),
        }
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        match self {
            Self::Alone(_) => Ok(()),
            Self::One(client) => Ok(client.put(key, value)?),
            Self::Two(client) => Ok(client.put(key, value)?),
        }
    }

    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let got = match self {
            Self::Alone(board) => Ok(board.get(key).map(<[u8]>::to_vec)),
            Self::One(client) => client.get(key),
            Self::Two(client) => client.get(b"", -1, key),
        };
        match got {
            // Nobody can have put it.
            Err(ClientError::Unsendable(_) | ClientError::TooLong(_)) => Ok(None),
            got => Ok(got?),
        }
    }

    /// All entries of the board; some may come twice. Only of a server that is known to tell them:
    /// Hydra would kill the job for being asked.
    pub(crate) fn entries(&mut self, is_ours: bool) -> Result<Vec<Entry>, Error> {
        match self {
            Self::Alone(board) => {
                let entries = (0..board.len()).filter_map(|index| board.nth(index));
                Ok(entries.map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
            }
            Self::One(client) if is_ours => entries_by_index(client.stream_mut()),
            Self::One(_) | Self::Two(_) => Err(Error::Unsupported),
        }
    }

    /// Waits for all others. `puts` have been put before, if there is anybody else.
    pub(crate) fn fence(&mut self, puts: &Puts) -> Result<(), Error> {
        match self {
            Self::Alone(board) => {
                board.publish(Epoch::merge(puts).map_err(|_| Error::Full)?);
                Ok(())
            }
            Self::One(client) => Ok(client.barrier()?),
            Self::Two(client) => Ok(client.fence()?),
        }
    }

    /// Arrives at a fence whose release shows in the segment.
    pub(crate) fn fence_in_segment(&mut self, puts: &Puts) -> Result<(), Error> {
        match self {
            Self::Alone(_) => Err(Error::Unsupported),
            Self::One(client) => Ok(client.fence_in_segment(puts.bytes())?),
            Self::Two(client) => Ok(client.fence_in_segment(puts.bytes())?),
        }
    }

    /// The name of the board, or of the job: it is the same.
    pub(crate) fn name(&mut self) -> Result<Vec<u8>, Error> {
        match self {
            Self::Alone(_) => Ok(lone_name().into_bytes()),
            Self::One(client) => Ok(client.kvsname()?.into_bytes()),
            Self::Two(client) => Ok(client.job_id()?),
        }
    }

    /// How long names, keys and values may be, sizes of C buffers.
    pub(crate) fn maxes(&mut self) -> Result<Maxes, Error> {
        match self {
            // PMI-2 has constants in its header.
            Self::Alone(_) | Self::Two(_) => Ok(OUR_MAXES),
            Self::One(client) => Ok(clipped(client.maxes()?)),
        }
    }

    pub(crate) fn universe_size(&mut self) -> Result<i32, Error> {
        match self {
            Self::Alone(_) => Ok(1),
            Self::One(client) => Ok(client.universe_size()?),
            Self::Two(client) => {
                let size = client.job_attribute(b"universeSize")?;
                Ok(size.and_then(|size| std::str::from_utf8(&size).ok()?.trim().parse().ok()).unwrap_or(-1))
            }
        }
    }

    pub(crate) fn appnum(&mut self) -> Result<i32, Error> {
        match self {
            Self::Alone(_) => Ok(0),
            Self::One(client) => Ok(client.appnum()?),
            Self::Two(client) => Ok(client.rank_info().appnum),
        }
    }

    /// An attribute of the job: something that the server provides.
    pub(crate) fn job_attribute(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self {
            Self::Two(client) => Ok(client.job_attribute(key)?),
            Self::One(client) if key == b"universeSize" => {
                Ok(Some(client.universe_size()?).filter(|&size| size >= 0).map(|size| size.to_string().into_bytes()))
            }
            Self::One(_) | Self::Alone(_) => self.get(key),
        }
    }

    /// Puts an attribute of the node. In PMI-1, which knows none, it is a key as Flux's libpmi2
    /// makes one.
    pub(crate) fn node_put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        match self {
            Self::Alone(board) => {
                board.publish(Epoch::from_entries([(&local_key(key)[..], value)]));
                Ok(())
            }
            Self::One(client) => Ok(client.put(&local_key(key), value)?),
            Self::Two(client) => Ok(client.node_put(key, value)?),
        }
    }

    /// An attribute of the node; with `wait` not before somebody has put it.
    pub(crate) fn node_get(&mut self, key: &[u8], wait: bool) -> Result<Option<Vec<u8>>, Error> {
        if let Self::Two(client) = self {
            return Ok(client.node_get(key, wait)?);
        }
        loop {
            let found = self.get(&local_key(key))?;
            // Nobody else could put it.
            if found.is_some() || !wait || matches!(self, Self::Alone(_)) {
                return Ok(found);
            }
            thread::sleep(ASK_AGAIN);
        }
    }

    pub(crate) fn publish(&mut self, service: &[u8], port: &[u8]) -> Result<(), Error> {
        match self {
            Self::Alone(_) => Err(Error::Unsupported),
            Self::One(client) => Ok(client.publish(service, port)?),
            Self::Two(client) => Ok(client.publish(service, port)?),
        }
    }

    pub(crate) fn lookup(&mut self, service: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self {
            Self::Alone(_) => Err(Error::Unsupported),
            Self::One(client) => Ok(client.lookup(service)?),
            Self::Two(client) => Ok(client.lookup(service)?),
        }
    }

    pub(crate) fn unpublish(&mut self, service: &[u8]) -> Result<(), Error> {
        match self {
            Self::Alone(_) => Err(Error::Unsupported),
            Self::One(client) => Ok(client.unpublish(service)?),
            Self::Two(client) => Ok(client.unpublish(service)?),
        }
    }

    /// Starts further ranks. PMI-1 does not tell the name of their job: it is empty then.
    pub(crate) fn spawn(&mut self, order: &SpawnRequest) -> Result<SpawnedJob, Error> {
        match self {
            Self::Alone(_) => Err(Error::Unsupported),
            Self::One(client) => {
                client.spawn(order)?;
                let ranks = usize::try_from(order.ranks()).unwrap_or(usize::MAX);
                Ok(SpawnedJob { job: String::new(), codes: vec![0; ranks] })
            }
            Self::Two(client) => Ok(client.spawn(order)?),
        }
    }

    pub(crate) fn ring(&mut self, to_left: &[u8], to_right: &[u8]) -> Result<Ring, Error> {
        match self {
            // One is one's own neighbour on both sides.
            Self::Alone(_) => Ok(Ring { position: 0, from_left: to_right.to_vec(), from_right: to_left.to_vec() }),
            Self::One(_) => Err(Error::Unsupported),
            Self::Two(client) => Ok(client.ring(to_left, to_right)?),
        }
    }

    pub(crate) fn connect(&mut self, job: &[u8]) -> Result<(), Error> {
        match self {
            Self::Alone(_) | Self::One(_) => Err(Error::Unsupported),
            Self::Two(client) => Ok(client.connect(job)?),
        }
    }

    pub(crate) fn disconnect(&mut self, job: &[u8]) -> Result<(), Error> {
        match self {
            Self::Alone(_) | Self::One(_) => Err(Error::Unsupported),
            Self::Two(client) => Ok(client.disconnect(job)?),
        }
    }

    /// An entry on another job's board.
    pub(crate) fn get_elsewhere(&mut self, job: &[u8], source: i32, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self {
            Self::Alone(_) | Self::One(_) => Err(Error::Unsupported),
            Self::Two(client) => Ok(client.get(job, source, key)?),
        }
    }

    pub(crate) fn finalize(&mut self) -> Result<(), Error> {
        match self {
            Self::Alone(_) => Ok(()),
            Self::One(client) => Ok(client.finalize()?),
            Self::Two(client) => Ok(client.finalize()?),
        }
    }
}

fn on_descriptor(version: Version, environment: &Environment, descriptor: RawFd) -> Result<Opened, Error> {
    let socket = Socket::inherited(descriptor).map_err(Error::Connection)?;
    let is_ours = socket.is_local()
        && match (&environment.segment, socket.inode()) {
            (Some(announced), Ok(inode)) => segment::is_announced(announced, inode),
            (None, _) | (_, Err(_)) => false,
        };
    let socket = match version {
        Version::One => socket,
        Version::Two => {
            let job = environment.job.as_deref();
            match v2::Client::init(socket, job, Rank(environment.rank), is_ours) {
                Ok(mut client) => {
                    let segment = client.stream_mut().take_descriptor();
                    return Ok(Opened { is_ours, segment, ..opened_two(client) });
                }
                Err(InitError::VersionRefused(socket)) => socket,
                Err(InitError::Failed(error)) => return Err(error.into()),
            }
        }
    };
    if !is_ours {
        return Ok(opened_one(v1::Client::init(socket)?, environment));
    }
    let (mut client, _given) = v1::Client::init_with_segment(socket)?;
    let segment = client.stream_mut().take_descriptor();
    Ok(Opened { is_ours, segment, ..opened_one(client, environment) })
}

/// Asks for one entry after another, on a connection on which no reply is due.
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

fn on_port(version: Version, environment: &Environment, host: &str, port: u16) -> Result<Opened, Error> {
    let socket = Socket::connect(host, port).map_err(Error::Connection)?;
    // A server wants to hear first who speaks, which is said in PMI-1.
    let (client, size, rank) = v1::Client::init_on_port(socket, Rank(environment.rank))?;
    let client = match version {
        Version::One => client,
        Version::Two => match v2::Client::init(client.into_stream(), environment.job.as_deref(), rank, false) {
            Ok(client) => return Ok(opened_two(client)),
            Err(InitError::VersionRefused(socket)) => v1::Client::init(socket)?,
            Err(InitError::Failed(error)) => return Err(error.into()),
        },
    };
    Ok(Opened { rank, size, ..opened_one(client, environment) })
}

fn opened_one(client: v1::Client<Socket>, environment: &Environment) -> Opened {
    Opened {
        wire: Wire::One(client),
        rank: Rank(environment.rank),
        size: environment.size,
        is_spawned: environment.is_spawned,
        appnum: None,
        is_ours: false,
        segment: None,
    }
}

fn opened_two(client: v2::Client<Socket>) -> Opened {
    let place = client.rank_info().clone();
    Opened {
        wire: Wire::Two(client),
        rank: place.rank,
        size: place.size,
        is_spawned: place.spawner.is_some(),
        appnum: Some(place.appnum),
        is_ours: false,
        segment: None,
    }
}

/// A job of this process only.
fn alone() -> Opened {
    let attributes = JobAttributes {
        kvsname: lone_name(),
        spawner: None,
        size: 1,
        universe_size: 1,
        mapping: Mapping::single_node(1).wire_value(),
        preputs: Epoch::default(),
        puts_at_once: false,
    };
    let mut board = Board::new();
    board.publish(attributes.entries());
    let wire = Wire::Alone(board);
    Opened { wire, rank: Rank(0), size: 1, is_spawned: false, appnum: None, is_ours: false, segment: None }
}

fn lone_name() -> String {
    format!("singleton_{}", std::process::id())
}

fn local_key(key: &[u8]) -> Vec<u8> {
    [b"local::", key].concat()
}

/// What another server's maxima mean for lines of 1,023 bytes: the arithmetic of MPICH's client,
/// which all such servers have met.
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
    fn maxima_of_other_servers_are_clipped_as_mpich_does() {
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
