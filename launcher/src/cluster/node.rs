//! A node of a session, as host lists and resource managers name it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use crate::refusal::Refusal;
use nla::core::Resources;
use nla::core::limits::RANKS_MAX;

/// A machine that a session may use: an entry of a host list, or several entries of one name merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name or address as given: neither shortened nor resolved. An IPv6 address has no brackets and keeps its
    /// zone.
    pub name: String,
    /// The user to log in as; the bootstrap decides if it is `None`.
    pub user: Option<String>,
    /// The ranks that it should run. More than zero; `None` if unknown.
    pub slots: Option<u32>,
    /// The most ranks that it may run. Not less than `slots`.
    pub max_slots: Option<u32>,
    /// The accelerators and other devices that it offers, as far as they were written. None is written for most lists.
    pub gres: Resources,
}

/// The name and the addresses by which a machine is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnNames {
    /// Its host name.
    pub name: String,
    /// The addresses of its interfaces.
    pub addresses: Vec<IpAddr>,
}

/// The address that Debian's /etc/hosts gives to the machine's own name. No interface has it.
const DEBIAN_OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 1, 1));

impl Node {
    /// Returns a node with nothing known but its name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), user: None, slots: None, max_slots: None, gres: Resources::NONE }
    }

    /// Returns the node with this number of slots.
    pub fn with_slots(self, slots: u32) -> Self {
        Self { slots: Some(slots), ..self }
    }

    /// Returns whether it is this machine on any machine: a loopback name or address, with no other user.
    pub fn is_here(&self) -> bool {
        self.user.is_none() && matches!(self.name.as_str(), "localhost" | "127.0.0.1" | "::1")
    }

    /// Returns whether it is the machine with these names and addresses, with no other user. A name without a domain
    /// matches with any domain.
    pub(crate) fn is(&self, own: &OwnNames) -> bool {
        let is_own = match self.name.parse() {
            Ok(address) => address == DEBIAN_OWN || own.addresses.contains(&address),
            Err(_) => is_same_host(&self.name, &own.name),
        };
        self.user.is_none() && is_own
    }

    /// Adds a further entry for the same host.
    fn add(&mut self, slots: u32, entry: Node) -> Result<(), Refusal> {
        match (&self.user, entry.user) {
            (Some(one), Some(other)) if *one != other => {
                let text = format!("host {} is given with two users, {one} and {other}", entry.name);
                return Err(Refusal::new(text, "give it one of them"));
            }
            (None, user @ Some(_)) => self.user = user,
            _ => {}
        }
        for resource in entry.gres.iter() {
            self.gres.add(resource).map_err(|error| {
                Refusal::new(format!("host {} is given with too many devices: {error}", entry.name), "name it once")
            })?;
        }
        self.max_slots = self.max_slots.into_iter().chain(entry.max_slots).min();
        let most = self.max_slots.unwrap_or(RANKS_MAX);
        self.slots = Some(self.slots.unwrap_or(0).saturating_add(slots).min(most));
        Ok(())
    }
}

/// Returns whether two host names, which are no addresses, are equal as far as both have a domain.
fn is_same_host(one: &str, other: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    if one.contains('.') == other.contains('.') { one.eq_ignore_ascii_case(other) } else { short(one) == short(other) }
}

/// Returns the nodes of a list, each once, in the order in which they first appear.
///
/// The slots and the devices of a repeated name add up, and its maximum is the least of its maxima. If a name without a
/// number is repeated, as in the files of PBS, every entry without a number is one slot, also that of a
/// name that occurs once.
pub(crate) fn merged(entries: Vec<Node>) -> Result<Vec<Node>, Refusal> {
    let counts_mentions = repeats_a_plain_name(&entries);
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut nodes: Vec<Node> = Vec::new();
    for mut entry in entries {
        if counts_mentions {
            entry.slots = entry.slots.or(Some(1));
        }
        match places.get(&entry.name) {
            // `counts_mentions` has given a repeated name a number.
            Some(&at) => nodes[at].add(entry.slots.unwrap_or(1), entry)?,
            None => {
                places.insert(entry.name.clone(), nodes.len());
                nodes.push(entry);
            }
        }
    }
    Ok(nodes)
}

/// Returns whether a name occurs several times, at least once without a number.
fn repeats_a_plain_name(entries: &[Node]) -> bool {
    let mut plain: HashMap<&str, bool> = HashMap::new();
    entries.iter().any(|entry| {
        let is_plain = entry.slots.is_none();
        let before = plain.insert(&entry.name, is_plain);
        before.is_some_and(|was_plain| was_plain || is_plain)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::hosts::{parse_file, parse_list};

    fn written(nodes: Vec<Node>) -> String {
        let one = |node: &Node| {
            let user = node.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
            let slots = node.slots.map(|slots| format!(":{slots}")).unwrap_or_default();
            let most = node.max_slots.map(|most| format!("/{most}")).unwrap_or_default();
            format!("{user}{}{slots}{most}", node.name)
        };
        nodes.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    fn check(list: &str, expected: &str) {
        let entries = parse_list(list.as_bytes()).expect("the test's list is well-formed");
        assert_eq!(written(merged(entries).unwrap()), expected, "{list}");
    }

    #[test]
    fn a_name_that_is_listed_twice_is_one_node() {
        check("b,a:2,b", "b:2 a:2");
        check("a:4,a:4,b", "a:8 b");
        check("a,a,b", "a:2 b:1");
        check("a:4,a", "a:5");
        check("a,b", "a b");
        check("a:16777216,a:16777216", "a:16777216");
        check("a1,a01,A1", "a1 a01 A1");
    }

    #[test]
    fn the_maximum_applies_to_the_whole_node() {
        let entries = parse_file(b"a slots=4 max-slots=6\nb\na slots=4 max-slots=8\n").unwrap();
        assert_eq!(written(merged(entries).unwrap()), "a:6/6 b");
    }

    #[test]
    fn devices_of_a_repeated_name_add_up() {
        let merged = |text: &[u8]| merged(parse_file(text).unwrap());
        let nodes = merged(b"a gres=gpu:2\nb\na gres=gpu:1,fpga:x:1\n").unwrap();
        let written: Vec<_> = nodes.iter().map(|node| node.gres.to_string()).collect();
        assert_eq!(written, ["gpu:3,fpga:x:1", ""]);
        let error = merged(b"a gres=gpu:1024\na gres=gpu:1\n").unwrap_err();
        assert!(error.to_string().starts_with("host a is given with too many devices: "), "{error}");
    }

    #[test]
    fn a_node_has_at_most_one_user() {
        check("ada@a:2,a:2", "ada@a:4");
        check("a:2,ada@a:2", "ada@a:4");
        let error = merged(parse_list(b"ada@a,bob@a").unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "host a is given with two users, ada and bob");
    }

    #[test]
    fn only_known_names_are_this_machine() {
        let here = |list: &str| parse_list(list.as_bytes()).unwrap().remove(0).is_here();
        assert!(here("localhost") && here("127.0.0.1:4") && here("[::1]"));
        assert!(!here("ada@localhost") && !here("localhost.example.org") && !here("127.0.0.2"));
    }
}
