//! How agents get to other nodes: what was asked for, and what the system offer, as the values that
//! `Bootstrap` takes. Pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use nla::bootstrap::{HostAt, Links, Method, RemoteProgram, Sent};
use thiserror::Error;

use crate::cluster::manager::Manager;
use crate::cluster::node_list::Node;
use crate::plan::Plan;
use crate::plan::request::{BootstrapKind, LaunchOptions, LaunchShape};

/// By when all agents must be there, where `--start-timeout` is not typed.
const PATIENCE_DEFAULT: Duration = Duration::from_secs(30);

/// The way to start agents that a model recommends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recommended {
    /// Flat, or a tree.
    pub shape: Shape,
    /// The fan-out of the best tree, also where the shape is flat.
    pub tree_fanout: u32,
}

/// Which process starts the agents.
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

/// Agents on other nodes: which nodes there are, which of them the plan uses, and how to get there.
pub struct RemoteLaunch {
    /// All nodes of the field.
    pub nodes: Vec<Node>,
    /// The node of each target, by its place among all; a node's targets are side by side.
    pub targets: Vec<usize>,
    /// The nodes that may be used: those of the targets, and those that are started only if others fail.
    pub pool: BTreeSet<usize>,
    /// What links go over.
    pub links: Links,
    /// With fewer nodes than so many there is no session.
    pub least: usize,
    /// No more than so many are used.
    pub most: usize,
    /// How to get there.
    pub method: Method,
    /// The most agents that one starts: agents start agents. Else all are started from here.
    pub fanout: Option<u32>,
    /// How many sessions to open at a time.
    pub batch: Option<u32>,
    /// How long all agents together may take to be there.
    pub patience: Duration,
    /// Makes the plan again, without these nodes: in words why that cannot be.
    pub replan: Replan,
}

/// See [`RemoteLaunch::replan`].
pub type Replan = Box<dyn Fn(&BTreeSet<usize>) -> Result<Plan, String>>;

/// Why nodes cannot be reached in the way that was asked for.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum MethodError {
    /// `--bootstrap fork` with other hosts.
    #[error("--bootstrap fork starts agents on this machine only, and there are other hosts")]
    Fork,
    /// A command of words that are not there.
    #[error("{option} is empty")]
    Empty {
        /// The option.
        option: &'static str,
    },
    /// Links over sessions that are opened from here, and a fan-out.
    #[error(
        "with --no-ports links go where sessions go: under --launch {shape} all of them go to scela-run, \
         and --fanout {fanout} means nothing"
    )]
    Fanout {
        /// The typed shape.
        shape: &'static str,
        /// The typed fan-out.
        fanout: u32,
    },
    /// A command without its `{{host}}`.
    #[error("--bootstrap exec:COMMAND needs a {{host}} in its command, in place of the host's name")]
    NoHost,
    /// Not UTF-8.
    #[error("{option} is not text")]
    NotText {
        /// The option.
        option: &'static str,
    },
    /// A manager whose own command is not fit for it.
    #[error("--bootstrap {} cannot start agents: {}", .0.word(), why_not(*.0).unwrap_or_default())]
    Unfit(Manager),
}

impl MethodError {
    /// The next step to try, a fragment without full stop.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Fork => "leave --bootstrap out, or name no other hosts",
            Self::Fanout { .. } => "leave --fanout out, or write --launch tree",
            Self::Empty { .. } => "write the command and its words between quotes",
            Self::NoHost => "for example --bootstrap 'exec:ssh {host}'",
            Self::NotText { .. } => "write it in UTF-8",
            Self::Unfit(_) => {
                "leave it out, and agents are started by ssh; or write --bootstrap 'exec:COMMAND' with a command \
                 that passes input and output on, byte for byte"
            }
        }
    }
}

/// How agents are started beside what else a job of Slurm runs, with all that it has on each node. An agent that ends,
/// and a node that is lost, are ours to judge.
const SRUN: [&str; 8] =
    ["srun", "--overlap", "--mpi=none", "--kill-on-bad-exit=0", "--no-kill", "--wait=0", "--cpu-bind=none", "--quiet"];

