//! `--profile-comm`: ranks get ScELA's libscela-trace.so, which the dynamic loader loads before their MPI library.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{getegid, geteuid, getuid};
use nla::core::staged_file_word;
use nla::sys::image::has_capabilities;

use crate::cluster::node_list::NodeList;
use crate::plan::Plan;
use crate::plan::elf::{self, Linkage};
use crate::plan::machine::Machine;
use crate::plan::mpi::{PRELOAD, find_near, is_listable};
use crate::refusal::Refusal;

/// The user's variable for the path of the library.
const LIBRARY_VARIABLE: &str = "SCELA_TRACE_LIBRARY";
/// Its file name as it is installed, and as Cargo builds it.
const LIBRARIES: [&str; 2] = ["libscela-trace.so", "libscela_trace.so"];
/// Its name among the files that nodes get.
pub(super) const STAGED_NAME: &str = LIBRARIES[0];
/// The library's variable: with `none` it counts no collective operations.
const COLLECTIVES: &str = "SCELA_PROFILE_COLLECTIVES";

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;

/// Has the ranks load the library, before what the user has them load. Refuses programs for which the loader would not do so.
/// Returns the library if nodes are to get a copy of it.
pub(super) fn provide(plan: &mut Plan, machine: &Machine, nodes: &NodeList) -> Result<Option<PathBuf>, Refusal> {
    if plan.options.profile_comm.is_none() {
        return Ok(None);
    }
    let session = &plan.settings.session;
    for command in &plan.settings.first.commands {
        // A program that is not on this machine may be on the nodes.
        if let Ok(file) = elf::file_of(session, command)
            && let Some((why, change)) = obstacle(&file)
        {
            let text = format!("'{}' cannot be profiled: {why}", String::from_utf8_lossy(&command.program));
            return Err(Refusal::new(text, format!("{change}, or leave '--profile-comm' out")));
        }
    }
    let library = library(machine)?;
    // Hosts need no ScELA of their own, so they may lack the library.
    let is_staged = plan.options.stage || matches!(nodes, NodeList::Named { .. });
    let name = if is_staged { staged_file_word(STAGED_NAME).into() } else { library.clone() };
    if !is_listable(&name) {
        let text = format!("LD_PRELOAD cannot name '{}', which has a blank or a colon", name.display());
        return Err(Refusal::new(text, format!("name a copy of it in {LIBRARY_VARIABLE}")).of_system());
    }
    for command in &mut plan.settings.first.commands {
        let mut value = name.as_os_str().to_owned();
        if let Some(others) = elf::variable(session, command, PRELOAD).filter(|others| !others.is_empty()) {
            value.push(":");
            value.push(others);
        }
        command.set.push((PRELOAD.into(), value.as_bytes().to_vec()));
        if plan.options.profile_collectives == Some(false) {
            command.set.push((COLLECTIVES.into(), b"none".to_vec()));
        }
    }
    Ok(is_staged.then_some(library))
}

/// Returns why the loader loads no other library into this program, and a change that helps; `None` if it does.
fn obstacle(file: &Path) -> Option<(&'static str, &'static str)> {
    let found = fs::metadata(file).ok()?;
    let takes_user = found.mode() & SET_USER != 0 && found.uid() != geteuid().as_raw();
    let takes_group = found.mode() & SET_GROUP != 0 && found.gid() != getegid().as_raw();
    if takes_user || takes_group {
        let why = "it is setuid or setgid, so the dynamic loader ignores LD_PRELOAD";
        return Some((why, "run a copy of it without these bits"));
    }
    // For root, file capabilities do not set AT_SECURE, so LD_PRELOAD works.
    if !getuid().is_root() && has_capabilities(file) {
        let why = "it has file capabilities, so the dynamic loader ignores LD_PRELOAD";
        return Some((why, "run a copy of it, which has none"));
    }
    match elf::linkage(file) {
        Linkage::Static => {
            Some(("it is linked statically, so its MPI functions cannot be replaced", "link it dynamically"))
        }
        Linkage::Dynamic | Linkage::Unknown => None,
    }
}

/// Returns ScELA's library: the one that the user names, or one near scela-run.
fn library(machine: &Machine) -> Result<PathBuf, Refusal> {
    if let Some(path) = machine.path_in(LIBRARY_VARIABLE) {
        if path.is_file() {
            return Ok(path);
        }
        let text = format!("{LIBRARY_VARIABLE} names '{}', which is not a file", path.display());
        return Err(Refusal::new(text, "name ScELA's libscela-trace.so, or unset it").of_system());
    }
    find_near(&machine.program, &LIBRARIES, &Path::is_file).map_err(|directories| {
        let text = format!(
            "'--profile-comm' needs ScELA's libscela-trace.so, which was not found\n  looked in {}",
            directories.join(", ")
        );
        let hint = format!("install it beside scela-run or in ../lib, or name it in {LIBRARY_VARIABLE}");
        Refusal::new(text, hint).of_system()
    })
}
