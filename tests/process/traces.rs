//! `--trace`: the file has every agent, its spans nest and follow their causes, its size is bounded, and it is written after
//! a failure, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tests::{Run, Tree, scela, sh};

use crate::script;

/// The rounding of times, in microseconds.
const ROUNDING_US: f64 = 0.01;

fn with_trace(run: Run) -> (Run, TempDir) {
    let place = tempfile::tempdir().unwrap();
    (run.arg("--trace").arg(place.path().join("trace.json")), place)
}

/// A span of the file.
#[derive(Clone, Debug)]
struct Span {
    name: String,
    place: u64,
    row: u64,
    from: f64,
    to: f64,
    args: Value,
}

/// A trace that a run wrote.
struct Trace {
    bytes: usize,
    about: Value,
    places: BTreeMap<u64, String>,
    spans: Vec<Span>,
}

impl Trace {
    fn of(place: &TempDir) -> Self {
        let text = fs::read(place.path().join("trace.json")).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let number = |event: &Value, name: &str| event[name].as_f64().unwrap_or_else(|| panic!("{name} in {event}"));
        let names = events.iter().filter(|event| event["name"] == "process_name");
        let places =
            names.map(|event| (event["pid"].as_u64().unwrap(), event["args"]["name"].as_str().unwrap().to_owned()));
        let spans = events.iter().filter(|event| event["ph"] == "X").map(|event| {
            let from = number(event, "ts");
            Span {
                name: event["name"].as_str().unwrap().to_owned(),
                place: event["pid"].as_u64().unwrap(),
                row: event["tid"].as_u64().unwrap(),
                from,
                to: from + number(event, "dur"),
                args: event["args"].clone(),
            }
        });
        let trace = Self {
            bytes: text.len(),
            about: trace["otherData"].clone(),
            places: places.collect(),
            spans: spans.collect(),
        };
        trace.check_nesting();
        trace
    }

    /// Spans of one row nest, and do not overlap otherwise.
    fn check_nesting(&self) {
        let mut rows: BTreeMap<(u64, u64), Vec<&Span>> = BTreeMap::new();
        for span in &self.spans {
            assert!(0.0 <= span.from && span.from <= span.to && self.places.contains_key(&span.place), "{span:?}");
            rows.entry((span.place, span.row)).or_default().push(span);
        }
        for spans in rows.values_mut() {
            spans.sort_by(|one, other| one.from.total_cmp(&other.from).then(other.to.total_cmp(&one.to)));
            let mut open: Vec<&Span> = Vec::new();
            for span in spans {
                open.retain(|outer| outer.to > span.from + ROUNDING_US);
                let fits = |outer: &&Span| span.to <= outer.to + ROUNDING_US;
                assert!(open.iter().all(fits), "{span:?} overlaps {open:?}");
                open.push(span);
            }
        }
    }

    /// Returns the spans of a place whose names begin like this, in the order of time.
    fn at(&self, place: u64, name: &str) -> Vec<&Span> {
        let mut spans: Vec<_> =
            self.spans.iter().filter(|span| span.place == place && span.name.starts_with(name)).collect();
        spans.sort_by(|one, other| one.from.total_cmp(&other.from));
        spans
    }

    /// Returns the begin of the first and the end of the last of these spans.
    fn bounds(&self, place: u64, name: &str) -> (f64, f64) {
        let spans = self.at(place, name);
        let last = spans.iter().map(|span| span.to).fold(f64::NAN, f64::max);
        (spans.first().unwrap_or_else(|| panic!("place {place} has no {name}")).from, last)
    }

    fn ranks(&self, place: u64, name: &str) -> u64 {
        self.at(place, name).iter().map(|span| span.args["ranks"].as_u64().unwrap()).sum()
    }
}

#[test]
fn spans_of_all_agents_follow_their_causes() {
    let run = scela().np(36).agents(12).fanout(3);
    let (run, place) = with_trace(run);
    let steps = ["init", "put key-{rank} value", "fence", "get key-13", "fence", "finalize"];
    run.program(script(steps)).run().is_quiet_success();
    let trace = Trace::of(&place);
    assert_eq!(trace.about["version"], 1);
    assert_eq!((trace.about["ranks"].as_u64(), trace.about["agents_reported"].as_u64()), (Some(36), Some(12)));
    assert_eq!(trace.places.keys().copied().collect::<Vec<_>>(), (0..=12).collect::<Vec<_>>());
    assert!(trace.places[&0].starts_with("launcher on "), "{:?}", trace.places);
    assert!(trace.places[&12].ends_with(", ranks 33-35"), "{:?}", trace.places);
    let phases = ["plan", "bootstrap", "join", "spawn", "run", "end", "leave"].map(|name| trace.bounds(0, name));
    assert!(phases.windows(2).all(|two| two[0].1 <= two[1].0 + ROUNDING_US), "the launcher's phases: {phases:?}");
    for agent in 1..=12 {
        assert_eq!(["start", "contact", "end of"].map(|name| trace.ranks(agent, name)), [3; 3], "agent {agent}");
        let phases = ["job description", "spawn", "run", "sweep", "output"].map(|name| trace.bounds(agent, name));
        assert!(phases.windows(2).all(|two| two[0].1 <= two[1].0 + ROUNDING_US), "agent {agent}: {phases:?}");
        let [starts, contacts, exits] = ["start", "contact", "end of"].map(|name| trace.bounds(agent, name));
        let [first, second] = ["fence 0", "fence 1"].map(|name| trace.bounds(agent, name));
        assert!(trace.bounds(agent, "bootstrap").1 <= starts.0, "an agent starts ranks after its report");
        assert!(starts.0 <= contacts.0 && starts.1 <= contacts.1, "a rank contacts after its start");
        assert!(contacts.1 <= first.1 && first.1 <= second.0 && second.1 <= exits.0, "fences end before exits");
        let parts = ["arrivals", "gathering", "waiting"].map(|name| trace.at(agent, name).len());
        assert_eq!(parts, [2; 3], "agent {agent}");
        assert!(!trace.at(agent, "publish").is_empty() && trace.ranks(agent, "release") == 6, "agent {agent}");
    }
}

