//! The one program of ScELA: launcher, agent and guardian.
//!
//! With the hidden option `--guard`, which only a launcher types, it is a guardian and its child the agent. Otherwise
//! it is `scela-run`, which forks the guardians of its own machine.

#![forbid(unsafe_code)]

use std::cell::LazyCell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use launcher::cli::{self, Typed};
use launcher::exit::EarlyEnd;
use launcher::forecast::calibrate;
use launcher::forecast::explain::{explain, explained};
use launcher::forecast::model;
use launcher::forecast::simulate::{self, Simulation};
use launcher::plan::DEMO_RANK_ARGUMENT;
use launcher::plan::launch::{AgentHosts, Prepared, prepare};
use launcher::plan::machine::Machine;
use launcher::plan::remote_launch::Recommended;
use launcher::plan::request::Request;
use launcher::run::demo;
use launcher::run::output;
use launcher::run::report::Reporter;
use launcher::run::session::{self, Planned, Secrets};
use launcher::run::stderr::{self, Kind, Logs};
use nla::core::printable;
use nla::driver::PMIX_ARGUMENT;
use nla::link::Clock;
use nla::sys::{self, Forked, ForkedGuardians};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Boards of large jobs are long allocations.
#[global_allocator]
static ALLOCATOR: sys::LargePages = sys::LargePages;

fn main() -> ExitCode {
    sys::keep_freed_memory();
    stderr::queue_panic_messages();
    let (code, time) = begin();
    stderr::finish(time);
    code
}

/// Does what argv says. Returns the exit code, and how long texts for standard error may take to be written.
fn begin() -> (ExitCode, Duration) {
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
            return (guard(id, dead_ms), stderr::AGENT_EXIT_TIME);
        }
        // An agent starts it; its standard input is a socket.
        [option] if option == PMIX_ARGUMENT => {
            stderr::allow_thread();
            if std::env::var_os("SCELA_LOG").is_some() {
                trace();
            }
            return (nla::pmix::run_helper(), stderr::AGENT_EXIT_TIME);
        }
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
            trace();
            // The panic hook has already printed where the panic happened.
            return catch_unwind(AssertUnwindSafe(|| launch(&name, arguments))).unwrap_or_else(|_| {
                let text = "this is a bug of ScELA; please report it with what is written above";
                (fail(text, EarlyEnd::Bug.code()), stderr::EXIT_TIME)
            });
        }
    };
    (code, stderr::EXIT_TIME)
}

/// Runs a guardian and the agent below it. The guardian ends an agent that is silent for `dead_ms` milliseconds.
/// Fails if `id` is not the version of this program.
fn guard(id: &OsStr, dead_ms: &OsStr) -> ExitCode {
    let own = nla::bootstrap::agent_id();
    if *id != *own {
        // Prefixed as an agent's messages are, not as scela-run's.
        let needed = printable(&id.to_string_lossy());
        stderr::line(Kind::Report, &format!("scela: this is {own}, and {needed} is needed"));
        return ExitCode::from(EarlyEnd::NotLaunched.code());
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
    nla::driver::run_agent(guardian, dead_time, None)
}

/// Goes on as a guardian, or as the agent below it, in a process that the launcher has forked.
fn guard_forked(dead_time: Duration, clock: Clock) -> ExitCode {
    let guardian = sys::guarded(dead_time);
    stderr::allow_thread();
    if std::env::var_os("SCELA_LOG").is_none() {
        stderr::drop_logs();
    }
    nla::driver::run_agent(guardian, dead_time, Some(clock))
}

/// Parses what was typed and does it. Returns as [`begin`] does.
fn launch(name: &OsString, arguments: Vec<OsString>) -> (ExitCode, Duration) {
    let clock = Clock::start();
    let read_file = |path: &Path| {
        let mut bytes = Vec::new();
        File::open(path)?.take(cli::CONFIGFILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let code = match cli::parse(name, arguments, &read_file) {
        Ok(Typed::Run(request)) => return run(*request, clock),
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

/// Runs or explains a session. Returns as [`begin`] does.
fn run(request: Request, clock: Clock) -> (ExitCode, Duration) {
    let planned = match plan(request) {
        Ok(planned) => planned,
        Err(code) => return (code, stderr::EXIT_TIME),
    };
    let guardians = match &planned.agent_hosts {
        AgentHosts::Local => match sys::fork_guardians(planned.plan.agents(), &planned.plan.label) {
            Ok(Forked::Launcher(guardians)) => Ok(guardians),
            Ok(Forked::Guardian) => {
                // The page of the key, which the kernel has wiped. The agent gets its own.
                drop(planned.secrets);
                return (guard_forked(planned.plan.options.liveness().dead_time, clock), stderr::AGENT_EXIT_TIME);
            }
            Err(error) => Err(io::Error::new(
                error.kind(),
                format!("{error}; try fewer agents with --agents-per-node, or a higher ulimit -Hn and -u"),
            )),
        },
        AgentHosts::Remote(_) => Ok(ForkedGuardians::default()),
    };
    stderr::allow_thread();
    let run = guardians.and_then(|guardians| session::run(planned, guardians, clock));
    (run.map_or_else(not_launched, |ended| ExitCode::from(ended.code)), stderr::EXIT_TIME)
}

fn not_launched(error: io::Error) -> ExitCode {
    fail(&format!("the job could not be launched: {error}"), EarlyEnd::NotLaunched.code())
}

/// Plans a session, or explains it and returns the exit code.
fn plan(mut request: Request) -> Result<Planned, ExitCode> {
    let (session, secrets) = match Secrets::random() {
        Ok(random) => random,
        Err(error) => return Err(not_launched(error)),
    };
    let machine = match Machine::of_process(session) {
        Ok(machine) => machine,
        Err(error) => return Err(not_launched(error)),
    };
    let remarks = match cli::apply_variables(&mut request.options, &machine.environment) {
        Ok(remarks) => remarks,
        Err(error) => return Err(fail(&error.with_hint(), EarlyEnd::Usage.code())),
    };
    // Read only where a recommendation is needed: for other nodes, and for --explain.
    let loaded = LazyCell::new(model::store::of_user);
    let recommend = |nodes, ppn| Recommended::from(&model::recommend(nodes, ppn, &loaded.constants));
    let Prepared { mut plan, agent_hosts, allocation } = match prepare(request, &machine, &recommend) {
        Ok(prepared) => prepared,
        Err(error) => return Err(fail(&error.with_hint(), error.early_end().code())),
    };
    plan.remarks.splice(..0, remarks);
    if plan.options.explain || agent_hosts.is_remote() {
        plan.remarks.extend(loaded.remark.clone());
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
    Ok(Planned { plan, agent_hosts, session, secrets })
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
fn print(text: &str) -> ExitCode {
    match output::print(text) {
        Ok(()) => ExitCode::from(EarlyEnd::Done.code()),
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
fn fail(text: &str, code: u8) -> ExitCode {
    stderr::allow_thread();
    stderr::line(Kind::Report, &format!("scela-run: error: {text}"));
    ExitCode::from(code)
}

fn trace() {
    let filter = std::env::var("SCELA_LOG").unwrap_or_else(|_| "warn".to_owned());
    let filter = filter.parse::<Targets>().unwrap_or_else(|error| {
        let error = printable(&error.to_string());
        stderr::line(Kind::Report, &format!("scela-run: warning: SCELA_LOG is ignored: {error}"));
        Targets::new().with_default(LevelFilter::WARN)
    });
    let lines = tracing_subscriber::fmt::layer().with_writer(Logs).with_ansi(false).without_time();
    // Called once per process, before anything else could have set one.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
}
