//! The one program of ScELA: launcher, agent and guardian, and the processes of a pool.
//!
//! It has two names. `scela-run` runs a job. `scela` has subcommands, of which `scela run` is the same. With the hidden option
//! `--guard`, which only a launcher types, either is a guardian and its child the agent.

use std::cell::{LazyCell, RefCell};
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use nla::bootstrap::StandingAgent;
use nla::core::printable;
use nla::driver::{PMIX_ARGUMENT, run_agent};
use nla::keeper::{Kept, keep_node};
use nla::link::{Clock, Liveness};
use nla::sys::{self, Forked, ForkedGuardians, GuardianLink};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;

use crate::cli::{self, Typed};
use crate::comm;
use crate::exit::{self, EarlyEnd};
use crate::forecast::batch;
use crate::forecast::calibrate;
use crate::forecast::explain::{explain, explained};
use crate::forecast::model;
use crate::forecast::simulate::{self, Simulation};
use crate::plan::agent_layout::open_files_max;
use crate::plan::launch::{self, AgentHosts, Located, Prepared};
use crate::plan::machine::Machine;
use crate::plan::needs;
use crate::plan::placing;
use crate::plan::process_limits::raises_after_failure;
use crate::plan::remote_launch::Recommended;
use crate::plan::request::{Options, Request};
use crate::plan::{self, DEMO_RANK_ARGUMENT};
use crate::pool::attach::attach;
use crate::pool::client;
use crate::pool::commands::{self, Subcommand};
use crate::pool::fleet::KEEPER_ARGUMENT;
use crate::pool::map;
use crate::pool::standby::{self, JOB_ARGUMENT};
use crate::pool::start::{self, Role};
use crate::refusal::Refusal;
use crate::run::demo;
use crate::run::front::Front;
use crate::run::output;
use crate::run::report::Reporter;
use crate::run::session::{self, Planned, Secrets};
use crate::run::stderr::{self, Kind, Logs};

mod pool_job;

use pool_job::{run_taken, stand_by};

/// The name of the program file.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Called {
    /// `scela-run`.
    ScelaRun,
    /// `scela`.
    Scela,
}

/// Runs this process to its end, and returns its exit code. To be called by `main`, first.
pub fn main(called: Called) -> ExitCode {
    sys::block_signals_without_meaning();
    sys::keep_freed_memory();
    stderr::queue_panic_messages();
    let (code, time) = begin(called);
    stderr::finish(time);
    ExitCode::from(code)
}

/// Does what argv says. Returns the exit code, and how long texts for standard error may take to be written.
fn begin(called: Called) -> (u8, Duration) {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let arguments: Vec<OsString> = arguments.collect();
    let code = match arguments.as_slice() {
        // A remote script runs this to check the version of a program that it found on a node.
        [option] if option == "--agent-id" => print(&format!("{}\n", nla::bootstrap::agent_id())),
        // A remote script runs this to verify the program that was sent to a node without sha256sum.
        [option] if option == "--agent-digest" => match nla::bootstrap::own_program() {
            Ok(own) => print(&format!("{}\n", own.digest)),
            Err(error) => fail(&error.to_string(), EarlyEnd::NotLaunched.code()),
        },
        // The label is for users who look for processes of this session.
        [option, id, _label, dead_ms] if option == "--guard" => {
            return (guard_typed(id, dead_ms), stderr::AGENT_EXIT_TIME);
        }
        // An agent starts it; its standard input is a socket.
        [option] if option == PMIX_ARGUMENT => {
            stderr::allow_thread();
            if std::env::var_os("SCELA_LOG").is_some() {
                trace();
            }
            return (nla::pmix::run_helper(), stderr::AGENT_EXIT_TIME);
        }
        [option, words @ ..] if option == JOB_ARGUMENT => return or_bug(|| run_taken(words)),
        // A rank of a pool's session.
        [option] if option == KEEPER_ARGUMENT => return (keep(), stderr::AGENT_EXIT_TIME),
        [option] if option == DEMO_RANK_ARGUMENT => match sys::pmi_socket() {
            Ok(socket) => demo::run_rank(socket),
            Err(error) => fail(&error.to_string(), EarlyEnd::Usage.code()),
        },
        _ => {
            if let Some(value) = std::env::var_os("SCELA_LOG")
                && let Err(error) = cli::check_log_filter(&value)
            {
                return (fail(&error.with_hint(), error.early_end().code()), stderr::EXIT_TIME);
            }
            // The shell's state, which ranks get, was recorded before.
            sys::reset_sigchld();
            sys::ignore_file_size_signal();
            return or_bug(|| match called {
                Called::ScelaRun => {
                    trace();
                    launch(&name, arguments)
                }
                Called::Scela => run_subcommand(arguments),
            });
        }
    };
    (code, stderr::EXIT_TIME)
}

