//! A launcher that stands by until the controller has a job for it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nla::sys::{self, Packets, Served, StandingGuardian};

use super::message::{Description, FromLauncher, JOB_DESCRIPTORS, packed, unpacked};
use crate::cluster::manager::ManagerChoice;
use crate::cluster::node_list::HostSource;
use crate::plan::request::Request;
use crate::run::front::{FromJob, ToLauncher};
use crate::run::stderr;

/// How long the threads of a job may take to exit after it.
const THREADS_TIME: Duration = Duration::from_millis(20);

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
/// Returns `None` if the controller has ended or needs no more launchers, or if the agent has ended. The process must have one thread.
pub fn next_job(controller: &Packets, agent: &StandingGuardian) -> io::Result<Option<Job>> {
    controller.send(&packed(&FromLauncher::Ready { pid: std::process::id() }), &[], true)?;
    let (job, slots, descriptors) = loop {
        let Some(packet) = controller.receive_until(agent.as_fd())? else { return Ok(None) };
        match unpacked(&packet)? {
            ToLauncher::Run { job, slots } => break (job, slots, packet.descriptors),
            // For a job that has just ended.
            ToLauncher::Signal(_) => {}
        }
    };
    let wrong = |_| io::Error::new(io::ErrorKind::InvalidData, "a job has the wrong number of descriptors");
    let [description, directory, input, output, error, line] =
        <[OwnedFd; JOB_DESCRIPTORS]>::try_from(descriptors).map_err(wrong)?;
    let line = Packets::of(line);
    let taken = Description::from_file(description).and_then(|description| {
        let served = Served {
            streams: [input, output, error],
            stdout_is_closed: description.stdout_is_closed,
            directory,
            environment: description.environment(),
            shell: description.shell.clone(),
        };
        served.take_over()?;
        Ok(description)
    });
    let description = taken.inspect_err(|error| {
        // A client that is gone needs no answer.
        let _ = line.send(&packed(&FromJob::NotStarted(error.to_string())), &[], false);
    })?;
    // If one fails, `ps` shows the name of a launcher that stands by.
    let _ = sys::set_process_name(c"scela-job");
    let _ = sys::show_as(&format!("scela-job {job}"));
    Ok(Some(Job { description, slots, line }))
}

/// Tells the controller that the job has ended.
pub fn report_end(controller: &Packets) {
    // A controller that is gone needs no report.
    let _ = controller.send(&packed(&FromLauncher::Ended), &[], false);
}

/// Returns whether this process is as it was before a job: with one thread, and logging nothing.
pub fn has_recovered() -> bool {
    // The logs of a job go on with the process. The thread that has read the client's input ends with the client.
    let has_recovered = std::env::var_os("SCELA_LOG").is_none() && sys::has_one_thread_within(THREADS_TIME);
    if has_recovered {
        stderr::forbid_thread();
        // If one fails, `ps` shows the job's name.
        let _ = sys::set_process_name(c"scela-standby");
        let _ = sys::show_as("scela-standby");
    }
    has_recovered
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
