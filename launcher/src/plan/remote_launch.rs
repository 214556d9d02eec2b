//! How agents are started on other nodes: the method that the user or the resource manager chose, as the values that
//! [`nla::bootstrap`] takes. Pure.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use nla::bootstrap::{HostAt, Keepers, Links, Method, NodeChoice, RemoteProgram, RemoteTargets, Sent, StartTimes};

use crate::cluster::hosts::fold;
use crate::cluster::manager::Manager;
use crate::cluster::node_list::Node;
use crate::cluster::system::System;
use crate::plan::Plan;
use crate::plan::request::{BootstrapKind, LaunchOptions, LaunchShape};
use crate::refusal::Refusal;

/// How long all agents together may take to report, unless `--start-timeout` is typed.
pub(crate) const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// How long hosts that cannot be reached are tried again inside Kubernetes, unless `--wait-for-hosts` is typed. A launcher starts together
/// with its pods there, whose images may have to be fetched.
const HOSTS_TIME_IN_KUBERNETES: Duration = Duration::from_secs(600);

/// The way to start agents that a model recommends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recommended {
    /// Flat, or a tree.
    pub shape: Shape,
    /// The fan-out of the best tree, also where the shape is flat.
    pub tree_fanout: u32,
    /// The fan-out of the tree of links, unless `--fanout` is typed.
    pub link_fanout: u32,
    /// Whether long boards travel packed.
    pub packs: bool,
}

/// The process that starts the agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// The launcher starts all agents.
    Flat,
    /// Agents start agents.
    Tree,
}

impl Shape {
    /// Returns the name that `--launch` uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Tree => "tree",
        }
    }
}

/// Agents on other nodes: which nodes there are, which of them are used, and how an agent is started there.
pub struct RemoteLaunch {
    /// The node list.
    pub nodes: Vec<Node>,
    /// The nodes that are this machine, as indices. The launcher starts their agents without the method.
    pub here: BTreeSet<usize>,
    /// The nodes that are used, and the targets on them.
    pub choice: NodeChoice,
    /// How links reach the agents.
    pub links: Links,
    /// How an agent is started on a node.
    pub method: Method,
    /// The most agents that one agent starts; the launcher starts all of them if this is `None`.
    pub fanout: Option<u32>,
    /// Whether the user has typed the fan-out.
    pub is_fanout_typed: bool,
    /// How many remote shells one process opens at a time; adaptive if `None`.
    pub batch: Option<u32>,
    /// How long hosts that cannot be reached are tried again, and how long all agents together may then take to report.
    pub times: StartTimes,
    /// Makes the plan again without some nodes, by their indices in the node list.
    pub replan: Replan,
}

/// Makes a plan without these nodes. The error is the reason why that is impossible.
pub type Replan = Box<dyn Fn(&BTreeSet<usize>) -> Result<Plan, String>>;

/// Returns the refusal of a command without words.
fn empty(option: &str) -> Refusal {
    Refusal::new(format!("{option} is empty"), "write the command and its words between quotes")
}

/// Returns the refusal of a manager whose command cannot start agents.
fn unfit(manager: Manager, why: &str) -> Refusal {
    let text = format!("--bootstrap {} cannot start agents: {why}", manager.word());
    let hint = "leave it out, and agents are started by ssh; or write --bootstrap 'exec:COMMAND' with a command that \
                passes input and output on, byte for byte";
    Refusal::new(text, hint)
}

/// The command that opens a remote shell by ssh. No terminal (-T), no forwarding (-x, -a), no prompts (BatchMode).
/// ControlMaster=no: ending a shared connection would end the remote shells of others.
const SSH: &str = "ssh -T -x -a -o BatchMode=yes -o ControlMaster=no -o ControlPath=none {host}";

/// The command that starts a step of Slurm. The step runs beside the job's other steps (`--overlap`) and may use all
/// that the job has on each node. scela-run itself judges agents that exit and nodes that are lost, so the step must
/// not end because of them (`--kill-on-bad-exit=0`, `--no-kill`, `--wait=0`).
const SRUN: &str = "srun --overlap --mpi=none --kill-on-bad-exit=0 --no-kill --wait=0 --cpu-bind=none --quiet";

