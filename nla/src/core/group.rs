//! Fences of groups: some ranks of a namespace wait for each other and exchange bytes, while the other ranks go on.
//!
//! A group fence is identified by its namespace, its ranks and a tag. Contributions travel up to the lowest place whose
//! subtree has all of the group's ranks. That place joins the payloads and releases them down, to agents with ranks of the
//! group only. A rank may take part in fences of different groups, or tags, at the same time. It enters the next fence of the
//! same group and tag after it was released from the last one.
//!
//! # Deaths
//!
//! If the session goes on after the death of a rank, each place learns of a death by the root's broadcast. All group fences
//! that are open at a place fail then, and so does each later one of a group with a dead rank. A contribution says how many
//! deaths its sender knew: one that was sent before the last broadcast is dropped, because its sender fails it as well. So no
//! contribution to a failed fence is left behind. One fence may be released at one place and fail at another.
//!
//! If an agent is lost whose own ranks have all ended, there is no death to broadcast. A release that is lost with the agent
//! is then not repeated.

use std::collections::BTreeMap;

use bytes::Bytes;
use pmi::Ranks;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::ids::{AgentId, NamespaceId};
use super::limits::{GROUP_BYTES_MAX, GROUPS_OPEN_MAX};
use super::message::{Down, Up};
use super::parent::Parent;
use super::plan::find;
use super::reason::Violation;
use super::turn::Turn;

/// The name of a group fence in its namespace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct RankGroup {
    /// The ranks that wait for each other.
    pub ranks: Ranks,
    /// Distinguishes fences of the same ranks that are open at the same time.
    pub tag: u32,
}

/// The reason why a contribution to a group fence was refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum GroupError {
    /// It is on behalf of no rank, or of ranks that are not the sender's or not in the group.
    #[error("it is for ranks {0}, which are not the sender's in this group")]
    ForeignRanks(Ranks),
    /// Some of its ranks had arrived before.
    #[error("ranks of {0} arrived twice")]
    AlreadyArrived(Ranks),
    /// The group has ranks that the namespace does not have.
    #[error("the group has ranks that do not exist")]
    UnknownRanks,
    /// With it, the payloads of the fence exceed [`GROUP_BYTES_MAX`].
    #[error("the payloads of a group fence exceed {GROUP_BYTES_MAX} bytes")]
    TooLarge,
    /// There are [`GROUPS_OPEN_MAX`] other open fences.
    #[error("more than {GROUPS_OPEN_MAX} group fences are open")]
    TooMany,
}

/// The consequence of a contribution.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum GroupStep {
    /// Ranks of the subtree are missing.
    Wait,
    /// All ranks of the subtree have arrived; others are elsewhere. Their contribution goes up.
    Pass(Ranks, Bytes),
    /// All ranks of the group have arrived. The fence is closed.
    Release(Bytes),
}

/// An open group fence at one place.
#[derive(Debug, Default)]
struct Open {
    arrived: Ranks,
    payload: Vec<u8>,
    /// The payload that was passed on.
    passed: Option<Bytes>,
}

/// The open group fences of one namespace at one place.
#[derive(Debug, Default)]
pub(super) struct GroupFences {
    open: BTreeMap<RankGroup, Open>,
    /// The number of dead ranks that the root has broadcast.
    deaths: u64,
}

impl GroupFences {
    /// The number of dead ranks that are known here.
    pub(super) fn deaths(&self) -> u64 {
        self.deaths
    }

    /// Adds the contribution of `ranks`. The place's subtree has the ranks `below`. A refused contribution changes nothing.
    pub(super) fn arrive(
        &mut self,
        group: &RankGroup,
        ranks: &Ranks,
        payload: &[u8],
        below: &Ranks,
    ) -> Result<GroupStep, GroupError> {
        if ranks.is_empty() || !group.ranks.contains_all(ranks) || !below.contains_all(ranks) {
            return Err(GroupError::ForeignRanks(ranks.clone()));
        }
        if self.open.len() >= GROUPS_OPEN_MAX && !self.open.contains_key(group) {
            return Err(GroupError::TooMany);
        }
        let before = self.open.get(group);
        if before.is_some_and(|open| !open.arrived.is_disjoint(ranks)) {
            return Err(GroupError::AlreadyArrived(ranks.clone()));
        }
        if before.map_or(0, |open| open.payload.len()) + payload.len() > GROUP_BYTES_MAX {
            return Err(GroupError::TooLarge);
        }
        let open = self.open.entry(group.clone()).or_default();
        open.arrived.union_with(ranks);
        open.payload.extend_from_slice(payload);
        if !open.arrived.contains_all(&group.ranks.intersection(below)) {
            return Ok(GroupStep::Wait);
        }
        let payload = Bytes::from(std::mem::take(&mut open.payload));
        if below.contains_all(&group.ranks) {
            self.open.remove(group);
            return Ok(GroupStep::Release(payload));
        }
        open.passed = Some(payload.clone());
        Ok(GroupStep::Pass(open.arrived.clone(), payload))
    }

