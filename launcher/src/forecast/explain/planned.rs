//! Collects the values that `--explain` prints from a plan.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use litemap::LiteMap;
use nla::bootstrap::{Links, Method};
use nla::bootstrap::{opening_words, step_words};
use nla::core::{CommandPlan, Inherit, Subtree, is_bound_to_host};
use nla::{figures, sys};

use super::binding::binding;
use super::picture::picture;
use super::{Bootstrap, Environment, Explained, HostGroup, Level, Tree};
use crate::cluster::allocation::Allocation;
use crate::cluster::hosts::fold;
use crate::forecast::model::fence::{LinkFanout, Packing};
use crate::forecast::model::{self, Constants, FANOUT_MOST, Recommendation, Size};
use crate::plan::Plan;
use crate::plan::checks;
use crate::plan::environment::is_foreign;
use crate::plan::launch::AgentHosts;
use crate::plan::machine::Machine;
use crate::plan::remote_launch::{RemoteLaunch, Shape, kind, why_not};
use crate::plan::request::{BootstrapKind, LaunchShape};

/// Collects the values of `plan`. `allocation` is the job that the nodes belong to. `constants` are the model's
/// constants for other nodes.
pub fn explained(
    plan: &Plan,
    agent_hosts: &AgentHosts,
    machine: &Machine,
    allocation: Option<&Allocation>,
    constants: &Constants,
) -> Explained {
    let launch = &plan.options.launch;
    let (nodes, ppn) = plan.extent();
    let mut constants = match agent_hosts {
        AgentHosts::Local => constants.local(machine.cores),
        AgentHosts::Remote(_) => constants.clone(),
    };
    // --batch also limits the number of remote shells in the model.
    constants.shells_max = constants.shells_max.min(launch.batch.unwrap_or(u32::MAX));
    let recommended = model::recommend(nodes, ppn, &constants);
    let agents = (1..=plan.agents()).map(|agent| format!("agent{agent}"));
    let (hosts, targets, fanout) = match agent_hosts {
        AgentHosts::Local => (vec![sys::host_name()], agents.collect(), None),
        AgentHosts::Remote(remote) => {
            let names = remote.nodes.iter().map(|node| node.name.clone()).collect();
            let targets: Vec<String> = remote.hosts().into_iter().map(|host| host.name).collect();
            (names, targets, remote.fanout)
        }
    };
    let is_local = !agent_hosts.is_remote();
    let of_agents: Vec<String> = match is_local {
        true => targets.clone(),
        false => plan.node_of_agent.iter().map(|node| hosts[*node].clone()).collect(),
    };
    let batch = launch.batch.unwrap_or(recommended.batch);
    Explained {
        hosts: host_groups(plan, &hosts),
        spares: spares(plan, agent_hosts),
        tree: Tree {
            shape: match (fanout, launch.shape) {
                (Some(_), _) => Shape::Tree.name(),
                (None, LaunchShape::Linear) => "linear",
                (None, _) => Shape::Flat.name(),
            },
            fanout: fanout.unwrap_or(plan.options.fanout()),
            batch: launch.batch,
            links: links(plan, agent_hosts, &recommended),
            has_shell_links: matches!(agent_hosts, AgentHosts::Remote(remote) if remote.links == Links::RemoteShells),
            is_local,
            levels: levels(&targets, fanout.or(is_local.then(|| plan.options.fanout()))),
            picture: picture(plan.settings.tree, &of_agents),
        },
        bootstrap: match agent_hosts {
            AgentHosts::Local => local_bootstrap(machine),
            AgentHosts::Remote(remote) => remote_bootstrap(plan, remote, allocation),
        },
        talked: plan.talked.as_ref().map(|talked| talked.lines.clone()).unwrap_or_default(),
        binding: binding(plan, is_local),
        environments: environments(plan, &machine.environment, agent_hosts.is_remote()),
        predicted: model::predict(
            Size { nodes: nodes.max(1), ppn: ppn.max(1) },
            fanout.unwrap_or(recommended.tree_fanout),
            batch,
            &constants,
        ),
        planned: Some(match (fanout, launch.shape, launch.batch) {
            (Some(_), _, Some(_)) => "tree, batched",
            (Some(_), _, None) => "tree (multi-level)",
            (None, LaunchShape::Linear, _) => "linear",
            (None, _, _) => "flat (SMP-aware)",
        }),
        measured: constants.measured,
        missing: missing(plan, is_local),
        recommended,
    }
}

