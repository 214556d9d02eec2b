//! The state of pools, as text and as JSON.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use nla::core::printable;
use nla::figures::counted;
use serde_json::{Value, json};

use super::message::{JobState, NodeReport, PoolState};
use super::nodes::Health;
use crate::cluster::hosts::fold;
use crate::refusal::{Refusal, shown};

/// The most characters of a job's words in a line.
const WORDS_SHOWN: usize = 60;
/// The width of the column with the names of nodes, in characters.
pub(super) const NAMES_SHOWN: usize = 24;
/// The greatest width of that column in output that is not for a terminal.
const NAMES_SHOWN_MAX: usize = 60;
/// The most characters of the reason why a node is down.
const WHY_SHOWN: usize = 160;

/// Returns a time in its largest whole unit.
pub(super) fn age(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// Returns names in at most so many characters.
pub(super) fn cut(names: &str, chars_max: usize) -> String {
    let names = printable(names).to_string();
    if names.chars().count() <= chars_max { names } else { shown(&names, chars_max.saturating_sub(1)) }
}

/// A pool, its nodes and its jobs.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct PoolReport {
    pub pool: PoolState,
    pub nodes: Vec<NodeReport>,
    pub jobs: Vec<JobState>,
    pub totals: Totals,
}

/// The figures of a pool with all its nodes and jobs.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Totals {
    nodes: usize,
    /// The slots of jobs that run.
    pub busy: u32,
    running: usize,
    waiting: usize,
}

impl PoolReport {
    /// Returns the report on all nodes and jobs of a pool.
    pub(super) fn new(pool: PoolState, nodes: Vec<NodeReport>, jobs: Vec<JobState>) -> Self {
        let running = || jobs.iter().filter(|job| job.launcher.is_some());
        let (count, busy) = (running().count(), running().map(|job| job.slots).sum());
        let totals = Totals { nodes: nodes.len(), busy, running: count, waiting: jobs.len() - count };
        Self { pool, nodes, jobs, totals }
    }

    /// Returns whether people want to read about its nodes: a pool of one sound node is described by its headline.
    fn shows_nodes(&self, is_selected: bool) -> bool {
        let is_sound = |node: &NodeReport| !node.is_drained && node.health == Health::Up;
        !self.nodes.is_empty() && (is_selected || self.totals.nodes > 1 || !self.nodes.iter().all(is_sound))
    }
}

/// The parts of a report besides the pool itself.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct Parts {
    /// The jobs.
    pub jobs: bool,
    /// The nodes.
    pub nodes: bool,
}

/// The states of jobs and nodes, in a word each.
pub(super) const STATES: [&str; 9] = ["runs", "waits", "idle", "mixed", "busy", "drains", "drained", "starts", "down"];

/// The jobs and nodes to show: all those that fit each list that is not empty.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Selection {
    /// Names of nodes.
    pub nodes: Vec<String>,
    /// States of nodes and of jobs.
    pub states: Vec<String>,
    /// Numbers of jobs.
    pub jobs: Vec<u64>,
}

impl Selection {
    /// Returns whether it names nodes, states or jobs.
    fn is_given(&self) -> bool {
        !(self.nodes.is_empty() && self.states.is_empty() && self.jobs.is_empty())
    }

    /// Returns a refusal for nodes that none of these pools has, and one for jobs. `pool` is the one that was named. Nothing is
    /// unknown if there is no pool.
    pub(super) fn unknown(&self, pool: Option<&str>, reports: &[PoolReport]) -> Vec<Refusal> {
        if reports.is_empty() {
            return Vec::new();
        }
        let nodes: BTreeSet<&String> = reports.iter().flat_map(|report| &report.nodes).map(|node| &node.name).collect();
        let jobs: BTreeSet<u64> = reports.iter().flat_map(|report| &report.jobs).map(|job| job.job).collect();
        let nodes: Vec<&String> = self.nodes.iter().filter(|name| !nodes.contains(name)).collect();
        let jobs: Vec<String> = self.jobs.iter().filter(|job| !jobs.contains(job)).map(u64::to_string).collect();
        let place = pool.map_or("in a pool on this host".to_owned(), |pool| format!("in the pool '{pool}'"));
        let refused = |what: &str, names: &str, hint: &str| {
            Refusal::new(format!("there is no {what} {names} {place}"), hint).of_system()
        };
        let unknown_nodes = || refused("node", &fold(&nodes), "'scela status' lists the nodes of pools");
        let unknown_jobs = || refused("job", &jobs.join(", "), "'scela jobs' lists those that wait or run");
        let both = [(!nodes.is_empty()).then(unknown_nodes), (!jobs.is_empty()).then(unknown_jobs)];
        both.into_iter().flatten().collect()
    }

