//! The controller's part in changes of a pool's nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::rc::Rc;

use nla::core::Resources;
use nla::sys::WatchedPackets;
use tokio::time::timeout;

use super::{Actor, Event, until_left};
use crate::cluster::hosts::{HostsError, expand, fold, parse_list, quoted};
use crate::pool::devices::Devices;
use crate::pool::fleet::{END_TIME, Fleet, Host};
use crate::pool::message::{NodeChange, ToClient, ToController, packed};
use crate::pool::nodes::{Health, Node, NodeNumber};
use crate::pool::schedule::Input;

/// The hint about nodes of which none was added because one of them could not be.
const ALL_OR_NONE: &str =
    "the hosts are started together, all or none: type it again without those that cannot be started";

impl Actor {
    /// Tells the schedule that the health of nodes has changed.
    pub(super) fn note_health(&mut self, changed: Vec<(NodeNumber, Health)>) {
        for (node, health) in changed {
            let state = self.fleet.as_ref().and_then(|fleet| fleet.state(node));
            self.handle(match health {
                Health::Up => Input::NodeUp(node, state.map_or(1, |state| state.cores)),
                health => Input::NodeHealth(node, health),
            });
        }
    }

    /// Changes nodes for a client, and answers it, now or once added nodes are up.
    pub(super) async fn change_nodes(&mut self, client: Rc<WatchedPackets>, change: NodeChange, list: &str) {
        let changed = match change {
            // This process may have been stopped since it was asked.
            NodeChange::Add { .. } if client.has_ended() => Err("nothing was added".to_owned()),
            NodeChange::Add { gres } => match self.add_nodes(list, &gres).await {
                Ok(nodes) => {
                    self.report_after("client", until_left(Rc::clone(&client)), Event::AddLeft(nodes.start));
                    self.adding.push((client, nodes));
                    return self.answer_added();
                }
                Err(why) => Err(why),
            },
            NodeChange::Drain => self.drain(list, true).await,
            NodeChange::Resume => self.drain(list, false).await,
        };
        tell(&client, changed);
    }

    /// Ends the keepers, and waits for their sessions. Meanwhile clients see a pool that is being stopped.
    pub(super) async fn end_fleet(&mut self) {
        if self.fleet.is_none() {
            return;
        }
        self.handle(Input::Stop);
        for (client, _) in std::mem::take(&mut self.adding) {
            tell(&client, Err(self.stopping_text()));
        }
        self.fleet.iter_mut().for_each(Fleet::begin_end);
        for _ in 0..3 {
            if timeout(END_TIME, self.await_sessions()).await.is_ok() {
                return;
            }
            self.fleet.iter_mut().for_each(Fleet::end_sessions);
        }
        tracing::warn!("sessions of keepers have not ended");
    }

    async fn await_sessions(&mut self) {
        let mut event = None;
        loop {
            match event {
                Some(Event::Asked(client, ToController::Nodes(..), _)) => tell(&client, Err(self.stopping_text())),
                Some(Event::Asked(client, question, descriptors)) => self.answer(client, question, descriptors),
                Some(Event::Report(client)) => self.report(client),
                Some(Event::Fleet(event)) => self.fleet.iter_mut().for_each(|fleet| fleet.end_on(&event)),
                _ => {}
            }
            if self.fleet.as_ref().is_none_or(Fleet::has_ended) {
                return;
            }
            event = self.incoming.recv().await;
        }
    }

    fn stopping_text(&self) -> String {
        format!("the pool '{}' is being stopped", self.name)
    }

    async fn drain(&mut self, list: &str, is_drained: bool) -> Result<(), String> {
        let nodes = self.known(list)?;
        for node in &nodes {
            self.handle(Input::NodeDrained(*node, is_drained));
        }
        if let (Some(fleet), false) = (&mut self.fleet, is_drained) {
            let changed = fleet.retry(&nodes).await;
            self.note_health(changed);
        }
        Ok(())
    }

    /// Returns the nodes of a list of names. Fails if the pool does not have one of them.
    fn known(&self, list: &str) -> Result<Vec<NodeNumber>, String> {
        let names = expand(list.as_bytes()).map_err(|error| of_list(&error))?;
        let numbers: HashMap<&str, NodeNumber> =
            self.schedule.nodes().all().map(|(at, node)| (node.name.as_str(), at)).collect();
        let unknown: Vec<&String> = names.iter().filter(|name| !numbers.contains_key(name.as_str())).collect();
        if !unknown.is_empty() {
            let hint = format!("'scela status {}' lists its nodes", self.name);
            return Err(format!("the pool has no node {}\n  hint: {hint}", fold(unknown)));
        }
        Ok(names.iter().filter_map(|name| numbers.get(name.as_str()).copied()).collect())
    }