    /// Whether these ranks have arrived at the open fence of the group.
    fn have_arrived(&self, group: &RankGroup, ranks: &Ranks) -> bool {
        self.open.get(group).is_some_and(|open| open.arrived.contains_all(ranks))
    }

    /// Closes a fence that was released. Returns whether it was open.
    pub(super) fn close(&mut self, group: &RankGroup) -> bool {
        self.open.remove(group).is_some()
    }

    /// So many ranks of the namespace have died. Closes all fences, and returns the ranks that wait in each.
    pub(super) fn on_deaths(&mut self, deaths: u64) -> impl Iterator<Item = (RankGroup, Ranks)> + use<> {
        self.deaths = deaths;
        std::mem::take(&mut self.open).into_iter().map(|(group, open)| (group, open.arrived))
    }

    /// The contributions that have been passed on to a parent, which may have been lost with it.
    pub(super) fn repeated(&self, namespace: NamespaceId) -> impl Iterator<Item = Up> {
        self.open.iter().filter_map(move |(group, open)| {
            let (group, ranks, payload) = (group.clone(), open.arrived.clone(), open.passed.clone()?);
            Some(Up::GroupGathered { namespace, group, deaths: self.deaths, ranks, payload })
        })
    }
}

/// Takes the contribution of `ranks` at a place, which has received it from a child, or from one of its own ranks.
pub(super) fn arrive<P: Parent>(
    place: &mut P,
    namespace: NamespaceId,
    group: RankGroup,
    (ranks, payload): (&Ranks, &[u8]),
    turn: &mut Turn<'_, P::Action>,
) -> Result<(), GroupError> {
    let is_root = place.subtree().head() == AgentId::ROOT;
    let Some(exchange) = place.exchange(namespace) else { return Ok(()) };
    if is_root && !exchange.fence.expected_ranks().contains_all(&group.ranks) {
        return Err(GroupError::UnknownRanks);
    }
    match exchange.groups.arrive(&group, ranks, payload, exchange.fence.expected_ranks())? {
        GroupStep::Wait => {}
        GroupStep::Pass(ranks, payload) => {
            let deaths = exchange.groups.deaths();
            place.to_parent(Up::GroupGathered { namespace, group, deaths, ranks, payload }, turn);
        }
        GroupStep::Release(payload) => release(place, namespace, &group, &payload, turn),
    }
    Ok(())
}

/// Releases a complete fence to the children with ranks of the group, and to the place's own ranks.
pub(super) fn release<P: Parent>(
    place: &mut P,
    namespace: NamespaceId,
    group: &RankGroup,
    payload: &Bytes,
    turn: &mut Turn<'_, P::Action>,
) {
    let Some(exchange) = place.exchange(namespace) else { return };
    let with_ranks = exchange.children.iter().filter(|(_, share)| !share.is_disjoint(&group.ranks));
    turn.extend(with_ranks.map(|(child, _)| {
        P::send(*child, Down::GroupReleased { namespace, group: group.clone(), payload: payload.clone() })
    }));
    place.answer_group(namespace, group, &group.ranks, Some(payload), turn);
}