/// Returns the result of `work`, or the code for a bug after a panic, whose hook has printed where it happened.
fn or_bug(work: impl FnOnce() -> (u8, Duration)) -> (u8, Duration) {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let text = "this is a bug of ScELA; please report it with what is written above";
        (fail(text, EarlyEnd::Bug.code()), stderr::EXIT_TIME)
    })
}

/// Does what the words after `scela` say. Returns as [`begin`] does.
fn run_subcommand(mut arguments: Vec<OsString>) -> (u8, Duration) {
    if arguments.first().is_some_and(|word| word == "run") {
        trace();
        arguments.remove(0);
        return launch(&OsString::from("scela run"), arguments);
    }
    stderr::call_scela(true);
    if arguments.len() > 1 && arguments.first().is_some_and(|word| word == "comm") {
        let code = match comm::run(arguments) {
            Ok(Ok(text)) => print(&text),
            Ok(Err(refusal)) => refuse(&refusal),
            Err(text) => fail(&text, EarlyEnd::Usage.code()),
        };
        return (code, stderr::EXIT_TIME);
    }
    if arguments.first().is_some_and(|word| *word == *batch::NAME) {
        let code = match batch::simulate(arguments.into_iter().skip(1)) {
            Ok(said) => {
                if let Some(warning) = &said.warning {
                    stderr::allow_thread();
                    stderr::line(Kind::Report, &format!("{}: warning: {warning}", stderr::name()));
                }
                print(&said.text)
            }
            Err(text) => fail(&text, EarlyEnd::Usage.code()),
        };
        return (code, stderr::EXIT_TIME);
    }
    let code = match commands::parse(arguments) {
        Ok(Subcommand::Text(text)) => print(&text),
        Ok(Subcommand::Help(text)) => {
            stderr::allow_thread();
            stderr::line(Kind::Report, &text);
            EarlyEnd::Usage.code()
        }
        Ok(Subcommand::Start(options)) => return start_pool(&options),
        Ok(Subcommand::Attach(pool, job)) => attach(&pool, job, false).unwrap_or_else(|refusal| refuse(&refusal)),
        Ok(Subcommand::Ask(question)) => match commands::ask(&question) {
            Ok(answer) => {
                let printed = answer.interrupted.map_or_else(|| print(&answer.text), exit::signalled);
                answer.refusals.iter().fold(printed, |_, refusal| refuse(refusal))
            }
            Err(refusal) => refuse(&refusal),
        },
        Ok(Subcommand::Map(options)) => {
            stderr::allow_thread();
            trace();
            map::run(&options).unwrap_or_else(|refusal| refuse(&refusal))
        }
        Err(text) => fail(&text, EarlyEnd::Usage.code()),
    };
    (code, stderr::EXIT_TIME)
}

/// Starts a pool. Returns in each of its processes, as [`begin`] does.
fn start_pool(options: &start::Options) -> (u8, Duration) {
    let code = match start::start(options) {
        Ok(Role::Starter(text)) => match output::print(&text) {
            Ok(()) => EarlyEnd::Done.code(),
            Err(error) => {
                let name = &options.name;
                let hint = format!("'scela pool status {name}' shows it, 'scela pool stop {name}' ends it");
                let text = format!("the pool '{name}' runs, but standard output cannot be written: {error}");
                fail(&Refusal::new(text, hint).with_hint(), EarlyEnd::OutputLost.code())
            }
        },
        Ok(Role::Interrupted(signal)) => exit::signalled(signal),
        Ok(Role::Controller(controller)) => {
            stderr::allow_thread();
            trace();
            match controller.run() {
                Ok(()) => EarlyEnd::Done.code(),
                Err(error) => fail(&format!("the pool has ended: {error}"), EarlyEnd::Bug.code()),
            }
        }
        Ok(Role::Done) => return (EarlyEnd::Done.code(), stderr::AGENT_EXIT_TIME),
        Ok(Role::Launcher { controller, shared }) => {
            // It writes to the clients of its jobs.
            stderr::call_scela(false);
            return or_bug(|| stand_by(controller, &shared));
        }
        Err(refusal) => refuse(&refusal),
    };
    (code, stderr::EXIT_TIME)
}