    /// Returns the report without what is not selected.
    pub(super) fn of(&self, mut report: PoolReport) -> PoolReport {
        let Self { nodes, states, jobs } = self;
        let PoolReport { nodes: all, jobs: all_jobs, .. } = &mut report;
        let has_state = |state: &str| states.is_empty() || states.iter().any(|selected| selected == state);
        let is_named = |node: &NodeReport| nodes.is_empty() || nodes.contains(&node.name);
        let on_named =
            |job: &JobState| nodes.is_empty() || all.iter().any(|node| is_named(node) && node.jobs.contains(&job.job));
        all_jobs
            .retain(|job| (jobs.is_empty() || jobs.contains(&job.job)) && has_state(job_word(job)) && on_named(job));
        let has_job = |node: &NodeReport| jobs.is_empty() || node.jobs.iter().any(|job| jobs.contains(job));
        all.retain(|node| is_named(node) && has_state(state_word(node)) && has_job(node));
        report
    }
}

fn job_word(job: &JobState) -> &'static str {
    if job.launcher.is_some() { "runs" } else { "waits" }
}

/// Describes a pool, with all its nodes and jobs, in a line.
pub(super) fn headline(PoolReport { pool, totals, .. }: &PoolReport) -> String {
    let Totals { busy, running, waiting, .. } = totals;
    let stopping = if pool.is_stopping { ", is being stopped" } else { "" };
    let idle = pool.idle_ms.map(|ms| format!(", ends after {} without a job", age(ms))).unwrap_or_default();
    format!(
        "pool {} on {}: {} of {} busy, {} {}, {} wait, {} ended, up {}{idle}{stopping}",
        pool.name,
        printable(&pool.host),
        busy,
        counted(pool.slots.into(), "slot"),
        counted(*running as u64, "job"),
        if *running == 1 { "runs" } else { "run" },
        waiting,
        pool.ended,
        age(pool.age_ms),
    )
}

/// Describes pools for people.
pub(super) fn text(pools: &[PoolReport], parts: Parts, selection: &Selection) -> String {
    if pools.is_empty() {
        return "there is no pool on this host; 'scela pool start' starts one\n".to_owned();
    }
    let mut text = String::new();
    for report in pools {
        let PoolReport { nodes, jobs, .. } = report;
        let _ = writeln!(text, "{}", headline(report));
        if parts.nodes && report.shows_nodes(selection.is_given()) {
            node_table(&mut text, nodes);
        }
        if parts.jobs && !jobs.is_empty() {
            table(&mut text, jobs);
        }
    }
    text
}

/// The state of a node in one word.
fn state_word(node: &NodeReport) -> &'static str {
    match (&node.health, node.is_drained) {
        (Health::Up, false) if node.busy == 0 => "idle",
        (Health::Up, false) if node.busy < node.slots => "mixed",
        (Health::Up, false) => "busy",
        (Health::Up, true) if node.busy == 0 => "drained",
        (Health::Up, true) => "drains",
        (Health::Starts, _) => "starts",
        (Health::Down(_), _) => "down",
    }
}

/// A line about nodes that differ at most in their load and their free memory.
pub(super) struct NodeLine {
    /// Their names, folded.
    pub names: String,
    /// Their state in one word.
    pub state: &'static str,
    pub slots: u32,
    pub busy: u32,
    /// The highest load, and the least free memory.
    pub load: String,
    pub free: String,
    /// Their jobs, folded.
    pub jobs: String,
    /// Why they are down.
    pub why: Option<String>,
}

