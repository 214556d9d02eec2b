//! The one program of ScELA: launcher, agent and guardian.
//!
//! With `--guard`, which only the launcher says, it is a guardian and its child the agent; else it is `scela-run`.

#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use launcher::cli::{self, Typed};
use launcher::cluster::allocation::Allocation;
use launcher::cluster::node_list::{self as field, NodeList, NodeListError};
use launcher::cluster::system::Process;
use launcher::forecast::calibrate::{CalibrateError, calibrate};
use launcher::forecast::explain::{explain, explained};
use launcher::forecast::model::{self, Constants};
use launcher::forecast::simulate;
use launcher::plan::environment::environment_of_process;
use launcher::plan::mpi;
use launcher::plan::remote_launch::{self as expedition, RemoteLaunch};
use launcher::plan::{self, Machine, Plan};
use launcher::run::report::Reporter;
use launcher::run::session::{self, AgentHosts, Secrets};
use launcher::run::{demo, exit};
use nla::bootstrap::{Links, NodeChoice};
use nla::link::Clock;
use nla::sys;
use nla::wire::SessionKey;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let arguments: Vec<OsString> = arguments.collect();
    match arguments.as_slice() {
        // What a session asks a program that it does not know.
        [option] if option == "--agent-id" => {
            println!("{}", nla::bootstrap::agent_id());
            ExitCode::SUCCESS
        }
        // The label is for who looks for processes of this session.
        [option, id, _label, dead_ms] if option == "--guard" => guard(id, dead_ms),
        [option] if option == demo::RANK_ARGUMENT => match sys::pmi_socket() {
            Ok(socket) => demo::run_rank(socket),
            Err(error) => fail(&error.to_string(), exit::USAGE),
        },
        _ => {
            trace();
            // A panic has said where it came from by then.
            catch_unwind(AssertUnwindSafe(|| launch(&name, arguments))).unwrap_or_else(|_| {
                fail("this is a bug of ScELA; please report it with what is written above", exit::BUG)
            })
        }
    }
}

/// A guardian, and the agent below it, which may be silent for so many milliseconds. Whoever wants an agent of another
/// version gets none.
fn guard(id: &OsStr, dead_ms: &OsStr) -> ExitCode {
    let own = nla::bootstrap::agent_id();
    if *id != *own {
        // As what a session runs says it.
        let _ = writeln!(io::stderr(), "scela: this is {own}, and {} is needed", id.display());
        return ExitCode::from(exit::NOT_LAUNCHED);
    }
    let Some(dead_ms) = dead_ms.to_str().and_then(|ms| ms.parse().ok()) else {
        return fail("--guard is for scela-run only", exit::USAGE);
    };
    let guardian = sys::guarded(Duration::from_millis(dead_ms));
    // Nobody reads what an agent says, unless somebody looks for a fault.
    if std::env::var_os("SCELA_LOG").is_some() {
        trace();
    }
    nla::driver::run_agent(guardian)
}

fn launch(name: &OsString, arguments: Vec<OsString>) -> ExitCode {
    let clock = Clock::start();
    let read_file = |path: &Path| {
        let mut bytes = Vec::new();
        File::open(path)?.take(cli::CONFIGFILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let request = match cli::parse(name, arguments, &read_file) {
        Ok(Typed::Run(request)) => *request,
        Ok(Typed::Simulate(options)) => {
            take_large_pages();
            let code = simulate::run(&options, &mut io::stdout().lock(), &mut io::stderr().lock());
            return ExitCode::from(code);
        }
        Ok(Typed::Calibrate(options)) => return ended(measure(*options)),
        Ok(Typed::Help(text) | Typed::Version(text)) => {
            // Nobody to tell if nobody reads.
            let _ = io::stdout().write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let mut text = format!("{error}");
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                text.push_str(&format!(": {cause}"));
                source = cause.source();
            }
            return fail(&format!("{text}\n  hint: {}", error.hint()), exit::USAGE);
        }
    };
    ended(prepare(request, clock))
}

fn ended(result: Result<ExitCode, Trouble>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(trouble @ Trouble::Usage(_)) => fail(&trouble.to_string(), exit::USAGE),
        Err(trouble) => fail(&trouble.to_string(), exit::NOT_LAUNCHED),
    }
}

/// Starts this process again with the large pages of memory that glibc's allocator asks for only if it is told
/// at the start: a simulation that visits the caches of a thousand agents in turn gets a seventh quicker. Where
/// that fails it goes on as it is.
fn take_large_pages() {
    const TUNABLES: &str = "GLIBC_TUNABLES";
    if std::env::var_os(TUNABLES).is_none() {
        let _ = std::process::Command::new("/proc/self/exe")
            .args(std::env::args_os().skip(1))
            .env(TUNABLES, "glibc.malloc.hugetlb=1")
            .exec();
    }
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Missing(String),
    #[error("the job could not be launched: {0}")]
    Machine(io::Error),
}