/// Returns the command that starts agents, and what that command runs on a node. `manager` allocated the nodes, if
/// any did; `program` is the file of this program. The result does not send the program yet: see [`may_send`].
pub fn method(options: &LaunchOptions, manager: Option<Manager>, program: &Path) -> Result<Method, Refusal> {
    let exec = options.launcher_exec.as_deref().map(|exec| text(exec, "-launcher-exec")).transpose()?;
    let remote = match options.launch_agent.as_deref() {
        Some(command) => {
            let command = text(command, "--launch-agent")?;
            if command.trim().is_empty() {
                return Err(empty("--launch-agent"));
            }
            RemoteProgram::Command(command)
        }
        None => {
            let path = program.to_string_lossy().into_owned();
            RemoteProgram::Own { path, sent: None, stores: !options.clean_program }
        }
    };
    let words = |default: &str| {
        let mut words: Vec<String> = default.split(' ').map(str::to_owned).collect();
        if let Some(exec) = &exec {
            words[0].clone_from(exec);
        }
        words
    };
    let with =
        |default: &str, lasts: bool| Method::RemoteShell { words: words(default), lasts, program: remote.clone() };
    Ok(match kind(options, manager) {
        BootstrapKind::Fork => {
            let text = "--bootstrap fork starts agents on this machine only, and there are other hosts";
            return Err(Refusal::new(text, "leave --bootstrap out, or name no other hosts"));
        }
        BootstrapKind::Ssh => with(SSH, false),
        BootstrapKind::Keeper => Method::Keeper,
        // A link needs the input and output of a single task, without buffering by lines (--unbuffered).
        BootstrapKind::Manager(Manager::Slurm) if options.no_ports => {
            with(&[SRUN, "--unbuffered --nodes=1 --ntasks=1 --nodelist={host}"].join(" "), true)
        }
        BootstrapKind::Manager(Manager::Slurm) => {
            let all = "--nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --nodelist={hosts}";
            Method::Step { words: words(&[SRUN, all].join(" ")), program: remote }
        }
        // Both pass standard input on (unless given -n, -nostdin) and hand the words to a shell.
        BootstrapKind::Manager(Manager::Lsf) => with("blaunch {host}", true),
        BootstrapKind::Manager(Manager::Sge) => with("qrsh -inherit {host}", true),
        BootstrapKind::Manager(manager @ (Manager::Pbs | Manager::Flux)) => {
            return Err(unfit(manager, why_not(manager).unwrap_or_default()));
        }
        BootstrapKind::Exec(command) => {
            let command = text(&command, "--bootstrap exec:")?;
            let words: Vec<String> = command.split_ascii_whitespace().map(str::to_owned).collect();
            if words.is_empty() {
                return Err(empty("--bootstrap exec:"));
            }
            if !words.iter().any(|word| word.contains("{host}")) {
                let text = "--bootstrap exec:COMMAND needs a {host} in its command, in place of the host's name";
                return Err(Refusal::new(text, "for example --bootstrap 'exec:ssh {host}'"));
            }
            Method::RemoteShell { words, lasts: true, program: remote }
        }
    })
}

/// Returns how agents are started on other nodes: as typed; else by the resource manager's command, if that can
/// start agents; else by ssh.
pub fn kind(options: &LaunchOptions, manager: Option<Manager>) -> BootstrapKind {
    match (&options.bootstrap, manager) {
        (Some(kind), _) => kind.clone(),
        (None, Some(manager)) if why_not(manager).is_none() => BootstrapKind::Manager(manager),
        (None, _) => BootstrapKind::Ssh,
    }
}

/// Returns why a resource manager's command cannot start agents, if it cannot. The session's key must reach the agent
/// on the command's standard input, and the agent's binary answers must return on its standard output.
pub fn why_not(manager: Manager) -> Option<&'static str> {
    match manager {
        // It spawns tasks through the task management API: OpenPBS, src/cmds/pbs_tmrsh.c.
        Manager::Pbs => Some("pbs_tmrsh passes neither input nor output on"),
        // It prints output as C strings, up to the first NUL: flux-core, src/cmd/flux-exec.c, output_cb.
        Manager::Flux => Some("flux exec passes output on as text only"),
        Manager::Slurm | Manager::Lsf | Manager::Sge => None,
    }
}