/// Returns the fan-out of links and whether they pack boards, with the reasons.
fn links(plan: &Plan, agent_hosts: &AgentHosts, recommended: &Recommendation) -> String {
    let AgentHosts::Remote(remote) = agent_hosts else { return String::new() };
    let Packing { costs_ps, saves_ps } = recommended.packing;
    let packed = if recommended.packing.pays() { "packed" } else { "not packed" };
    let [saves, costs] = [saves_ps, costs_ps].map(|ps| ps as f64 / 1000.0);
    let fanout = fanout(plan, remote, &recommended.links);
    format!("{fanout}, long boards {packed} (a byte saves {saves:.1} ns and costs {costs:.1} ns)")
}

/// Returns the fan-out of links and its reason.
fn fanout(plan: &Plan, remote: &RemoteLaunch, model: &LinkFanout) -> String {
    let (fanout, recommended) = (plan.options.fanout(), model.fanout);
    if remote.links == Links::RemoteShells {
        return String::new();
    }
    if remote.is_fanout_typed {
        return format!(", fan-out {fanout} as typed (the model recommends {recommended})");
    }
    let LinkFanout { board_bytes, fence, fence_at_most, .. } = model;
    let (board, took) = (figures::bytes(*board_bytes), figures::time(*fence));
    let instead = match recommended {
        FANOUT_MOST => String::new(),
        _ => format!(", {} with fan-out {FANOUT_MOST}", figures::time(*fence_at_most)),
    };
    format!(", fan-out {fanout} by the model (a fence with {board} of entries: {took}{instead})")
}

/// Returns why programs cannot be run on this machine, with a hint if ranks run here.
fn missing(plan: &Plan, is_local: bool) -> Vec<String> {
    let (session, commands) = (&plan.settings.session, &plan.settings.first.commands);
    let mut missing = checks::missing_programs(session, commands);
    for why in missing.iter_mut().filter(|_| is_local) {
        if let Some(hint) = checks::missing_program_hint(why, session, commands, plan.options.verbose > 0, false) {
            why.push_str(&format!("\n  hint: {hint}"));
        }
    }
    missing
}

/// Groups the plan's hosts by their numbers of ranks and agents. `hosts` are the names of the node list.
fn host_groups(plan: &Plan, hosts: &[String]) -> Vec<HostGroup> {
    let ranks_of: LiteMap<u32, u32> =
        plan.settings.first.placement.iter().map(|(agent, ranks)| (agent.0, ranks.len() as u32)).collect();
    let mut order = Vec::new();
    let mut sizes: LiteMap<usize, (u32, u32)> = LiteMap::new();
    for (agent, node) in (1..).zip(&plan.node_of_agent) {
        let (ranks, agents) = sizes.entry(*node).or_insert_with(|| {
            order.push(*node);
            (0, 0)
        });
        *ranks += ranks_of.get(&agent).copied().unwrap_or_default();
        *agents += 1;
    }
    let mut groups: Vec<HostGroup> = Vec::new();
    let mut group_of_size: LiteMap<(u32, u32), usize> = LiteMap::new();
    for node in order {
        let (ranks, agents) = sizes[&node];
        let group = *group_of_size.entry((ranks, agents)).or_insert_with(|| {
            groups.push(HostGroup { names: Vec::new(), ranks, agents });
            groups.len() - 1
        });
        groups[group].names.push(hosts.get(node).cloned().unwrap_or_default());
    }
    groups
}

