//! `--exclude`: removes hosts from a list.

use std::collections::HashMap;

use super::error::HostsError;
use super::list::expand;
use crate::cluster::node::Node;

/// The rest of a list, and the names that were not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excluded {
    /// The remaining hosts, in order; may be empty.
    pub kept: Vec<Node>,
    /// Names that no host had, in the order in which they were first typed: a range may
    /// name hosts outside the job.
    pub unmatched: Vec<String>,
}

/// Removes every entry of the hosts in the list `text`. Names are compared character by character: `node1` does not
/// remove `node1.example.org`. The list must not have users or slots.
pub fn exclude(hosts: Vec<Node>, text: &[u8]) -> Result<Excluded, HostsError> {
    let names = expand(text)?;
    let mut matched: HashMap<&str, bool> = names.iter().map(|name| (name.as_str(), false)).collect();
    let mut kept = hosts;
    kept.retain(|host| match matched.get_mut(host.name.as_str()) {
        Some(is_matched) => {
            *is_matched = true;
            false
        }
        None => true,
    });
    // Report a name once, however often it was typed.
    let unmatched: Vec<String> =
        names.iter().filter(|name| matched.remove(name.as_str()) == Some(false)).cloned().collect();
    Ok(Excluded { kept, unmatched })
}

#[cfg(test)]
mod tests {
    use super::super::parse_list;
    use super::*;

    fn check(hosts: &str, text: &str, kept: &str, unmatched: &str) {
        let hosts = parse_list(hosts.as_bytes()).expect("the test's hosts are well-formed");
        let excluded = exclude(hosts, text.as_bytes()).expect("the test's names are well-formed");
        let names: Vec<_> = excluded.kept.iter().map(|host| host.name.as_str()).collect();
        assert_eq!((names.join(" ").as_str(), excluded.unmatched.join(" ").as_str()), (kept, unmatched), "{text}");
    }

    #[test]
    fn excluded_names_are_left_out() {
        check("a,b:2,ada@c,b", "b", "a c", "");
        check("n[1-9]", "n[2-8]", "n1 n9", "");
        check("[::1],a", "[::1]", "a", "");
        check("a,b", "b,a", "", "");
    }

    #[test]
    fn names_are_opaque() {
        check("node1.example.org,node01,Node1", "node1", "node1.example.org node01 Node1", "node1");
        check("[::1]", "[0:0:0:0:0:0:0:1]", "::1", "0:0:0:0:0:0:0:1");
    }

    #[test]
    fn unmatched_names_are_reported_once_and_in_order() {
        check("n[1-3]", "x,n[2-5],x,n2", "n1", "x n4 n5");
    }

    #[test]
    fn only_names_can_be_excluded() {
        let problem = |text: &str| exclude(Vec::new(), text.as_bytes()).unwrap_err().problem().to_string();
        let names_only = "only host names are allowed here, without user or slots";
        assert_eq!(problem("a:2"), names_only);
        assert_eq!(problem("ada@a"), names_only);
        assert_eq!(problem(""), "the list is empty");
    }
}
