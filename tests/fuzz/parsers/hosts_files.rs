//! Hosts files of Hydra, Open MPI, Slurm and PBS.

use launcher::cluster::hosts::parse_file;
use launcher::cluster::node_list::Node;

use super::host_lists::{check_error, check_nodes, written};

/// Longer files are parsed only.
const CHECKED_HOSTS_MAX: usize = 4096;

/// The hosts of a file are the same when they are written, one on each line, and parsed again.
pub(super) fn check(data: &[u8]) {
    let nodes = match parse_file(data) {
        Ok(nodes) => nodes,
        Err(error) => {
            // A byte order mark is no character of the first line.
            return check_error(data.strip_prefix(b"\xef\xbb\xbf").unwrap_or(data), &error);
        }
    };
    check_nodes(&nodes);
    if nodes.len() <= CHECKED_HOSTS_MAX {
        let line = |node: &Node| {
            let max_slots = |max_slots| format!(" max-slots={max_slots}");
            let gres = if node.gres.is_empty() { String::new() } else { format!(" gres={}", node.gres) };
            written(node) + &node.max_slots.map(max_slots).unwrap_or_default() + &gres + " # a comment\r\n"
        };
        let file: String = nodes.iter().map(line).collect();
        assert_eq!(parse_file(file.as_bytes()), Ok(nodes), "{file}");
    }
}