fn prepare(request: cli::Request, clock: Clock) -> Result<ExitCode, Trouble> {
    let random = random().map_err(Trouble::Machine)?;
    let machine = machine(random.session).map_err(Trouble::Machine)?;
    let mut remarks = Vec::new();
    let field = field(&request, &machine, &mut remarks)?;
    let constants = constants(&request, &field, &mut remarks);
    let allocation = field.allocation().cloned();
    let (mut plan, agent_hosts) = match field {
        NodeList::Local { .. } => (planned(&request, &machine, &field)?, AgentHosts::Local),
        NodeList::Named { .. } => {
            let (plan, expedition) = away(request, machine.clone(), field, &constants)?;
            (plan, AgentHosts::Remote(Box::new(expedition)))
        }
    };
    plan.remarks.splice(..0, remarks);
    if plan.options.explain {
        plan.reporter().notes(&plan.remarks);
        let text = explain(&explained(&plan, &agent_hosts, &machine, allocation.as_ref(), &constants));
        // Nobody to tell if nobody reads.
        let _ = io::stdout().write_all(text.as_bytes());
        return Ok(ExitCode::SUCCESS);
    }
    let secrets = Secrets { key: SessionKey(random.key), marker: random.marker };
    let ended = session::run(plan, agent_hosts, random.session, secrets, clock).map_err(Trouble::Machine)?;
    Ok(ExitCode::from(ended.code))
}

/// Measures what the model of start-up times goes by.
fn measure(options: cli::Options) -> Result<ExitCode, Trouble> {
    let path = model::store::path(|name| std::env::var_os(name))
        .ok_or_else(|| Trouble::Missing(CalibrateError::NoPlace.to_string()))?;
    let machine = machine(0).map_err(Trouble::Machine)?;
    let (mut remarks, cores) = (Vec::new(), machine.cores);
    let request = cli::Request { options, commands: Vec::new() };
    let field = field(&request, &machine, &mut remarks)?;
    Reporter::of(&request.options).notes(&remarks);
    // A session for each measurement, with secrets of its own.
    let run = |request: cli::Request, field: NodeList| {
        let random = random().map_err(|error| error.to_string())?;
        let clock = Clock::start();
        let machine = Machine { session: random.session, ..machine.clone() };
        let (plan, expedition) =
            away(request, machine, field, &Constants::default()).map_err(|trouble| trouble.to_string())?;
        let secrets = Secrets { key: SessionKey(random.key), marker: random.marker };
        session::run(plan, AgentHosts::Remote(Box::new(expedition)), random.session, secrets, clock)
            .map_err(|error| error.to_string())
    };
    match calibrate(&request.options, &field, cores, &path, &run) {
        Ok(text) => {
            // Nobody to tell if nobody reads.
            let _ = io::stdout().write_all(text.as_bytes());
            Ok(ExitCode::SUCCESS)
        }
        Err(error @ CalibrateError::Failed { code }) => Ok(fail(&error.to_string(), code)),
        Err(error @ CalibrateError::Here) => Err(Trouble::Usage(error.to_string())),
        Err(error) => Err(Trouble::Missing(error.to_string())),
    }
}

/// What the model of start-up times goes by: the constants that the user has measured, where it is asked.
fn constants(request: &cli::Request, field: &NodeList, remarks: &mut Vec<String>) -> Constants {
    if matches!(field, NodeList::Local { .. }) && !request.options.explain {
        return Constants::default();
    }
    let Some(path) = model::store::path(|name| std::env::var_os(name)) else { return Constants::default() };
    let loaded = model::store::load(&path);
    remarks.extend(loaded.remark);
    loaded.constants
}

/// The plan, with what the ranks' MPI library needs.
fn planned(request: &cli::Request, machine: &Machine, field: &NodeList) -> Result<Plan, Trouble> {
    let mut plan = plan::plan(request, machine, field).map_err(|error| Trouble::Usage(error.to_string()))?;
    mpi::provide(&mut plan, machine).map_err(|error| Trouble::Missing(error.to_string()))?;
    Ok(plan)
}