/// Returns a line for each group of equal nodes.
pub(super) fn node_lines(nodes: &[NodeReport]) -> Vec<NodeLine> {
    let mut groups: Vec<Vec<&NodeReport>> = Vec::new();
    for node in nodes {
        let key = |node: &NodeReport| (node.health.clone(), node.is_drained, node.slots, node.busy, node.jobs.clone());
        match groups.iter_mut().find(|group| group.first().is_some_and(|first| key(first) == key(node))) {
            Some(group) => group.push(node),
            None => groups.push(vec![node]),
        }
    }
    groups.iter().filter_map(|group| Some(node_line(group.first()?, group))).collect()
}

fn node_line(first: &NodeReport, group: &[&NodeReport]) -> NodeLine {
    let states = || group.iter().filter_map(|node| node.state);
    let load = states().map(|state| state.load).reduce(f32::max);
    let free = states().map(|state| state.memory_free).min();
    NodeLine {
        names: fold(group.iter().map(|node| node.name.as_str())),
        state: state_word(first),
        slots: first.slots,
        busy: first.busy,
        load: load.map_or("-".to_owned(), |load| format!("{load:.2}")),
        free: free.map_or("-".to_owned(), |bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))),
        jobs: fold(first.jobs.iter().map(ToString::to_string)),
        why: match &first.health {
            Health::Down(why) => Some(why_shown(why)),
            Health::Up | Health::Starts => None,
        },
    }
}

/// Returns the reason why a node is down, in a line.
pub(super) fn why_shown(why: &str) -> String {
    shown(&in_a_line(why), WHY_SHOWN)
}

/// Returns an error of several lines in one, without its hints: `1 of 1 host could not be started: n1: no answer`.
fn in_a_line(error: &str) -> String {
    let mut lines = error.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("hint: "));
    let first = lines.next().unwrap_or_default().to_owned();
    let others = lines.collect::<Vec<_>>().join("; ");
    if others.is_empty() { first } else { format!("{first}: {others}") }
}

fn node_table(text: &mut String, nodes: &[NodeReport]) {
    let heads = ["NODES", "STATE", "SLOTS", "BUSY", "LOAD", "FREE"];
    let [names, state, slots, busy, load, free] = heads;
    let lines = node_lines(nodes);
    let longest = lines.iter().map(|line| printable(&line.names).to_string().chars().count()).max().unwrap_or_default();
    let width = longest.clamp(NAMES_SHOWN, NAMES_SHOWN_MAX);
    let _ = writeln!(text, "{names:<width$}  {state:<7}  {slots:>6}  {busy:>6}  {load:>7}  {free:>9}  JOBS");
    for line in lines {
        let NodeLine { names, state, slots, busy, load, free, jobs, why } = line;
        let names = cut(&names, width);
        let _ = writeln!(text, "{names:<width$}  {state:<7}  {slots:>6}  {busy:>6}  {load:>7}  {free:>9}  {jobs}");
        if let Some(why) = why {
            let _ = writeln!(text, "  {}", printable(&why));
        }
    }
}

fn table(text: &mut String, jobs: &[JobState]) {
    let _ = writeln!(text, "{:>8}  {:<5}  {:>6}  {:>8}  {:>8}  COMMAND", "JOB", "STATE", "SLOTS", "PRIORITY", "SINCE");
    let mut before = None;
    for job in jobs {
        let state = job_word(job);
        let words = shown(&job.words, WORDS_SHOWN);
        let _ = writeln!(
            text,
            "{:>8}  {state:<5}  {:>6}  {:>8}  {:>8}  {}",
            job.job,
            job.slots,
            job.priority,
            age(job.age_ms),
            printable(&words)
        );
        // Many jobs that are alike wait for the same.
        let why = job.wait.map(|wait| wait.why);
        if let Some(why) = why.filter(|why| Some(*why) != before) {
            let _ = writeln!(text, "{:>8}  {why}", "");
        }
        before = why;
    }
}