/// The command that opens sessions, and what they are to run. `manager` is whose job the nodes are of, and
/// `program` this program's file. Nothing is sent yet: see [`may_send`].
pub fn method(options: &LaunchOptions, manager: Option<Manager>, program: &Path) -> Result<Method, MethodError> {
    let exec = options.launcher_exec.as_deref().map(|exec| text(exec, "-launcher-exec")).transpose()?;
    let remote = match options.launch_agent.as_deref() {
        Some(command) => {
            let command = text(command, "--launch-agent")?;
            if command.trim().is_empty() {
                return Err(MethodError::Empty { option: "--launch-agent" });
            }
            RemoteProgram::Command(command)
        }
        None => RemoteProgram::Own { path: program.to_string_lossy().into_owned(), sent: None },
    };
    let words = |default: &[&str]| {
        let mut words: Vec<String> = default.iter().map(|word| (*word).to_owned()).collect();
        if let Some(exec) = &exec {
            words[0].clone_from(exec);
        }
        words
    };
    let with =
        |default: &[&str], lasts: bool| Method::RemoteShell { words: words(default), lasts, program: remote.clone() };
    Ok(match kind(options, manager) {
        BootstrapKind::Fork => return Err(MethodError::Fork),
        // No terminal, no forwarding, no question; and no connection that others share: it would end theirs.
        BootstrapKind::Ssh => with(
            &[
                "ssh",
                "-T",
                "-x",
                "-a",
                "-o",
                "BatchMode=yes",
                "-o",
                "ControlMaster=no",
                "-o",
                "ControlPath=none",
                "{host}",
            ],
            false,
        ),
        // A link needs an input and an output of its own, and these as they are: unbuffered, not by lines.
        BootstrapKind::Manager(Manager::Slurm) if options.no_ports => {
            with(&[&SRUN[..], &["--unbuffered", "--nodes=1", "--ntasks=1", "--nodelist={host}"]].concat(), true)
        }
        BootstrapKind::Manager(Manager::Slurm) => {
            let all = ["--nodes={nodes}", "--ntasks={nodes}", "--ntasks-per-node=1", "--nodelist={hosts}"];
            Method::Step { words: words(&[&SRUN[..], &all].concat()), program: remote }
        }
        // Both pass standard input on unless told otherwise (-n, -nostdin), and give the words to a shell.
        BootstrapKind::Manager(Manager::Lsf) => with(&["blaunch", "{host}"], true),
        BootstrapKind::Manager(Manager::Sge) => with(&["qrsh", "-inherit", "{host}"], true),
        BootstrapKind::Manager(manager @ (Manager::Pbs | Manager::Flux)) => return Err(MethodError::Unfit(manager)),
        BootstrapKind::Exec(command) => {
            let command = text(&command, "--bootstrap exec:")?;
            let words: Vec<String> = command.split_ascii_whitespace().map(str::to_owned).collect();
            if words.is_empty() {
                return Err(MethodError::Empty { option: "--bootstrap exec:" });
            }
            if !words.iter().any(|word| word.contains("{host}")) {
                return Err(MethodError::NoHost);
            }
            Method::RemoteShell { words, lasts: true, program: remote }
        }
    })
}

/// How agents are started on other nodes: as was typed, else as the manager does whose job the nodes are of, if
/// its command is fit for that, else by ssh.
pub fn kind(options: &LaunchOptions, manager: Option<Manager>) -> BootstrapKind {
    match (&options.bootstrap, manager) {
        (Some(kind), _) => kind.clone(),
        (None, Some(manager)) if why_not(manager).is_none() => BootstrapKind::Manager(manager),
        (None, _) => BootstrapKind::Ssh,
    }
}

/// Why a manager's own command is not fit to start agents: the session's key has to go in by its input, and the
/// agent's answers, which are not text, have to come out by its output.
pub fn why_not(manager: Manager) -> Option<&'static str> {
    match manager {
        // It spawns by the task management API, whose tasks belong to the job: OpenPBS, src/cmds/pbs_tmrsh.c.
        Manager::Pbs => Some("pbs_tmrsh passes neither input nor output on"),
        // It prints what it has read as a string, up to the first NUL: flux-core, src/cmd/flux-exec.c, output_cb.
        Manager::Flux => Some("flux exec passes output on as text only"),
        Manager::Slurm | Manager::Lsf | Manager::Sge => None,
    }
}

/// What is sent where the program is not, to be filled in: `None` for a method that sends nothing.
pub fn may_send(method: &mut Method) -> Option<&mut Option<Sent>> {
    match method {
        Method::RemoteShell { program: RemoteProgram::Own { sent, .. }, .. } => Some(sent),
        Method::RemoteShell { .. } | Method::Step { .. } | Method::Fork => None,
    }
}

