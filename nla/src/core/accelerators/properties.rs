//! Properties of all shares, on random nodes.

use proptest::prelude::*;

use super::*;
use crate::core::binding::CpuSet;

fn lists(most: u32) -> impl Strategy<Value = Resources> {
    let kind = prop::option::of(prop::sample::select(vec!["a", "b"]));
    let entry = (prop::sample::select(vec!["gpu", "fpga"]), kind, 1..=most);
    prop::collection::vec(entry, 0..5).prop_map(|entries| {
        let mut list = Resources::default();
        for (name, kind, count) in entries {
            let kind = kind.map(|kind| format!(":{kind}")).unwrap_or_default();
            let _ = list.push(format!("{name}{kind}:{count}").parse().unwrap());
        }
        list
    })
}

proptest! {
    #[test]
    fn a_list_is_parsed_as_it_is_written(list in lists(9)) {
        prop_assert_eq!(Resources::try_from(String::from(list.clone())), Ok(list));
    }

    #[test]
    fn shares_are_disjoint_and_as_asked_for(
        offer in lists(9),
        requests in lists(3),
        numa in prop::collection::vec(prop::option::of(0u32..3), 45),
        near in prop::collection::vec(prop::collection::btree_set(0u32..3, 0..3), 0..12),
    ) {
        let mut devices = offered(Some(&offer), &FoundDevices::default(), None);
        devices.iter_mut().zip(numa).for_each(|(device, numa)| device.numa = numa);
        let near: Vec<CpuSet> = near.into_iter().map(|nodes| nodes.into_iter().collect()).collect();
        let fits = offer.ranks_of(&requests).is_none_or(|room| near.len() as u32 <= room);
        let shares = share(&devices, &near, &requests);
        prop_assert_eq!(shares.is_ok(), fits, "the launcher and the agents agree: {:?}", shares);
        let Ok(shares) = shares else { return Ok(()) };
        prop_assert_eq!(shares.len(), near.len());
        let mut all: Vec<usize> = shares.concat();
        let taken = all.len();
        all.sort_unstable();
        all.dedup();
        prop_assert_eq!(all.len(), taken, "two ranks have the same device");
        for share in &shares {
            for request in requests.iter() {
                let of_name = |name: &str| share.iter().filter(|at| devices[**at].name == name).count();
                let of_label = share.iter().filter(|at| devices[**at].label() == request.label()).count();
                prop_assert!(request.kind().is_none() || of_label >= request.count() as usize);
                let asked: u32 = requests.iter().filter(|one| one.name() == request.name()).map(Resource::count).sum();
                prop_assert_eq!(of_name(request.name()), asked as usize);
            }
            prop_assert!(share.is_sorted());
        }
        // A rank that could have a near free device, or a near one of a rank that is not near to it, has no far one.
        let is_near = |rank: usize, at: usize| devices[at].numa.is_some_and(|numa| near[rank].contains(numa));
        for (rank, share) in shares.iter().enumerate() {
            for at in share.iter().filter(|at| !is_near(rank, **at)) {
                let like = |other: &usize| devices[*other].label() == devices[*at].label();
                let is_free = |other: &usize| shares.iter().all(|share| !share.contains(other));
                let better = (0..devices.len()).filter(like).filter(is_free).find(|other| is_near(rank, *other));
                prop_assert_eq!(better, None, "a nearer device is left over");
            }
        }
    }
}
