//! Contradictions between options that their words show. The plan checks those that depend on the hosts,
//! the allocation or the machine.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nla::core::{BindTo, GPU, Level};
use nla::link::Liveness;
use nla::sys;

use super::error::UsageError;
use super::options::{Global, Id, Local, Mode};
use super::scan::{Item, Segment};
use super::text::shown;
use crate::cluster::node_list::HostSource;
use crate::cluster::placement::MapBy;
use crate::plan::pattern;
use crate::plan::request::{BootstrapKind, Options, StdinTo};

/// The options that say something about a job in a pool.
const ONLY_WITH_POOL: [Global; 6] =
    [Global::Priority, Global::NoWait, Global::Nodes, Global::Exclusive, Global::Detach, Global::OrphanTime];
/// The options that a pool fixes at its start.
const CHOICES_OF_POOL: [Global; 18] = [
    Global::HostFile,
    Global::HostList,
    Global::Exclude,
    Global::Select,
    Global::ResourceManager,
    Global::Bootstrap,
    Global::LauncherExec,
    Global::LaunchAgent,
    Global::Launch,
    Global::Batch,
    Global::ConnectBack,
    Global::Iface,
    Global::PortRange,
    Global::NoPorts,
    Global::MinNodes,
    Global::Spares,
    Global::StartTimeout,
    Global::WaitForHosts,
];

