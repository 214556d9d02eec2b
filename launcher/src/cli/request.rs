//! Builds a request from scanned commands: parses values, and assigns options to the session and to commands.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nla::core::FailurePolicy;
use nla::core::limits::{AGENTS_MAX, DEVICES_MAX, RANKS_MAX};

use super::accelerator_values;
use super::binding_values::{self, MapRule};
use super::conflicts;
use super::error::{CALLED, UsageError};
use super::host_values;
use super::limits::{
    AGENTS_PER_NODE_MAX, BATCH_MAX, CACHE_ENTRIES_MAX, CONFIGFILE_BYTES_MAX, CORES_MAX, FANOUT_MAX, FANOUT_MIN,
    PARTS_MAX, RESTARTS_MAX,
};
use super::options::{Global, Id, Local, Mode, group};
use super::profile_values;
use super::scan::{self, Item, Segment};
use super::simulation;
use super::stage_values;
use super::text::shown;
use super::values::{self, OPTION};
use super::{ReadFile, Typed};
use crate::cluster::node_list::HostSource;
use crate::forecast::simulate::Simulation;
use crate::plan::request::{Command, EnvChange, EnvPolicy, Options, Program, Request, TypedAt};

/// Open MPI 5's variable that turns on its fault tolerance (ULFM).
const FAULT_TOLERANCE: &str = "OMPI_MCA_mpi_ft_enable";
use crate::refusal::Refusal;

/// Builds what the segments of a command line ask for.
pub(super) fn build(segments: Vec<Segment>, read_file: ReadFile<'_>) -> Result<Typed, UsageError> {
    let mut typed = TypedOptions::default();
    if let Some(list) = calibration(&segments)? {
        typed.apply(&segments)?;
        conflicts::check(&typed.session, segments.iter())?;
        typed.session.hosts.sources.insert(0, HostSource::List(list));
        return Ok(Typed::Calibrate(Box::new(typed.session)));
    }
    if let Some(simulate) = simulate(&segments)? {
        let hint = format!("try '{CALLED} --simulate 1024x64'");
        typed.apply(&segments)?;
        if let Some(local) = items(&segments).find(|item| is_local(item)) {
            return Err(local.error(|option| format!("{option} is about a program, and a simulation runs none"), hint));
        }
        if let Some(report) = items(&segments).find(|item| is_report(item)) {
            let text = |option: &str| format!("{option} is about a session, and a simulation starts none");
            return Err(report.error(text, format!("leave '{}' out", report.typed)));
        }
        return match program(&segments) {
            None => Ok(Typed::Simulate(Box::new(typed.into_simulation()))),
            Some(program) => {
                let text = format!("a simulation runs no program, and '{}' is one", shown(program));
                Err(UsageError::new(&simulate.place, text, hint))
            }
        };
    }
    let commands = match configfile(&segments)? {
        Some(path) => {
            let lines = read(&path, read_file)?;
            typed.apply(&lines)?;
            let hosts_of_file = std::mem::take(&mut typed.session.hosts.sources);
            typed.apply(&segments)?;
            if typed.session.hosts.sources.is_empty() {
                typed.session.hosts.sources = hosts_of_file;
            }
            conflicts::check(&typed.session, lines.iter().chain(&segments))?;
            commands_of_file(lines, &path)?
        }
        None => {
            typed.apply(&segments)?;
            conflicts::check(&typed.session, segments.iter())?;
            let before_program = segments.first().and_then(|segment| segment.items.last());
            typed.session.pool_before_program =
                before_program.is_some_and(|item| item.spec.id == Id::Global(Global::Pool) && item.values.is_empty());
            commands_of_line(segments)?
        }
    };
    Ok(Typed::Run(Box::new(Request { options: typed.session, commands })))
}

fn items(segments: &[Segment]) -> impl DoubleEndedIterator<Item = &Item> {
    segments.iter().flat_map(|segment| &segment.items)
}