/// Describes pools as JSON: an array with an object for each.
pub(super) fn json(pools: &[PoolReport], parts: Parts) -> String {
    let pools: Vec<Value> = pools.iter().map(|report| pool_value(report, parts)).collect();
    format!("{:#}\n", Value::Array(pools))
}

fn pool_value(PoolReport { pool, nodes, jobs, totals }: &PoolReport, parts: Parts) -> Value {
    let mut value = json!({
        "pool": pool.name,
        "host": pool.host,
        "controller_pid": pool.pid,
        "age_s": seconds(pool.age_ms),
        "slots": pool.slots,
        "slots_busy": totals.busy,
        "jobs_ended": pool.ended,
        "idle_s": pool.idle_ms.map(seconds),
        "is_stopping": pool.is_stopping,
    });
    if parts.nodes {
        value["nodes"] = nodes.iter().map(node_value).collect();
    }
    if parts.jobs {
        value["jobs"] = jobs.iter().map(job_value).collect();
    }
    value
}

fn node_value(node: &NodeReport) -> Value {
    let why = if let Health::Down(why) = &node.health { Some(why) } else { None };
    json!({
        "node": node.name,
        "state": state_word(node),
        "why": why,
        "is_drained": node.is_drained,
        "slots": node.slots,
        "slots_busy": node.busy,
        "jobs": node.jobs,
        "cores": node.state.map(|state| state.cores),
        "load": node.state.map(|state| state.load),
        "memory_free": node.state.map(|state| state.memory_free),
        "memory": node.state.map(|state| state.memory),
    })
}