/// A child reports that all ranks that a group has in its subtree have arrived.
pub(super) fn on_child_gathered<P: Parent>(
    place: &mut P,
    from: AgentId,
    namespace: NamespaceId,
    (group, deaths): (RankGroup, u64),
    (ranks, payload): (&Ranks, &Bytes),
    turn: &mut Turn<'_, P::Action>,
) {
    let adopts = place.adopts();
    let Some(exchange) = place.exchange(namespace) else { return };
    let is_theirs = find(&exchange.children, from).is_some_and(|share| share.contains_all(ranks));
    let outcome = if !is_theirs {
        Err(GroupError::ForeignRanks(ranks.clone()))
    } else if deaths != exchange.groups.deaths() || adopts && exchange.groups.have_arrived(&group, ranks) {
        // It fails at the sender; or the sender repeats it, after the loss of a parent that had passed it on.
        Ok(())
    } else {
        arrive(place, namespace, group, (ranks, payload), turn)
    };
    if let Err(error) = outcome {
        place.cut_off(from, Violation::Group { namespace, error }, turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::ranks;

    fn group(members: &str, tag: u32) -> RankGroup {
        RankGroup { ranks: ranks(members), tag }
    }

    #[test]
    fn a_group_is_released_where_all_of_its_ranks_are_and_passed_on_elsewhere() {
        let mut fences = GroupFences::default();
        let (below, inside, beyond) = (ranks("0-3"), group("1,3", 0), group("1,7", 0));
        assert_eq!(fences.arrive(&inside, &ranks("3"), b"c", &below), Ok(GroupStep::Wait));
        let passed = GroupStep::Pass(ranks("1"), Bytes::from_static(b"a"));
        assert_eq!(fences.arrive(&beyond, &ranks("1"), b"a", &below), Ok(passed));
        assert_eq!(fences.repeated(NamespaceId::FIRST).count(), 1, "only what was passed on");
        let released = GroupStep::Release(Bytes::from_static(b"cb"));
        assert_eq!(fences.arrive(&inside, &ranks("1"), b"b", &below), Ok(released));
        assert!(!fences.close(&inside) && fences.close(&beyond) && !fences.close(&beyond));
        assert_eq!(fences.arrive(&inside, &ranks("1"), b"", &below), Ok(GroupStep::Wait), "the next fence");
    }

    #[test]
    fn tags_tell_fences_of_the_same_ranks_apart() {
        let (mut fences, below) = (GroupFences::default(), ranks("0-1"));
        for tag in [1, 2] {
            assert_eq!(fences.arrive(&group("0-1", tag), &ranks("0"), b"", &below), Ok(GroupStep::Wait));
        }
        let released = GroupStep::Release(Bytes::new());
        assert_eq!(fences.arrive(&group("0-1", 2), &ranks("1"), b"", &below), Ok(released));
        assert!(fences.have_arrived(&group("0-1", 1), &ranks("0")));
    }

    #[test]
    fn contributions_are_checked_and_bounded() {
        let (mut fences, below, pair) = (GroupFences::default(), ranks("0-3"), group("0-1", 0));
        for foreign in ["2", "0,2", "9", ""] {
            let foreign: Ranks = if foreign.is_empty() { Ranks::new() } else { ranks(foreign) };
            assert_eq!(fences.arrive(&pair, &foreign, b"", &below), Err(GroupError::ForeignRanks(foreign.clone())));
        }
        assert_eq!(fences.arrive(&pair, &ranks("0"), &vec![0; GROUP_BYTES_MAX - 1], &below), Ok(GroupStep::Wait));
        assert_eq!(fences.arrive(&pair, &ranks("0"), b"", &below), Err(GroupError::AlreadyArrived(ranks("0"))));
        assert_eq!(fences.arrive(&pair, &ranks("1"), b"12", &below), Err(GroupError::TooLarge));
        assert!(matches!(fences.arrive(&pair, &ranks("1"), b"1", &below), Ok(GroupStep::Release(_))));
        for tag in 0..GROUPS_OPEN_MAX as u32 {
            assert_eq!(fences.arrive(&group("2-3", tag), &ranks("2"), b"", &below), Ok(GroupStep::Wait));
        }
        assert_eq!(fences.arrive(&pair, &ranks("0"), b"", &below), Err(GroupError::TooMany));
        assert!(fences.arrive(&group("2-3", 0), &ranks("3"), b"", &below).is_ok(), "it is open already");
    }

    #[test]
    fn all_open_fences_fail_with_a_death() {
        let (mut fences, below) = (GroupFences::default(), ranks("0-3"));
        assert_eq!(fences.arrive(&group("0-1", 0), &ranks("0"), b"x", &below), Ok(GroupStep::Wait));
        assert_eq!(fences.on_deaths(1).collect::<Vec<_>>(), [(group("0-1", 0), ranks("0"))]);
        assert_eq!((fences.deaths(), fences.on_deaths(2).count()), (1, 0));
    }
}
