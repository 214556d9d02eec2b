//! Decides which hosts have room for ranks that ask for accelerators or other devices, as far as a host list says what its
//! hosts offer. Each agent then shares out the devices of its node.

use litemap::LiteMap;
use nla::core::{AgentId, DeviceRemedy, GPU, Resource, ResourceError, Resources};
use pmi::Ranks;

use crate::cluster::hosts::fold;
use crate::cluster::node::Node;
use crate::cluster::node_list::NodeList;
use crate::cluster::placement::Rule;
use crate::plan::request::{AcceleratorOptions, Request};
use crate::refusal::Refusal;

/// The most kinds of hosts that an error lists.
const KINDS_MAX: usize = 8;

/// Returns what each rank asks for.
pub(crate) fn requests(options: &AcceleratorOptions) -> Result<Resources, Refusal> {
    let mut requests = options.gres.clone();
    let add = |count| Resource::of(GPU, count).and_then(|gpus| requests.push(gpus));
    let refused = |error: ResourceError| Refusal::new(format!("the devices of a rank: {error}"), "ask for fewer");
    options.gpus_per_rank.map_or(Ok(()), add).map_err(refused)?;
    Ok(requests)
}

/// Returns how many ranks each host has room for; `None` if ranks ask for nothing, or the host list says nothing.
fn rooms(requests: &Resources, node_list: &NodeList) -> Option<Vec<u32>> {
    if requests.is_empty() {
        return None;
    }
    let offers = node_list.offers();
    let says_so = offers.iter().any(|(_, gres)| !gres.is_empty());
    offers.into_iter().map(|(_, gres)| gres.ranks_of(requests)).collect::<Option<_>>().filter(|_| says_so)
}

/// Returns the node list without the hosts that have no room for a rank. With a rank map, all stay: it counts them.
///
/// # Errors
///
/// The hosts have no room for a rank, or for as many as were typed.
pub(super) fn with_devices(request: &Request, node_list: NodeList) -> Result<NodeList, Refusal> {
    let Request { options, commands } = request;
    let requests = requests(&options.accelerators)?;
    let typed = commands.iter().filter_map(|command| command.nprocs).fold(0, u32::saturating_add);
    check(&requests, &node_list, typed.max(1), options.pool.is_some())?;
    let rooms = rooms(&requests, &node_list).filter(|_| options.hosts.rankmap.is_none()).unwrap_or_default();
    let without = rooms.iter().enumerate().filter(|(_, room)| **room == 0).map(|(at, _)| at).collect();
    Ok(node_list.without(&without))
}

/// Returns the node list with as many slots at most as each host has room for. With a rank map, hosts keep their slots: the
/// user has chosen.
///
/// # Errors
///
/// No host has room for a rank.
pub(super) fn limited(
    requests: &Resources,
    node_list: &NodeList,
    rule: &Rule,
    cores: u32,
    in_pool: bool,
) -> Result<NodeList, Refusal> {
    check(requests, node_list, 1, in_pool)?;
    let rooms = rooms(requests, node_list).filter(|_| !matches!(rule, Rule::Map(_)));
    let Some(rooms) = rooms else { return Ok(node_list.clone()) };
    let most = |max_slots: Option<u32>, room: u32| Some(max_slots.map_or(room, |most| most.min(room)));
    Ok(match node_list.clone() {
        NodeList::Local { slots, max_slots, gres } => {
            let max_slots = most(max_slots, rooms.first().copied().unwrap_or_default());
            NodeList::Local { slots: Some(slots.unwrap_or(cores)).min(max_slots), max_slots, gres }
        }
        NodeList::Named { nodes, allocation } => {
            let node = |(node, room): (Node, u32)| {
                let slots = node.slots.map(|slots| slots.min(room));
                Node { slots, max_slots: most(node.max_slots, room), ..node }
            };
            NodeList::Named { nodes: nodes.into_iter().zip(rooms).map(node).collect(), allocation }
        }
    })
}

/// Checks that the hosts, or those that the job has got in a pool, have room for `size` ranks.
pub(super) fn check(requests: &Resources, node_list: &NodeList, size: u32, in_pool: bool) -> Result<(), Refusal> {
    let Some(rooms) = rooms(requests, node_list) else { return Ok(()) };
    let room: u64 = rooms.iter().map(|room| u64::from(*room)).sum();
    if u64::from(size) <= room {
        return Ok(());
    }
    let mut alike: LiteMap<&Resources, Vec<&str>> = LiteMap::new();
    for (name, gres) in node_list.offers() {
        alike.entry(gres).or_default().push(name);
    }
    let has = |gres: &Resources| if gres.is_empty() { "none".to_owned() } else { gres.to_string() };
    let fold = |names: &[&str]| if names == ["this machine"] { names.concat() } else { fold(names) };
    let mut kinds: Vec<String> =
        alike.iter().take(KINDS_MAX).map(|(gres, names)| format!("{} has {}", fold(names), has(gres))).collect();
    if alike.len() > KINDS_MAX {
        kinds.push(format!("{} more kinds of hosts", alike.len() - KINDS_MAX));
    }
    let kinds = kinds.join("; ");
    let text = match size {
        1 => format!("1 rank needs {requests}; {kinds}"),
        _ => format!("{size} ranks need {requests} each, and there is room for {room}: {kinds}"),
    };
    let hint = match in_pool {
        true => {
            "start fewer ranks; --gres of 'scela pool start' and 'scela pool add' says what the nodes of a pool have"
        }
        false => "start fewer ranks, or name hosts that offer more, with gres= in the file of -f",
    };
    Err(Refusal::new(text, hint))
}