/// Returns the last option of this kind.
fn last(segments: &[Segment], id: Id) -> Option<&Item> {
    items(segments).rfind(|item| item.spec.id == id)
}

/// Returns the first program.
fn program(segments: &[Segment]) -> Option<&OsString> {
    segments.iter().find_map(|segment| segment.program.as_ref())
}

/// Returns `--simulate`. Fails on another option of a simulation without it.
fn simulate(segments: &[Segment]) -> Result<Option<&Item>, UsageError> {
    let simulate = last(segments, Id::Global(Global::Simulate));
    match items(segments).find(|item| item.spec.group == group::SIMULATION) {
        Some(item) if simulate.is_none() => {
            let hint = format!("try '{CALLED} --simulate 1024x64'");
            Err(item.error(|option| format!("{option} needs --simulate"), hint))
        }
        _ => Ok(simulate),
    }
}

/// Returns the hosts of `--calibrate`. Fails on options and programs that a calibration does not have.
fn calibration(segments: &[Segment]) -> Result<Option<OsString>, UsageError> {
    let Some(item) = last(segments, Id::Mode(Mode::Calibrate)) else { return Ok(None) };
    let list = values::non_empty(item.value(0)).map_err(|problem| in_option(item, &problem))?;
    if let Some(other) = items(segments).find(|item| item.spec.group == group::SIMULATION) {
        return Err(conflicts::between(other, item, "each is all that scela-run does"));
    }
    let hint = format!("try '{CALLED} --calibrate node[01-04]'");
    let is_of_program = |item: &&Item| matches!(item.spec.id, Id::Local(_) | Id::Mode(Mode::ConfigFile | Mode::Demo));
    if let Some(other) = items(segments).find(is_of_program) {
        let text = |option: &str| format!("{option} has no place in a calibration, which runs no program");
        return Err(other.error(text, hint));
    }
    if let Some(program) = program(segments) {
        let text = format!("--calibrate runs no program, so '{}' cannot be given", shown(program));
        return Err(UsageError::new(&item.place, text, hint));
    }
    Ok(Some(list))
}

/// Returns the configfile of a command line. Fails if the command line has programs too.
fn configfile(segments: &[Segment]) -> Result<Option<PathBuf>, UsageError> {
    let Some(item) = last(segments, Id::Mode(Mode::ConfigFile)) else { return Ok(None) };
    let path = values::non_empty(item.value(0)).map_err(|problem| in_option(item, &problem))?;
    let shown_path = shown(&path);
    let one_more = |place: &TypedAt, program: &str| {
        let text = format!("'{shown_path}' names the programs, so the command line cannot name '{program}' too");
        let hint = "put it on a line of its own in the file, or leave '-configfile' out";
        Err(UsageError::new(place, text, hint))
    };
    if let Some(program) = program(segments) {
        return one_more(&TypedAt::CommandLine, &shown(program));
    }
    if let Some(demo) = items(segments).find(|item| item.spec.id == Id::Mode(Mode::Demo)) {
        return one_more(&demo.place, &demo.typed);
    }
    if let Some(local) = items(segments).find(|item| is_local(item)) {
        let text = |option: &str| {
            format!("{option} applies to one program, so it belongs in '{shown_path}', which names the programs")
        };
        return Err(local.error(text, "put it on the program's line in the file"));
    }
    match segments {
        [_] => Ok(Some(path.into())),
        segments => Err(missing_program(0, segments.len())),
    }
}

/// Reads the commands of a configfile. A line may have global options only.
fn read(path: &Path, read_file: ReadFile<'_>) -> Result<Vec<Segment>, UsageError> {
    let shown_path = shown(path.as_os_str());
    let error = |text, hint| UsageError::new(&TypedAt::CommandLine, text, hint);
    let bytes = read_file(path).map_err(|cause| {
        let text = format!("cannot read the configfile '{shown_path}'");
        error(text, "check the file's name and permissions").caused_by(cause)
    })?;
    if bytes.len() > CONFIGFILE_BYTES_MAX {
        let text = format!("the configfile '{shown_path}' is larger than {} MiB", CONFIGFILE_BYTES_MAX >> 20);
        return Err(error(text, "check the file's name"));
    }
    scan::file(path, &bytes)
}

