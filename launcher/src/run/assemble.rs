//! The time between the first session and the tree: agents come, or do not, and the plan is made for those
//! that have.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use nla::bootstrap::{StartFailure, StartPhase};
use nla::sys;
use tokio::time::Instant;

use crate::cluster::hosts::fold;
use crate::exit;
use crate::plan::Plan;
use crate::plan::remote_launch::RemoteLaunch;
use crate::plan::request::LaunchOptions;
use crate::run::bootstrap::Bootstrap;
use crate::run::rank_locations::RankLocations;
use crate::run::report::Reporter;
use crate::run::signals::{Asked, Signals};

/// How long agents that are not to join may take to leave, before others are started in their places.
const LEAVE_TIME: Duration = Duration::from_secs(1);

/// Waits for the agents of all targets, leaves out the nodes of those that do not come if that is allowed,
/// and gives the others their places. `plan` is made again if nodes are left out; where sessions and links are one
/// tree, all agents then leave, and `start` begins again, in the time that is left. The result is where
/// everything is; or the exit code, and the user knows why. `look` is called now and then.
pub(crate) async fn gather(
    expedition: &mut RemoteLaunch,
    start: impl Fn(&RemoteLaunch, Duration) -> Bootstrap,
    plan: &mut Plan,
    signals: &mut Signals,
    reporter: Reporter,
    mut look: impl FnMut(&Bootstrap),
) -> (Bootstrap, Result<RankLocations, u8>) {
    let deadline = Instant::now() + expedition.patience;
    loop {
        let patience = expedition.patience_of(deadline.saturating_duration_since(Instant::now()));
        let mut bootstrap = start(expedition, patience);
        match settle(expedition, &mut bootstrap, patience, plan, signals, reporter, &mut look).await {
            // Each time there are fewer nodes.
            Ok(None) => drop(bootstrap.wait(LEAVE_TIME).await),
            Ok(Some(places)) => return (bootstrap, Ok(places)),
            Err(code) => return (bootstrap, Err(code)),
        }
    }
}

/// [`gather`], once. `None` if it is to begin again.
async fn settle(
    expedition: &mut RemoteLaunch,
    bootstrap: &mut Bootstrap,
    patience: Duration,
    plan: &mut Plan,
    signals: &mut Signals,
    reporter: Reporter,
    look: impl FnMut(&Bootstrap),
) -> Result<Option<RankLocations>, u8> {
    tokio::select! {
        biased;
        signal = asked_to_end(signals) => {
            reporter.note(&format!("{}: the launch is given up", sys::signal_name(signal)));
            return Err(exit::signalled(signal));
        }
        () = bootstrap.callback(Instant::now() + patience, look) => {}
    }
    let failures = bootstrap.failures();
    let text = failures_text(expedition, failures);
    let Some(left_out) = expedition.without(failures.keys().copied()) else {
        reporter.error(&format!("{text}\n  no rank was started"));
        return Err(exit::NOT_LAUNCHED);
    };
    if !failures.is_empty() {
        reporter.note(&format!("going on without them: {text}"));
        match (expedition.replan)(&left_out) {
            Ok(other) => *plan = other,
            Err(why) => {
                reporter.error(&format!("without the hosts that could not be started, {why}\n  no rank was started"));
                return Err(exit::NOT_LAUNCHED);
            }
        }
        if expedition.is_one_tree() {
            expedition.begin_again(plan, &left_out, &failures.keys().copied().collect());
            return Ok(None);
        }
    }
    let Some(targets) = expedition.targets_of(plan, &left_out) else {
        reporter.error(&format!(
            "{text}\n  the other hosts would need more agents than they have\n  no rank was started\n  \
             hint: --exclude the bad hosts, and start again"
        ));
        return Err(exit::NOT_LAUNCHED);
    };
    let names = targets.iter().map(|target| expedition.name(*target).to_owned()).collect();
    bootstrap.commit(targets, plan.settings.tree, plan.options.fanout());
    Ok(Some(RankLocations::there(sys::host_name(), names, &plan.settings.first)))
}