/// Returns the hosts that get ranks only if other hosts fail to start.
fn spares(plan: &Plan, agent_hosts: &AgentHosts) -> Vec<String> {
    let AgentHosts::Remote(remote) = agent_hosts else { return Vec::new() };
    let used: BTreeSet<usize> = plan.node_of_agent.iter().copied().collect();
    let spares = remote.choice.pool.iter().copied().filter(|node| !used.contains(node));
    spares.map(|node| remote.nodes[node].name.clone()).collect()
}

/// Returns the levels of the tree. `targets` are the hosts of all agents. Without a fan-out the launcher starts all.
fn levels(targets: &[String], fanout: Option<u32>) -> Vec<Level> {
    let count = targets.len() as u32;
    let names = |heads: &[Subtree]| {
        let mut names: Vec<String> = heads.iter().map(|head| targets[head.head().0 as usize - 1].clone()).collect();
        names.dedup();
        names
    };
    let mut levels: Vec<Level> = Vec::new();
    let mut heads = vec![Subtree::whole(count, fanout.unwrap_or(count))];
    loop {
        heads.retain(|head| head.size() > 1);
        let below: Vec<Subtree> = heads.iter().flat_map(Subtree::children).collect();
        let Some(shells_max) = heads.iter().map(|head| head.children().count() as u32).max() else {
            return levels;
        };
        let by = if levels.is_empty() { Vec::new() } else { names(&heads) };
        levels.push(Level { by, starts: names(&below), shells_max });
        heads = below;
    }
}

fn local_bootstrap(machine: &Machine) -> Bootstrap {
    Bootstrap {
        name: "fork".to_owned(),
        why: "as all ranks are on this machine".to_owned(),
        hosts: vec![sys::host_name()],
        command: vec![machine.program.clone().into_os_string()],
        others: None,
    }
}

fn remote_bootstrap(plan: &Plan, remote: &RemoteLaunch, allocation: Option<&Allocation>) -> Bootstrap {
    let launch = &plan.options.launch;
    let (own, hosts): (Vec<_>, Vec<_>) = remote.hosts().into_iter().partition(|host| host.is_here);
    let nobody = nla::bootstrap::HostAt { name: String::new(), user: None, is_here: false };
    let first = hosts.first().cloned().unwrap_or(nobody);
    let why = match (&launch.bootstrap, allocation) {
        (Some(_), _) => "as was asked for".to_owned(),
        (None, Some(allocation)) => match why_not(allocation.manager) {
            None => format!("as {}", allocation.words()),
            Some(why) => format!("as {}, and {why}", allocation.words()),
        },
        (None, None) => "as there is no allocation".to_owned(),
    };
    let name = word(&kind(launch, allocation.map(|allocation| allocation.manager))).to_owned();
    let (hosts, command, others) = match &remote.method {
        // A step starts on each node as many agents as that node needs, all by the same command.
        Method::Step { words, .. } => {
            let names: BTreeSet<String> = hosts.into_iter().map(|host| host.name).collect();
            let mut words = step_words(words, &fold(&names), names.len());
            words.push("...".to_owned());
            (names.into_iter().collect(), words, None)
        }
        method => {
            let has_others = hosts.iter().any(|host| *host != first);
            let words = opening_words(method, &first).unwrap_or_default();
            let others = has_others.then(|| "the same with their names".to_owned());
            let here =
                own.first().map(|host| format!("{} is this machine, where no remote shell is opened", host.name));
            let others: Vec<String> = others.into_iter().chain(here).collect();
            (vec![first.name], words, (!others.is_empty()).then(|| others.join("; ")))
        }
    };
    Bootstrap { name, why, hosts, command: command.into_iter().map(OsString::from).collect(), others }
}

/// Returns the name that `--bootstrap` takes.
fn word(kind: &BootstrapKind) -> &'static str {
    match kind {
        BootstrapKind::Fork => "fork",
        BootstrapKind::Ssh => "ssh",
        BootstrapKind::Manager(manager) => manager.word(),
        BootstrapKind::Exec(_) => "exec",
        BootstrapKind::Keeper => "pool",
    }
}