fn commands_of_file(segments: Vec<Segment>, path: &Path) -> Result<Vec<Command>, UsageError> {
    let mut commands = Vec::new();
    for Segment { place, items, program, args } in segments {
        let command = command(&items, args, place)?;
        let error = |text, hint| Err(UsageError::new(&command.place, text, hint));
        match program {
            Some(program) => commands.push(Command { program: Program::Named(program), ..command }),
            None if items.is_empty() => {
                return error(
                    "there is no program on one side of this ':'",
                    "remove it; each line is a command of its own",
                );
            }
            None if items.iter().any(is_local) => {
                let hint = "put the program on the same line, or end the line with a backslash";
                return error("there are options for a program, but no program", hint);
            }
            None => {}
        }
    }
    if commands.is_empty() {
        let text = format!("the configfile '{}' names no program", shown(path.as_os_str()));
        let hint = "write a line for each program, for example: -np 4 ./a.out";
        return Err(UsageError::new(&TypedAt::CommandLine, text, hint));
    }
    Ok(commands)
}

fn commands_of_line(segments: Vec<Segment>) -> Result<Vec<Command>, UsageError> {
    let demo = last(&segments, Id::Mode(Mode::Demo)).is_some();
    let total = segments.len();
    let mut commands = Vec::with_capacity(total);
    for (index, Segment { place, items, program, args }) in segments.into_iter().enumerate() {
        // Values come first: `-np ./a` lacks its number rather than its program.
        let command = command(&items, args, place)?;
        let program = match (program, demo) {
            (None, true) if total == 1 => Program::Demo,
            (Some(program), true) => {
                let program = shown(&program);
                let text = format!("option '--demo' runs a built-in program, so '{program}' cannot be given too");
                return Err(UsageError::new(&command.place, text, format!("try '{CALLED} -np 64 --demo'")));
            }
            (Some(program), false) => Program::Named(program),
            (None, _) => return Err(taken_as_value(&items, total).unwrap_or_else(|| missing_program(index, total))),
        };
        commands.push(Command { program, ..command });
    }
    Ok(commands)
}

/// Returns the error for a command line such as `-genv FOO ./a.out`, whose last option took the program as its value.
fn taken_as_value(items: &[Item], commands: usize) -> Option<UsageError> {
    let item = items.last().filter(|_| commands == 1)?;
    let [name, value] = item.values.as_slice() else { return None };
    let (option, name, value) = (&item.typed, shown(name), shown(value));
    let text = format!("there is no program to run: '{option}' took '{value}' as the value of '{name}'");
    let hint = format!("name a program after it, or write '{option} {name}=VALUE {value}'");
    Some(UsageError::new(&item.place, text, hint))
}

fn missing_program(index: usize, commands: usize) -> UsageError {
    let (text, hint) = match commands {
        1 => (
            "there is no program to run".to_owned(),
            format!("name one after the options, '{CALLED} -np 4 ./a.out', or try '{CALLED} --demo'"),
        ),
        _ => (
            format!("command {} of {commands} has no program", index + 1),
            format!("each ':' begins another command: '{CALLED} -np 1 ./a.out : -np 3 ./b.out'"),
        ),
    };
    UsageError::new(&TypedAt::CommandLine, text, hint)
}

/// Returns a command with its typed options. The caller sets its program.
fn command(items: &[Item], args: Vec<OsString>, place: TypedAt) -> Result<Command, UsageError> {
    let (env, program) = (Vec::new(), Program::Demo);
    let mut command = Command { nprocs: None, program, args, wdir: None, path: None, env, env_policy: None, place };
    for item in items {
        if let Id::Local(local) = item.spec.id {
            apply_local(&mut command, local, item).map_err(|problem| in_option(item, &problem))?;
        }
    }
    Ok(command)
}

