//! Turns a request into a plan and the hosts that its agents run on.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use nla::bootstrap::{Links, NodeChoice};
use nla::core::CommandPlan;
use nla::figures::counted;
use nla::sys;

use crate::cluster::allocation::Allocation;
use crate::cluster::node_list::{self, NodeList, OwnNames};
use crate::cluster::system::Process;
use crate::plan::accelerators;
use crate::plan::checks;
use crate::plan::collect;
use crate::plan::library;
use crate::plan::machine::Machine;
use crate::plan::mpi;
use crate::plan::mpi_user::MpiUser;
use crate::plan::overwrites;
use crate::plan::placing;
use crate::plan::pmix;
use crate::plan::profile;
use crate::plan::remote_launch::{self, Recommended, RemoteLaunch};
use crate::plan::request::{BootstrapKind, Mpi, Options, Request};
use crate::plan::stage;
use crate::plan::wrapper::{SEARCH_TIME, mpi_users};
use crate::plan::{Plan, plan};
use crate::refusal::Refusal;

/// The machines on which a session's agents run.
pub enum AgentHosts {
    /// On this machine.
    Local,
    /// On other nodes.
    Remote(Box<RemoteLaunch>),
}

impl AgentHosts {
    /// Returns whether agents run on other nodes.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Remote(_))
    }

    /// Returns the names of the node list; none on this machine alone.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Self::Local => Vec::new(),
            Self::Remote(remote) => remote.nodes.iter().map(|node| node.name.as_str()).collect(),
        }
    }
}

/// A session that is ready to be run or explained.
pub struct Prepared {
    /// The plan. Its remarks include those about the nodes.
    pub plan: Plan,
    /// The machines on which the session's agents run.
    pub agent_hosts: AgentHosts,
    /// The resource manager's job that the nodes belong to, if any.
    pub allocation: Option<Allocation>,
}

/// Recommends how to start agents, given the number of nodes and the most ranks on one node. Not called for a session
/// on this machine alone.
pub type Recommend<'a> = &'a dyn Fn(u32, u32) -> Recommended;

/// A request whose nodes are known.
pub struct Located {
    request: Request,
    nodes: NodeList,
    /// The names of this machine, if the list may have them.
    own: Option<OwnNames>,
    remarks: Vec<String>,
}

/// Finds the nodes of a request.
pub fn locate(mut request: Request, machine: &Machine) -> Result<Located, Refusal> {
    let mut remarks = Vec::new();
    checks::check(&request.options, &machine.wdir)?;
    let nodes = find_nodes(&request, machine, &mut remarks)?;
    let nodes = placing::provide(&mut request, nodes, machine, &mut remarks)?;
    let may_name_this = matches!(nodes, NodeList::Named { .. }) && !chooses_method(&request);
    let own = may_name_this.then(|| OwnNames { name: sys::host_name(), addresses: sys::addresses() });
    let nodes = match &own {
        Some(own) => nodes.or_local(own),
        None => nodes,
    };
    Ok(Located { request, nodes, own, remarks })
}

impl Located {
    /// Returns whether all agents will run on this machine.
    pub fn is_local(&self) -> bool {
        matches!(self.nodes, NodeList::Local { .. })
    }

    /// Returns the nodes.
    pub fn nodes(&self) -> &NodeList {
        &self.nodes
    }

    /// Returns the typed options.
    pub fn options(&self) -> &Options {
        &self.request.options
    }

    /// Makes the plan.
    pub fn prepare(self, machine: &Machine, recommend: Recommend<'_>) -> Result<Prepared, Refusal> {
        let Self { request, nodes, own, remarks } = self;
        let allocation = nodes.allocation().cloned();
        let (mut plan, agent_hosts) = match nodes {
            NodeList::Local { .. } => (plan_with_mpi(&request, machine, &nodes, None)?, AgentHosts::Local),
            NodeList::Named { .. } => {
                let (plan, remote) = prepare_remote(request, machine.clone(), nodes, own.as_ref(), recommend)?;
                (plan, AgentHosts::Remote(Box::new(remote)))
            }
        };
        overwrites::check(&plan, io::stdin().as_fd())?;
        plan.remarks.splice(..0, remarks);
        let shared_files = checks::shared_files(&plan.options, plan.size());
        plan.remarks.extend(shared_files);
        Ok(Prepared { plan, agent_hosts, allocation })
    }
}

/// Returns whether the user has chosen how to reach hosts. Then even this machine's own name is reached by that method.
fn chooses_method(request: &Request) -> bool {
    let launch = &request.options.launch;
    let chooses = !matches!(launch.bootstrap, None | Some(BootstrapKind::Fork));
    chooses || launch.launcher_exec.is_some() || launch.launch_agent.is_some() || launch.no_ports
}