fn job_value(job: &JobState) -> Value {
    json!({
        "job": job.job,
        "state": job_word(job),
        "launcher_pid": job.launcher,
        "slots": job.slots,
        "priority": job.priority,
        "age_s": seconds(job.age_ms),
        "why": job.wait.map(|wait| wait.why.to_string()),
        "returned": job.is_returned,
        "command": job.words,
    })
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

/// Returns a pool with a busy node and two jobs.
#[cfg(test)]
pub(super) fn example() -> PoolReport {
    use super::waits::{Wait, Why};

    let pool = PoolState {
        name: "night".to_owned(),
        pid: 7,
        host: "n1".to_owned(),
        age_ms: 200_000,
        slots: 4,
        ended: 12,
        idle_ms: Some(60_000),
        is_stopping: false,
    };
    let job = |job, launcher: Option<u32>| JobState {
        job,
        launcher,
        slots: 3,
        priority: 0,
        age_ms: 1500,
        wait: launcher.is_none().then_some(Wait { why: Why::Kept(9), ahead: 0 }),
        is_returned: false,
        words: "-np 3 ./a\x1b[2J".to_owned(),
    };
    let node = NodeReport {
        name: "n1".to_owned(),
        slots: 4,
        busy: 4,
        jobs: vec![13],
        health: Health::Up,
        is_drained: false,
        state: Some(nla::keeper::NodeState { cores: 4, load: 0.5, memory_free: 3 << 30, memory: 4 << 30 }),
    };
    PoolReport::new(pool, vec![node], vec![job(13, Some(9)), job(14, None)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, busy: u32, health: Health) -> NodeReport {
        let node = example().nodes.remove(0);
        let jobs = if busy > 0 { vec![13] } else { Vec::new() };
        NodeReport { name: name.to_owned(), busy, jobs, health, ..node }
    }

    const JOBS: Parts = Parts { jobs: true, nodes: false };
    const ALL: Parts = Parts { jobs: true, nodes: true };

    #[test]
    fn equal_nodes_are_folded() {
        let down = Health::Down("the keeper was lost".to_owned());
        let nodes = vec![
            node("n1", 4, Health::Up),
            node("n2", 0, Health::Up),
            node("n3", 4, Health::Up),
            NodeReport { state: None, ..node("n4", 0, down) },
        ];
        let text = text(&[PoolReport::new(example().pool, nodes, Vec::new())], ALL, &Selection::default());
        let lines: Vec<&str> = text.lines().skip(1).map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "NODES                     STATE     SLOTS    BUSY     LOAD       FREE  JOBS",
                "n[1,3]                    busy          4       4     0.50    3.0 GiB  13",
                "n2                        idle          4       0     0.50    3.0 GiB",
                "n4                        down          4       0        -          -",
                "  the keeper was lost",
            ]
        );
    }

    #[test]
    fn a_node_that_is_down_has_its_reason_in_a_line() {
        let shown = |why: &str| {
            let nodes = vec![node("n1", 0, Health::Down(why.to_owned()))];
            let text = text(&[PoolReport::new(example().pool, nodes, Vec::new())], ALL, &Selection::default());
            text.lines().nth(3).map(str::to_owned).unwrap_or_default()
        };
        let two =
            "2 of 3 hosts could not be started\n  n1: no route\n    hint: check that it is up\n  n2: \x1b[2Jno name\n";
        assert_eq!(shown(two), "  2 of 3 hosts could not be started: n1: no route; n2: ?[2Jno name");
        assert_eq!(shown("the keeper was lost"), "  the keeper was lost");
        assert_eq!(shown(&format!("a\n{}", "b".repeat(1000))), format!("  a: {}…", "b".repeat(WHY_SHOWN - 3)));
        assert_eq!(shown(""), "  ");
    }

    #[test]
    fn long_names_keep_the_columns() {
        let lines = |lengths: [usize; 2]| {
            let nodes = [("a", 0), ("b", 4)].into_iter().zip(lengths);
            let nodes = nodes.map(|((name, busy), length)| node(&name.repeat(length), busy, Health::Up)).collect();
            let text = text(&[PoolReport::new(example().pool, nodes, Vec::new())], ALL, &Selection::default());
            text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
        };
        let column = |line: &str, word: &str| line.split(word).next().map(|l| l.chars().count());
        for (lengths, begin) in [([1, 1], 26), ([40, 1], 42), ([100, 1], 62)] {
            let lines = lines(lengths);
            let begins = [(0, "STATE"), (1, "idle"), (2, "busy")].map(|(line, word)| column(&lines[line], word));
            assert_eq!(begins, [Some(begin); 3], "{lines:?}");
        }
        assert!(lines([100, 1])[1].starts_with(&format!("{}…  idle", "a".repeat(59))));
    }

    #[test]
    fn selected_nodes_and_jobs_that_do_not_exist_are_named() {
        let unknown = |nodes: &[&str], jobs: &[u64], pool, reports: &[PoolReport]| {
            let nodes = nodes.iter().map(|name| (*name).to_owned()).collect();
            let selection = Selection { nodes, states: Vec::new(), jobs: jobs.to_vec() };
            selection.unknown(pool, reports).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let reports = [report_on_two()];
        let none: [&str; 0] = [];
        assert_eq!(unknown(&["n2"], &[14], Some("night"), &reports), none);
        assert_eq!(
            unknown(&["n2", "n3", "n4"], &[0, 13, 15], Some("night"), &reports),
            ["there is no node n[3-4] in the pool 'night'", "there is no job 0, 15 in the pool 'night'"]
        );
        assert_eq!(unknown(&[], &[7], None, &reports), ["there is no job 7 in a pool on this host"]);
        assert_eq!(unknown(&[], &[7], None, &[]), none);
    }

    #[test]
    fn people_read_lines() {
        let pools = [example()];
        let head = "pool night on n1: 3 of 4 slots busy, 1 job runs, 1 wait, 12 ended, up 3 min, \
                    ends after 60 s without a job\n";
        let text = |pools: &[PoolReport], parts| text(pools, parts, &Selection::default());
        assert_eq!(text(&pools, Parts::default()), head);
        assert_eq!(text(&pools, ALL), text(&pools, JOBS));
        assert_eq!(
            text(&pools, JOBS),
            format!(
                "{head}\
                 \x20    JOB  STATE   SLOTS  PRIORITY     SINCE  COMMAND\n\
                 \x20     13  runs        3         0       1 s  -np 3 ./a?[2J\n\
                 \x20     14  waits       3         0       1 s  -np 3 ./a?[2J\n\
                 \x20         the slots for it are kept for job 9, which has waited longer\n"
            )
        );
        assert_eq!(text(&[], ALL), "there is no pool on this host; 'scela pool start' starts one\n");
    }

    #[test]
    fn a_selection_leaves_the_rest_out() {
        let report = report_on_two;
        let selected = |selection: Selection| {
            let PoolReport { nodes, jobs, .. } = selection.of(report());
            let names: Vec<String> = nodes.into_iter().map(|node| node.name).collect();
            (names.join(" "), jobs.iter().map(|job| job.job).collect::<Vec<_>>())
        };
        let of = |nodes: &[&str], states: &[&str], jobs: &[u64]| {
            let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
            selected(Selection { nodes: words(nodes), states: words(states), jobs: jobs.to_vec() })
        };
        assert_eq!(of(&[], &[], &[]), ("n1 n2".to_owned(), vec![13, 14]));
        assert_eq!(of(&["n1"], &[], &[]), ("n1".to_owned(), vec![13]));
        assert_eq!(of(&["n2"], &[], &[]), ("n2".to_owned(), vec![]));
        assert_eq!(of(&[], &["idle", "waits"], &[]), ("n2".to_owned(), vec![14]));
        assert_eq!(of(&[], &[], &[13]), ("n1".to_owned(), vec![13]));
    }

    fn report_on_two() -> PoolReport {
        let PoolReport { pool, jobs, .. } = example();
        PoolReport::new(pool, vec![node("n1", 4, Health::Up), node("n2", 0, Health::Up)], jobs)
    }

    #[test]
    fn the_headline_is_about_the_whole_pool() {
        let selection = Selection { nodes: vec!["n2".to_owned()], ..Selection::default() };
        let selected = selection.of(report_on_two());
        assert_eq!((selected.nodes.len(), selected.jobs.len()), (1, 0));
        assert_eq!(headline(&selected), headline(&report_on_two()));
        assert_eq!(pool_value(&selected, ALL)["slots_busy"], json!(3));
    }

    #[test]
    fn the_only_node_has_a_line_if_it_is_asked_for_or_not_sound() {
        let shows = |node: NodeReport, selection: &Selection| {
            let report = selection.of(PoolReport::new(example().pool, vec![node], Vec::new()));
            text(&[report], ALL, selection).contains("NODES")
        };
        let (all, idle) = (Selection::default(), || node("n1", 0, Health::Up));
        assert!(!shows(idle(), &all));
        assert!(shows(NodeReport { is_drained: true, ..idle() }, &all));
        assert!(shows(node("n1", 0, Health::Down("lost".to_owned())), &all));
        let of_state = |state: &str| Selection { states: vec![state.to_owned()], ..Selection::default() };
        assert!(shows(idle(), &of_state("idle")));
        assert!(!shows(idle(), &of_state("busy")), "none is left");
        let (selection, one_of_two) = (of_state("idle"), of_state("idle").of(report_on_two()));
        assert_eq!(one_of_two.nodes.len(), 1);
        assert!(text(&[one_of_two], ALL, &selection).contains("\nn2  "));
    }

    #[test]
    fn programs_read_json() {
        let read = |parts| -> Value { serde_json::from_str(&json(&[example()], parts)).unwrap() };
        let with = read(ALL);
        assert_eq!((&with[0]["nodes"][0]["state"], &with[0]["nodes"][0]["jobs"]), (&json!("busy"), &json!([13])));
        assert_eq!((&with[0]["slots_busy"], &with[0]["jobs"][0]["launcher_pid"]), (&json!(3), &json!(9)));
        assert_eq!(with[0]["idle_s"], json!(60.0));
        assert!(read(Parts::default())[0].get("jobs").is_none());
        assert!(read(JOBS)[0].get("nodes").is_none());
    }
}