fn text(value: &OsStr, option: &'static str) -> Result<String, MethodError> {
    value.to_str().map(str::to_owned).ok_or(MethodError::NotText { option })
}

/// How many agents one starts, if agents start agents. A session that has to last cannot be an agent's:
/// the agent would take it for something that its ranks have left.
///
/// `typed` is the user's own `--fanout`; where nothing is typed, the model has the say.
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

/// The same where links go over sessions, which then last as long as the agents: the fan-out is that of the links
/// as well. An agent knows which of its processes these sessions are, and leaves them alone.
pub fn shell_link_fanout(
    shape: LaunchShape,
    typed: Option<u32>,
    recommended: Recommended,
    method: &Method,
) -> Result<Option<u32>, MethodError> {
    // Whether a command of the user's is there on the nodes, nobody knows.
    let is_everywhere = matches!(method, Method::RemoteShell { lasts: false, .. });
    match (shape, typed) {
        (LaunchShape::Linear, Some(fanout)) => Err(MethodError::Fanout { shape: "linear", fanout }),
        (LaunchShape::Flat, Some(fanout)) => Err(MethodError::Fanout { shape: "flat", fanout }),
        (LaunchShape::Linear | LaunchShape::Flat, None) => Ok(None),
        (LaunchShape::Tree | LaunchShape::Auto, Some(fanout)) => Ok(Some(fanout)),
        (LaunchShape::Tree, None) => Ok(Some(recommended.tree_fanout)),
        (LaunchShape::Auto, None) => {
            Ok((is_everywhere && recommended.shape == Shape::Tree).then_some(recommended.tree_fanout))
        }
    }
}

/// How long all agents together may take to be there.
pub fn patience(options: &LaunchOptions) -> Duration {
    options.deadline.unwrap_or(PATIENCE_DEFAULT)
}

impl RemoteLaunch {
    /// The host of each target.
    pub(crate) fn hosts(&self) -> Vec<HostAt> {
        let host = |node: &Node| HostAt { name: node.name.clone(), user: node.user.clone() };
        self.targets.iter().map(|node| host(&self.nodes[*node])).collect()
    }

    /// The name of the host of a target, which is counted from 1.
    pub(crate) fn name(&self, target: u32) -> &str {
        self.targets.get(target as usize - 1).map_or("", |node| &self.nodes[*node].name)
    }

    /// What is left when targets have failed: the nodes to be left out, if enough are there.
    pub(crate) fn without(&self, failed: impl IntoIterator<Item = u32>) -> Option<BTreeSet<usize>> {
        let bad: BTreeSet<usize> =
            failed.into_iter().filter_map(|target| self.targets.get(target as usize - 1)).copied().collect();
        let good: Vec<usize> = self.pool.difference(&bad).copied().collect();
        let used: BTreeSet<usize> = good.iter().copied().take(self.most).collect();
        (used.len() >= self.least).then(|| (0..self.nodes.len()).filter(|node| !used.contains(node)).collect())
    }

    /// Sessions and links are one tree, in which each agent has its target's number. Where a node fails, all begins
    /// again without it.
    pub(crate) fn is_one_tree(&self) -> bool {
        self.links == Links::RemoteShells && self.fanout.is_some()
    }

    /// How long all agents may take, if `left` is what is left of the time. Where all may have to begin again, half
    /// of it is for that.
    pub(crate) fn patience_of(&self, left: Duration) -> Duration {
        let used: BTreeSet<usize> = self.targets.iter().copied().collect();
        let again = self.is_one_tree() && (self.pool.len() > used.len() || self.least < used.len());
        if again { left / 2 } else { left }
    }

    /// Begins again with the targets of a plan that was made without some nodes, `failed` are those of targets
    /// that are bad.
    pub(crate) fn begin_again(&mut self, plan: &Plan, left_out: &BTreeSet<usize>, failed: &BTreeSet<u32>) {
        let bad: BTreeSet<usize> = failed.iter().map(|target| self.targets[*target as usize - 1]).collect();
        self.pool.retain(|node| !bad.contains(node));
        let kept: Vec<usize> = (0..self.nodes.len()).filter(|node| !left_out.contains(node)).collect();
        self.targets = plan.seats.iter().filter_map(|seat| kept.get(*seat).copied()).collect();
    }

