//! The addresses at which a process accepts links, and the order in which others try them.

use std::fmt::{Display, Formatter};
use std::io;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Deserializer, Serialize};

use crate::core::limits::ADDRESSES_MAX;
use crate::sys::{LocalName, Surroundings, local_name, new_local_name};

/// The Unix socket at which a process accepts links from processes of its machine and its user.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LocalSocket {
    /// Its name, which nobody could foresee.
    pub name: LocalName,
    /// The surroundings of the process that listens.
    pub at: Surroundings,
}

impl LocalSocket {
    /// Draws the name of a new socket; `None` if this process does not know its surroundings.
    pub(super) fn new() -> io::Result<Option<Self>> {
        let Some(at) = Surroundings::of_this_process() else { return Ok(None) };
        Ok(Some(Self { name: new_local_name()?, at }))
    }

    /// Returns whether a process with these surroundings may connect to the socket: the two share a machine, the namespaces and
    /// the user. Any doubt means no.
    pub fn is_reachable_from(&self, here: Option<Surroundings>) -> bool {
        here == Some(self.at)
    }
}

/// Where a process listens.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ListensAt {
    /// Its socket for processes of its machine.
    pub local: Option<LocalSocket>,
    /// The addresses of its port, the likeliest first; empty if it has none.
    #[serde(deserialize_with = "deserialize_addresses")]
    pub addresses: Vec<SocketAddr>,
}

impl From<Vec<SocketAddr>> for ListensAt {
    fn from(addresses: Vec<SocketAddr>) -> Self {
        Self { local: None, addresses }
    }
}

impl ListensAt {
    /// Returns the addresses that a process tries, in this order: the socket, if it is reachable from `here`; then `opener`, at which the process
    /// is likely; then the others.
    pub(super) fn tried_from(self, here: Option<Surroundings>, opener: Option<SocketAddr>) -> Vec<Address> {
        let local = self.local.filter(|local| local.is_reachable_from(here)).map(Address::Local);
        let network = first_of(opener, self.addresses).into_iter().map(Address::Network);
        local.into_iter().chain(network).collect()
    }
}

/// Decodes addresses and drops those beyond [`ADDRESSES_MAX`], so that a peer cannot make another process try more.
pub(crate) fn deserialize_addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SocketAddr>, D::Error> {
    let mut addresses = Vec::deserialize(deserializer)?;
    addresses.truncate(ADDRESSES_MAX);
    Ok(addresses)
}

/// One address to try.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// The socket of a process on this machine.
    Local(LocalSocket),
    /// A port.
    Network(SocketAddr),
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Network(address)
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local(socket) => write!(f, "@{}", local_name(&socket.name)),
            Self::Network(address) => address.fmt(f),
        }
    }
}

/// Returns `first` and then the others, without repetitions.
fn first_of<T: PartialEq>(first: Option<T>, others: Vec<T>) -> Vec<T> {
    let mut all = Vec::new();
    for one in first.into_iter().chain(others) {
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all
}

/// Orders addresses by how likely others reach this node at them: the `known` one first, at which they did, and
/// loopback addresses last, for processes of this machine.
pub(super) fn ranked(known: Option<IpAddr>, own: Vec<IpAddr>) -> impl Iterator<Item = IpAddr> {
    let (last, first): (Vec<_>, Vec<_>) = first_of(known, own).into_iter().partition(IpAddr::is_loopback);
    first.into_iter().chain(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_that_was_reached_is_first_and_loopback_last() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let own = ["127.0.0.1", "10.0.0.5", "192.168.1.5"].map(address);
        let ranked = ranked(Some(address("192.168.1.5")), own.into());
        assert_eq!(ranked.collect::<Vec<_>>(), ["192.168.1.5", "10.0.0.5", "127.0.0.1"].map(address));
    }

    #[test]
    fn a_socket_is_tried_first_and_only_by_a_process_that_shares_machine_namespaces_and_user() {
        let at = Surroundings { machine: 1, users: 2, network: 3, user: 4 };
        let local = LocalSocket { name: [5; 16], at };
        let [opener, other] = ["10.0.0.1:7", "127.0.0.1:7"].map(|text| text.parse::<SocketAddr>().unwrap());
        let listens = || ListensAt { local: Some(local), addresses: vec![other, opener] };
        let network = [opener, other].map(Address::Network);
        let all = [&[Address::Local(local)][..], &network].concat();
        assert_eq!(listens().tried_from(Some(at), Some(opener)), all);
        let others = [
            Surroundings { machine: 9, ..at },
            Surroundings { users: 9, ..at },
            Surroundings { network: 9, ..at },
            Surroundings { user: 9, ..at },
        ];
        for here in others.map(Some).into_iter().chain([None]) {
            assert_eq!(listens().tried_from(here, Some(opener)), network, "{here:?}");
        }
        assert_eq!(ListensAt::from(vec![other]).tried_from(Some(at), None), [Address::Network(other)]);
        assert_eq!(Address::Local(local).to_string(), "@scela-05050505050505050505050505050505");
    }
}