async fn asked_to_end(signals: &mut Signals) -> i32 {
    loop {
        match signals.next().await {
            Some(Asked::End(signal)) => return signal,
            Some(_) => {}
            None => return std::future::pending().await,
        }
    }
}

/// All failures in words, equal ones folded.
pub(crate) fn failures_text(expedition: &RemoteLaunch, failures: &BTreeMap<u32, StartFailure>) -> String {
    let mut by_cause: BTreeMap<(StartPhase, &str), Vec<&str>> = BTreeMap::new();
    for (target, failure) in failures {
        let names = by_cause.entry((failure.phase, &failure.words)).or_default();
        let name = expedition.name(*target);
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    let mut bad: Vec<&str> = by_cause.values().flatten().copied().collect();
    bad.sort_unstable();
    bad.dedup();
    let all = expedition.targets.iter().collect::<std::collections::BTreeSet<_>>().len();
    let mut text = format!("{} of {all} hosts could not be started", bad.len());
    let mut hinted = None;
    for ((phase, words), names) in &by_cause {
        let _ = write!(text, "\n  {}: {words}", fold(names));
        let hint = phase.hint();
        if hinted.replace(hint) != Some(hint) {
            let _ = write!(text, "\n    hint: {}", hint.replace("NAME", names[0]));
        }
    }
    text
}

/// Where others find the launcher: as the options say, else `own`, the likeliest first.
pub(crate) fn addresses(options: &LaunchOptions, own: Vec<SocketAddr>) -> io::Result<Vec<SocketAddr>> {
    let port = own.first().map_or(0, SocketAddr::port);
    let with_port =
        |addresses: Vec<IpAddr>| addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect();
    if let Some(address) = &options.connect_back {
        let name = address.to_string_lossy();
        let found = (name.as_ref(), port).to_socket_addrs();
        let found: Vec<SocketAddr> =
            found.map_err(|error| io::Error::other(format!("--connect-back {name}: {error}")))?.collect();
        return Ok(found);
    }
    if let Some(name) = &options.iface {
        let name = name.to_string_lossy();
        let found = sys::addresses_of(Some(&name));
        if found.is_empty() {
            return Err(io::Error::other(format!("--iface {name}: no interface of this name has an address")));
        }
        return Ok(with_port(found));
    }
    Ok(own)
}

#[cfg(test)]
mod tests {
    use nla::bootstrap::{Links, Method};

    use super::*;
    use crate::cluster::node_list::Node;

    #[test]
    fn equal_failures_are_folded_and_have_one_hint() {
        let expedition = RemoteLaunch {
            nodes: (1..=32).map(|node| Node::named(format!("node{node:03}"))).collect(),
            targets: (0..32).collect(),
            pool: (0..32).collect(),
            links: Links::Connections,
            least: 32,
            most: 32,
            method: Method::Fork,
            fanout: None,
            batch: None,
            patience: Duration::from_secs(1),
            replan: Box::new(|_| Err(String::new())),
        };
        let login = StartFailure::new(StartPhase::Login, "Permission denied (publickey).");
        let name = StartFailure::new(StartPhase::Name, "Name or service not known");
        let failures = [(17, login.clone()), (30, login.clone()), (3, name), (31, login)].into();
        assert_eq!(
            failures_text(&expedition, &failures),
            "4 of 32 hosts could not be started\n\
             \x20 node003: Name or service not known\n\
             \x20   hint: is the name spelt as your system knows it? 'getent hosts node003' tells\n\
             \x20 node[017,030-031]: Permission denied (publickey).\n\
             \x20   hint: can you log in without a password? 'ssh -o BatchMode=yes node017 true' tells; ssh-copy-id installs a key"
        );
    }
}