/// Finds the nodes that the session may use. Adds lines for the user to `remarks`.
pub fn find_nodes(request: &Request, machine: &Machine, remarks: &mut Vec<String>) -> Result<NodeList, Refusal> {
    let process = Process { environment: &machine.environment };
    let nodes = node_list::find(&request.options.hosts, &process, remarks)?;
    if request.options.verbose > 0 {
        remarks.extend(nodes.allocation().map(Allocation::words));
        let why_not = nodes.allocation().and_then(|allocation| remote_launch::why_not(allocation.manager));
        if request.options.launch.bootstrap.is_none() {
            remarks.extend(why_not.map(|why| format!("agents are started by ssh: {why}")));
        }
    }
    Ok(nodes)
}

/// Makes the plan for other nodes, and chooses how to start agents there. A node with `own` names is this machine, where they are
/// started without a remote shell.
pub fn prepare_remote(
    mut request: Request,
    machine: Machine,
    nodes: NodeList,
    own: Option<&OwnNames>,
    recommend: Recommend<'_>,
) -> Result<(Plan, RemoteLaunch), Refusal> {
    let nodes = accelerators::with_devices(&request, nodes)?;
    let here = own.map(|own| nodes.here(own)).unwrap_or_default();
    let launch = &request.options.launch.clone();
    let manager = nodes.allocation().map(|allocation| allocation.manager);
    let mut method = remote_launch::method(launch, manager, &machine.program)?;
    // Sending the program requires reading all of it, which --explain does without.
    if !request.options.explain
        && let Some(sent) = remote_launch::may_send(&mut method)
    {
        let unreadable = |error| Refusal::new(format!("the job could not be launched: {error}"), "").of_system();
        *sent = Some(nla::bootstrap::own_program().map_err(unreadable)?);
    }
    let all = nodes.nodes().to_vec();
    check_count("--min-nodes", launch.min_nodes.unwrap_or_default(), all.len(), "the list has")?;
    check_count("--spares", launch.spares, all.len() - 1, "besides the one that must run, the list has")?;
    let spares = launch.spares as usize;
    let held_back: BTreeSet<usize> = (all.len() - spares..all.len()).collect();
    let mut plan = plan_with_mpi(&request, &machine, &nodes.without(&held_back), None)?;
    let used: BTreeSet<usize> = plan.node_of_agent.iter().copied().collect();
    let least = launch.min_nodes.map_or(used.len(), |least| (least as usize).min(used.len()));
    let (nodes_used, ppn) = plan.extent();
    let recommended = recommend(nodes_used, ppn);
    let typed = request.options.fanout;
    let (links, fanout) = if launch.no_ports {
        let fanout = remote_launch::shell_link_fanout(launch.shape, typed, recommended, &method)?;
        // No more agents than the fan-out: all are children of the launcher.
        let fanout = fanout.filter(|fanout| *fanout < plan.agents());
        request.options.fanout = Some(fanout.unwrap_or(plan.agents().max(1)));
        plan = plan_with_mpi(&request, &machine, &nodes.without(&held_back), plan.mpi_users)?;
        (Links::RemoteShells, fanout)
    } else {
        if typed.is_none() {
            request.options.fanout = Some(recommended.link_fanout);
            plan.set_fanout(recommended.link_fanout);
        }
        (Links::Connections, remote_launch::launch_fanout(launch.shape, typed, recommended, &method))
    };
    let packs = recommended.packs;
    plan.settings.packs = packs;
    let mut targets = plan.node_of_agent.clone();
    // In a tree of shell links, a spare gets a position only after another node has failed.
    if links == Links::Connections || fanout.is_none() {
        // A spare may have to replace any other node.
        let each = targets.len().div_ceil(used.len().max(1));
        targets.extend(held_back.iter().flat_map(|node| std::iter::repeat_n(*node, each)));
    }
    let pool = used.union(&held_back).copied().collect();
    let last = used.last().copied().unwrap_or_default();
    let choice = NodeChoice {
        nodes: all.len(),
        targets,
        pool,
        passed_over: (0..last).filter(|node| !used.contains(node)).collect(),
        min: least,
        max: used.len(),
        is_one_tree: links == Links::RemoteShells && fanout.is_some(),
    };
    let times = remote_launch::times(launch, &Process { environment: &machine.environment });
    let batch = launch.batch;
    // The job keeps its size when nodes fail.
    let request = plan.with_sizes(&request);
    let mpi_users = plan.mpi_users.clone();
    let replan = move |left_out: &BTreeSet<usize>| {
        let mut plan = plan_with_mpi(&request, &machine, &nodes.without(left_out), mpi_users.clone())
            .map_err(|error| error.with_hint())?;
        plan.settings.packs = packs;
        Ok(plan)
    };
    let remote = RemoteLaunch {
        nodes: all,
        here,
        choice,
        links,
        method,
        fanout,
        is_fanout_typed: typed.is_some(),
        batch,
        times,
        replan: Box::new(replan),
    };
    Ok((plan, remote))
}