/// Fails on the first contradiction between typed options. `options` is their result, in which the last of
/// an option given twice has won.
pub(super) fn check<'a>(
    options: &Options,
    segments: impl Iterator<Item = &'a Segment> + Clone,
) -> Result<(), UsageError> {
    let items: Vec<&Item> = segments.clone().flat_map(|segment| &segment.items).collect();
    let last = |global| items.iter().rposition(|item| item.spec.id == Id::Global(global));
    let both = |a, b, why| match (last(a), last(b)) {
        (Some(a), Some(b)) => Err(between(items[a.max(b)], items[a.min(b)], why)),
        _ => Ok(()),
    };
    let (hosts, launch) = (&options.hosts, &options.launch);

    both(Global::NoPorts, Global::PortRange, "no process listens on a port")?;
    both(Global::NoPorts, Global::ConnectBack, "no process connects to an address")?;
    both(Global::NoPorts, Global::Iface, "links use no interface of their own")?;
    both(Global::RankMap, Global::MapBy, "each says which node a rank gets")?;
    for (global, option) in [(Global::CommMatrix, "--comm-matrix"), (Global::Topology, "--topology")] {
        if let (Some(at), false) = (last(global), hosts.map_by == MapBy::Comm) {
            let text = format!("option '{option}' has no effect without '--map-by comm'");
            return Err(UsageError::new(
                &items[at].place,
                text,
                format!("add '--map-by comm', or leave '{option}' out"),
            ));
        }
    }
    both(Global::RankMap, Global::AvoidFaults, "a rank map counts the hosts as they are listed")?;
    if let (Some(at), MapBy::Comm, None) = (last(Global::MapBy), hosts.map_by, &hosts.comm_matrix) {
        let text = "option '--map-by': 'comm' needs what ranks send to each other";
        let hint = "add '--comm-matrix FILE' with a file of '--profile-comm FILE'";
        return Err(UsageError::new(&items[at].place, text, hint));
    }
    match (hosts.map_by, options.ppn) {
        (MapBy::PerNode(count), Some(ppn)) if count != ppn => {
            both(Global::MapBy, Global::Ppn, "each says how many ranks a node gets")?;
        }
        _ => {}
    }
    check_binding(options, both)?;
    for global in CHOICES_OF_POOL {
        both(global, Global::Pool, "the pool decides the hosts and how agents start")?;
    }
    both(Global::Explain, Global::Pool, "an explanation starts no job")?;
    for global in ONLY_WITH_POOL {
        if let (Some(at), None) = (last(global), last(Global::Pool)) {
            let typed = &items[at].typed;
            let (text, hint) =
                (format!("option '{typed}' has no effect without '--pool'"), "add '--pool', or leave it out");
            return Err(UsageError::new(&items[at].place, text, hint));
        }
    }
    match launch.bootstrap {
        Some(BootstrapKind::Fork) => {
            both(Global::LauncherExec, Global::Bootstrap, "agents of this machine are started by no other program")?;
        }
        Some(BootstrapKind::Exec(_)) => {
            both(Global::LauncherExec, Global::Bootstrap, "each says which program reaches the hosts")?;
        }
        None | Some(BootstrapKind::Ssh | BootstrapKind::Manager(_) | BootstrapKind::Keeper) => {}
    }
    if options.accelerators.gres.iter().any(|resource| resource.name() == GPU) {
        both(Global::GpusPerRank, Global::Gres, "each says how many GPUs a rank gets")?;
    }
    let Liveness { heartbeat, dead_time, .. } = options.liveness();
    if let (true, Some(at)) = (heartbeat > dead_time / 3, last(Global::Heartbeat)) {
        let (typed, most) = (&items[at].typed, (dead_time / 3).as_millis() as f64 / 1000.0);
        let text = format!(
            "option '{typed}': {} s is more than a third of the dead time of {} s",
            heartbeat.as_secs_f64(),
            dead_time.as_secs_f64()
        );
        return Err(UsageError::new(&items[at].place, text, format!("write '{typed} {most}', or leave '{typed}' out")));
    }
    if let (Some(at), Some((_, early))) = (last(Global::Signal), options.early_signal)
        && options.timeout.is_none_or(|timeout| early >= timeout)
    {
        let typed = &items[at].typed;
        let (text, hint) = match options.timeout {
            None => {
                (format!("option '{typed}' has no effect without '--timeout'"), "add '--timeout TIME', or leave it out")
            }
            Some(timeout) => {
                let [early, timeout] = [early, timeout].map(|time| time.as_secs_f64());
                let text =
                    format!("option '{typed}': {early} s before the end is not within the {timeout} s of '--timeout'");
                (text, "write a shorter time after '@', or a longer '--timeout'")
            }
        };
        return Err(UsageError::new(&items[at].place, text, hint));
    }
    if let (Some(at), true) = (last(Global::MaxRestarts), !options.on_failure.starts_again()) {
        let typed = &items[at].typed;
        let text = format!("option '{typed}' has no effect without '--on-failure restart'");
        let hint = format!("add '--on-failure restart', or leave '{typed}' out");
        return Err(UsageError::new(&items[at].place, text, hint));
    }
    check_files(options, both)?;
    check_files_read(options, &items, segments.filter_map(program_file))?;
    check_files_staged(options, &items)?;
    if let (Some(at), None) = (last(Global::ProfileCommCollectives), &options.profile_comm) {
        let typed = &items[at].typed;
        let text = format!("option '{typed}' has no effect without '--profile-comm FILE'");
        let hint = format!("add '--profile-comm FILE', or leave '{typed}' out");
        return Err(UsageError::new(&items[at].place, text, hint));
    }
    let from_stdin = hosts.sources.iter().filter(|source| source.is_standard_input()).count();
    if let (1.., Some(StdinTo::All | StdinTo::Ranks(_))) = (from_stdin, &options.stdin) {
        both(Global::HostFile, Global::Stdin, "standard input cannot be hosts and input of ranks")?;
    }
    if let (2.., Some(file)) = (from_stdin, last(Global::HostFile)) {
        return Err(between(items[file], items[file], "standard input can be read once only"));
    }
    Ok(())
}