/// The plan for other nodes, and the way there.
fn away(
    mut request: cli::Request,
    machine: Machine,
    field: NodeList,
    constants: &Constants,
) -> Result<(Plan, RemoteLaunch), Trouble> {
    let launch = &request.options.launch.clone();
    let manager = field.allocation().map(|allocation| allocation.manager);
    let mut method = expedition::method(launch, manager, &machine.program)
        .map_err(|error| Trouble::Usage(format!("{error}\n  hint: {}", error.hint())))?;
    // All of the program is read for it.
    if !request.options.explain
        && let Some(sent) = expedition::may_send(&mut method)
    {
        *sent = Some(nla::bootstrap::own_program().map_err(Trouble::Machine)?);
    }
    let nodes = field.nodes().to_vec();
    let spares = (launch.spares as usize).min(nodes.len() - 1);
    let held_back: std::collections::BTreeSet<usize> = (nodes.len() - spares..nodes.len()).collect();
    let mut plan = planned(&request, &machine, &field.without(&held_back))?;
    let used: std::collections::BTreeSet<usize> = plan.seats.iter().copied().collect();
    let least = launch.min_nodes.map_or(used.len(), |least| (least as usize).min(used.len()));
    let (nodes_used, ppn) = plan.extent();
    let recommended = model::recommend(nodes_used, ppn, constants);
    let typed = request.options.fanout;
    let (links, fanout) = if launch.no_ports {
        let fanout = expedition::shell_link_fanout(launch.shape, typed, &recommended, &method)
            .map_err(|error| Trouble::Usage(error.to_string()))?;
        // With so few agents all are children of the launcher.
        let fanout = fanout.filter(|fanout| *fanout < plan.agents());
        request.options.fanout = Some(fanout.unwrap_or(plan.agents().max(1)));
        plan = planned(&request, &machine, &field.without(&held_back))?;
        (Links::RemoteShells, fanout)
    } else {
        (Links::Connections, expedition::launch_fanout(launch.shape, typed, &recommended, &method))
    };
    let mut targets = plan.seats.clone();
    // Where links are as sessions are, spares have no place in the tree before others have failed.
    if links == Links::Connections || fanout.is_none() {
        // A spare may have to do what any other does.
        let each = targets.len().div_ceil(used.len().max(1));
        targets.extend(held_back.iter().flat_map(|node| std::iter::repeat_n(*node, each)));
    }
    let pool = used.union(&held_back).copied().collect();
    let choice = NodeChoice {
        nodes: nodes.len(),
        targets,
        pool,
        min: least,
        max: used.len(),
        is_one_tree: links == Links::RemoteShells && fanout.is_some(),
    };
    let (batch, timeout) = (launch.batch, expedition::timeout(launch));
    // Nodes may fail, a job does not shrink.
    let request = plan.settled(&request);
    let replan = move |left_out: &std::collections::BTreeSet<usize>| {
        planned(&request, &machine, &field.without(left_out)).map_err(|trouble| trouble.to_string())
    };
    let expedition = RemoteLaunch { nodes, choice, links, method, fanout, batch, timeout, replan: Box::new(replan) };
    Ok((plan, expedition))
}

/// The nodes that the session may use, and what the user should hear about them.
fn field(request: &cli::Request, machine: &Machine, remarks: &mut Vec<String>) -> Result<NodeList, Trouble> {
    let process = Process { environment: &machine.environment };
    let field = field::field(&request.options.hosts, &process, remarks).map_err(|error| {
        let text = format!("{error}\n  hint: {}", error.hint());
        match error {
            NodeListError::Allocation(_) => Trouble::Missing(text),
            _ => Trouble::Usage(text),
        }
    })?;
    if request.options.verbose > 0 {
        remarks.extend(field.allocation().map(Allocation::words));
        let why_not = field.allocation().and_then(|allocation| expedition::why_not(allocation.manager));
        if request.options.launch.bootstrap.is_none() {
            remarks.extend(why_not.map(|why| format!("agents are started by ssh: {why}")));
        }
    }
    Ok(field)
}

struct Random {
    session: u64,
    key: [u8; 32],
    marker: [u8; 16],
}

fn random() -> io::Result<Random> {
    let mut source = File::open("/dev/urandom")?;
    let (mut session, mut key, mut marker) = ([0; 8], [0; 32], [0; 16]);
    source.read_exact(&mut session)?;
    source.read_exact(&mut key)?;
    source.read_exact(&mut marker)?;
    Ok(Random { session: u64::from_le_bytes(session), key, marker })
}

fn machine(session: u64) -> io::Result<Machine> {
    let stdin = io::stdin();
    Ok(Machine {
        environment: environment_of_process(),
        wdir: std::env::current_dir()
            .map_err(|error| io::Error::other(format!("the working directory is gone: {error}")))?,
        program: std::env::current_exe()?,
        cores: u32::try_from(sys::cores()).unwrap_or(1).max(1),
        shell: sys::ShellState::recorded(),
        stdout_is_terminal: io::stdout().is_terminal(),
        stdin_in_background: launcher::run::session::is_background(stdin.as_fd()),
        session,
    })
}

fn fail(text: &str, code: u8) -> ExitCode {
    let _ = io::stderr().write_all(format!("scela-run: error: {text}\n").as_bytes());
    ExitCode::from(code)
}

fn trace() {
    let filter = std::env::var_os("SCELA_LOG").unwrap_or_else(|| "warn".into());
    let filter = tracing_subscriber::EnvFilter::new(filter.to_string_lossy());
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(false).without_time();
    // Called once per process, before anything else could have set one.
    let _ = subscriber.try_init();
}
