//! A launcher that stands by until the controller has a job for it.

use std::io;
use std::os::fd::OwnedFd;

use nla::sys::{self, Packets, Served};

use super::message::{Description, FromLauncher, JOB_DESCRIPTORS, packed, unpacked};
use crate::cluster::manager::ManagerChoice;
use crate::cluster::node_list::HostSource;
use crate::plan::request::Request;
use crate::run::front::ToLauncher;

/// A job whose streams, directory and environment this process has.
#[derive(Debug)]
pub struct Job {
    /// Its description.
    pub description: Description,
    /// The slots of the pool.
    pub slots: u32,
    /// The connection to its client.
    pub line: Packets,
}

/// Tells the controller that this process stands by, and waits for a job. This process then takes the place of the client.
/// Returns `None` if the controller has ended or needs no more launchers. The process must have one thread.
pub fn next_job(controller: &Packets) -> io::Result<Option<Job>> {
    controller.send(&packed(&FromLauncher::Ready { pid: std::process::id() }), &[], true)?;
    let (job, slots, descriptors) = loop {
        let Some(packet) = controller.receive(true)? else { return Ok(None) };
        match unpacked(&packet)? {
            ToLauncher::Run { job, slots } => break (job, slots, packet.descriptors),
            // For a job that has just ended.
            ToLauncher::Signal(_) => {}
        }
    };
    let wrong = |_| io::Error::new(io::ErrorKind::InvalidData, "a job has the wrong number of descriptors");
    let [description, directory, input, output, error, line] =
        <[OwnedFd; JOB_DESCRIPTORS]>::try_from(descriptors).map_err(wrong)?;
    let description = Description::from_file(description)?;
    let served = Served {
        streams: [input, output, error],
        stdout_is_closed: description.stdout_is_closed,
        directory,
        environment: description.environment(),
        shell: description.shell.clone(),
    };
    served.take_over()?;
    // If one fails, `ps` shows the name of a launcher that stands by.
    let _ = sys::set_process_name(c"scela-job");
    let _ = sys::show_as(&format!("scela-job {job}"));
    Ok(Some(Job { description, slots, line: Packets::of(line) }))
}

/// Restricts a job to the machine of its pool, whatever hosts its environment names. A single program without a number of ranks,
/// and without `-ppn`, has one on each slot.
pub fn restrict(request: &mut Request, slots: u32) {
    let hosts = &mut request.options.hosts;
    (hosts.sources, hosts.manager) = (vec![HostSource::List("localhost".into())], ManagerChoice::None);
    if let ([command], None) = (request.commands.as_mut_slice(), request.options.ppn) {
        command.nprocs.get_or_insert(slots);
    }
}