/// Checks that each file is written for one option only. `both` fails if two options were typed. The ranks' output and errors may
/// share their files.
fn check_files(
    options: &Options,
    both: impl Fn(Global, Global, &'static str) -> Result<(), UsageError>,
) -> Result<(), UsageError> {
    const OWN: &str = "each writes a file of its own";
    let reports = reports(options);
    for (at, (one, file)) in reports.iter().enumerate() {
        let Some(file) = file.map(sys::true_path) else { continue };
        for (other, other_file) in &reports[at + 1..] {
            if other_file.is_some_and(|other_file| sys::is_one_file(&sys::true_path(other_file), &file)) {
                both(*one, *other, OWN)?;
            }
        }
        for (other, pattern) in streams(options) {
            if pattern.is_some_and(|pattern| pattern::may_name(pattern, &file)) {
                both(*one, other, OWN)?;
            }
        }
    }
    Ok(())
}

/// Returns the files of reports with their options.
fn reports(options: &Options) -> [(Global, Option<&Path>); 6] {
    let [stats, trace, report, profile_comm, save_rankmap, fault_history] = options.report_files();
    [
        (Global::Stats, stats),
        (Global::Trace, trace),
        (Global::Report, report),
        (Global::ProfileComm, profile_comm),
        (Global::SaveRankMap, save_rankmap),
        (Global::FaultHistory, fault_history),
    ]
}

/// Returns the names of the files for the output and the errors of ranks, with their options.
fn streams(options: &Options) -> [(Global, Option<&OsStr>); 2] {
    [
        (Global::OutfilePattern, options.outfile_pattern.as_deref()),
        (Global::ErrfilePattern, options.errfile_pattern.as_deref()),
    ]
}

/// Returns the program of a segment as typed, and its file, if it is given by a path.
fn program_file(segment: &Segment) -> Option<(&OsStr, PathBuf)> {
    let program = segment.program.as_deref().filter(|program| program.as_bytes().contains(&b'/'))?;
    let wdir = segment.items.iter().rfind(|item| item.spec.id == Id::Local(Local::Wdir));
    Some((program, wdir.map_or(Path::new(""), |item| Path::new(item.value(0))).join(program)))
}

/// Checks that no file that is read is written as well. `items` are the typed options, and `programs` those that are given by a path.
fn check_files_read<'a>(
    options: &Options,
    items: &[&Item],
    programs: impl Iterator<Item = (&'a OsStr, PathBuf)>,
) -> Result<(), UsageError> {
    let typed = |id| items.iter().rfind(|item| item.spec.id == id);
    let reports = reports(options).map(|(option, file)| Some((typed(Id::Global(option))?, sys::true_path(file?))));
    let reports: Vec<(&&Item, PathBuf)> = reports.into_iter().flatten().collect();
    let streams = streams(options).map(|(option, pattern)| Some((typed(Id::Global(option))?, pattern?)));
    let streams: Vec<(&&Item, &OsStr)> = streams.into_iter().flatten().collect();
    if reports.is_empty() && streams.is_empty() {
        return Ok(());
    }
    let of_option = |(reader, file): (Id, PathBuf)| Some((format!("the file of '{}'", typed(reader)?.typed), file));
    let lists = lists_read(options, items).into_iter().filter_map(of_option).map(|read| (read, true));
    let input = if let Some(StdinTo::File(file)) = &options.stdin { Some((Global::Stdin, file)) } else { None };
    let of_ranks = options.stage_files.iter().map(|staged| (Global::StageFile, &staged.path)).chain(input);
    let of_ranks = of_ranks.filter_map(|(reader, file)| of_option((Id::Global(reader), file.clone())));
    let programs = programs.map(|(program, file)| (format!("the program '{}'", shown(program)), file));
    // A placeholder for a host or a session may stand for any name, so such a pattern is compared with the launcher's own lists only.
    let read = lists.chain(of_ranks.chain(programs).map(|read| (read, false)));
    for ((what, file), counts_names) in read {
        let file = sys::true_path(&file);
        let report = reports.iter().find(|(_, report)| sys::is_one_file(report, &file)).map(|(writer, _)| writer);
        let names =
            |pattern: &OsStr| (counts_names || !pattern::has_name(pattern)) && pattern::may_name(pattern, &file);
        let stream = || streams.iter().find(|(_, pattern)| names(pattern)).map(|(writer, _)| writer);
        let writer = report.or_else(stream);
        // A device, such as /dev/null, has no contents to lose.
        if let Some(writer) = writer.filter(|_| !file.metadata().is_ok_and(|found| !found.is_file())) {
            let text = |option: &str| format!("{option} would overwrite {what}");
            return Err(writer.error(text, format!("name another file for '{}'", writer.typed)));
        }
    }
    Ok(())
}

/// Checks that no report is a file of a directory that every node gets: it would be made before the directory is read, or be replaced
/// meanwhile. The ranks' output is written later. `items` are the typed options.
fn check_files_staged(options: &Options, items: &[&Item]) -> Result<(), UsageError> {
    // A directory that does not exist is an error of its own.
    let directories: Vec<PathBuf> =
        options.stage_dirs.iter().filter_map(|staged| staged.path.canonicalize().ok()).collect();
    for (option, report) in reports(options) {
        let writer = items.iter().rfind(|item| item.spec.id == Id::Global(option));
        let (Some(report), Some(writer)) = (report.map(sys::true_path), writer) else { continue };
        if let Some(directory) = directories.iter().find(|directory| report.starts_with(directory)) {
            let text = |option: &str| {
                format!("{option} would write into '{}', which every node gets (--stage-dir)", directory.display())
            };
            return Err(writer.error(text, format!("name a file for '{}' outside this directory", writer.typed)));
        }
    }
    Ok(())
}

/// Returns the files from which the launcher reads hosts, their network, the ranks' places and commands, with their options.
fn lists_read(options: &Options, items: &[&Item]) -> Vec<(Id, PathBuf)> {
    let hosts = &options.hosts;
    let rankmap = hosts.rankmap.as_ref().and_then(|map| map.as_bytes().strip_prefix(b"@")).map(OsStr::from_bytes);
    let config = Id::Mode(Mode::ConfigFile);
    let files = [
        (Id::Global(Global::CommMatrix), hosts.comm_matrix.clone()),
        (Id::Global(Global::Topology), hosts.topology.as_ref().map(PathBuf::from)),
        (Id::Global(Global::RankMap), rankmap.map(PathBuf::from)),
        (config, items.iter().rfind(|item| item.spec.id == config).map(|item| PathBuf::from(item.value(0)))),
    ];
    let hosts = hosts.sources.iter().filter(|source| !source.is_standard_input()).filter_map(|source| {
        let HostSource::File(file) = source else { return None };
        Some((Id::Global(Global::HostFile), file.clone()))
    });
    files.into_iter().filter_map(|(option, file)| Some((option, file?))).chain(hosts).collect()
}

/// Checks the options about processors. `both` fails if two options were typed.
fn check_binding(
    options: &Options,
    both: impl Fn(Global, Global, &'static str) -> Result<(), UsageError>,
) -> Result<(), UsageError> {
    const CORES: &str = "each says how many cores a rank gets";
    let binding = &options.binding;
    if let (Some(elements), Some(cpus)) = (binding.elements, binding.cpus_per_rank)
        && elements != cpus
    {
        both(Global::MapBy, Global::CpusPerRank, CORES)?;
    }
    match binding.bind_to {
        Some(BindTo::Parts(Level::Hwthread | Level::Core, 2..)) => {
            both(Global::BindTo, Global::CpusPerRank, CORES)?;
            if binding.elements.is_some() {
                both(Global::BindTo, Global::MapBy, CORES)?;
            }
        }
        Some(BindTo::List(_)) if binding.map_within.is_some() || binding.elements.is_some() => {
            both(Global::BindTo, Global::MapBy, "the list names the processors of each rank")?;
        }
        Some(BindTo::List(_)) => {
            both(Global::BindTo, Global::CpusPerRank, "the list names the processors of each rank")?;
        }
        _ => {}
    }
    Ok(())
}

/// Returns the error for two options; `other` was typed first.
pub(super) fn between(option: &Item, other: &Item, why: &str) -> UsageError {
    let (typed, before) = (&option.typed, &other.typed);
    let text = format!("options '{typed}' and '{before}' contradict each other: {why}");
    UsageError::new(&option.place, text, format!("leave '{typed}' or '{before}' out"))
}