/// Runs a guardian and the agent below it. The guardian ends an agent that is silent for `dead_ms` milliseconds.
/// Fails if `id` is not the version of this program.
fn guard_typed(id: &OsStr, dead_ms: &OsStr) -> u8 {
    let own = nla::bootstrap::agent_id();
    if *id != *own {
        // Prefixed as an agent's messages are, not as scela-run's.
        let needed = printable(&id.to_string_lossy());
        stderr::line(Kind::Report, &format!("scela: this is {own}, and {needed} is needed"));
        return EarlyEnd::NotLaunched.code();
    }
    let Some(dead_ms) = dead_ms.to_str().and_then(|ms| ms.parse().ok()) else {
        return fail("--guard is for scela-run only", EarlyEnd::Usage.code());
    };
    let dead_time = Duration::from_millis(dead_ms);
    let guardian = sys::guarded(dead_time);
    stderr::allow_thread();
    // An agent logs only on request: its standard error is read only then.
    if std::env::var_os("SCELA_LOG").is_some() {
        trace();
    }
    run_agent(guardian, dead_time, None)
}

/// Keeps this node in a pool. Returns in each of its processes.
fn keep() -> u8 {
    match keep_node() {
        Ok(Kept::Ended) => EarlyEnd::Done.code(),
        Ok(Kept::Guardian(dead_time)) => guard(dead_time, |guardian| run_agent(guardian, dead_time, None)),
        Err(error) => fail(&format!("this node cannot be kept in the pool: {error}"), EarlyEnd::NotLaunched.code()),
    }
}

/// Goes on as a guardian, or as the agent below it, which is `agent`, in a process that the launcher has forked.
fn guard(dead_time: Duration, agent: impl FnOnce(GuardianLink) -> u8) -> u8 {
    let guardian = sys::guarded(dead_time);
    stderr::allow_thread();
    if std::env::var_os("SCELA_LOG").is_none() {
        stderr::drop_logs();
    }
    agent(guardian)
}

/// The least address space (RLIMIT_AS) of a process. Measured: with 14 MiB, jobs of one rank fail, with 15 MiB jobs of 900 run.
const ADDRESS_SPACE_BYTES_MIN: u64 = 24 << 20;

/// The least stack (RLIMIT_STACK) of a process. Measured: with 100 KiB, it overflows, with 128 KiB jobs run.
const STACK_BYTES_MIN: u64 = 256 << 10;

/// The least data (RLIMIT_DATA) of a process, which is all its private writable memory but the stack. Measured: with
/// 2,000 KiB, jobs of one rank run and jobs of 64 lose agents, with 2,500 KiB jobs of 900 run.
const DATA_BYTES_MIN: u64 = 4 << 20;

/// Returns why this process cannot work under its limits on memory: the first larger allocation or call would end it.
fn memory_refusal() -> Option<Refusal> {
    let of = |resource: Resource, least: u64, name: &str, option: &str| {
        let (soft, _) = getrlimit(resource).ok()?;
        let (needed, allowed) = (least >> 10, soft >> 10);
        (soft < least).then(|| {
            let text =
                format!("{} needs {needed} KiB of {name}, and 'ulimit {option}' allows {allowed}", stderr::name());
            let hint = format!("'ulimit {option} unlimited', or at least 'ulimit {option} {needed}'");
            Refusal::new(text, hint).of_system()
        })
    };
    of(Resource::RLIMIT_AS, ADDRESS_SPACE_BYTES_MIN, "address space", "-v")
        .or_else(|| of(Resource::RLIMIT_STACK, STACK_BYTES_MIN, "stack", "-s"))
        .or_else(|| of(Resource::RLIMIT_DATA, DATA_BYTES_MIN, "data", "-d"))
}

