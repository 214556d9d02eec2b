//! Addresses: where an agent or the launcher listens, under which addresses others may reach it, and in
//! which order they are tried.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::sys;

/// From where an agent has to be reached.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reach {
    /// From nowhere: it will have no children.
    Nobody,
    /// From this machine only.
    Here,
    /// From other nodes. It listens on a port of this range, first and last, if one is given.
    Network(Option<(u16, u16)>),
}

/// An open port, and where it may be reached.
pub struct BoundListener {
    /// The likeliest first.
    pub addresses: Vec<SocketAddr>,
    /// The port.
    pub listener: TcpListener,
}

/// Opens a port to be reached from there, if from anywhere.
pub async fn listen(reach: Reach) -> io::Result<Option<BoundListener>> {
    let ports = match reach {
        Reach::Nobody => return Ok(None),
        Reach::Here => {
            let listener = TcpListener::bind(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)).await?;
            return Ok(Some(BoundListener { addresses: vec![listener.local_addr()?], listener }));
        }
        Reach::Network(ports) => ports,
    };
    let listener = bind(ports).await?;
    let port = listener.local_addr()?.port();
    let is_v4_only = listener.local_addr()?.is_ipv4();
    let mut own = sys::addresses();
    own.retain(|address| address.is_ipv4() || !is_v4_only);
    let addresses = ranked(session_end(End::Server), own).map(|address| SocketAddr::new(address, port)).collect();
    Ok(Some(BoundListener { addresses, listener }))
}

/// A port of the range, or any, on all addresses: of IPv6 too, where there is that.
async fn bind(ports: Option<(u16, u16)>) -> io::Result<TcpListener> {
    let (first, last) = ports.unwrap_or((0, 0));
    let mut why = io::Error::other("the range of ports is empty");
    for port in first..=last {
        for address in [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)] {
            match TcpListener::bind(SocketAddr::new(address, port)).await {
                Ok(listener) => return Ok(listener),
                Err(error) => why = error,
            }
        }
    }
    Err(why)
}

/// The next connection. A listener that fails is left alone for a moment: without descriptors, most likely, and the
/// connection waits on. Nothing is lost if it is dropped before it is done.
pub(crate) async fn next_connection(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    const PAUSE: Duration = Duration::from_millis(10);
    loop {
        match listener.accept().await {
            Ok(connection) => return connection,
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Where to look for a parent: where the session to this node came from, if the parent has opened it,
/// then what the parent says of itself.
pub(crate) fn candidates(opener_port: Option<u16>, parent: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let opener = opener_port.and_then(|port| Some(SocketAddr::new(opener()?, port)));
    let mut all: Vec<SocketAddr> = opener.into_iter().collect();
    for address in parent {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all
}

/// Addresses of which others know one: that under which they have reached this node, then the rest; the
/// loopback's last, for those on the same machine.
fn ranked(known: Option<IpAddr>, own: Vec<IpAddr>) -> impl Iterator<Item = IpAddr> {
    let mut all: Vec<IpAddr> = known.into_iter().collect();
    for address in own {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    // Stable: the rest stays in order.
    all.sort_by_key(IpAddr::is_loopback);
    all.into_iter()
}

/// Where this process was started from, as whatever has started it tells.
fn opener() -> Option<IpAddr> {
    let of_step = || std::env::var(STEP_OPENER).ok()?.parse().ok();
    session_end(End::Client).or_else(of_step)
}

/// Where the command is that has started a step of Slurm, in the environment of its tasks.
const STEP_OPENER: &str = "SLURM_LAUNCH_NODE_IPADDR";
/// Where a session of the secure shell comes from, in its environment.
pub(crate) const SESSION_OPENER: &str = "SSH_CONNECTION";

/// An end of the secure shell's connection.
#[derive(Copy, Clone)]
enum End {
    Client,
    Server,
}

/// As sshd tells it: `client port server port`.
fn session_end(end: End) -> Option<IpAddr> {
    let connection = std::env::var(SESSION_OPENER).ok()?;
    let word = connection.split_ascii_whitespace().nth(match end {
        End::Client => 0,
        End::Server => 2,
    })?;
    // A link's own address comes with its zone, which means nothing elsewhere.
    word.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_reached_is_likeliest_and_loopback_last() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let own = ["127.0.0.1", "10.0.0.5", "192.168.1.5"].map(address);
        let ranked = ranked(Some(address("192.168.1.5")), own.into());
        assert_eq!(ranked.collect::<Vec<_>>(), ["192.168.1.5", "10.0.0.5", "127.0.0.1"].map(address));
    }

    #[tokio::test]
    async fn ports_of_a_range_are_tried_in_turn() {
        let taken = bind(None).await.unwrap();
        let port = taken.local_addr().unwrap().port();
        assert!(bind(Some((port, port))).await.is_err());
        if let Ok(next) = bind(Some((port, port.saturating_add(20)))).await {
            assert_ne!(next.local_addr().unwrap().port(), port);
        }
        let door = listen(Reach::Here).await.unwrap().unwrap();
        assert!(door.addresses.iter().all(|address| address.ip().is_loopback()));
        assert!(listen(Reach::Nobody).await.unwrap().is_none());
    }
}