fn apply_local(command: &mut Command, local: Local, item: &Item) -> Result<(), Refusal> {
    let value = item.value(0);
    match local {
        Local::Np => command.nprocs = Some(values::number(value, 1, RANKS_MAX)?),
        Local::Wdir => command.wdir = Some(values::non_empty(value)?.into()),
        Local::Path => command.path = Some(values::non_empty(value)?),
        Local::Env => command.env.push(values::env_set(value, item.values.get(1))?),
        Local::EnvList => command.env_policy = Some(EnvPolicy::List(values::env_names(value)?)),
        Local::EnvNone => command.env_policy = Some(EnvPolicy::None),
        Local::EnvAll => command.env_policy = Some(EnvPolicy::All),
    }
    Ok(())
}

/// The typed options of a session or a simulation.
#[derive(Default)]
struct TypedOptions {
    session: Options,
    simulation: Simulation,
}

impl TypedOptions {
    /// Applies all options but those of single commands, in whichever segment they were typed.
    fn apply(&mut self, segments: &[Segment]) -> Result<(), UsageError> {
        for item in items(segments) {
            if let Id::Global(global) = item.spec.id {
                self.apply_option(global, item).map_err(|problem| in_option(item, &problem))?;
            }
        }
        // `--cache` may be typed after `--cache-entries`.
        if let Some(item) = last(segments, Id::Global(Global::CacheEntries)) {
            self.bound_cache(item).map_err(|problem| in_option(item, &problem))?;
        }
        Ok(())
    }

    fn bound_cache(&mut self, item: &Item) -> Result<(), Refusal> {
        let entries = values::number(item.value(0), 1, CACHE_ENTRIES_MAX)?;
        let policy = self.session.cache;
        self.session.cache = policy.with_entries(entries).ok_or_else(|| {
            let hint = format!("leave '{OPTION}' out, or add '--cache hcmab-lru'");
            Refusal::new(format!("the policy '{policy}' has no bound on its entries"), hint)
        })?;
        Ok(())
    }