/// Parses what was typed and does it. Returns as [`begin`] does.
fn launch(name: &OsString, arguments: Vec<OsString>) -> (u8, Duration) {
    if let Some(refusal) = memory_refusal() {
        return (refuse(&refusal), stderr::EXIT_TIME);
    }
    let clock = Clock::start();
    let configfile = RefCell::new(None);
    let read_file = |path: &Path| {
        let mut bytes = Vec::new();
        sys::open_input(path)?.take(cli::CONFIGFILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
        *configfile.borrow_mut() = Some((path.to_owned(), bytes.clone()));
        Ok(bytes)
    };
    let code = match cli::parse(name, arguments.clone(), &read_file) {
        Ok(Typed::Run(request)) if request.options.pool.is_some() => {
            let arguments = std::iter::once(name.clone()).chain(arguments).collect();
            client::run(&request, arguments, configfile.take()).unwrap_or_else(|refusal| refuse(&refusal))
        }
        Ok(Typed::Run(request)) => {
            return match run(*request, &mut Session { clock, front: Front::Own, ready: None }) {
                Run::Ended(code) => (code, stderr::EXIT_TIME),
                Run::Forked(code) => (code, stderr::AGENT_EXIT_TIME),
                // It may always fork.
                Run::NotBegun => (EarlyEnd::Bug.code(), stderr::EXIT_TIME),
            };
        }
        Ok(Typed::Simulate(mut simulation)) => {
            restart_with_large_pages();
            simulation.board = model::store::of_user().constants.board;
            match simulate::run(&simulation, &mut |text| say(&simulation, text)) {
                Ok(text) => print(&text),
                Err(error) => fail(&error.to_string(), error.early_end().code()),
            }
        }
        Ok(Typed::Calibrate(options)) => match calibrate::measure(*options) {
            Ok(text) => print(&text),
            Err(error) => fail(&error.to_string(), error.exit_code()),
        },
        Ok(Typed::Help(text) | Typed::Version(text)) => print(&text),
        Err(error) => fail(&error.with_hint(), EarlyEnd::Usage.code()),
    };
    (code, stderr::EXIT_TIME)
}

/// The parts of a session that exist before its plan.
struct Session {
    clock: Clock,
    front: Front,
    ready: Option<Ready>,
}

/// The settings of a pool's launcher for its sessions.
struct Ready {
    /// `None` once it was dismissed, or if the pool is on other hosts.
    standing: Option<Box<Standing>>,
    /// The process may fork other agents.
    may_fork: bool,
    /// The session has used the agent.
    has_used: bool,
}

/// An agent of this machine that has joined the next session, and the secrets of that session.
struct Standing {
    agent: StandingAgent,
    session: u64,
    secrets: Secrets,
}

/// The agents that [`Ready`] has for a session.
enum Lent {
    /// This one.
    Agent(ForkedGuardians),
    /// None. The session forks its own.
    Nothing,
    /// None, and this process must not fork them.
    NotBegun,
}

impl Ready {
    /// Returns the agent, if the plan needs one such agent, with the environment of the pool. Dismisses it otherwise.
    fn guardians(&mut self, planned: &Planned) -> Lent {
        let is_local = matches!(planned.agent_hosts, AgentHosts::Local) && !standby::changes_agents();
        let fits = is_local && planned.plan.agents() == 1 && planned.plan.options.liveness() == standing_liveness();
        let lent = self.standing.as_mut().filter(|_| fits).and_then(|standing| standing.agent.lend());
        if let Some(agent) = lent {
            self.has_used = true;
            return Lent::Agent(agent);
        }
        self.standing.take().into_iter().for_each(|standing| standing.agent.dismiss());
        if self.may_fork { Lent::Nothing } else { Lent::NotBegun }
    }
}

/// Returns when the link to an agent that stands by counts as lost: as in a session without options.
fn standing_liveness() -> Liveness {
    Options::default().liveness()
}

/// How [`run`] has returned.
enum Run {
    /// In the launcher, at the end of the session, with its code.
    Ended(u8),
    /// In a process that the launcher has forked, at its end, with its code.
    Forked(u8),
    /// The session needs other agents than those that are ready, and this process must not fork them.
    NotBegun,
}

/// Runs or explains a session.
fn run(request: Request, session: &mut Session) -> Run {
    let ahead = session.ready.as_ref().and_then(|ready| ready.standing.as_ref());
    let secrets = ahead.map_or_else(Secrets::random, |ahead| Ok((ahead.session, ahead.secrets.clone())));
    let located = match secrets.map_err(not_launched).and_then(|secrets| locate(request, secrets)) {
        Ok(located) => located,
        Err(code) => return Run::Ended(code),
    };
    let options = located.nodes.options();
    let (label, dead_time) = (plan::label(options, &located.machine), options.liveness().dead_time);
    let mut guardians = ForkedGuardians::default();
    let has_files = open_files_max(&located.machine.shell) >= needs::agent_files(1);
    if session.ready.is_none() && located.nodes.is_local() && !options.explain && has_files {
        // The first agent starts while the plan is made, unless the plan will refuse the job.
        match sys::fork_guardians(ForkedGuardians::default(), 1, &label) {
            Ok(Forked::Launcher(forked)) => guardians = forked,
            Ok(Forked::Guardian) => return guard_forked(located.secrets, dead_time, session),
            // The plan has better words for it, or the next attempt has.
            Err(_) => {}
        }
    }
    let planned = match plan(located) {
        Ok(planned) => planned,
        Err(code) => {
            guardians.dismiss();
            return Run::Ended(code);
        }
    };
    let guardians = match session.ready.as_mut().map_or(Lent::Nothing, |ready| ready.guardians(&planned)) {
        Lent::Agent(ready) => Ok(ready),
        Lent::NotBegun => return Run::NotBegun,
        Lent::Nothing if planned.agent_hosts.is_remote() => Ok(guardians),
        Lent::Nothing => match sys::fork_guardians(guardians, planned.plan.agents(), &label) {
            Ok(Forked::Launcher(guardians)) => Ok(guardians),
            Ok(Forked::Guardian) => return guard_forked(planned.secrets, dead_time, session),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Err(error),
            Err(error) => {
                let tasks = needs::tasks(planned.plan.size(), planned.plan.agents());
                let advice = raises_after_failure(tasks).map_or_else(
                    || "see 'ulimit -u' and pids.max of its cgroups".to_owned(),
                    |raise| format!("raise the limit: {raise}"),
                );
                let text = format!(
                    "{error}; the job has {tasks} processes and threads, beside those of others\n  hint: {advice}"
                );
                Err(io::Error::new(error.kind(), text))
            }
        },
    };
    stderr::allow_thread();
    let is_last = session.ready.is_none();
    let run = guardians.and_then(|guardians| session::run(planned, guardians, session.clock, &session.front, is_last));
    Run::Ended(match run {
        Ok(ended) => ended.code,
        Err(error) => not_launched(error),
    })
}

/// Goes on as a guardian, or as the agent below it, in a process that was forked for the session. Frees nothing else of the launcher,
/// which would copy the pages.
fn guard_forked(secrets: Secrets, dead_time: Duration, session: &mut Session) -> Run {
    // The page of the key, which the kernel has wiped. The agent gets its own.
    drop(secrets);
    // A guardian closes the descriptors of its launcher.
    session.front.forget();
    let clock = session.clock;
    Run::Forked(guard(dead_time, |guardian| run_agent(guardian, dead_time, Some(clock))))
}

fn not_launched(error: io::Error) -> u8 {
    fail(&format!("the job could not be launched: {error}"), EarlyEnd::NotLaunched.code())
}

/// A request whose nodes are known, on this machine.
struct Placed {
    machine: Machine,
    secrets: Secrets,
    nodes: Located,
    remarks: Vec<String>,
}

/// Finds the nodes of a request, or returns the exit code.
fn locate(mut request: Request, (session, secrets): (u64, Secrets)) -> Result<Placed, u8> {
    let machine = match Machine::of_process(session) {
        Ok(machine) => machine,
        Err(error) => return Err(not_launched(error)),
    };
    let remarks = match cli::apply_variables(&mut request.options, &machine.environment) {
        Ok(remarks) => remarks,
        Err(error) => return Err(fail(&error.with_hint(), EarlyEnd::Usage.code())),
    };
    match launch::locate(request, &machine) {
        Ok(nodes) => Ok(Placed { machine, secrets, nodes, remarks }),
        Err(error) => Err(refuse(&error)),
    }
}

/// Plans a session, or explains it and returns the exit code.
fn plan(located: Placed) -> Result<Planned, u8> {
    let Placed { machine, secrets, nodes, remarks } = located;
    // Read only where a recommendation is needed: for other nodes, and for --explain.
    let loaded = LazyCell::new(model::store::of_user);
    let recommend = |nodes, ppn| Recommended::from(&model::recommend(nodes, ppn, &loaded.constants));
    let Prepared { mut plan, agent_hosts, allocation } = match nodes.prepare(&machine, &recommend) {
        Ok(prepared) => prepared,
        Err(error) => return Err(fail(&error.with_hint(), error.early_end().code())),
    };
    plan.remarks.splice(..0, remarks);
    if plan.options.explain || agent_hosts.is_remote() {
        plan.remarks.extend(loaded.remark.clone());
    }
    if let Some(path) = &plan.options.hosts.save_rankmap {
        placing::save(&plan, path, &agent_hosts.names()).map_err(|error| refuse(&error))?;
    }
    if plan.options.explain {
        Reporter::of(&plan.options).notes(&plan.remarks);
        let explained = explained(&plan, &agent_hosts, &machine, allocation.as_ref(), &loaded.constants);
        let printed = print(&explain(&explained));
        return Err(match explained.missing.first() {
            Some(why) if !agent_hosts.is_remote() => {
                fail(&format!("the ranks could not be started: {why}"), EarlyEnd::NotLaunched.code())
            }
            _ => printed,
        });
    }
    Ok(Planned { plan, agent_hosts, session: machine.session, secrets })
}

/// Starts this process again with the large pages that glibc's allocator uses only if GLIBC_TUNABLES asks for them
/// at the start: a simulation visits the caches of a thousand agents in turn, which gets a seventh quicker.
/// Returns if that fails, or if the variable is set already.
fn restart_with_large_pages() {
    const TUNABLES: &str = "GLIBC_TUNABLES";
    if std::env::var_os(TUNABLES).is_none() {
        let _ = std::process::Command::new("/proc/self/exe")
            .args(std::env::args_os().skip(1))
            .env(TUNABLES, "glibc.malloc.hugetlb=1")
            .exec();
    }
}

/// Writes `text` to standard output, and returns the exit code.
fn print(text: &str) -> u8 {
    match output::print(text) {
        Ok(()) => EarlyEnd::Done.code(),
        Err(error) => fail(&format!("standard output cannot be written: {error}"), EarlyEnd::OutputLost.code()),
    }
}

/// Shows a line of a simulation's progress on a terminal, in place of the one before.
fn say(simulation: &Simulation, text: &str) {
    if !simulation.quiet && io::stderr().is_terminal() {
        let _ = io::stderr().write_all(format!("\r\x1b[K{text}").as_bytes());
    }
}

/// Reports an error at the end of the process, and returns the exit code.
fn fail(text: &str, code: u8) -> u8 {
    stderr::allow_thread();
    stderr::line(Kind::Error, &format!("{}: error: {text}", stderr::name()));
    code
}

fn refuse(refusal: &Refusal) -> u8 {
    fail(&refusal.with_hint(), refusal.early_end().code())
}

/// Logs what SCELA_LOG asks for, or warnings.
fn trace() {
    // Called once per process, before anything else could have set one.
    let _ = match std::env::var("SCELA_LOG") {
        Ok(filter) => tracing::subscriber::set_global_default(log(&filter)),
        Err(_) => tracing::subscriber::set_global_default(Warnings(OnceLock::new())),
    };
}

fn log(filter: &str) -> Box<dyn Subscriber + Send + Sync> {
    let filter = filter.parse::<Targets>().unwrap_or_else(|error| {
        let error = printable(&error.to_string());
        stderr::line(Kind::Report, &format!("scela-run: warning: SCELA_LOG is ignored: {error}"));
        Targets::new().with_default(LevelFilter::WARN)
    });
    let lines = tracing_subscriber::fmt::layer().with_writer(Logs).with_ansi(false).without_time();
    Box::new(tracing_subscriber::registry().with(filter).with(lines))
}

/// Logs warnings without their spans. The log is set up at the first one: its registry takes a hundredth of a small job's time.
struct Warnings(OnceLock<Box<dyn Subscriber + Send + Sync>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        self.0.get_or_init(|| log("warn")).event(event);
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}
