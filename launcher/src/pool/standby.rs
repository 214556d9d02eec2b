//! A launcher that stands by until the controller has a job for it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nla::core::Resources;
use nla::sys::{self, Packets, Served, StandingGuardian};

use super::message::{Description, JOB_DESCRIPTORS, JobNumber, packed, unpacked};
use super::start::SharedOptions;
use crate::cluster::hosts::TEXT_BYTES_MAX;
use crate::cluster::manager::ManagerChoice;
use crate::cluster::node_list::HostSource;
use crate::plan::request::{BootstrapKind, LaunchShape, Options, Request};
use crate::run::front::{FromJob, FromLauncher, ToLauncher};
use crate::run::stderr;

/// The argument that makes this program the launcher of a job again.
pub const JOB_ARGUMENT: &str = "--pool-job";
/// The variables that an agent reads in its own environment: what it logs, records, and where it panics.
const VARIABLES_OF_AGENTS: [&str; 3] = ["SCELA_LOG", "SCELA_RECORD", "SCELA_PANIC"];
/// How long the threads of a job may take to exit after it.
const THREADS_TIME: Duration = Duration::from_millis(20);

/// A job whose streams, directory and environment this process has.
#[derive(Debug)]
pub struct Job {
    /// Its number.
    pub number: JobNumber,
    /// Its description.
    pub description: Description,
    /// The same, in a file.
    pub file: OwnedFd,
    /// Its slots.
    pub slots: u32,
    /// The hosts that it gets, as the lines of a hosts file; `None` if it runs on this machine.
    pub hosts: Option<String>,
    /// Its devices of this machine, if they are known.
    pub gres: Resources,
    /// The connection to its client.
    pub line: Packets,
}

/// A job that has arrived.
#[derive(Debug)]
pub struct Arrived {
    job: JobNumber,
    slots: u32,
    gres: Resources,
    descriptors: Vec<OwnedFd>,
}

/// Tells the controller that this process stands by, and waits for a job. Returns `None` if the controller has ended or needs no more
/// launchers. If the agent has ended, only a job that is on the way is taken.
pub fn next_job(controller: &Packets, agent: Option<&StandingGuardian>) -> io::Result<Option<Arrived>> {
    match await_job(controller, agent) {
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => Ok(None),
        awaited => awaited,
    }
}

fn await_job(controller: &Packets, agent: Option<&StandingGuardian>) -> io::Result<Option<Arrived>> {
    let process = sys::pidfd_of_this().ok();
    let descriptors: Vec<BorrowedFd<'_>> = process.iter().map(AsFd::as_fd).collect();
    controller.send(&packed(&FromLauncher::Ready), &descriptors, true)?;
    let mut agent = agent;
    loop {
        if agent.take_if(|agent| !controller.wait_until(agent.as_fd())).is_some() {
            controller.send(&packed(&FromLauncher::Leaves), &[], true)?;
        }
        let Some(packet) = controller.receive(true)? else { return Ok(None) };
        match unpacked(&packet)? {
            ToLauncher::Run { job, slots, gres } => {
                // Before anything else: a controller that does not hear this kills the process and lets another one run the job.
                controller.send(&packed(&FromLauncher::Took), &[], true)?;
                return Ok(Some(Arrived { job, slots, gres, descriptors: packet.descriptors }));
            }
            // For a job that has just ended.
            ToLauncher::Signal(_) => {}
        }
    }
}

impl Arrived {
    /// Takes the place of the client. The process must have one thread.
    pub fn take_over(self) -> io::Result<Job> {
        let Self { job, slots, gres, mut descriptors } = self;
        let hosts = match descriptors.len() > JOB_DESCRIPTORS {
            true => descriptors.pop().map(hosts_in).transpose()?,
            false => None,
        };
        let wrong = |_| io::Error::new(io::ErrorKind::InvalidData, "a job has the wrong number of descriptors");
        let [description, directory, input, output, error, line] =
            <[OwnedFd; JOB_DESCRIPTORS]>::try_from(descriptors).map_err(wrong)?;
        let line = Packets::of(line);
        // A client that has disconnected needs no answer.
        let _ = line.send(&packed(&FromJob::Begins(job)), &[], false);
        let taken = description.try_clone().and_then(|file| {
            let description = Description::from_file(description)?;
            // A pipe can be read once.
            let is_pipe = File::from(file.try_clone()?).stream_position().is_err();
            let file = if is_pipe { description.to_file()? } else { file };
            Ok((description, file))
        });
        let taken = taken.and_then(|(description, file)| {
            let served = Served {
                streams: [input, output, error],
                stdout_is_closed: description.stdout_is_closed,
                directory,
                environment: description.environment(),
                shell: description.shell.clone(),
            };
            served.take_over()?;
            Ok((description, file))
        });
        let (description, file) = taken.inspect_err(|error| {
            // A client that has disconnected needs no answer.
            let _ = line.send(&packed(&FromJob::NotStarted(error.to_string())), &[], false);
        })?;
        show_as(job);
        Ok(Job { number: job, description, file, slots, hosts, gres, line })
    }
}

fn show_as(job: JobNumber) {
    sys::name_process(c"scela-job", &job.to_string());
}