#[test]
fn the_file_is_small_however_many_ranks_and_fences_there_are() {
    let (run, place) = with_trace(scela().np(1024).agents(4));
    run.program(sh("true")).run().is_quiet_success();
    let trace = Trace::of(&place);
    assert_eq!((1..=4).map(|agent| trace.ranks(agent, "start")).sum::<u64>(), 1024);
    assert!(trace.bytes < 300_000, "{} bytes", trace.bytes);
    let (run, place) = with_trace(scela().np(2));
    let steps = [vec!["init"], vec!["fence"; 1000], vec!["finalize"]].concat();
    run.program(script(steps)).run().is_quiet_success();
    let trace = Trace::of(&place);
    let fences = |span: &&Span| span.args["fences"].as_u64().unwrap();
    for place in [0, 1] {
        let all = trace.spans.iter().filter(|span| span.place == place && span.args.get("fences").is_some());
        assert_eq!(all.map(|span| fences(&span)).sum::<u64>(), 1000);
    }
    assert!(trace.bytes < 50_000, "{} bytes", trace.bytes);
}

#[test]
fn a_failed_session_has_a_trace_without_the_lost_agents() {
    let (run, place) = with_trace(scela().np(7).agents(7).fanout(2));
    let running = run.program(sh("sleep 1000 & echo here; wait")).spawn();
    running.wait_for_times("here", 7);
    let tree = Tree::new(7, 2);
    tree.process(running.world(), tree.leaf()).signal(Signal::SIGKILL);
    running.finish().has_code(252);
    let trace = Trace::of(&place);
    assert_eq!((trace.about["agents"].as_u64(), trace.about["agents_reported"].as_u64()), (Some(7), Some(6)));
    let with_end: BTreeSet<u64> =
        trace.spans.iter().filter(|span| span.name == "sweep").map(|span| span.place).collect();
    assert_eq!(with_end.len(), 6);
    let lost = (1..=7).find(|agent| !with_end.contains(agent)).unwrap();
    assert_eq!(trace.at(lost, "").iter().map(|span| span.name.as_str()).collect::<Vec<_>>(), ["bootstrap", "join"]);
    for agent in with_end {
        assert!(
            trace.bounds(agent, "run").1 <= trace.bounds(agent, "end").0 + ROUNDING_US,
            "the order to end divides the two"
        );
    }
}

#[test]
fn a_rank_that_fails_is_among_the_exits() {
    let (run, place) = with_trace(scela().np(3));
    run.program(sh("exit 3")).run().has_code(3);
    let trace = Trace::of(&place);
    assert_eq!(trace.ranks(1, "end of"), 3);
}

#[test]
fn a_launch_that_fails_has_a_trace() {
    let run = scela().np(2).args(["--bootstrap", "exec:false {host}", "-hosts", "no-host-1,no-host-2"]);
    let (run, place) = with_trace(run);
    run.program(sh("true")).run().has_code(251);
    let trace = Trace::of(&place);
    let names: Vec<_> = trace.spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!((names, trace.about["agents_reported"].as_u64()), (vec!["plan", "bootstrap", "join"], Some(0)));
}

#[test]
fn a_file_that_cannot_be_created_prevents_the_launch() {
    let outcome = scela().np(1).arg("--trace=/proc/no/trace.json").program(sh("echo ran")).run();
    let why = "error: the job could not be launched: the trace cannot be written to '/proc/no/trace.json': ";
    outcome.has_code(251).says(why).wrote("");
}

#[test]
fn a_file_that_cannot_be_written_fails_the_session() {
    let why = "error: the trace cannot be written to '/dev/full': No space left on device";
    scela().np(1).arg("--trace=/dev/full").program(sh("echo ran")).run().has_code(1).says(why).wrote("ran\n");
    scela().np(1).arg("--trace=/dev/full").program(sh("exit 3")).run().has_code(3).says(why);
}
