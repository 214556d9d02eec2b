//! The last lines of the rank that failed first, and the file of `--report`.

use std::fs;

use serde_json::{Value, json};
use tests::{Outcome, Run, scela, sh};

use crate::host;

/// Rank 1 writes its last words once rank 0 is ready to write its own, which takes a signal.
const NOISE: &str = "trap 'for i in 1 2 3 4 5 6; do echo stopped >&2; done; exit 1' TERM\n\
    [ $PMI_RANK = 0 ] && { echo > ready; while :; do sleep 0.05; done; }\n\
    while [ ! -e ready ]; do sleep 0.05; done; seq 20 >&2; printf 'boom\\033[2J' >&2; exit 3";

/// Runs the job. Returns its report, too.
fn reported(run: Run, script: &str) -> (Outcome, Value) {
    let place = tempfile::tempdir().unwrap();
    let outcome = run.args(["--report", "end.json"]).directory(place.path()).program(sh(script)).run();
    let report = fs::read(place.path().join("end.json")).unwrap();
    (outcome, serde_json::from_slice(&report).unwrap())
}

#[test]
fn the_last_lines_of_the_rank_that_failed_first_are_quoted_after_those_of_others() {
    let quoted: String = (12..21).map(|line| format!("  | {line}\n")).collect();
    let quoted = format!("scela-run: rank 1 wrote last to standard error:\n{quoted}  | boom\\u{{1b}}[2J\n");
    for agents in [1, 2] {
        let (outcome, report) = reported(scela().np(2).agents(agents), NOISE);
        outcome.has_code(3).says("stopped\n");
        outcome.check(outcome.err().ends_with(&quoted), "the quote should be at the end");
        assert_eq!(report["last_lines"].as_array().unwrap().len(), 10);
        assert_eq!(report["last_lines"][9], "boom\\u{1b}[2J");
    }
}

#[test]
fn lines_that_the_user_has_just_read_are_not_quoted() {
    let script = "[ $PMI_RANK = 0 ] && exec sleep 1000; echo boom >&2; exit 3";
    for agents in [1, 2] {
        let (outcome, report) = reported(scela().np(2).agents(agents), script);
        outcome.has_code(3).says("boom\n").never_says("wrote last");
        assert_eq!(report["last_lines"], json!(["boom"]));
    }
    scela().np(1).program(sh("echo boom >&2; exit 3")).run().has_code(3).never_says("wrote last");
    let place = tempfile::tempdir().unwrap();
    let files = scela().np(2).args(["-errfile-pattern", "err.%r"]).directory(place.path());
    files.program(sh(NOISE)).run().has_code(3).never_says("wrote last");
}

#[test]
fn the_report_says_how_the_job_ended() {
    let (outcome, report) = reported(scela().np(2), "[ $PMI_RANK = 0 ] && exec sleep 1000; kill -SEGV $$");
    outcome.has_code(139);
    for (name, value) in [
        ("version", json!(1)),
        ("exit_code", json!(139)),
        ("outcome", json!("failed")),
        ("ranks", json!(2)),
        ("failures_more", json!(0)),
        ("memory_kills", json!([])),
        ("last_lines", json!([])),
        ("hosts", json!([{"host": host(), "ranks": "0-1"}])),
    ] {
        assert_eq!(report[name], value, "{name}: {report}");
    }
    let cause = &report["cause"];
    for (name, value) in [("kind", "signal"), ("ranks", "1"), ("signal_name", "SEGV"), ("host", &host())] {
        assert_eq!(cause[name], value, "{name}: {report}");
    }
    assert_eq!((&cause["signal"], &report["failures"][0]), (&json!(11), cause));
    assert!(cause["text"].as_str().unwrap().contains("was killed by signal 11 (SEGV"), "{report}");
    assert_eq!(report["commands"][0][0], "sh");
    assert!(report["began"].as_f64().unwrap() <= report["ended"].as_f64().unwrap(), "{report}");
}

#[test]
fn every_end_is_reported() {
    let (outcome, report) = reported(scela().np(2), "exit 0");
    outcome.is_quiet_success();
    assert_eq!((&report["outcome"], &report["cause"]), (&json!("success"), &Value::Null));
    let (outcome, report) = reported(scela().np(2).args(["--timeout", "0.2"]), "exec sleep 1000");
    outcome.has_code(124);
    assert_eq!((&report["outcome"], &report["exit_code"]), (&json!("timed_out"), &json!(124)));
    let (outcome, report) = reported(scela().np(2).args(["--on-failure", "continue"]), "exit $PMI_RANK");
    outcome.has_code(1);
    assert_eq!((&report["outcome"], &report["dead_ranks"]), (&json!("survived"), &json!("1")));
    let (outcome, report) = reported(scela().args(["--hosts", "no.such.host.invalid"]), "exit 0");
    outcome.has_code(251);
    assert_eq!((&report["outcome"], &report["exit_code"]), (&json!("not_started"), &json!(251)));
    let outcome = scela().np(1).arg("--report=/proc/no/end.json").program(sh("echo ran")).run();
    outcome.has_code(251).wrote("").says("the report cannot be written to '/proc/no/end.json': ");
}
