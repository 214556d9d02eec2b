//! The processors, memory and devices that ranks would get.

use nla::core::{BindTo, BindingNote, BindingPolicy, BoundRanks, MemoryPolicy, Resources, describe, seats};
use nla::driver::{Accelerators, RankDevices, binding_failed, this_node};
use pmi::{Rank, Ranks};

use crate::plan::Plan;
use crate::plan::accelerators::remedy_text;
use crate::run::binding_text::{note_text, seat_text};

/// Returns the lines about the binding of a plan's ranks: those of this machine, or of a node that is like this machine.
/// Empty if ranks are not bound.
pub(super) fn binding(plan: &Plan, is_local: bool) -> Vec<String> {
    let policy = &plan.settings.session.binding;
    let accelerators = &plan.settings.session.accelerators;
    let asks = !accelerators.requests.is_empty();
    if !asks && *policy == (BindingPolicy { is_one_machine: policy.is_one_machine, ..BindingPolicy::default() }) {
        return Vec::new();
    }
    let (_, most) = plan.extent();
    let ranks = if policy.is_one_machine { plan.size() } else { most };
    let mut lines = Vec::new();
    if policy.bind_to == BindTo::Share {
        lines.push("where the job has all processors that may be used on its node, else none".to_owned());
    }
    if !is_local {
        lines.push(format!("each agent chooses on its node; {ranks} ranks on a node like this machine:"));
        if !policy.order.is_empty() {
            lines.push("ranks are counted in the order in which they get the processors of their node".to_owned());
        }
    }
    if asks {
        lines.push(format!("each rank gets {}", accelerators.requests));
        let offer = |(ranks, offer): &(Ranks, Resources)| format!("the hosts of ranks {ranks} offer {offer}");
        lines.extend(accelerators.offers.iter().map(offer));
    }
    lines.extend(on_this_machine(plan, ranks, is_local));
    lines
}

fn on_this_machine(plan: &Plan, ranks: u32, is_local: bool) -> Vec<String> {
    let session = &plan.settings.session;
    let policy = &session.binding;
    let (topology, allowed) = this_node();
    let seating = match seats(&topology, &allowed, policy, ranks) {
        Ok(seating) => seating,
        Err(error) => return vec![format!("ranks could not be started: {}", binding_failed(&error))],
    };
    let asks = policy.bind_to != BindTo::Nothing || policy.memory != MemoryPolicy::Inherited;
    // On this machine alone a rank's number is also that among the ranks here.
    let place = |rank: u32| if is_local { policy.place_of(Rank(rank), rank) } else { rank };
    let seat = |rank: u32| seating.of(place(rank)).filter(|_| asks).cloned().unwrap_or_default();
    let accelerators = Accelerators::new(session.accelerators.clone(), &session.environment);
    let near = |local| topology.numa_nodes_of(&seat(local).cpus);
    // Other hosts have devices of their own.
    let devices = |rank| match is_local {
        true => accelerators.of(Rank(rank), rank, ranks, near, Rank),
        false => Ok(RankDevices::default()),
    };
    if let Err(error) = devices(0) {
        return vec![format!("ranks could not be started: {}; {}", error.text, remedy_text(error.remedy, false))];
    }
    let described = |rank| (Rank(rank), seat(rank), devices(rank).unwrap_or_default().text());
    let bound = describe(&topology, &allowed, (0..ranks).map(described));
    let line = |bound: &BoundRanks| {
        let noun = if bound.ranks.len() == 1 { "rank" } else { "ranks" };
        format!("{noun} {}: {}", bound.ranks, seat_text(bound))
    };
    let mut lines: Vec<String> = bound.iter().map(line).collect();
    lines.extend(BindingNote::of_crowded(&seating, policy, ranks, &allowed).map(|note| note_text(&note)));
    lines
}
