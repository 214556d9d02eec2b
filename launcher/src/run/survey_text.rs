//! The report of a survey: which ranks are missing from the open fence, where they are, and what they do.

use std::collections::BTreeMap;

use nla::core::{
    Activity, AgentId, CommandPlan, Group, LastCall, NamespaceId, NamespaceSurvey, ProcessState, SURVEY_TIME, Survey,
    Time, Wait,
};
use pmi::Ranks;

use super::rank_locations::RankLocations;
use super::report::what_happened;
use crate::cluster::hosts::fold_within;
use crate::plan::mpi_user::MpiUser;
use crate::refusal::shown;

/// The most lines about one namespace, and the longest list of hosts in bytes.
const LINES_MAX: usize = 20;
const HOSTS_BYTES_MAX: usize = 200;
/// The most programs that are named, and characters of a name and of a list of ranks.
const PROGRAMS_MAX: usize = 3;
const NAME_CHARS_MAX: usize = 200;
const RANKS_CHARS_MAX: usize = 200;
/// Characters of the words on a failure.
const FAILURE_BYTES_MAX: usize = 1024;

/// Returns the lines of the report, the first of which is its heading. `waits` are the lines about what the session itself waits
/// for. `by_pmix` says that ranks are served by PMIx, of whose calls agents see a few only.
pub(crate) fn survey_lines(
    survey: &Survey,
    waits: Vec<String>,
    locations: &RankLocations,
    by_pmix: bool,
) -> Vec<String> {
    let mut lines = Vec::new();
    for namespace in &survey.namespaces {
        lines.push(heading(namespace, by_pmix));
        let all = activity_lines(namespace, locations, by_pmix);
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
    let more = waits.len().saturating_sub(LINES_MAX);
    lines.extend(waits.into_iter().take(LINES_MAX));
    if more > 0 {
        lines.push(format!("and {more} more lines"));
    }
    if lines.is_empty() {
        lines.push("no rank runs".to_owned());
    }
    lines
}

/// Returns the text about ranks of the job that have not spoken PMI since their start, if they are expected to, or others wait for them.
/// `commands` are those of the job, each with the files by which it may call MPI.
pub(crate) fn silence_text(
    survey: &Survey,
    commands: &[(&CommandPlan, &[MpiUser])],
    locations: &RankLocations,
) -> Option<String> {
    let job = survey.namespaces.iter().find(|one| one.namespace == NamespaceId::FIRST)?;
    let is_silent = |group: &&Group| {
        group.activity.call == LastCall::None
            && !matches!(group.activity.process, ProcessState::NotStarted | ProcessState::Ended)
    };
    let mut silent = Ranks::new();
    job.missing.iter().filter(is_silent).for_each(|group| silent.union_with(&group.ranks));
    let others_wait = job.fence == 0 && job.arrived > 0;
    let (mut first, mut programs) = (0, Vec::new());
    for (command, users) in commands {
        let ranks = Ranks::range(first..first + command.nprocs);
        first += command.nprocs;
        let user = users.iter().find(|user| user.uses_mpi() && !user.is_unlikely);
        if user.is_none() && !others_wait {
            silent = silent.difference(&ranks);
        }
        if silent.is_disjoint(&ranks) || programs.len() == PROGRAMS_MAX {
            continue;
        }
        let program = shown(&String::from_utf8_lossy(&command.program), NAME_CHARS_MAX);
        programs.push(match user.filter(|user| !user.is_certain) {
            Some(user) => {
                format!(
                    "'{program}', which names the MPI program '{}'",
                    shown(&user.file.to_string_lossy(), NAME_CHARS_MAX)
                )
            }
            None => format!("'{program}'"),
        });
    }
    if silent.is_empty() {
        return None;
    }
    let (rank, has) = plural(silent.len(), ("rank", "has"), ("ranks", "have"));
    let hosts = hosts_of(NamespaceId::FIRST, &silent, locations);
    let (count, silent) = (silent.len(), shown(&silent.to_string(), RANKS_CHARS_MAX));
    Some(format!(
        "{count} {rank} {has} not spoken PMI so far: {rank} {silent}{hosts}, which {} {}\n  hint: the variables of PMI must reach \
         the program: 'env -i' and 'sudo' remove them",
        plural(count, "runs", "run"),
        programs.join(" and ")
    ))
}

/// Returns the line about something that the session waits for at the time `now`. `reported` is how many agents have reported,
/// and of how many.
pub(crate) fn wait_line(wait: &Wait, now: Time, reported: (u32, u32), locations: &RankLocations) -> String {
    let on = |agents: &[AgentId]| {
        let hosts: BTreeMap<&str, ()> = agents.iter().map(|agent| (locations.of_agent(*agent), ())).collect();
        fold_within(hosts.keys(), HOSTS_BYTES_MAX)
    };
    let seconds = |until: Time| until.saturating_sub(now).as_secs_f64().ceil();
    match wait {
        Wait::Agents => agents_line(reported),
        Wait::Files(agents) => format!("files are being staged; agents on {}, or below, lack some", on(agents)),
        Wait::Clearing(agents) => format!("the agents on {} are ending all ranks, which then start again", on(agents)),
        Wait::Restart(lost, until) if lost.is_empty() => format!("all ranks start again in {} s", seconds(*until)),
        Wait::Restart(lost, until) => format!(
            "all ranks start again in {} s: until then those of lost agents on {} may run",
            seconds(*until),
            on(lost)
        ),
        Wait::Revival(lost, ranks, until) => {
            let (rank, start, they) = plural(ranks.len(), ("rank", "starts", "it"), ("ranks", "start", "they"));
            let (on, seconds) = (locations.of_agent(*lost), seconds(*until));
            format!(
                "{rank} {ranks} {start} again in {seconds} s: until then {they} may run under the lost agent on {on}"
            )
        }
        Wait::Dead(ranks, first) => {
            let (rank, are) = plural(ranks.len(), ("rank", "is"), ("ranks", "are"));
            let first = first.as_ref().map(|first| what_happened(first, locations.of_agent(first.agent)));
            let first = first.map(|first| format!("; first failure: {}", shown(&first, FAILURE_BYTES_MAX)));
            format!("{rank} {ranks} {are} dead{}", first.unwrap_or_default())
        }
        Wait::Output => "all ranks have ended; their output waits for its reader".to_owned(),
    }
}

/// Returns the line about agents that are being started.
pub(crate) fn agents_line((reported, all): (u32, u32)) -> String {
    if reported < all {
        format!("agents are being started: {reported} of {all} have reported")
    } else {
        "no rank has started: agents are joining".to_owned()
    }
}

fn plural<T>(count: u64, one: T, many: T) -> T {
    if count == 1 { one } else { many }
}

fn heading(survey: &NamespaceSurvey, by_pmix: bool) -> String {
    let NamespaceSurvey { namespace, fence, arrived, missing } = survey;
    let of = if *namespace == NamespaceId::FIRST { String::new() } else { format!(" of namespace {namespace}") };
    let is_started = |group: &&Group| group.activity.process != ProcessState::NotStarted;
    let running: u64 = missing.iter().filter(is_started).map(Group::count).sum();
    let missing: u64 = missing.iter().map(Group::count).sum();
    match (*arrived, missing) {
        (0, 0) => format!("no rank{of} runs"),
        (0, _) if running == 0 => format!("{missing} {}{of} being started", plural(missing, "rank is", "ranks are")),
        // libpmix reports a fence only when all ranks of the node have arrived.
        (0, _) if by_pmix => {
            let (rank, runs) = plural(running, ("rank", "runs"), ("ranks", "run"));
            format!("{running} {rank}{of} {runs}; on no node have all ranks arrived at a fence")
        }
        (0, _) if running == 1 => format!("1 rank{of} runs, and waits in no fence"),
        (0, _) => format!("{running} ranks{of} run, and none waits in a fence"),
        (1, 0) => format!("fence {fence}{of}: the only rank has arrived"),
        (arrived, 0) => format!("fence {fence}{of}: all {arrived} ranks have arrived"),
        (1, missing) => format!("fence {fence}{of}: 1 rank has arrived and waits for {missing}"),
        (arrived, missing) => {
            format!("fence {fence}{of}: {arrived} ranks have arrived and wait for {missing}")
        }
    }
}

/// One line for each different thing that ranks do.
fn activity_lines(survey: &NamespaceSurvey, locations: &RankLocations, by_pmix: bool) -> Vec<String> {
    survey
        .missing
        .iter()
        .map(|group| {
            let Group { activity, ranks, more } = group;
            let hosts = hosts_of(survey.namespace, ranks, locations);
            let rank = if group.count() == 1 { "rank" } else { "ranks" };
            let more = if *more == 0 { String::new() } else { format!(" and {more} others") };
            format!("  {rank} {ranks}{more}{hosts}: {}", what(*activity, by_pmix, group.count()))
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

/// Describes what so many ranks do.
fn what(Activity { call, process }: Activity, by_pmix: bool, count: u64) -> String {
    let has = if count == 1 { "has" } else { "have" };
    let process = match process {
        ProcessState::Running => "running",
        ProcessState::Sleeping => "sleeping",
        ProcessState::Blocked => "waiting in the kernel for a disk or a file system",
        ProcessState::Stopped => "stopped by a signal or a debugger",
        ProcessState::Ended if count == 1 => "has ended",
        ProcessState::Ended => "have ended",
        ProcessState::NotStarted => return "being started".to_owned(),
    };
    let call = match call {
        LastCall::None if by_pmix => return format!("{process}, {has} not joined PMIx so far"),
        LastCall::Init if by_pmix => return format!("{process}, {has} joined PMIx"),
        LastCall::Fence if by_pmix => return format!("{process}, {has} passed a fence"),
        LastCall::Finalize if by_pmix => return format!("{process}, {has} finalized PMIx"),
        LastCall::Abort if by_pmix => return format!("{process}, {has} called PMIx_Abort"),
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
    use nla::core::{AgentId, Cause, Failure};

    use super::*;
    use crate::plan::mpi_user::Library;

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
            survey_lines(&survey, Vec::new(), &locations(), false),
            [
                "fence 3: 4 ranks have arrived and wait for 7",
                "  rank 15 on node004: stopped by a signal or a debugger, no PMI call so far",
                "  ranks 4-9 on node[002-003]: sleeping, last PMI call: a put",
                "node[003-004]: their agents did not answer within 2 s; nothing is known of the ranks there and below",
            ]
        );
    }

    /// Agents see the beginning and the end of PMIx, and a fence once all ranks of the node have arrived.
    #[test]
    fn of_pmix_only_what_agents_see_is_claimed() {
        let calls = [LastCall::None, LastCall::Init, LastCall::Fence, LastCall::Finalize];
        let missing = (0..)
            .zip(calls)
            .map(|(rank, call)| (Activity { call, process: ProcessState::Sleeping }, Ranks::range(rank..rank + 1)));
        let survey = Survey { namespaces: vec![namespace(0, missing.collect())], silent: vec![] };
        assert_eq!(
            survey_lines(&survey, Vec::new(), &locations(), true),
            [
                "4 ranks run; on no node have all ranks arrived at a fence",
                "  rank 0 on node001: sleeping, has not joined PMIx so far",
                "  rank 1 on node001: sleeping, has joined PMIx",
                "  rank 2 on node001: sleeping, has passed a fence",
                "  rank 3 on node001: sleeping, has finalized PMIx",
            ]
        );
        let one = Survey { namespaces: vec![namespace(0, vec![(STOPPED, Ranks::range(0..1))])], silent: vec![] };
        let lines = survey_lines(&one, Vec::new(), &locations(), true);
        assert_eq!(lines[0], "1 rank runs; on no node have all ranks arrived at a fence");
    }

    #[test]
    fn verbs_agree_with_the_numbers_of_ranks() {
        let joined = Activity { call: LastCall::Init, process: ProcessState::Sleeping };
        assert_eq!(what(joined, true, 1), "sleeping, has joined PMIx");
        assert_eq!(what(joined, true, 4), "sleeping, have joined PMIx");
        let ended = Activity { call: LastCall::Finalize, process: ProcessState::Ended };
        assert_eq!(what(ended, true, 2), "have ended, have finalized PMIx");
    }

    #[test]
    fn headings_agree_with_the_numbers_of_ranks() {
        const STARTING: Activity = Activity { call: LastCall::None, process: ProcessState::NotStarted };
        let text = |arrived, missing: &[(Activity, std::ops::Range<u32>)]| {
            let missing = missing.iter().map(|(activity, ranks)| (*activity, Ranks::range(ranks.clone()))).collect();
            heading(&namespace(arrived, missing), false)
        };
        assert_eq!(text(1, &[(SLEEPS, 0..1)]), "fence 3: 1 rank has arrived and waits for 1");
        assert_eq!(text(1, &[]), "fence 3: the only rank has arrived");
        assert_eq!(text(0, &[(SLEEPS, 0..1)]), "1 rank runs, and waits in no fence");
        assert_eq!(text(0, &[(SLEEPS, 0..2), (STARTING, 2..4)]), "2 ranks run, and none waits in a fence");
        assert_eq!(text(0, &[(STARTING, 2..4)]), "2 ranks are being started");
        assert_eq!(what(STARTING, false, 2), "being started");
    }

    #[test]
    fn ranks_that_have_not_spoken_pmi_are_named_with_their_programs() {
        let command = |program: &str, nprocs| CommandPlan {
            nprocs,
            program: program.into(),
            staged: None,
            args: Vec::new(),
            inherit: nla::core::Inherit::All,
            set: Vec::new(),
            wdir: Vec::new(),
        };
        let mpi = |file: &str, is_certain| {
            let library = Library { name: "libmpi.so.12".to_owned(), ..Library::default() };
            MpiUser { file: file.into(), is_certain, libraries: vec![library], ..MpiUser::default() }
        };
        let (env, other) = (command("env", 2), command("./serve", 2));
        let none = Activity { call: LastCall::None, process: ProcessState::Sleeping };
        let text = |fence, arrived, users: &[MpiUser]| {
            let job = NamespaceSurvey { fence, ..namespace(arrived, vec![(none, Ranks::range(0..4))]) };
            let survey = Survey { namespaces: vec![job], silent: Vec::new() };
            silence_text(&survey, &[(&env, users), (&other, &[])], &locations())
        };
        let hint = "\n  hint: the variables of PMI must reach the program: 'env -i' and 'sudo' remove them";
        let named = "2 ranks have not spoken PMI so far: ranks 0-1 on node001, which run 'env', which names the MPI program './a'";
        assert_eq!(text(0, 0, &[mpi("./a", false)]), Some(format!("{named}{hint}")));
        let all = "4 ranks have not spoken PMI so far: ranks 0-3 on node001, which run 'env' and './serve'";
        assert_eq!(text(0, 1, &[mpi("./a", true)]), Some(format!("{all}{hint}")), "others wait for them");
        assert_eq!(text(0, 0, &[]), None, "they need no PMI");
        let unlikely = MpiUser { is_unlikely: true, ..mpi("./a", false) };
        assert_eq!(text(3, 1, &[unlikely]), None, "a wait in a later fence shows nothing");
    }

    #[test]
    fn what_the_session_waits_for_is_described() {
        let line = |wait| wait_line(&wait, Time::from_secs(10), (1, 2), &locations());
        let until = Time::from_millis(21_500);
        assert_eq!(line(Wait::Agents), "agents are being started: 1 of 2 have reported");
        assert_eq!(agents_line((2, 2)), "no rank has started: agents are joining");
        assert_eq!(
            line(Wait::Clearing(vec![AgentId(1), AgentId(2)])),
            "the agents on node[001-002] are ending all ranks, which then start again"
        );
        assert_eq!(
            line(Wait::Restart(vec![AgentId(2)], until)),
            "all ranks start again in 12 s: until then those of lost agents on node002 may run"
        );
        assert_eq!(
            line(Wait::Revival(AgentId(2), Ranks::range(4..8), until)),
            "ranks 4-7 start again in 12 s: until then they may run under the lost agent on node002"
        );
        let first = Failure {
            at: Time::ZERO,
            agent: AgentId(1),
            namespace: NamespaceId::FIRST,
            ranks: Ranks::range(1..2),
            cause: Cause::Code(3),
        };
        assert_eq!(
            line(Wait::Dead(Ranks::range(1..2), Some(first))),
            "rank 1 is dead; first failure: rank 1 on node001 exited with code 3"
        );
        let lines = survey_lines(&Survey::default(), vec![line(Wait::Output)], &locations(), false);
        assert_eq!(lines, ["all ranks have ended; their output waits for its reader"]);
    }

    #[test]
    fn a_job_without_a_fence_is_described_too() {
        let survey = Survey { namespaces: vec![namespace(0, vec![(SLEEPS, Ranks::range(0..2))])], silent: vec![] };
        assert_eq!(survey_lines(&survey, Vec::new(), &locations(), false)[0], "2 ranks run, and none waits in a fence");
        assert_eq!(survey_lines(&Survey::default(), Vec::new(), &locations(), false), ["no rank runs"]);
    }
}