/// Returns the environment of each command, or a single one if all are equal. `known` is the launcher's environment.
fn environments(plan: &Plan, known: &[(OsString, OsString)], is_remote: bool) -> Vec<Environment> {
    let commands = &plan.settings.first.commands;
    let mut environments: Vec<_> = commands.iter().map(|command| environment(command, known, is_remote)).collect();
    if environments.iter().all(|environment| *environment == environments[0]) {
        environments.truncate(1);
    } else {
        for (environment, command) in environments.iter_mut().zip(commands) {
            environment.program = Some(OsString::from_vec(command.program.clone()));
        }
    }
    environments
}

/// Returns the environment of a command's ranks. On other nodes, ranks do not get variables that are bound to a host.
fn environment(command: &CommandPlan, known: &[(OsString, OsString)], is_remote: bool) -> Environment {
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let inherits = |name: &[u8]| match &command.inherit {
        Inherit::All => true,
        Inherit::Nothing => false,
        Inherit::Names(names) => names.iter().any(|known| known == name),
    };
    let inherited = match &command.inherit {
        Inherit::All => "all of yours".to_owned(),
        Inherit::Nothing => "nothing of yours".to_owned(),
        Inherit::Names(names) => {
            format!("of yours only {}", names.iter().map(|name| text(name)).collect::<Vec<_>>().join(", "))
        }
    };
    let is_removed = |name: &[u8]| is_foreign(name) || is_remote && is_bound_to_host(name);
    let names = known.iter().map(|(name, _)| name.as_bytes());
    let mut removed: Vec<String> = names.filter(|name| inherits(name) && is_removed(name)).map(text).collect();
    removed.sort_unstable();
    // If a variable is set twice, the last value wins.
    let is_last = |at: usize| !command.set[at + 1..].iter().any(|(later, _)| *later == command.set[at].0);
    let word = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    let set = command.set.iter().enumerate().filter(|(at, _)| is_last(*at));
    let set = set.map(|(_, (name, value))| (word(name), word(value))).collect();
    Environment { program: None, inherited, removed, set }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn level(by: &[&str], starts: &[&str], shells_max: u32) -> Level {
        Level { by: hosts(by), starts: hosts(starts), shells_max }
    }

    #[test]
    fn levels_follow_the_tree() {
        let targets = hosts(&["a", "b", "c", "d", "e", "f", "g"]);
        assert_eq!(levels(&targets, None), [level(&[], &["a", "b", "c", "d", "e", "f", "g"], 7)]);
        let tree = [level(&[], &["a", "d"], 2), level(&["a", "d"], &["b", "c", "e", "f"], 2), level(&["f"], &["g"], 1)];
        assert_eq!(levels(&targets, Some(2)), tree);
        assert_eq!(levels(&hosts(&["a", "a", "b", "b"]), None), [level(&[], &["a", "b"], 4)]);
        assert_eq!(levels(&[], None), []);
    }

    #[test]
    fn the_last_value_of_a_variable_is_shown() {
        let variable = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        let command = CommandPlan {
            nprocs: 1,
            program: b"a".to_vec(),
            staged: None,
            args: Vec::new(),
            inherit: Inherit::Names(vec![b"HOME".to_vec(), b"DISPLAY".to_vec()]),
            set: vec![variable("A", "1"), variable("B", "2"), variable("A", "3")],
            wdir: Vec::new(),
        };
        let known: Vec<(OsString, OsString)> =
            ["HOME", "DISPLAY", "SSH_TTY", "PMI_FD"].map(|name| (name.into(), "x".into())).into();
        let shown = |is_remote| environment(&command, &known, is_remote);
        let set = vec![("B".into(), "2".into()), ("A".into(), "3".into())];
        let expected = |removed: &[&str]| Environment {
            program: None,
            inherited: "of yours only HOME, DISPLAY".to_owned(),
            removed: hosts(removed),
            set: set.clone(),
        };
        assert_eq!(shown(true), expected(&["DISPLAY"]));
        assert_eq!(shown(false), expected(&[]));
        let all = environment(&CommandPlan { inherit: Inherit::All, ..command.clone() }, &known, true);
        assert_eq!(all.removed, ["DISPLAY", "PMI_FD", "SSH_TTY"]);
    }
}