    fn apply_option(&mut self, global: Global, item: &Item) -> Result<(), Refusal> {
        let value = item.value(0);
        let Self { session: options, simulation } = self;
        let Options { hosts, launch, binding, .. } = options;
        match global {
            Global::Ppn => options.ppn = Some(values::number(value, 1, RANKS_MAX)?),
            Global::Stage => options.stage = true,
            Global::StageFile => options.stage_files.push(stage_values::file(value)?),
            Global::StageDir => options.stage_dirs.push(stage_values::directory(value)?),
            Global::StageCache => options.stage_cache = stage_values::cache(value)?,
            Global::Collect => options.collect.push(stage_values::collect(value)?),
            Global::CollectMax => options.collect_max = Some(stage_values::bytes(value)?),
            Global::Genv => options.genv.push(values::env_set(value, item.values.get(1))?),
            Global::X => options.genv.push(values::env_set_or_pass(value)?),
            Global::GenvList => {
                options.genv_policy = Some(EnvPolicy::List(values::env_names(value)?));
            }
            Global::GenvNone => options.genv_policy = Some(EnvPolicy::None),
            Global::GenvAll => options.genv_policy = Some(EnvPolicy::All),
            Global::Mpi => options.mpi = values::mpi(value)?,
            Global::MemoryAllocKinds => options.memory_alloc_kinds = Some(values::memory_alloc_kinds(value)?),
            Global::InitialErrhandler => options.genv.push(values::initial_errhandler(value)?),
            Global::Stdin => options.stdin = Some(values::stdin(value)?),
            Global::PrependRank => options.prepend_rank = true,
            Global::OutfilePattern => options.outfile_pattern = Some(values::file_pattern(value)?),
            Global::ErrfilePattern => options.errfile_pattern = Some(values::file_pattern(value)?),
            Global::ExitTimeout => options.exit_timeout = Some(values::exit_timeout(value)?),
            Global::Timeout => options.timeout = Some(values::timeout(value)?),
            Global::Signal => options.early_signal = Some(values::early_signal(value)?),
            Global::KillGrace => options.kill_grace = Some(values::kill_grace(value)?),
            Global::DeadTime => {
                let (dead_time, stop_time) = values::dead_time(value)?;
                (options.dead_time, options.stop_time) = (Some(dead_time), stop_time);
            }
            Global::Heartbeat => options.heartbeat = Some(values::heartbeat(value)?),
            Global::OnFailure => options.on_failure = values::on_failure(value)?,
            Global::MaxRestarts => options.max_restarts = Some(values::number(value, 1, RESTARTS_MAX)?),
            Global::DisableAutoCleanup => options.on_failure = FailurePolicy::Continue,
            Global::WithFt => {
                if values::fault_tolerance(value)? {
                    options.on_failure = FailurePolicy::Continue;
                    options.genv.push(EnvChange::Set(FAULT_TOLERANCE.into(), "1".into()));
                }
            }
            Global::CleanShm => options.clean_shm = values::clean_shm(value)?,
            Global::AgentsPerNode => {
                options.agents_per_node = Some(values::number(value, 1, AGENTS_PER_NODE_MAX)?);
            }
            Global::AgentsAsNodes => options.agents_as_nodes = true,
            Global::Fanout => options.fanout = Some(values::number(value, FANOUT_MIN, FANOUT_MAX)?),
            Global::Cache => options.cache = values::cache(value)?,
            // `apply` handles it after all others.
            Global::CacheEntries => {}
            Global::PmiPort => options.pmi_port = true,
            Global::NoRankSessions => options.no_rank_sessions = true,
            Global::HostFile => hosts.sources.push(HostSource::File(values::non_empty(value)?.into())),
            Global::HostList => hosts.sources.push(HostSource::List(values::non_empty(value)?)),
            Global::Exclude => hosts.exclude = Some(values::non_empty(value)?),
            Global::Select => hosts.select = Some(values::non_empty(value)?),
            Global::ResourceManager => hosts.manager = host_values::manager(value)?,
            Global::Usize => options.universe = Some(values::universe(value)?),
            Global::MapBy => {
                let MapRule { nodes, within, elements } = binding_values::map_by(value)?;
                (hosts.map_by, binding.map_within, binding.elements) = (nodes, within, elements);
            }
            Global::BindTo => (binding.bind_to, binding.overloads) = binding_values::bind_to(value)?,
            Global::CpusPerRank => binding.cpus_per_rank = Some(values::number(value, 1, PARTS_MAX)?),
            Global::MemBind => binding.memory = binding_values::memory(value)?,
            Global::ReportBindings => binding.reports = true,
            Global::GpusPerRank => options.accelerators.gpus_per_rank = Some(values::number(value, 1, DEVICES_MAX)?),
            Global::Gres => accelerator_values::add(&mut options.accelerators.gres, value)?,
            Global::RankMap => hosts.rankmap = Some(values::non_empty(value)?),
            Global::CommMatrix => hosts.comm_matrix = Some(values::non_empty(value)?.into()),
            Global::Topology => hosts.topology = Some(values::non_empty(value)?),
            Global::FaultHistory => hosts.fault_history = Some(values::non_empty(value)?.into()),
            Global::AvoidFaults => hosts.avoid_faults = true,
            Global::SaveRankMap => {
                hosts.save_rankmap = Some(values::own_file(value, "a rank map", "--save-rankmap program.map")?);
            }
            Global::Bootstrap => launch.bootstrap = host_values::bootstrap(value)?,
            Global::LauncherExec => launch.launcher_exec = Some(values::non_empty(value)?),
            Global::LaunchAgent => launch.launch_agent = Some(values::non_empty(value)?),
            Global::Launch => launch.shape = host_values::shape(value)?,
            Global::Batch => launch.batch = Some(values::number(value, 1, BATCH_MAX)?),
            Global::ConnectBack => launch.connect_back = Some(host_values::address(value)?),
            Global::Iface => launch.iface = Some(host_values::interface(value)?),
            Global::PortRange => launch.port_range = Some(host_values::ports(value)?),
            Global::NoPorts => launch.no_ports = true,
            Global::CleanProgram => launch.clean_program = true,
            Global::MinNodes => launch.min_nodes = Some(values::number(value, 1, AGENTS_MAX)?),
            Global::Spares => launch.spares = values::number(value, 0, AGENTS_MAX)?,
            Global::StuckAfter => options.stuck_after = Some(values::stuck_after(value)?),
            Global::StartTimeout => launch.deadline = Some(host_values::start_timeout(value)?),
            Global::WaitForHosts => launch.wait_for_hosts = Some(host_values::wait_for_hosts(value)?),
            Global::Explain => options.explain = true,
            Global::Pool => options.pool = Some(values::pool(item.values.first())?),
            Global::Priority => options.pool_priority = Some(values::priority(value)?),
            Global::NoWait => options.pool_no_wait = true,
            Global::Nodes => options.pool_nodes = Some(values::number(value, 1, AGENTS_MAX)?),
            Global::Exclusive => options.pool_exclusive = true,
            Global::Detach => options.pool_detach = true,
            Global::OrphanTime => options.pool_orphan_time = Some(values::orphan_time(value)?),
            Global::Simulate => simulation.size = simulation::size(value)?,
            Global::Pattern => simulation.pattern = simulation::pattern(value)?,
            Global::Latency => simulation.latency = Some(simulation::latency(value)?),
            Global::Bandwidth => simulation.bandwidth = Some(simulation::bandwidth(value)?),
            Global::Cores => simulation.cores = Some(values::number(value, 1, CORES_MAX)?),
            Global::Fanouts => simulation.fanouts = simulation::fanouts(value)?,
            Global::Seed => simulation.seed = Some(simulation::seed(value)?),
            Global::Faults => simulation.faults = true,
            Global::Label => options.label = Some(values::label(value)?),
            Global::Timing => options.timing = true,
            Global::Stats => options.stats = Some(values::stats(item.values.first())?),
            Global::Trace => options.trace = Some(values::trace(value)?),
            Global::Report => options.report = Some(values::report(value)?),
            Global::ProfileComm => options.profile_comm = Some(profile_values::profile_comm(value)?),
            Global::ProfileCommCollectives => {
                options.profile_collectives = Some(profile_values::profile_collectives(value)?)
            }
            Global::Verbose => {
                options.quiet = false;
                options.verbose = options.verbose.saturating_add(1);
            }
            Global::Quiet => {
                options.quiet = true;
                options.verbose = 0;
            }
        }
        Ok(())
    }

    /// Returns the simulation, with the options that it shares with a session.
    fn into_simulation(self) -> Simulation {
        let Self { session, mut simulation } = self;
        if simulation.fanouts.is_empty() {
            simulation.fanouts.extend(session.fanout);
        }
        (simulation.cache, simulation.quiet) = (session.cache, session.quiet);
        simulation
    }
}

/// Returns whether the option asks for a report about a session.
fn is_report(item: &Item) -> bool {
    matches!(item.spec.id, Id::Global(Global::Stats | Global::Trace | Global::Report | Global::Timing))
}

fn is_local(item: &Item) -> bool {
    matches!(item.spec.id, Id::Local(_))
}

/// Adds option and place to the problem of a value.
fn in_option(item: &Item, problem: &Refusal) -> UsageError {
    item.error(|option| format!("{option}: {problem}"), problem.hint().replace(OPTION, &item.typed))
}
