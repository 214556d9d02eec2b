//! Builds a request from scanned commands: parses values, and assigns options to the session and to commands.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nla::core::limits::{AGENTS_MAX, RANKS_MAX};

use super::conflicts;
use super::error::{Fault, Problem};
use super::host_values;
use super::limits::{
    AGENTS_PER_NODE_MAX, BATCH_MAX, CACHE_ENTRIES_MAX, CONFIGFILE_BYTES_MAX, CORES_MAX, FANOUT_MAX, FANOUT_MIN,
};
use super::options::{Global, Group, Id, Local, Mode};
use super::scan::{self, Item, Segment};
use super::simulation;
use super::text::{shown, shown_path};
use super::value_problem::ValueProblem;
use super::values;
use super::{ReadFile, Typed};
use crate::cluster::node_list::HostSource;
use crate::forecast::simulate::Simulation;
use crate::plan::request::{Command, EnvChange, EnvPolicy, Options, Program, Request, TypedAt};

/// Builds what the segments of a command line ask for.
pub(super) fn build(segments: Vec<Segment>, read_file: ReadFile<'_>) -> Result<Typed, Fault> {
    let mut typed = TypedOptions::default();
    if let Some(list) = calibration(&segments)? {
        typed.apply(&segments)?;
        conflicts::check(&typed.session, segments.iter())?;
        typed.session.hosts.sources.insert(0, HostSource::List(list));
        return Ok(Typed::Calibrate(Box::new(typed.session)));
    }
    if let Some(simulate) = simulate(&segments)? {
        typed.apply(&segments)?;
        if let Some(local) = segments.iter().flat_map(|segment| &segment.items).find(|item| is_local(item)) {
            let problem = Problem::NotInSimulation { option: local.typed.clone() };
            return Err(Fault::new(local.place.clone(), problem));
        }
        let program = segments.iter().find_map(|segment| segment.program.as_ref());
        return match program {
            None => Ok(Typed::Simulate(Box::new(typed.into_simulation()))),
            Some(program) => {
                let problem = Problem::SimulationNotAlone { program: shown(program) };
                Err(Fault::new(simulate, problem))
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
            commands_of_line(segments)?
        }
    };
    Ok(Typed::Run(Box::new(Request { options: typed.session, commands })))
}

/// Returns the place of `--simulate`. Fails on another option of a simulation without it.
fn simulate(segments: &[Segment]) -> Result<Option<TypedAt>, Fault> {
    let items = || segments.iter().flat_map(|segment| &segment.items);
    if let Some(item) = items().rfind(|item| item.spec.id == Id::Global(Global::Simulate)) {
        return Ok(Some(item.place.clone()));
    }
    match items().find(|item| item.spec.group == Group::Simulation) {
        None => Ok(None),
        Some(item) => {
            let problem = Problem::OnlyInSimulation { option: item.typed.clone() };
            Err(Fault::new(item.place.clone(), problem))
        }
    }
}

/// Returns the hosts of `--calibrate`. Fails on options and programs that a calibration does not have.
fn calibration(segments: &[Segment]) -> Result<Option<OsString>, Fault> {
    let items = || segments.iter().flat_map(|segment| &segment.items);
    let Some(item) = items().rfind(|item| item.spec.id == Id::Mode(Mode::Calibrate)) else {
        return Ok(None);
    };
    let list = values::non_empty(item.value(0)).map_err(|problem| in_option(item, problem))?;
    if let Some(other) = items().find(|item| item.spec.group == Group::Simulation) {
        return Err(conflicts::between(other, item, "each is all that scela-run does"));
    }
    let is_out_of_place = |item: &&Item| {
        let of_program = matches!(item.spec.id, Id::Mode(Mode::ConfigFile | Mode::Demo));
        of_program || is_local(item)
    };
    if let Some(other) = items().find(is_out_of_place) {
        let problem = Problem::NotInCalibration { option: other.typed.clone() };
        return Err(Fault::new(other.place.clone(), problem));
    }
    if let Some(program) = segments.iter().find_map(|segment| segment.program.as_ref()) {
        let problem = Problem::CalibrationNotAlone { program: shown(program) };
        return Err(Fault::new(item.place.clone(), problem));
    }
    Ok(Some(list))
}

/// Returns the configfile of a command line. Fails if the command line has programs too.
fn configfile(segments: &[Segment]) -> Result<Option<PathBuf>, Fault> {
    let items = || segments.iter().flat_map(|segment| &segment.items);
    let Some(item) = items().rfind(|item| item.spec.id == Id::Mode(Mode::ConfigFile)) else {
        return Ok(None);
    };
    let path = values::non_empty(item.value(0)).map_err(|problem| in_option(item, problem))?;
    let shown_path = shown(&path);
    let program = segments.iter().find_map(|segment| segment.program.as_ref());
    if let Some(program) = program {
        let problem = Problem::ConfigfileNotAlone { path: shown_path, program: shown(program) };
        return Err(Fault::new(TypedAt::CommandLine, problem));
    }
    if let Some(demo) = items().find(|item| item.spec.id == Id::Mode(Mode::Demo)) {
        let problem = Problem::ConfigfileNotAlone { path: shown_path, program: demo.typed.clone() };
        return Err(Fault::new(demo.place.clone(), problem));
    }
    if let Some(local) = items().find(|item| is_local(item)) {
        let option = local.typed.clone();
        let problem = Problem::ConfigfileLocalOption { option, path: shown_path };
        return Err(Fault::new(local.place.clone(), problem));
    }
    match segments {
        [_] => Ok(Some(path.into())),
        segments => Err(missing_program(0, segments.len())),
    }
}

/// Reads the commands of a configfile. A line may have global options only.
fn read(path: &Path, read_file: ReadFile<'_>) -> Result<Vec<Segment>, Fault> {
    let fault = |problem| Err(Fault::new(TypedAt::CommandLine, problem));
    match read_file(path) {
        Err(source) => fault(Problem::ConfigfileRead { path: shown_path(path), source }),
        Ok(bytes) if bytes.len() > CONFIGFILE_BYTES_MAX => {
            fault(Problem::ConfigfileTooLarge { path: shown_path(path) })
        }
        Ok(bytes) => scan::file(path, &bytes),
    }
}

fn commands_of_file(segments: Vec<Segment>, path: &Path) -> Result<Vec<Command>, Fault> {
    let mut commands = Vec::new();
    for segment in segments {
        let Segment { place, items, program, args } = segment;
        let own = Own::of(&items)?;
        match program {
            Some(program) => commands.push(own.command(Program::Named(program), args, place)),
            None if items.is_empty() => return Err(Fault::new(place, Problem::LonelyColon)),
            None if items.iter().any(is_local) => {
                return Err(Fault::new(place, Problem::MissingProgramOnLine));
            }
            None => {}
        }
    }
    if commands.is_empty() {
        let problem = Problem::ConfigfileEmpty { path: shown_path(path) };
        return Err(Fault::new(TypedAt::CommandLine, problem));
    }
    Ok(commands)
}

fn commands_of_line(segments: Vec<Segment>) -> Result<Vec<Command>, Fault> {
    let mut items = segments.iter().flat_map(|segment| &segment.items);
    let demo = items.any(|item| item.spec.id == Id::Mode(Mode::Demo));
    let total = segments.len();
    let mut commands = Vec::with_capacity(total);
    for (index, segment) in segments.into_iter().enumerate() {
        let Segment { place, items, program, args } = segment;
        // Values come first: `-np ./a` lacks its number rather than its program.
        let own = Own::of(&items)?;
        let program = match (program, demo) {
            (None, true) if total == 1 => Program::Demo,
            (Some(program), true) => {
                let problem = Problem::DemoNotAlone { program: shown(&program) };
                return Err(Fault::new(place, problem));
            }
            (Some(program), false) => Program::Named(program),
            (None, _) => return Err(taken_as_value(&items, total).unwrap_or_else(|| missing_program(index, total))),
        };
        commands.push(own.command(program, args, place));
    }
    Ok(commands)
}

/// Returns the fault of a command line such as `-genv FOO ./a.out`, whose last option took the program as its value.
fn taken_as_value(items: &[Item], commands: usize) -> Option<Fault> {
    let item = items.last().filter(|_| commands == 1)?;
    let [name, value] = item.values.as_slice() else { return None };
    let (option, name, value) = (item.typed.clone(), shown(name), shown(value));
    Some(Fault::new(item.place.clone(), Problem::ProgramTakenAsValue { option, name, value }))
}

fn missing_program(index: usize, commands: usize) -> Fault {
    let problem = match commands {
        1 => Problem::MissingProgram,
        _ => Problem::MissingProgramOf { command: index + 1, commands },
    };
    Fault::new(TypedAt::CommandLine, problem)
}

/// The typed options of one command.
#[derive(Default)]
struct Own {
    nprocs: Option<u32>,
    wdir: Option<PathBuf>,
    env: Vec<EnvChange>,
    env_policy: Option<EnvPolicy>,
}

impl Own {
    fn of(items: &[Item]) -> Result<Self, Fault> {
        let mut own = Self::default();
        for item in items {
            if let Id::Local(local) = item.spec.id {
                own.apply(local, item).map_err(|problem| in_option(item, problem))?;
            }
        }
        Ok(own)
    }

    fn apply(&mut self, local: Local, item: &Item) -> Result<(), ValueProblem> {
        let value = item.value(0);
        match local {
            Local::Np => self.nprocs = Some(values::number(value, 1, RANKS_MAX)?),
            Local::Wdir => self.wdir = Some(values::non_empty(value)?.into()),
            Local::Env => self.env.push(values::env_set(value, item.values.get(1))?),
            Local::EnvList => self.env_policy = Some(EnvPolicy::List(values::env_names(value)?)),
            Local::EnvNone => self.env_policy = Some(EnvPolicy::None),
            Local::EnvAll => self.env_policy = Some(EnvPolicy::All),
        }
        Ok(())
    }

    fn command(self, program: Program, args: Vec<OsString>, place: TypedAt) -> Command {
        let Self { nprocs, wdir, env, env_policy } = self;
        Command { nprocs, program, args, wdir, env, env_policy, place }
    }
}

/// The typed options of a session or a simulation.
#[derive(Default)]
struct TypedOptions {
    session: Options,
    simulation: Simulation,
}

impl TypedOptions {
    /// Applies all options but those of single commands, in whichever segment they were typed.
    fn apply(&mut self, segments: &[Segment]) -> Result<(), Fault> {
        for item in segments.iter().flat_map(|segment| &segment.items) {
            if let Id::Global(global) = item.spec.id {
                self.apply_option(global, item).map_err(|problem| in_option(item, problem))?;
            }
        }
        // `--cache` may be typed after `--cache-entries`.
        let mut items = segments.iter().flat_map(|segment| &segment.items);
        if let Some(item) = items.rfind(|item| item.spec.id == Id::Global(Global::CacheEntries)) {
            self.bound_cache(item).map_err(|problem| in_option(item, problem))?;
        }
        Ok(())
    }

    fn bound_cache(&mut self, item: &Item) -> Result<(), ValueProblem> {
        let entries = values::number(item.value(0), 1, CACHE_ENTRIES_MAX)?;
        let policy = self.session.cache;
        self.session.cache = policy.with_entries(entries).ok_or(ValueProblem::CacheUnbounded { policy })?;
        Ok(())
    }

    fn apply_option(&mut self, global: Global, item: &Item) -> Result<(), ValueProblem> {
        let value = item.value(0);
        let Self { session: options, simulation } = self;
        let Options { hosts, launch, .. } = options;
        match global {
            Global::Ppn => options.ppn = Some(values::number(value, 1, RANKS_MAX)?),
            Global::Genv => options.genv.push(values::env_set(value, item.values.get(1))?),
            Global::X => options.genv.push(values::env_set_or_pass(value)?),
            Global::GenvList => {
                options.genv_policy = Some(EnvPolicy::List(values::env_names(value)?));
            }
            Global::GenvNone => options.genv_policy = Some(EnvPolicy::None),
            Global::GenvAll => options.genv_policy = Some(EnvPolicy::All),
            Global::Mpi => options.mpi = values::mpi(value)?,
            Global::Stdin => options.stdin = Some(values::stdin(value)?),
            Global::PrependRank => options.prepend_rank = true,
            Global::OutfilePattern => options.outfile_pattern = Some(values::file_pattern(value)?),
            Global::ErrfilePattern => options.errfile_pattern = Some(values::file_pattern(value)?),
            Global::Timeout => options.timeout = Some(values::timeout(value)?),
            Global::KillGrace => options.kill_grace = values::kill_grace(value)?,
            Global::AgentsPerNode => {
                options.agents_per_node = Some(values::number(value, 1, AGENTS_PER_NODE_MAX)?);
            }
            Global::AgentsAsNodes => options.agents_as_nodes = true,
            Global::Fanout => options.fanout = Some(values::number(value, FANOUT_MIN, FANOUT_MAX)?),
            Global::Cache => options.cache = values::cache(value)?,
            // `apply` handles it after all others.
            Global::CacheEntries => {}
            Global::PmiPort => options.pmi_port = true,
            Global::HostFile => hosts.sources.push(HostSource::File(values::non_empty(value)?.into())),
            Global::HostList => hosts.sources.push(HostSource::List(values::non_empty(value)?)),
            Global::Exclude => hosts.exclude = Some(values::non_empty(value)?),
            Global::Select => hosts.select = Some(values::non_empty(value)?),
            Global::ResourceManager => hosts.manager = host_values::manager(value)?,
            Global::MapBy => hosts.map_by = host_values::map_by(value)?,
            Global::RankMap => hosts.rankmap = Some(values::non_empty(value)?),
            Global::Bootstrap => launch.bootstrap = host_values::bootstrap(value)?,
            Global::LauncherExec => launch.launcher_exec = Some(values::non_empty(value)?),
            Global::LaunchAgent => launch.launch_agent = Some(values::non_empty(value)?),
            Global::Launch => launch.shape = host_values::shape(value)?,
            Global::Batch => launch.batch = Some(values::number(value, 1, BATCH_MAX)?),
            Global::ConnectBack => launch.connect_back = Some(host_values::address(value)?),
            Global::Iface => launch.iface = Some(host_values::interface(value)?),
            Global::PortRange => launch.port_range = Some(host_values::ports(value)?),
            Global::NoPorts => launch.no_ports = true,
            Global::MinNodes => launch.min_nodes = Some(values::number(value, 1, AGENTS_MAX)?),
            Global::Spares => launch.spares = values::number(value, 0, AGENTS_MAX)?,
            Global::StartTimeout => launch.deadline = Some(host_values::start_timeout(value)?),
            Global::Explain => options.explain = true,
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
            simulation.fanouts = vec![session.fanout()];
        }
        (simulation.cache, simulation.quiet) = (session.cache, session.quiet);
        simulation
    }
}

fn is_local(item: &Item) -> bool {
    matches!(item.spec.id, Id::Local(_))
}

/// Adds option and place to the problem of a value.
fn in_option(item: &Item, problem: ValueProblem) -> Fault {
    let problem = Problem::Value { option: item.typed.clone(), problem };
    Fault::new(item.place.clone(), problem)
}