    /// The target of each agent of a plan that was made without some nodes, in the order of agents.
    /// `None` if a node is to have more agents than were started there.
    pub(crate) fn targets_of(&self, plan: &Plan, left_out: &BTreeSet<usize>) -> Option<Vec<u32>> {
        let kept: Vec<usize> = (0..self.nodes.len()).filter(|node| !left_out.contains(node)).collect();
        let mut free: BTreeMap<usize, VecDeque<u32>> = BTreeMap::new();
        for (target, node) in (1..).zip(&self.targets) {
            free.entry(*node).or_default().push_back(target);
        }
        plan.seats.iter().map(|seat| free.get_mut(kept.get(*seat)?)?.pop_front()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method_of(options: LaunchOptions, manager: Option<Manager>) -> Result<String, MethodError> {
        method(&options, manager, Path::new("/opt/scela-run")).map(|method| match method {
            Method::Fork => "fork".to_owned(),
            Method::RemoteShell { words, .. } | Method::Step { words, .. } => words.join(" "),
        })
    }

    #[test]
    fn sessions_are_opened_as_was_asked_for() {
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
        assert_eq!(method_of(exec("kubectl exec"), None), Err(MethodError::NoHost));
        assert_eq!(method_of(exec(" "), None), Err(MethodError::Empty { option: "--bootstrap exec:" }));
        let fork = LaunchOptions { bootstrap: Some(BootstrapKind::Fork), ..options };
        assert_eq!(method_of(fork, None), Err(MethodError::Fork));
    }

    #[test]
    fn in_a_job_its_managers_command_is_taken_if_it_is_fit() {
        let chosen = |manager| method_of(LaunchOptions::default(), Some(manager)).unwrap();
        assert_eq!(chosen(Manager::Lsf), "blaunch {host}");
        assert_eq!(chosen(Manager::Sge), "qrsh -inherit {host}");
        for manager in [Manager::Slurm, Manager::Pbs, Manager::Lsf, Manager::Sge, Manager::Flux] {
            let typed = LaunchOptions { bootstrap: Some(BootstrapKind::Manager(manager)), ..LaunchOptions::default() };
            let typed = method_of(typed, None);
            match why_not(manager) {
                None => assert_eq!(typed, Ok(chosen(manager))),
                Some(_) => {
                    assert_eq!(typed, Err(MethodError::Unfit(manager)));
                    assert!(chosen(manager).starts_with("ssh "));
                }
            }
        }
        assert_eq!(
            MethodError::Unfit(Manager::Pbs).to_string(),
            "--bootstrap pbs cannot start agents: pbs_tmrsh passes neither input nor output on"
        );
    }

    #[test]
    fn only_sessions_send_the_program_and_only_our_own() {
        let sends = |options: &LaunchOptions, manager| {
            may_send(&mut method(options, manager, Path::new("/opt/scela-run")).unwrap()).is_some()
        };
        let own = LaunchOptions::default();
        let other = LaunchOptions { launch_agent: Some("module run scela-run".into()), ..own.clone() };
        assert_eq!([sends(&own, None), sends(&own, Some(Manager::Slurm)), sends(&other, None)], [true, false, false]);
    }

    #[test]
    fn who_starts_whom_is_as_typed_or_as_the_model_says() {
        let chosen = |manager| method(&LaunchOptions::default(), manager, Path::new("/opt/scela-run")).unwrap();
        let (ssh, srun) = (chosen(None), chosen(Some(Manager::Slurm)));
        let few = Recommended { shape: Shape::Flat, tree_fanout: 3 };
        let many = Recommended { shape: Shape::Tree, tree_fanout: 11 };
        use LaunchShape::{Auto, Flat, Linear, Tree};
        assert_eq!(launch_fanout(Auto, None, few, &ssh), None);
        assert_eq!(launch_fanout(Auto, None, many, &ssh), Some(many.tree_fanout));
        assert_eq!(launch_fanout(Auto, Some(2), many, &ssh), Some(2));
        assert_eq!(launch_fanout(Tree, None, few, &ssh), Some(few.tree_fanout));
        assert_eq!(launch_fanout(Tree, Some(2), few, &ssh), Some(2));
        for shape in [Flat, Linear] {
            assert_eq!(launch_fanout(shape, Some(2), many, &ssh), None);
        }
        assert_eq!(launch_fanout(Tree, Some(2), many, &srun), None, "a step's processes end with it");
    }

    #[test]
    fn links_over_sessions_go_where_these_go() {
        let options = LaunchOptions { no_ports: true, ..LaunchOptions::default() };
        let chosen = |options: &LaunchOptions, manager| method(options, manager, Path::new("/opt/scela-run"));
        let Method::RemoteShell { words, lasts: true, .. } = chosen(&options, Some(Manager::Slurm)).unwrap() else {
            panic!("a step for each agent")
        };
        assert!(words.join(" ").ends_with("--unbuffered --nodes=1 --ntasks=1 --nodelist={host}"), "{words:?}");
        let ssh =
            chosen(&LaunchOptions { bootstrap: Some(BootstrapKind::Ssh), ..options.clone() }, Some(Manager::Slurm));
        let ssh = ssh.unwrap();
        let exec = BootstrapKind::Exec("kubectl exec -i {host} --".into());
        let exec = chosen(&LaunchOptions { bootstrap: Some(exec), ..options }, None).unwrap();
        let few = Recommended { shape: Shape::Flat, tree_fanout: 3 };
        let many = Recommended { shape: Shape::Tree, tree_fanout: 11 };
        use LaunchShape::{Auto, Flat, Linear, Tree};
        assert_eq!(shell_link_fanout(Auto, None, few, &ssh), Ok(None));
        assert_eq!(shell_link_fanout(Auto, None, many, &ssh), Ok(Some(many.tree_fanout)));
        assert_eq!(shell_link_fanout(Auto, None, many, &exec), Ok(None), "nodes may not have the command");
        assert_eq!(shell_link_fanout(Tree, None, few, &exec), Ok(Some(few.tree_fanout)));
        for shape in [Auto, Tree] {
            assert_eq!(shell_link_fanout(shape, Some(2), few, &exec), Ok(Some(2)));
        }
        assert_eq!(shell_link_fanout(Flat, None, many, &ssh), Ok(None));
        for (shape, name) in [(Flat, "flat"), (Linear, "linear")] {
            let error = MethodError::Fanout { shape: name, fanout: 2 };
            assert_eq!(shell_link_fanout(shape, Some(2), many, &ssh), Err(error));
        }
    }

    #[test]
    fn a_launch_that_may_begin_again_has_time_for_it() {
        let s = Duration::from_secs;
        let tree = |pool: std::ops::Range<usize>, least| RemoteLaunch {
            pool: pool.collect(),
            links: Links::RemoteShells,
            fanout: Some(2),
            ..expedition(5, vec![0, 1, 2], least, 3)
        };
        assert_eq!(tree(0..3, 3).patience_of(s(30)), s(30), "all or none");
        assert_eq!(tree(0..3, 2).patience_of(s(30)), s(15));
        assert_eq!(tree(0..5, 3).patience_of(s(30)), s(15), "with spares");
        let flat = RemoteLaunch { fanout: None, ..tree(0..5, 2) };
        assert_eq!(flat.patience_of(s(30)), s(30));
        // A spare takes a place without having been started.
        let spare = tree(0..5, 3);
        assert_eq!(spare.without([2]), Some([1, 4].into()));
        assert_eq!(RemoteLaunch { pool: [0, 1, 3].into(), ..spare }.without([2]), None, "the pool is too small");
    }

    fn expedition(nodes: usize, targets: Vec<usize>, least: usize, most: usize) -> RemoteLaunch {
        RemoteLaunch {
            nodes: (0..nodes).map(|node| Node::named(format!("n{node}"))).collect(),
            pool: targets.iter().copied().collect(),
            links: Links::Connections,
            targets,
            least,
            most,
            method: Method::Fork,
            fanout: None,
            batch: None,
            patience: PATIENCE_DEFAULT,
            replan: Box::new(|_| Err(String::new())),
        }
    }

    #[test]
    fn bad_nodes_are_left_out_where_enough_are_left() {
        // Five nodes, of which the plan uses three with two agents each; one more is a spare.
        let expedition = expedition(5, vec![0, 0, 1, 1, 2, 2, 3, 3], 3, 3);
        assert_eq!(expedition.without([]), Some([3, 4].into()), "the spare is not needed");
        assert_eq!(expedition.without([4]), Some([1, 4].into()), "all of a node is bad");
        assert_eq!(expedition.without([1, 8]), None, "one spare for two");
        assert_eq!((expedition.name(1), expedition.name(8)), ("n0", "n3"));
    }
}
