//! The variables and files of resource managers: Slurm, PBS, LSF, Grid Engine and Flux.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::Path;

use launcher::cluster::allocation;
use launcher::cluster::manager::ManagerChoice;
use launcher::cluster::system::System;

use super::host_lists::check_nodes;

/// A system whose variables are the lines `NAME=VALUE` of the input up to an empty line, and whose files and commands
/// all answer with the rest.
struct Typed {
    variables: BTreeMap<String, String>,
    rest: Vec<u8>,
}

impl System for Typed {
    fn variable(&self, name: &str) -> Option<OsString> {
        self.variables.get(name).map(OsString::from)
    }

    fn file(&self, _path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
        self.standard_input(bytes_max)
    }

    fn standard_input(&self, bytes_max: usize) -> io::Result<Vec<u8>> {
        Ok(self.rest[..self.rest.len().min(bytes_max)].to_vec())
    }

    fn answer(&self, _command: &[&str], bytes_max: usize) -> io::Result<Vec<u8>> {
        self.standard_input(bytes_max)
    }

    fn answer_soon(&self, command: &[&str], bytes_max: usize) -> io::Result<Vec<u8>> {
        self.answer(command, bytes_max)
    }
}

/// An allocation names each node once, within the bounds of host lists.
pub(super) fn check(data: &[u8]) {
    let end = data.windows(2).position(|pair| pair == b"\n\n").unwrap_or(data.len());
    let text = String::from_utf8_lossy(&data[..end]);
    let variables = text.lines().filter_map(|line| line.split_once('=')).filter(|(_, value)| !value.is_empty());
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let system = Typed { variables, rest: data.get(end + 2..).unwrap_or_default().to_vec() };
    match allocation::find(ManagerChoice::Auto, &system) {
        Ok(Some(found)) => {
            check_nodes(&found.nodes);
            let names: BTreeSet<_> = found.nodes.iter().map(|node| &node.name).collect();
            assert_eq!(names.len(), found.nodes.len(), "a node is named twice");
            assert!(found.ranks != Some(0));
            super::check_shown(&found.words());
        }
        Ok(None) => {}
        Err(refusal) => refusal.to_string().lines().for_each(super::check_shown),
    }
}
