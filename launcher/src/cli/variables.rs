//! The variables of MPICH's Hydra, and their meaning here. They are for users whose scripts set them for `mpiexec`.
//!
//! Most have the meaning of an option, which takes precedence when typed. A variable without a meaning here is named in a
//! remark, so that a script that relies on it is not slow or wrong without a message.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use nla::core::limits::RANKS_MAX;

use super::error::{CALLED, UsageError};
use super::host_values;
use super::text::shown;
use super::values::{self, OPTION, Parsed};
use crate::cluster::hosts::fold;
use crate::cluster::manager::ManagerChoice;
use crate::cluster::node_list::HostSource;
use crate::plan::request::{BootstrapKind, EnvPolicy, Options, TypedAt};
use crate::refusal::Refusal;

/// A variable that Hydra reads.
#[derive(Debug)]
struct Variable {
    name: &'static str,
    meaning: Meaning,
}

/// The meaning of a variable to scela-run.
#[derive(Debug)]
enum Meaning {
    /// That of this option, unless it is typed.
    Option(&'static str, Apply),
    /// None, for this reason. A remark says so.
    Nothing(&'static str),
    /// None. Resource managers or Hydra itself set it, so no remark is made.
    Silent,
}

/// Sets the option in `options` to a variable's value, unless it is typed.
type Apply = fn(options: &mut Options, value: &OsStr) -> Parsed<()>;

const fn option(name: &'static str, option: &'static str, apply: Apply) -> Variable {
    Variable { name, meaning: Meaning::Option(option, apply) }
}

const fn nothing(name: &'static str, why: &'static str) -> Variable {
    Variable { name, meaning: Meaning::Nothing(why) }
}

const fn silent(name: &'static str) -> Variable {
    Variable { name, meaning: Meaning::Silent }
}

/// The variable that names a file of hosts.
const HOST_FILE: &str = "HYDRA_HOST_FILE";

/// All variables. Of those with the same option, the first that is set wins.
const VARIABLES: &[Variable] = &[
    option(HOST_FILE, "-f", host_file),
    option("HYDRA_RMK", "-rmk", manager),
    option("HYDRA_LAUNCHER", "-launcher", launcher),
    option("HYDRA_BOOTSTRAP", "-launcher", launcher),
    option("HYDRA_LAUNCHER_EXEC", "-launcher-exec", launcher_exec),
    option("HYDRA_BOOTSTRAP_EXEC", "-launcher-exec", launcher_exec),
    option("HYDRA_IFACE", "-iface", interface),
    option("HYDRA_ENV", "-genvall", environment),
    option("HYDRA_PPN", "-ppn", per_node),
    option("HYDRA_DEBUG", "-v", debug),
    option("MPIEXEC_TIMEOUT", "-timeout", timeout),
    option("MPIEXEC_PORTRANGE", "--port-range", ports),
    option("MPIEXEC_PORT_RANGE", "--port-range", ports),
    option("MPIEXEC_UNIVERSE_SIZE", "-usize", universe),
    nothing("MPIEXEC_TIMEOUT_SIGNAL", "after a timeout, ranks get TERM, and KILL after --kill-grace"),
    nothing("MPIEXEC_PREFIX_DEFAULT", "-prepend-rank begins lines with the rank"),
    nothing("HYDRA_BINDING", "options say how ranks are bound"),
    nothing("HYDRA_MAPPING", "--map-by says how ranks are placed"),
    nothing("HYDRA_MEMBIND", "options say how memory is bound"),
    nothing("HYDRA_TOPOLIB", "scela-run uses no library for the topology"),
    nothing("HYDRA_TOPO_DEBUG", "--explain shows where ranks are placed"),
    nothing("HYDRA_CONFIG_FILE", "-configfile names a file of programs"),
    nothing("HYDRA_DEMUX", "scela-run has one way to wait for output"),
    nothing("HYDRA_NAMESERVER", "published names are stored in the session"),
    nothing("HYDRA_HOSTNAME_PROPAGATION", "ranks find out their host's name themselves"),
    nothing("HYDRA_PROXY_RETRY_COUNT", "agents connect again until --start-timeout"),
    nothing("HYDRA_LAUNCHER_SSH_LIMIT", "--batch limits the remote shells that are opened at a time"),
    nothing("HYDRA_LAUNCHER_SSH_LIMIT_TIME", "--batch limits the remote shells that are opened at a time"),
    nothing("HYDRA_LAUNCHER_SSH_ENABLE_WARNINGS", "warnings of ssh are always printed when a host fails"),
    nothing("HYDRA_LAUNCHER_AUTOFORK", "agents on this machine are started without ssh"),
    nothing("HYDRA_USE_LOCALHOST", "--connect-back names the address by which nodes reach this machine"),
    // Slurm 23.11 and later set it in each job, to --external-launcher.
    silent("HYDRA_LAUNCHER_EXTRA_ARGS"),
    // Hydra sets these for its own proxies and ranks, in which scela-run may run.
    silent("HYDRA_IP_VERSION"),
    silent("HYDRA_LAUNCH_TYPE"),
];

/// The prefixes of Hydra's variables for users, and of those that it sets for its own proxies.
const PREFIXES: [&str; 2] = ["MPIEXEC_", "HYDRA_"];
const INTERNAL: &str = "HYDRA_BSTRAP_";

/// Applies the variables of `environment` to the typed options. Returns remarks about variables without a meaning here.
pub fn apply_variables(options: &mut Options, environment: &[(OsString, OsString)]) -> Result<Vec<String>, UsageError> {
    let mut remarks = Vec::new();
    for Variable { name, meaning } in VARIABLES {
        let Some((_, value)) = environment.iter().find(|(known, value)| known == name && !value.is_empty()) else {
            continue;
        };
        match meaning {
            Meaning::Option(option, apply) => apply(options, value).map_err(|problem| {
                let text = format!("variable {name}, which stands for {option}: {problem}");
                let hint =
                    format!("unset {name}, or correct it: {}", problem.hint().replace(&format!("{OPTION} "), ""));
                UsageError::new(&TypedAt::CommandLine, text, hint.replace(OPTION, option).replace(CALLED, "scela-run"))
            })?,
            Meaning::Nothing(why) => remarks.push(format!("{name} has no meaning here: {why}")),
            Meaning::Silent => {}
        }
    }
    let is_unknown = |name: &&str| {
        PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            && !name.starts_with(INTERNAL)
            && !VARIABLES.iter().any(|known| known.name == *name)
    };
    let unknown: Vec<&str> = environment.iter().filter_map(|(name, _)| name.to_str()).filter(is_unknown).collect();
    if !unknown.is_empty() {
        let verb = if unknown.len() == 1 { "has" } else { "have" };
        remarks.push(format!("{} {verb} no meaning here", fold(unknown)));
    }
    Ok(remarks)
}

fn host_file(options: &mut Options, value: &OsStr) -> Parsed<()> {
    if options.hosts.sources.is_empty() {
        options.hosts.sources.push(HostSource::Variable(HOST_FILE, value.into()));
    }
    Ok(())
}

fn manager(options: &mut Options, value: &OsStr) -> Parsed<()> {
    let choice = host_values::manager(value)?;
    if options.hosts.manager == ManagerChoice::Auto {
        options.hosts.manager = choice;
    }
    Ok(())
}

/// A manager's name changes nothing: its command starts the agents in its jobs, and Slurm sets the variable there.
fn launcher(options: &mut Options, value: &OsStr) -> Parsed<()> {
    let launch = &mut options.launch;
    match host_values::bootstrap(value)? {
        Some(BootstrapKind::Manager(_) | BootstrapKind::Keeper) | None => {}
        kind @ Some(BootstrapKind::Fork | BootstrapKind::Ssh | BootstrapKind::Exec(_)) => {
            launch.bootstrap = launch.bootstrap.take().or(kind);
        }
    }
    Ok(())
}

fn launcher_exec(options: &mut Options, value: &OsStr) -> Parsed<()> {
    let launch = &mut options.launch;
    if !matches!(launch.bootstrap, Some(BootstrapKind::Exec(_) | BootstrapKind::Fork)) {
        launch.launcher_exec.get_or_insert_with(|| value.to_owned());
    }
    Ok(())
}

fn interface(options: &mut Options, value: &OsStr) -> Parsed<()> {
    let (name, launch) = (host_values::interface(value)?, &mut options.launch);
    if !launch.no_ports && launch.connect_back.is_none() {
        launch.iface.get_or_insert(name);
    }
    Ok(())
}

/// Hydra takes each value but `all` for none, without a word.
fn environment(options: &mut Options, value: &OsStr) -> Parsed<()> {
    let policy = match value.to_str() {
        Some("all") => EnvPolicy::All,
        Some("none") => EnvPolicy::None,
        _ => return Err(Refusal::new(format!("'{}' is neither all nor none", shown(value)), "write all or none")),
    };
    options.genv_policy.get_or_insert(policy);
    Ok(())
}

fn per_node(options: &mut Options, value: &OsStr) -> Parsed<()> {
    let ranks = values::number(value, 1, RANKS_MAX)?;
    options.ppn.get_or_insert(ranks);
    Ok(())
}

fn debug(options: &mut Options, value: &OsStr) -> Parsed<()> {
    let is_off = ["0", "no", "false", "off"].iter().any(|off| value.eq_ignore_ascii_case(off));
    if !is_off && !options.quiet {
        options.verbose = options.verbose.max(1);
    }
    Ok(())
}

/// A number that is not positive means no limit, as in Hydra.
fn timeout(options: &mut Options, value: &OsStr) -> Parsed<()> {
    if value.as_bytes().starts_with(b"-") || value == "0" {
        return Ok(());
    }
    let time = values::timeout(value)?;
    options.timeout.get_or_insert(time);
    Ok(())
}

fn ports(options: &mut Options, value: &OsStr) -> Parsed<()> {
    let (ports, launch) = (host_values::ports(value)?, &mut options.launch);
    if !launch.no_ports {
        launch.port_range.get_or_insert(ports);
    }
    Ok(())
}

fn universe(options: &mut Options, value: &OsStr) -> Parsed<()> {
    let size = values::universe(value)?;
    options.universe.get_or_insert(size);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::super::options;
    use super::*;
    use crate::plan::request::Universe;

    fn applied(mut typed: Options, variables: &[(&str, &str)]) -> (Options, Vec<String>) {
        let environment: Vec<_> = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let remarks = apply_variables(&mut typed, &environment).expect("the values are right");
        (typed, remarks)
    }

    /// Checks that the variable changes the defaults in this way.
    fn check(name: &str, value: &str, change: impl FnOnce(&mut Options)) {
        let mut expected = Options::default();
        change(&mut expected);
        assert_eq!(applied(Options::default(), &[(name, value)]), (expected, vec![]), "{name}={value}");
    }

    #[test]
    fn variables_have_the_meaning_of_options() {
        check("HYDRA_HOST_FILE", "hosts", |o| o.hosts.sources = vec![HostSource::Variable(HOST_FILE, "hosts".into())]);
        check("HYDRA_RMK", "user", |o| o.hosts.manager = ManagerChoice::None);
        for launcher in ["HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP"] {
            check(launcher, "ssh", |o| o.launch.bootstrap = Some(BootstrapKind::Ssh));
            check(launcher, "fork", |o| o.launch.bootstrap = Some(BootstrapKind::Fork));
            check(launcher, "slurm", |_| {});
        }
        check("HYDRA_LAUNCHER_EXEC", "/opt/ssh", |o| o.launch.launcher_exec = Some("/opt/ssh".into()));
        check("HYDRA_BOOTSTRAP_EXEC", "/opt/ssh", |o| o.launch.launcher_exec = Some("/opt/ssh".into()));
        check("HYDRA_IFACE", "ib0", |o| o.launch.iface = Some("ib0".into()));
        check("HYDRA_ENV", "all", |o| o.genv_policy = Some(EnvPolicy::All));
        check("HYDRA_ENV", "none", |o| o.genv_policy = Some(EnvPolicy::None));
        check("HYDRA_PPN", "4", |o| o.ppn = Some(4));
        check("HYDRA_DEBUG", "1", |o| o.verbose = 1);
        check("HYDRA_DEBUG", "0", |_| {});
        check("MPIEXEC_TIMEOUT", "90", |o| o.timeout = Some(Duration::from_secs(90)));
        check("MPIEXEC_TIMEOUT", "-1", |_| {});
        for ports in ["MPIEXEC_PORTRANGE", "MPIEXEC_PORT_RANGE"] {
            check(ports, "5000:5999", |o| o.launch.port_range = Some((5000, 5999)));
        }
        check("MPIEXEC_UNIVERSE_SIZE", "64", |o| o.universe = Some(Universe::Ranks(64)));
        check("HYDRA_HOST_FILE", "", |_| {});
        check("HYDRA_LAUNCHER_EXTRA_ARGS", "--external-launcher", |_| {});
        check("HYDRA_BSTRAP_NODE_ID", "0", |_| {});
    }

    #[test]
    fn typed_options_win() {
        let mut typed = Options {
            genv_policy: Some(EnvPolicy::All),
            ppn: Some(2),
            quiet: true,
            timeout: Some(Duration::from_secs(1)),
            universe: Some(Universe::Infinite),
            ..Options::default()
        };
        typed.hosts.sources.push(HostSource::List("a,b".into()));
        typed.hosts.manager = ManagerChoice::None;
        typed.launch.bootstrap = Some(BootstrapKind::Exec("rsh {host}".into()));
        typed.launch.no_ports = true;
        let variables = [
            ("HYDRA_HOST_FILE", "hosts"),
            ("HYDRA_RMK", "slurm"),
            ("HYDRA_LAUNCHER", "ssh"),
            ("HYDRA_LAUNCHER_EXEC", "/opt/ssh"),
            ("HYDRA_IFACE", "ib0"),
            ("HYDRA_ENV", "none"),
            ("HYDRA_PPN", "4"),
            ("HYDRA_DEBUG", "1"),
            ("MPIEXEC_TIMEOUT", "90"),
            ("MPIEXEC_PORT_RANGE", "5000:5999"),
            ("MPIEXEC_UNIVERSE_SIZE", "64"),
        ];
        assert_eq!(applied(typed.clone(), &variables), (typed, vec![]));
    }

    #[test]
    fn a_variable_without_a_meaning_is_named() {
        let (options, remarks) = applied(
            Options::default(),
            &[("HYDRA_BINDING", "core"), ("HYDRA_NEW_THING", "1"), ("MPIEXEC_OTHER", "x"), ("PATH", "/bin")],
        );
        assert_eq!(options, Options::default());
        assert_eq!(
            remarks,
            [
                "HYDRA_BINDING has no meaning here: options say how ranks are bound",
                "HYDRA_NEW_THING,MPIEXEC_OTHER have no meaning here"
            ]
        );
    }

    #[test]
    fn a_wrong_value_is_refused_with_the_variables_name() {
        let refused = |name: &str, value: &str| {
            let environment = [(name.into(), value.into())];
            apply_variables(&mut Options::default(), &environment).unwrap_err().with_hint()
        };
        assert_eq!(
            refused("MPIEXEC_TIMEOUT", "soon"),
            "variable MPIEXEC_TIMEOUT, which stands for -timeout: 'soon' is not a length of time\n  hint: unset MPIEXEC_TIMEOUT, or correct it: write seconds, or a \
             number with s, m or h, as in '1.5h'"
        );
        assert!(
            refused("HYDRA_LAUNCHER", "rsh")
                .starts_with("variable HYDRA_LAUNCHER, which stands for -launcher: there is no bootstrap 'rsh'")
        );
        assert!(refused("MPIEXEC_PORT_RANGE", "9:1").contains("the ports 9:1 go downwards"));
    }

    #[test]
    fn the_documentation_has_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/clusters.md");
        let text = std::fs::read_to_string(path).expect("the documentation is there");
        for Variable { name, meaning } in VARIABLES {
            let row = match meaning {
                Meaning::Option(option, _) => format!("| `{name}` | `{option}` |"),
                Meaning::Nothing(why) => format!("| `{name}` | nothing: {why} |"),
                Meaning::Silent => continue,
            };
            assert!(text.lines().any(|line| line == row), "docs/clusters.md lacks {row}");
        }
    }

    #[test]
    fn each_name_occurs_once_and_names_an_option_of_ours() {
        let mut seen = BTreeSet::new();
        for Variable { name, meaning } in VARIABLES {
            assert!(seen.insert(name), "{name} occurs twice");
            assert!(PREFIXES.iter().any(|prefix| name.starts_with(prefix)), "{name}");
            if let Meaning::Option(option, _) = meaning {
                assert!(options::find(option.trim_start_matches('-')).is_some(), "{option}");
            }
        }
    }
}