    /// Adds the nodes of a host list, each with these devices. Returns their numbers.
    async fn add_nodes(&mut self, list: &str, gres: &Resources) -> Result<Range<NodeNumber>, String> {
        let Some(fleet) = &mut self.fleet else {
            return Err("the pool is on this machine only; start one with --hosts".to_owned());
        };
        let entries = parse_list(list.as_bytes()).map_err(|error| of_list(&error))?;
        let known: BTreeSet<&str> = self.schedule.nodes().all().map(|(_, node)| node.name.as_str()).collect();
        if let Some(entry) = entries.iter().find(|entry| known.contains(entry.name.as_str())) {
            let hint = format!("'scela status {}' lists its nodes", self.name);
            return Err(format!("the pool has {} already\n  hint: {hint}", entry.name));
        }
        let mut named = BTreeSet::new();
        if let Some(entry) = entries.iter().find(|entry| !named.insert(&entry.name)) {
            return Err(format!("the list has {} twice", entry.name));
        }
        let numbers = fleet.next_node()..;
        if let Some((_, entry)) =
            numbers.zip(&entries).find(|(at, entry)| !self.schedule.nodes().has_place(*at, &entry.name))
        {
            return Err(format!("the network of --topology has no place for {}", entry.name));
        }
        let hosts = entries.iter().map(|entry| Host { name: entry.name.clone(), user: entry.user.clone() });
        let nodes = fleet.add(hosts.collect()).await.map_err(|error| error.to_string())?;
        for (at, entry) in nodes.clone().zip(&entries) {
            let slots = entry.slots.unwrap_or_default();
            let node = Node { devices: Devices::of(gres), ..Node::new(entry.name.clone(), slots, Health::Starts) };
            self.handle(Input::NodeAdded(at, node));
        }
        Ok(nodes)
    }

    /// Removes the nodes from this number on that a client is adding, as far as no jobs run there. Nothing happens if the client has
    /// its answer.
    pub(super) fn withdraw_added(&mut self, first: NodeNumber) {
        let Some(at) = self.adding.iter().position(|(_, added)| added.start == first) else { return };
        let (client, added) = self.adding.swap_remove(at);
        let nodes = self.schedule.nodes();
        let known = added.filter_map(|at| Some((at, nodes.node(at)?)));
        let (kept, removed): (Vec<_>, Vec<_>) =
            known.map(|(at, node)| (at, node.name.clone(), node.busy > 0)).partition(|(.., has_jobs)| *has_jobs);
        let names = |nodes: &[(NodeNumber, String, bool)]| fold(nodes.iter().map(|(_, name, _)| name.as_str()));
        let text = withdrawn_text(&names(&removed), &names(&kept), &self.name);
        removed.into_iter().for_each(|(at, ..)| self.remove_node(at));
        tell(&client, Err(text));
    }

    fn remove_node(&mut self, at: NodeNumber) {
        if let Some(fleet) = &mut self.fleet {
            fleet.remove(at);
        }
        self.handle(Input::NodeRemoved(at));
    }

    /// Answers each client whose added nodes have all started or failed, and removes those that are down.
    pub(super) fn answer_added(&mut self) {
        let nodes = self.schedule.nodes();
        let health = |at: NodeNumber| nodes.node(at).map(|node| &node.health);
        let is_settled =
            |(_, added): &mut (_, Range<NodeNumber>)| added.clone().all(|at| health(at) != Some(&Health::Starts));
        let settled: Vec<_> = self.adding.extract_if(.., is_settled).collect();
        for (client, added) in settled {
            let nodes = self.schedule.nodes();
            let nodes: Vec<_> = added.filter_map(|at| Some((at, nodes.node(at)?))).collect();
            let failed = failures(nodes.iter().copied());
            let up = nodes.iter().filter(|(_, node)| node.health == Health::Up);
            let up: Vec<String> = up.map(|(_, node)| node.name.clone()).collect();
            failed.values().flat_map(BTreeMap::keys).for_each(|at| self.remove_node(*at));
            tell(&client, if failed.is_empty() { Ok(()) } else { Err(not_added(&failed, &up)) });
        }
    }
}

