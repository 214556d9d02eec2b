//! The controller's part in changes of a pool's nodes.

use std::collections::BTreeSet;
use std::rc::Rc;

use nla::sys::WatchedPackets;

use super::Actor;
use crate::cluster::hosts::{expand, fold, parse_list};
use crate::pool::fleet::Host;
use crate::pool::message::{NodeChange, ToClient, packed};
use crate::pool::nodes::{Health, Node, NodeNumber};
use crate::pool::schedule::Input;

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
            NodeChange::Add => match self.add_nodes(list).await {
                Ok(nodes) => {
                    self.adding.push((client, nodes));
                    return self.answer_added();
                }
                Err(why) => Err(why),
            },
            NodeChange::Drain | NodeChange::Resume => self.drain(list, change == NodeChange::Drain).await,
        };
        tell(&client, changed);
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
        let names = expand(list.as_bytes()).map_err(|error| error.after("the list").with_hint())?;
        let all = self.schedule.nodes().all();
        let (known, unknown): (Vec<_>, Vec<_>) = names
            .iter()
            .map(|name| (name, all.iter().position(|node| node.name == *name)))
            .partition(|(_, at)| at.is_some());
        if !unknown.is_empty() {
            return Err(format!("the pool has no node {}", fold(unknown.iter().map(|(name, _)| name))));
        }
        Ok(known.into_iter().filter_map(|(_, at)| at).collect())
    }

    /// Adds the nodes of a host list. Returns their numbers.
    async fn add_nodes(&mut self, list: &str) -> Result<std::ops::Range<NodeNumber>, String> {
        let Some(fleet) = &mut self.fleet else {
            return Err("the pool is on this machine only; start one with --hosts".to_owned());
        };
        let entries = parse_list(list.as_bytes()).map_err(|error| error.after("the list").with_hint())?;
        let all = self.schedule.nodes().all();
        let known: BTreeSet<&str> = all.iter().map(|node| node.name.as_str()).collect();
        if let Some(entry) = entries.iter().find(|entry| known.contains(entry.name.as_str())) {
            return Err(format!("the pool has {} already", entry.name));
        }
        let mut named = BTreeSet::new();
        if let Some(entry) = entries.iter().find(|entry| !named.insert(&entry.name)) {
            return Err(format!("the list has {} twice", entry.name));
        }
        let first = all.len();
        let hosts = entries.iter().map(|entry| Host { name: entry.name.clone(), user: entry.user.clone() });
        fleet.add(hosts.collect()).await.map_err(|error| error.to_string())?;
        for entry in &entries {
            let slots = entry.slots.unwrap_or_default();
            self.handle(Input::NodeAdded(Node::new(entry.name.clone(), slots, Health::Starts)));
        }
        Ok(first..first + entries.len())
    }

    /// Answers clients whose added nodes are all up, or of which one is down.
    pub(super) fn answer_added(&mut self) {
        let all = self.schedule.nodes().all();
        self.adding.retain(|(client, nodes)| {
            let nodes = &all[nodes.clone()];
            let down = nodes.iter().find_map(|node| match &node.health {
                Health::Down(why) => Some(format!("{} is not up, and is tried again: {why}", node.name)),
                Health::Up | Health::Starts => None,
            });
            if let Some(why) = down {
                tell(client, Err(why));
                return false;
            }
            let waits = nodes.iter().any(|node| node.health == Health::Starts);
            if !waits {
                tell(client, Ok(()));
            }
            waits
        });
    }
}

fn tell(client: &WatchedPackets, changed: Result<(), String>) {
    // A client that is gone needs no answer.
    let _ = client.try_send(&packed(&changed.map_or_else(ToClient::NodesRefused, |()| ToClient::Done)), &[]);
}
