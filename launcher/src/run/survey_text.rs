//! The report of a survey: which ranks are missing from the open fence, where they are, and what they do.

use std::collections::BTreeMap;

use nla::core::{Activity, Group, LastCall, NamespaceId, NamespaceSurvey, ProcessState, SURVEY_TIME, Survey};
use pmi::Ranks;

use super::rank_locations::RankLocations;
use crate::cluster::hosts::fold_within;

/// The most lines about one namespace, and the longest list of hosts in bytes.
const LINES_MAX: usize = 20;
const HOSTS_BYTES_MAX: usize = 200;

/// Returns the lines of the report, the first of which is its heading.
pub(crate) fn survey_lines(survey: &Survey, locations: &RankLocations) -> Vec<String> {
    let mut lines = Vec::new();
    for namespace in &survey.namespaces {
        lines.push(heading(namespace));
        let all = activity_lines(namespace, locations);
        let more = all.len().saturating_sub(LINES_MAX);
        lines.extend(all.into_iter().take(LINES_MAX));
        if more > 0 {
            lines.push(format!("  and {more} more lines"));
        }
    }
    if !survey.silent.is_empty() {
        let hosts = survey.silent.iter().map(|agent| locations.of_agent(*agent));
        let which = if survey.silent.len() == 1 { "its agent" } else { "their agents" };
        lines.push(format!(
            "{}: {which} did not answer within {} s; nothing is known of the ranks there and below",
            fold_within(hosts, HOSTS_BYTES_MAX),
            SURVEY_TIME.as_secs()
        ));
    }
    if lines.is_empty() {
        lines.push("no rank runs".to_owned());
    }
    lines
}

fn heading(survey: &NamespaceSurvey) -> String {
    let NamespaceSurvey { namespace, fence, arrived, missing } = survey;
    let of = if *namespace == NamespaceId::FIRST { String::new() } else { format!(" of namespace {namespace}") };
    let missing: u64 = missing.iter().map(Group::count).sum();
    match (*arrived, missing) {
        (0, _) => format!("{missing} ranks{of} run, and none waits in a fence"),
        (arrived, 0) => format!("fence {fence}{of}: all {arrived} ranks have arrived"),
        (arrived, missing) => {
            format!("fence {fence}{of}: {arrived} ranks have arrived and wait for {missing}")
        }
    }
}

/// One line for each different thing that ranks do.
fn activity_lines(survey: &NamespaceSurvey, locations: &RankLocations) -> Vec<String> {
    survey
        .missing
        .iter()
        .map(|group| {
            let Group { activity, ranks, more } = group;
            let hosts = hosts_of(survey.namespace, ranks, locations);
            let rank = if group.count() == 1 { "rank" } else { "ranks" };
            let more = if *more == 0 { String::new() } else { format!(" and {more} others") };
            format!("  {rank} {ranks}{more}{hosts}: {}", what(*activity))
        })
        .collect()
}

/// The hosts of ranks, folded. Only the hosts of the first namespace's ranks are known.
fn hosts_of(namespace: NamespaceId, ranks: &Ranks, locations: &RankLocations) -> String {
    if namespace != NamespaceId::FIRST {
        return String::new();
    }
    let hosts: BTreeMap<&str, ()> = locations.hosts_of(ranks).into_iter().map(|host| (host, ())).collect();
    format!(" on {}", fold_within(hosts.keys(), HOSTS_BYTES_MAX))
}

fn what(Activity { call, process }: Activity) -> String {
    let process = match process {
        ProcessState::Running => "running",
        ProcessState::Sleeping => "sleeping",
        ProcessState::Blocked => "waiting in the kernel for a disk or a file system",
        ProcessState::Stopped => "stopped by a signal or a debugger",
        ProcessState::Ended => "has ended",
    };
    let call = match call {
        LastCall::None => return format!("{process}, no PMI call so far"),
        LastCall::Init => "PMI_Init",
        LastCall::Put => "a put",
        LastCall::Get => "a get",
        LastCall::Fence => "an earlier fence",
        LastCall::Ring => "PMIX_Ring",
        LastCall::NodeAttribute => "an attribute of its node",
        LastCall::Name => "a published name",
        LastCall::Spawn => "a spawn",
        LastCall::Finalize => "PMI_Finalize",
        LastCall::Abort => "PMI_Abort",
    };
    format!("{process}, last PMI call: {call}")
}

#[cfg(test)]
mod tests {
    use nla::core::AgentId;

    use super::*;

    const SLEEPS: Activity = Activity { call: LastCall::Put, process: ProcessState::Sleeping };
    const STOPPED: Activity = Activity { call: LastCall::None, process: ProcessState::Stopped };

    fn locations() -> RankLocations {
        let agents = (1..=4).map(|number| format!("node{number:03}")).collect();
        let placement = (0..4).map(|agent| (AgentId(agent + 1), Ranks::range(agent * 4..agent * 4 + 4))).collect();
        RankLocations::with_placement("front".into(), agents, placement)
    }

    fn namespace(arrived: u64, missing: Vec<(Activity, Ranks)>) -> NamespaceSurvey {
        let group = |(activity, ranks)| Group { activity, ranks, more: 0 };
        let missing = missing.into_iter().map(group).collect();
        NamespaceSurvey { namespace: NamespaceId::FIRST, fence: 3, arrived, missing }
    }

    #[test]
    fn missing_ranks_are_folded_by_what_they_do() {
        let missing = vec![(STOPPED, Ranks::range(15..16)), (SLEEPS, Ranks::range(4..10))];
        let survey = Survey { namespaces: vec![namespace(4, missing)], silent: vec![AgentId(4), AgentId(3)] };
        assert_eq!(
            survey_lines(&survey, &locations()),
            [
                "fence 3: 4 ranks have arrived and wait for 7",
                "  rank 15 on node004: stopped by a signal or a debugger, no PMI call so far",
                "  ranks 4-9 on node[002-003]: sleeping, last PMI call: a put",
                "node[003-004]: their agents did not answer within 2 s; nothing is known of the ranks there and below",
            ]
        );
    }

    #[test]
    fn a_job_without_a_fence_is_described_too() {
        let survey = Survey { namespaces: vec![namespace(0, vec![(SLEEPS, Ranks::range(0..2))])], silent: vec![] };
        assert_eq!(survey_lines(&survey, &locations())[0], "2 ranks run, and none waits in a fence");
        assert_eq!(survey_lines(&Survey::default(), &locations()), ["no rank runs"]);
    }
}