/// Starts this program again for a job, in this process. A process that has run a session must not fork agents: tokio's signals are
/// global, and their pipe is closed in a guardian. Returns only if it fails.
pub fn start_again(controller: &Packets, job: &Taken) -> io::Error {
    let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
    let streams = [input.as_fd(), output.as_fd(), errors.as_fd()].map(sys::leave_to_program);
    if streams.iter().any(Result::is_err) {
        return io::ErrorKind::InvalidInput.into();
    }
    let numbers = [controller.as_fd(), job.line.as_fd(), job.file.as_fd()].map(sys::leave_to_program);
    let [Ok(controller), Ok(line), Ok(file)] = numbers else { return io::ErrorKind::InvalidInput.into() };
    let numbers =
        [controller.to_string(), line.to_string(), file.to_string(), job.slots.to_string(), job.number.to_string()];
    let words = numbers.into_iter().chain([job.gres.to_string()]);
    Command::new("/proc/self/exe").arg0(format!("scela-job {}", job.number)).arg(JOB_ARGUMENT).args(words).exec()
}

/// A job of this machine's pool that this process has taken, and not begun.
pub struct Taken {
    /// Its number.
    pub number: JobNumber,
    /// Its description.
    pub file: OwnedFd,
    /// Its slots.
    pub slots: u32,
    /// Its devices, if they are known.
    pub gres: Resources,
    /// The connection to its client.
    pub line: Packets,
}

/// Returns the connection to the controller, and the job, in a program that [`start_again`] has executed with these words.
pub fn taken_again(words: &[OsString]) -> io::Result<(Packets, Job)> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "only a launcher of a pool can start a job so");
    let (gres, words) = words.split_last().ok_or_else(wrong)?;
    let gres = gres.to_str().and_then(|gres| Resources::try_from(gres.to_owned()).ok()).ok_or_else(wrong)?;
    let numbers: Option<Vec<u64>> = words.iter().map(|word| word.to_str()?.parse().ok()).collect();
    let Some(&[controller, line, file, slots, number]) = numbers.as_deref() else { return Err(wrong()) };
    let take = |number| sys::take_inherited(i32::try_from(number).map_err(|_| wrong())?);
    let (controller, line, file) = (Packets::of(take(controller)?), Packets::of(take(line)?), take(file)?);
    let description = Description::from_file(file.try_clone()?)?;
    sys::adopt_shell(&description.shell, description.stdout_is_closed);
    show_as(number);
    let slots = u32::try_from(slots).map_err(|_| wrong())?;
    Ok((controller, Job { number, description, file, slots, hosts: None, gres, line }))
}

fn hosts_in(file: OwnedFd) -> io::Result<String> {
    let (mut file, mut hosts) = (File::from(file), String::new());
    file.rewind()?;
    file.take(TEXT_BYTES_MAX as u64).read_to_string(&mut hosts)?;
    Ok(hosts)
}

/// Returns whether the environment of this process, which is that of its job, changes what an agent does. An agent that stands by has the
/// environment of the pool.
pub fn changes_agents() -> bool {
    VARIABLES_OF_AGENTS.iter().any(|name| std::env::var_os(name).is_some())
}

/// Returns whether this process is as it was before a job: with one thread, and logging nothing.
pub fn has_recovered() -> bool {
    // The logs of a job go on with the process. The thread that has read the client's input ends with the client.
    let has_recovered = std::env::var_os("SCELA_LOG").is_none() && sys::has_one_thread_within(THREADS_TIME);
    if has_recovered {
        stderr::forbid_thread();
        sys::name_process(c"scela-standby", "");
    }
    has_recovered
}

/// The part of a pool that a job has.
#[derive(Copy, Clone, Debug)]
pub struct Allotted<'a> {
    /// Its slots.
    pub slots: u32,
    /// Its hosts, as the lines of a hosts file; `None` if it runs on this machine.
    pub hosts: Option<&'a str>,
    /// Its devices of this machine, if they are known.
    pub gres: &'a Resources,
}

/// Restricts a job to the slots that it has, whatever hosts its environment names. A single program without a number of ranks,
/// and without `-ppn`, has one on each slot.
/// On other hosts, it has the options of the pool for the start of agents, as far as it has none of its own.
pub fn restrict(request: &mut Request, job: &Allotted<'_>, of_pool: &SharedOptions) {
    let Allotted { slots, hosts: of_job, gres } = *job;
    let Options { hosts, launch, ppn, has_standing_agent, .. } = &mut request.options;
    *has_standing_agent = of_job.is_none();
    let gres = if gres.is_empty() { String::new() } else { format!(" gres={gres}") };
    let text = of_job.map_or_else(|| format!("localhost{gres}"), str::to_owned);
    (hosts.sources, hosts.manager) = (vec![HostSource::Text(text)], ManagerChoice::None);
    if of_job.is_some() {
        let (former, of_pool) = (std::mem::take(launch), of_pool.launch.clone().unwrap_or_default());
        // The launcher asks all keepers itself.
        (launch.bootstrap, launch.shape) = (Some(BootstrapKind::Keeper), LaunchShape::Flat);
        launch.deadline = former.deadline.or(of_pool.deadline);
        // An address and an interface exclude each other.
        let has_address = former.connect_back.is_some() || former.iface.is_some();
        let address = if has_address { &former } else { &of_pool };
        (launch.connect_back, launch.iface) = (address.connect_back.clone(), address.iface.clone());
        launch.port_range = former.port_range.or(of_pool.port_range);
    }
    if let ([command], None) = (request.commands.as_mut_slice(), ppn) {
        command.nprocs.get_or_insert(slots);
    }
}