/// Returns the text of an error in a list. It begins with "the list" if the error has a column; other errors name the list.
fn of_list(error: &HostsError) -> String {
    if error.column().is_some() { error.after("the list").with_hint() } else { error.problem().with_hint() }
}

/// Nodes that are down, by the reasons.
type Failures = BTreeMap<String, BTreeMap<NodeNumber, String>>;

fn failures<'a>(nodes: impl Iterator<Item = (NodeNumber, &'a Node)>) -> Failures {
    let mut failures = Failures::new();
    for (at, node) in nodes {
        if let Health::Down(why) = &node.health {
            failures.entry(why.clone()).or_default().insert(at, node.name.clone());
        }
    }
    failures
}

/// Returns the error about nodes that were not added, while those in `up` were. Nodes of one session share its error, so two nodes under
/// a reason mean that the whole addition failed, unless others are up.
fn not_added(failures: &Failures, up: &[String]) -> String {
    let were = |nodes: usize| if nodes == 1 { "was" } else { "were" };
    let line = |(why, nodes): (&String, &BTreeMap<NodeNumber, String>)| {
        format!("{} {} not added: {why}", fold(nodes.values()), were(nodes.len()))
    };
    let mut text = failures.iter().map(line).collect::<Vec<_>>().join("\n");
    if !up.is_empty() {
        text.push_str(&format!("\n{} {} added", fold(up), were(up.len())));
    } else if failures.values().any(|nodes| nodes.len() > 1) {
        text.push_str("\n  hint: ");
        text.push_str(ALL_OR_NONE);
    }
    text
}

/// Returns the text about an addition to a pool that was withdrawn: of nodes that were removed, and of those where jobs run.
fn withdrawn_text(removed: &str, kept: &str, pool: &str) -> String {
    let removed = if removed.is_empty() { String::new() } else { format!("not added: {removed}") };
    if kept.is_empty() {
        return removed;
    }
    let separator = if removed.is_empty() { "" } else { "; " };
    let hint = format!("'scela pool drain {} {pool}' gives them no more jobs", quoted(kept));
    format!("{removed}{separator}added, because jobs run there: {kept}\n  hint: {hint}")
}

fn tell(client: &WatchedPackets, changed: Result<(), String>) {
    // A client that has disconnected needs no answer.
    let _ = client.try_send(&packed(&changed.map_or_else(ToClient::NodesRefused, |()| ToClient::Done)), &[]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_about_a_list_names_the_list_once() {
        let text = |list: &str| of_list(&expand(list.as_bytes()).unwrap_err());
        assert!(text("").starts_with("the list is empty\n  hint: name hosts"), "{}", text(""));
        assert!(text("a,,b").starts_with("the list, "), "{}", text("a,,b"));
    }

    #[test]
    fn a_withdrawn_addition_names_the_nodes_that_have_jobs() {
        assert_eq!(withdrawn_text("n[1-2]", "", "night"), "not added: n[1-2]");
        let hint = "\n  hint: 'scela pool drain n3 night' gives them no more jobs";
        assert_eq!(withdrawn_text("", "n3", "night"), format!("added, because jobs run there: n3{hint}"));
        assert_eq!(
            withdrawn_text("n1", "n3", "night"),
            format!("not added: n1; added, because jobs run there: n3{hint}")
        );
        let several = withdrawn_text("", "n[3-4]", "night");
        assert!(
            several.ends_with("\n  hint: 'scela pool drain \"n[3-4]\" night' gives them no more jobs"),
            "{several}"
        );
    }

    #[test]
    fn nodes_that_were_not_added_are_folded_by_reasons() {
        let down = |why: &str| Health::Down(why.to_owned());
        let nodes = [("n1", down("no answer")), ("n2", Health::Up), ("n3", down("no answer")), ("n4", down("no name"))]
            .map(|(name, health)| Node::new(name, 1, health));
        let text = |up: &[String]| not_added(&failures(nodes.iter().enumerate()), up);
        let lines = "n[1,3] were not added: no answer\nn4 was not added: no name";
        assert_eq!(text(&[]), format!("{lines}\n  hint: {ALL_OR_NONE}"));
        assert_eq!(text(&["n2".to_owned()]), format!("{lines}\nn2 was added"), "it would be added twice");
        assert_eq!(
            not_added(&failures(nodes[2..].iter().enumerate()), &[]),
            "n3 was not added: no answer\nn4 was not added: no name"
        );
        assert!(failures(nodes[1..2].iter().enumerate()).is_empty());
    }
}