/// Returns what may help against a lack of devices that an agent has found, in a pool's job or another one.
pub(crate) fn remedy_text(remedy: DeviceRemedy, in_pool: bool) -> String {
    let file = if in_pool { "the file of 'scela pool start -f'" } else { "the file of -f" };
    match remedy {
        DeviceRemedy::Declare => format!("declare its devices with gres= in {file}"),
        DeviceRemedy::DeclareTypes => format!("types are known only from gres= in {file}"),
        DeviceRemedy::OtherHosts => format!("ask for fewer, or name hosts that offer more with gres= in {file}"),
        DeviceRemedy::Fewer => "start fewer ranks on it, or ask for fewer devices".to_owned(),
    }
}

/// Returns what the nodes of ranks offer, if the host list says so.
///
/// # Errors
///
/// A rank map puts more ranks on a host than it has room for.
pub(super) fn offers(
    requests: &Resources,
    node_list: &NodeList,
    placement: &[(AgentId, Ranks)],
    node_of_agent: &[usize],
) -> Result<Vec<(Ranks, Resources)>, Refusal> {
    let Some(rooms) = rooms(requests, node_list) else { return Ok(Vec::new()) };
    let mut of_node: LiteMap<usize, Ranks> = LiteMap::new();
    for (agent, ranks) in placement {
        let node = (agent.0 as usize).checked_sub(1).and_then(|at| node_of_agent.get(at)).copied().unwrap_or_default();
        of_node.entry(node).or_default().union_with(ranks);
    }
    let offers = node_list.offers();
    let mut alike: LiteMap<&Resources, Ranks> = LiteMap::new();
    for (node, ranks) in &of_node {
        let (Some((name, gres)), Some(room)) = (offers.get(*node), rooms.get(*node)) else { continue };
        if ranks.len() > u64::from(*room) {
            let has = if gres.is_empty() { "none".to_owned() } else { gres.to_string() };
            let count = ranks.len();
            let text = format!(
                "rank map: {name} would get {count} of the ranks, each of which needs {requests}, and it has {has}"
            );
            return Err(Refusal::new(text, "put fewer ranks on it"));
        }
        alike.entry(gres).or_default().union_with(ranks);
    }
    Ok(alike.into_iter().map(|(gres, ranks)| (ranks, gres.clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::hosts::parse_file;
    use crate::cluster::placement::{RankMap, place};
    use crate::plan::request::Options;

    const BLOCK: Rule = Rule::Block { per_node: None };

    fn listed(file: &str) -> NodeList {
        NodeList::Named { nodes: parse_file(file.as_bytes()).unwrap(), allocation: None }
    }

    /// A request for devices, without a number of ranks.
    fn request(requests: &str) -> Request {
        let gres = Resources::try_from(requests.to_owned()).unwrap();
        let accelerators = AcceleratorOptions { gres, ..AcceleratorOptions::default() };
        Request { options: Options { accelerators, ..Options::default() }, commands: Vec::new() }
    }

    /// Returns the number of ranks of each node that has any, by its name.
    fn placed(file: &str, requests: &str, size: u32, rule: &Rule) -> Result<Vec<(String, u32)>, String> {
        let text = |error: Refusal| error.to_string();
        let list = with_devices(&request(requests), listed(file)).map_err(text)?;
        let requests = requests.parse().unwrap();
        let limited = limited(&requests, &list, rule, 2, false).map_err(text)?;
        check(&requests, &list, size, false).map_err(text)?;
        let placement = place(size, limited.nodes(), rule).map_err(text)?;
        let mut counts: LiteMap<String, u32> = LiteMap::new();
        for run in placement.runs() {
            *counts.entry(limited.nodes()[run.node].name.clone()).or_default() += run.ranks;
        }
        Ok(counts.into_iter().collect())
    }

    fn counts(expected: &[(&str, u32)]) -> Result<Vec<(String, u32)>, String> {
        Ok(expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect())
    }

    const FILE: &str = "a slots=8\nb slots=1 gres=gpu:a100:4\nc gres=gpu:v100:4\nd gres=gpu:a100:2,fpga:x:1\n";

    #[test]
    fn hosts_without_the_devices_get_no_rank() {
        for rule in [BLOCK, Rule::Cyclic { per_node: None }, Rule::Block { per_node: Some(4) }] {
            for (requests, size) in [("gpu:a100", 6), ("gpu:a100:2", 3), ("gpu:1,fpga:x:1", 1), ("gpu:1", 10)] {
                let counts = placed(FILE, requests, size, &rule).unwrap();
                let sum: u32 = counts.iter().map(|(_, count)| count).sum();
                assert!(sum == size && counts.iter().all(|(name, _)| name != "a"), "{requests} {rule:?} {counts:?}");
            }
        }
        assert_eq!(placed(FILE, "gpu:a100", 1, &BLOCK), counts(&[("b", 1)]));
        assert_eq!(placed(FILE, "gpu:a100", 6, &BLOCK), counts(&[("b", 4), ("d", 2)]));
        assert_eq!(placed(FILE, "fpga:x", 1, &BLOCK), counts(&[("d", 1)]));
    }

    #[test]
    fn lists_that_say_nothing_limit_nothing() {
        assert_eq!(placed("a\nb\n", "gpu:a100", 4, &BLOCK), counts(&[("a", 2), ("b", 2)]));
        let list = listed(FILE);
        assert_eq!(with_devices(&request(""), list.clone()), Ok(list.clone()));
        assert_eq!(limited(&Resources::NONE, &list, &BLOCK, 2, false), Ok(list));
    }

    #[test]
    fn too_few_devices_are_listed() {
        // In the order of the offers.
        let expected = "7 ranks need gpu:a100:1 each, and there is room for 6: \
                        a has none; d has gpu:a100:2,fpga:x:1; b has gpu:a100:4; c has gpu:v100:4";
        let error = check(&"gpu:a100".parse().unwrap(), &listed(FILE), 7, false).unwrap_err();
        assert_eq!(error.to_string(), expected);
        let hint = |in_pool| check(&"gpu".parse().unwrap(), &listed(FILE), 70, in_pool).unwrap_err().hint().to_owned();
        assert!(hint(false).contains("file of -f") && hint(true).contains("'scela pool add'"));
        assert!(!hint(true).contains("-f"), "it cannot be given with --pool");
        let error = placed("n[1-3] gres=gpu:1\n", "fpga", 1, &BLOCK).unwrap_err();
        assert_eq!(error, "1 rank needs fpga:1; n[1-3] has gpu:1");
        let many: String = (1..=9).map(|count| format!("n{count} gres=gpu:{count}\n")).collect();
        let error = placed(&many, "fpga", 1, &BLOCK).unwrap_err();
        assert!(error.ends_with("; 1 more kinds of hosts"), "{error}");
    }

    #[test]
    fn this_machine_has_room_for_what_it_offers() {
        let here = |slots| NodeList::Local { slots, max_slots: None, gres: "fpga:3".parse().unwrap() };
        let slots = |slots, cores| match limited(&"fpga".parse().unwrap(), &here(slots), &BLOCK, cores, false) {
            Ok(NodeList::Local { slots, max_slots, .. }) => (slots, max_slots),
            other => panic!("{other:?}"),
        };
        assert_eq!(slots(None, 2), (Some(2), Some(3)));
        assert_eq!(slots(None, 8), (Some(3), Some(3)));
        assert_eq!(slots(Some(1), 8), (Some(1), Some(3)));
        let error = check(&"gpu".parse().unwrap(), &here(None), 1, false).unwrap_err();
        assert_eq!(error.to_string(), "1 rank needs gpu:1; this machine has fpga:3");
    }

    #[test]
    fn offers_are_those_of_the_ranks_nodes() {
        let ranks = |range| Ranks::range(range);
        let placement = [(AgentId(1), ranks(0..2)), (AgentId(2), ranks(2..4)), (AgentId(3), ranks(4..6))];
        let file = "a\nb gres=gpu:4\nc gres=gpu:4\nd gres=gpu:2\n";
        let of = |nodes: &[usize]| offers(&"gpu".parse().unwrap(), &listed(file), &placement, nodes);
        let gres = |text: &str| text.parse().unwrap();
        let mut found = of(&[1, 3, 2]).unwrap();
        found.sort_by_key(|(ranks, _)| ranks.first());
        let both = [ranks(0..2), ranks(4..6)].iter().fold(Ranks::new(), |mut all, some| {
            all.union_with(some);
            all
        });
        assert_eq!(found, [(both, gres("gpu:4")), (ranks(2..4), gres("gpu:2"))]);
        let text = of(&[1, 3, 3]).unwrap_err().to_string();
        assert_eq!(text, "rank map: d would get 4 of the ranks, each of which needs gpu:1, and it has gpu:2");
        assert_eq!(offers(&Resources::NONE, &listed(file), &placement, &[1, 3, 2]), Ok(Vec::new()));
    }

    #[test]
    fn a_rank_map_keeps_its_hosts() {
        let mut request = request("gpu:a100");
        request.options.hosts.rankmap = Some("3,1".into());
        let (list, map) = (listed(FILE), Rule::Map(RankMap::parse("3,1").unwrap()));
        assert_eq!(with_devices(&request, list.clone()), Ok(list.clone()));
        assert_eq!(limited(&request.options.accelerators.gres, &list, &map, 2, false), Ok(list));
    }
}