/// Returns the field for the program that is sent to nodes without it; `None` for a method that never sends it.
pub fn may_send(method: &mut Method) -> Option<&mut Option<Sent>> {
    match method {
        Method::RemoteShell { program: RemoteProgram::Own { sent, .. }, .. } => Some(sent),
        Method::RemoteShell { .. } | Method::Step { .. } | Method::Fork | Method::Keeper => None,
    }
}

fn text(value: &OsStr, option: &str) -> Result<String, Refusal> {
    let refused = || Refusal::new(format!("{option} is not text"), "write it in UTF-8");
    value.to_str().map(str::to_owned).ok_or_else(refused)
}

/// Returns how many agents one agent starts; `None` if the launcher starts all of them.
///
/// A remote shell that must last as long as its agent is always the launcher's: an agent would take its process for a
/// leftover of the ranks. `typed` is the user's `--fanout`; without it the model decides.
pub fn launch_fanout(shape: LaunchShape, typed: Option<u32>, recommended: Recommended, method: &Method) -> Option<u32> {
    let lasts = matches!(method, Method::RemoteShell { lasts: true, .. } | Method::Step { .. });
    let is_tree = match shape {
        _ if lasts => false,
        LaunchShape::Linear | LaunchShape::Flat => false,
        LaunchShape::Auto => recommended.shape == Shape::Tree,
        LaunchShape::Tree => true,
    };
    is_tree.then(|| typed.unwrap_or(recommended.tree_fanout))
}

/// Returns the fan-out for links over remote shells, which last as long as the agents: the fan-out is then that of the
/// links as well. An agent knows the processes of these remote shells and spares them when it cleans up.
pub fn shell_link_fanout(
    shape: LaunchShape,
    typed: Option<u32>,
    recommended: Recommended,
    method: &Method,
) -> Result<Option<u32>, Refusal> {
    // A command of the user's (`exec:`) may be missing on the nodes.
    let is_everywhere = matches!(method, Method::RemoteShell { lasts: false, .. });
    let meaningless = |shape, fanout| {
        let text = format!(
            "with --no-ports links go where sessions go: under --launch {shape} all of them go to scela-run, \
             and --fanout {fanout} means nothing"
        );
        Err(Refusal::new(text, "leave --fanout out, or write --launch tree"))
    };
    match (shape, typed) {
        (LaunchShape::Linear, Some(fanout)) => meaningless("linear", fanout),
        (LaunchShape::Flat, Some(fanout)) => meaningless("flat", fanout),
        (LaunchShape::Linear | LaunchShape::Flat, None) => Ok(None),
        (LaunchShape::Tree | LaunchShape::Auto, Some(fanout)) => Ok(Some(fanout)),
        (LaunchShape::Tree, None) => Ok(Some(recommended.tree_fanout)),
        (LaunchShape::Auto, None) => {
            Ok((is_everywhere && recommended.shape == Shape::Tree).then_some(recommended.tree_fanout))
        }
    }
}

/// Returns how long all agents together may take to report.
pub fn timeout(options: &LaunchOptions) -> Duration {
    options.deadline.unwrap_or(TIMEOUT_DEFAULT)
}

/// Returns how long hosts may take to be there, and agents to report.
pub fn times(options: &LaunchOptions, system: &dyn System) -> StartTimes {
    let is_in_kubernetes = || system.variable("KUBERNETES_SERVICE_HOST").is_some();
    let by_default = || if is_in_kubernetes() { HOSTS_TIME_IN_KUBERNETES } else { Duration::ZERO };
    StartTimes { hosts: options.wait_for_hosts.unwrap_or_else(by_default), start: timeout(options) }
}

impl RemoteLaunch {
    /// Returns the host of each target.
    pub(crate) fn hosts(&self) -> Vec<HostAt> {
        let host = |at: &usize| {
            let node = &self.nodes[*at];
            HostAt { name: node.name.clone(), user: node.user.clone(), is_here: self.here.contains(at) }
        };
        self.choice.targets.iter().map(host).collect()
    }

    /// Returns the name of a target's host.
    pub(crate) fn name(&self, target: u32) -> &str {
        self.choice.node_of(target).map_or("", |node| &self.nodes[node].name)
    }