/// Checks that the number of nodes of `option` is at most `most`. `list` says what `most` counts.
fn check_count(option: &str, count: u32, most: usize, list: &str) -> Result<(), Refusal> {
    if count as usize <= most {
        return Ok(());
    }
    let text = format!("option '{option}': {}; {list} {most}", asked_for(count));
    Err(Refusal::new(text, format!("name more hosts, or a smaller number with {option}")))
}

/// Describes how many nodes an option asks for.
pub(super) fn asked_for(nodes: u32) -> String {
    format!("{} {} asked for", counted(nodes.into(), "node"), if nodes == 1 { "is" } else { "are" })
}

/// Makes the plan, and adds what the ranks' MPI libraries need. Refuses programs whose library cannot be served. `known` has the files
/// that may call MPI, if a former plan has looked for them.
fn plan_with_mpi(
    request: &Request,
    machine: &Machine,
    nodes: &NodeList,
    known: Option<Vec<Vec<MpiUser>>>,
) -> Result<Plan, Refusal> {
    let mut planned = plan(request, machine, nodes)?;
    let (session, commands) = (&planned.settings.session, &planned.settings.first.commands);
    let mut late = Vec::new();
    let users = known.unwrap_or_else(|| {
        let limit = if request.options.mpi == Mpi::None { Duration::ZERO } else { SEARCH_TIME };
        let users_of = |command| {
            mpi_users(session, command, limit).unwrap_or_else(|| {
                late.push(too_slow(command));
                Vec::new()
            })
        };
        commands.iter().map(users_of).collect()
    });
    match pmix::need(&planned, &users) {
        pmix::Need::No => {}
        need => match plan_with_pmix(request, machine, nodes, &users) {
            Ok(served) => planned = served,
            // The script may not use MPI.
            Err(refusal) if need == pmix::Need::Perhaps => {
                let user = users.iter().flatten().find(|user| pmix::need_of(user) == need);
                planned.remarks.extend(user.map(|user| user.left_out(&refusal)));
            }
            Err(refusal) => return Err(refusal),
        },
    }
    planned.remarks.extend(late);
    mpi::provide(&mut planned, machine, &users)?;
    mpi::replace_slurm(&mut planned, machine, &users)?;
    let traced = profile::provide(&mut planned, machine, nodes)?;
    library::check(&planned, &users)?;
    let is_expected = |user: &MpiUser| user.uses_mpi() && !user.is_unlikely;
    planned.settings.expects_pmi = planned.options.mpi != Mpi::None && users.iter().flatten().any(is_expected);
    planned.mpi_users = Some(users);
    stage::provide(&mut planned, &machine.wdir, traced.as_deref())?;
    collect::provide(&mut planned, &machine.wdir)?;
    Ok(planned)
}

/// Returns the remark about a command whose files are in a file system that does not answer in time.
fn too_slow(command: &CommandPlan) -> String {
    format!(
        "the files that '{}' names were not found within {} s: they count as no MPI programs; --mpi KIND names the kind that the ranks use",
        String::from_utf8_lossy(&command.program),
        SEARCH_TIME.as_secs()
    )
}

/// Makes the plan of a job that is served by PMIx.
fn plan_with_pmix(
    request: &Request,
    machine: &Machine,
    nodes: &NodeList,
    users: &[Vec<MpiUser>],
) -> Result<Plan, Refusal> {
    let mut planned = plan(request, machine, nodes)?;
    if let Some(request) = pmix::with_one_agent_per_node(request, &planned)? {
        planned = plan(&request, machine, nodes)?;
    }
    pmix::provide(&mut planned, machine, nodes, users)?;
    Ok(planned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_nodes_than_the_list_has_are_refused() {
        assert_eq!(check_count("--min-nodes", 2, 2, "the list has"), Ok(()));
        let error = check_count("--min-nodes", 5, 2, "the list has").unwrap_err();
        let text = "option '--min-nodes': 5 nodes are asked for; the list has 2\n  \
                    hint: name more hosts, or a smaller number with --min-nodes";
        assert_eq!((error.with_hint(), error.early_end().code()), (text.to_owned(), 2));
    }
}