    /// Returns the targets as bootstrap takes them. `keepers` start agents for a job in a pool.
    pub(crate) fn targets(&self, keepers: Option<Keepers>) -> RemoteTargets {
        RemoteTargets {
            hosts: self.hosts(),
            method: self.method.clone(),
            keepers,
            fanout: self.fanout,
            batch: self.batch,
            fold: |names| fold(names),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cluster::system::Process;

    fn method_of(options: LaunchOptions, manager: Option<Manager>) -> Result<String, Refusal> {
        method(&options, manager, Path::new("/opt/scela-run")).map(|method| match method {
            Method::Fork | Method::Keeper => "fork".to_owned(),
            Method::RemoteShell { words, .. } | Method::Step { words, .. } => words.join(" "),
        })
    }

    #[test]
    fn hosts_are_waited_for_in_kubernetes_or_as_typed() {
        let pod: [(OsString, OsString); 1] = [("KUBERNETES_SERVICE_HOST".into(), "10.96.0.1".into())];
        let hosts = |typed: Option<u64>, environment: &[(OsString, OsString)]| {
            let options = LaunchOptions { wait_for_hosts: typed.map(Duration::from_secs), ..LaunchOptions::default() };
            times(&options, &Process { environment }).hosts.as_secs()
        };
        assert_eq!([hosts(None, &[]), hosts(None, &pod)], [0, 600]);
        assert_eq!([hosts(Some(5), &[]), hosts(Some(0), &pod)], [5, 0]);
    }

    #[test]
    fn the_command_is_the_one_that_was_typed() {
        let options = LaunchOptions::default();
        assert!(method_of(options.clone(), None).unwrap().starts_with("ssh -T -x"));
        assert!(method_of(options.clone(), Some(Manager::Slurm)).unwrap().starts_with("srun --overlap"));
        let ssh = LaunchOptions { bootstrap: Some(BootstrapKind::Ssh), ..options.clone() };
        assert!(method_of(ssh.clone(), Some(Manager::Slurm)).unwrap().starts_with("ssh "));
        let other = LaunchOptions { launcher_exec: Some("/opt/my-ssh".into()), ..ssh };
        assert!(method_of(other, None).unwrap().starts_with("/opt/my-ssh -T"));
        let exec = |command: &str| LaunchOptions {
            bootstrap: Some(BootstrapKind::Exec(command.into())),
            ..LaunchOptions::default()
        };
        assert_eq!(method_of(exec("kubectl exec -i {host} --"), None).unwrap(), "kubectl exec -i {host} --");
        let error = |options| method_of(options, None).unwrap_err().to_string();
        let no_host = "--bootstrap exec:COMMAND needs a {host} in its command, in place of the host's name";
        assert_eq!(error(exec("kubectl exec")), no_host);
        assert_eq!(error(exec(" ")), "--bootstrap exec: is empty");
        let fork = LaunchOptions { bootstrap: Some(BootstrapKind::Fork), ..options };
        assert_eq!(error(fork), "--bootstrap fork starts agents on this machine only, and there are other hosts");
    }

    #[test]
    fn in_an_allocation_its_managers_command_is_used_if_it_can_start_agents() {
        let chosen = |manager| method_of(LaunchOptions::default(), Some(manager)).unwrap();
        assert_eq!(chosen(Manager::Lsf), "blaunch {host}");
        assert_eq!(chosen(Manager::Sge), "qrsh -inherit {host}");
        for manager in [Manager::Slurm, Manager::Pbs, Manager::Lsf, Manager::Sge, Manager::Flux] {
            let typed = LaunchOptions { bootstrap: Some(BootstrapKind::Manager(manager)), ..LaunchOptions::default() };
            let typed = method_of(typed, None);
            match why_not(manager) {
                None => assert_eq!(typed, Ok(chosen(manager))),
                Some(why) => {
                    assert_eq!(typed, Err(unfit(manager, why)));
                    assert!(chosen(manager).starts_with("ssh "));
                }
            }
        }
        assert_eq!(
            unfit(Manager::Pbs, why_not(Manager::Pbs).unwrap()).to_string(),
            "--bootstrap pbs cannot start agents: pbs_tmrsh passes neither input nor output on"
        );
    }

    #[test]
    fn only_remote_shells_send_the_program_and_only_this_one() {
        let sends = |options: &LaunchOptions, manager| {
            may_send(&mut method(options, manager, Path::new("/opt/scela-run")).unwrap()).is_some()
        };
        let own = LaunchOptions::default();
        let other = LaunchOptions { launch_agent: Some("module run scela-run".into()), ..own.clone() };
        assert_eq!([sends(&own, None), sends(&own, Some(Manager::Slurm)), sends(&other, None)], [true, false, false]);
    }

    #[test]
    fn the_fanout_is_the_typed_one_or_the_models() {
        let chosen = |manager| method(&LaunchOptions::default(), manager, Path::new("/opt/scela-run")).unwrap();
        let (ssh, srun) = (chosen(None), chosen(Some(Manager::Slurm)));
        let few = Recommended { shape: Shape::Flat, tree_fanout: 3, link_fanout: 8, packs: true };
        let many = Recommended { shape: Shape::Tree, tree_fanout: 11, link_fanout: 8, packs: true };
        use LaunchShape::{Auto, Flat, Linear, Tree};
        assert_eq!(launch_fanout(Auto, None, few, &ssh), None);
        assert_eq!(launch_fanout(Auto, None, many, &ssh), Some(many.tree_fanout));
        assert_eq!(launch_fanout(Auto, Some(2), many, &ssh), Some(2));
        assert_eq!(launch_fanout(Tree, None, few, &ssh), Some(few.tree_fanout));
        assert_eq!(launch_fanout(Tree, Some(2), few, &ssh), Some(2));
        for shape in [Flat, Linear] {
            assert_eq!(launch_fanout(shape, Some(2), many, &ssh), None);
        }
        assert_eq!(launch_fanout(Tree, Some(2), many, &srun), None, "a step ends with its command");
    }

    #[test]
    fn links_over_remote_shells_have_their_fanout() {
        let options = LaunchOptions { no_ports: true, ..LaunchOptions::default() };
        let chosen = |options: &LaunchOptions, manager| method(options, manager, Path::new("/opt/scela-run"));
        let Method::RemoteShell { words, lasts: true, .. } = chosen(&options, Some(Manager::Slurm)).unwrap() else {
            panic!("each agent has a step of its own")
        };
        assert!(words.join(" ").ends_with("--unbuffered --nodes=1 --ntasks=1 --nodelist={host}"), "{words:?}");
        let ssh =
            chosen(&LaunchOptions { bootstrap: Some(BootstrapKind::Ssh), ..options.clone() }, Some(Manager::Slurm));
        let ssh = ssh.unwrap();
        let exec = BootstrapKind::Exec("kubectl exec -i {host} --".into());
        let exec = chosen(&LaunchOptions { bootstrap: Some(exec), ..options }, None).unwrap();
        let few = Recommended { shape: Shape::Flat, tree_fanout: 3, link_fanout: 8, packs: true };
        let many = Recommended { shape: Shape::Tree, tree_fanout: 11, link_fanout: 8, packs: true };
        use LaunchShape::{Auto, Flat, Linear, Tree};
        assert_eq!(shell_link_fanout(Auto, None, few, &ssh), Ok(None));
        assert_eq!(shell_link_fanout(Auto, None, many, &ssh), Ok(Some(many.tree_fanout)));
        assert_eq!(shell_link_fanout(Auto, None, many, &exec), Ok(None), "the nodes may not have the command");
        assert_eq!(shell_link_fanout(Tree, None, few, &exec), Ok(Some(few.tree_fanout)));
        for shape in [Auto, Tree] {
            assert_eq!(shell_link_fanout(shape, Some(2), few, &exec), Ok(Some(2)));
        }
        assert_eq!(shell_link_fanout(Flat, None, many, &ssh), Ok(None));
        for (shape, name) in [(Flat, "flat"), (Linear, "linear")] {
            let text = format!(
                "with --no-ports links go where sessions go: under --launch {name} all of them go to scela-run, \
                 and --fanout 2 means nothing"
            );
            assert_eq!(shell_link_fanout(shape, Some(2), many, &ssh).unwrap_err().to_string(), text);
        }
    }
}
