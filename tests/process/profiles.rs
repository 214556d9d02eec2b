//! `--profile-comm` without MPI: ranks write the rows themselves, good ones and others.

use std::fs;

use tempfile::TempDir;
use tests::{Outcome, Run, scela, sh};

/// Returns a command of a shell that appends a row of this rank: it has sent `bytes` in one message to rank 0 of 4. Each number is
/// below 8, or a variable.
fn row(bytes: &str) -> String {
    format!(
        "printf \"\\\\011\\\\0\\\\0\\\\0\\\\00$PMI_RANK\\\\04\\\\0\\\\01\\\\0\\\\0\\\\0\\\\00{bytes}\\\\01\" >> /proc/self/fd/12"
    )
}

/// Runs ranks and returns the lines of the profile that are no remarks: none if no rank has written one.
fn profile(run: Run) -> (Outcome, Vec<String>) {
    let place = TempDir::new().expect("a directory for the profile");
    let file = place.path().join("p.comm");
    let outcome = run.arg("--profile-comm").arg(&file).run();
    let text = fs::read_to_string(&file).unwrap_or_default();
    (outcome, text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect())
}

#[test]
fn rows_of_all_ranks_travel_over_the_tree() {
    let run = scela().np(4).agents(4).fanout(2).program(sh(&row("$PMI_RANK")));
    let (outcome, lines) = profile(run);
    outcome.is_quiet_success();
    assert_eq!(lines, ["scela-comm 1 ranks 4 pairs 4", "0 0 0 1", "1 0 1 1", "2 0 2 1", "3 0 3 1"]);
}

#[test]
fn ranks_that_start_again_replace_their_rows() {
    let ends = "; test $PMI_RANK != 2 -o ${SCELA_INCARNATION:-0} != 0";
    for action in ["restart", "restart=rank"] {
        let script = row("${SCELA_INCARNATION:-0}") + ends;
        let (outcome, lines) = profile(scela().np(4).agents(2).args(["--on-failure", action]).program(sh(&script)));
        outcome.has_code(0).never_says("profile");
        // The others have written their rows before the failure, or after.
        let again = if action == "restart" { ["1"; 4] } else { ["0", "0", "1", "0"] };
        let expected = (0..4).zip(again).map(|(rank, bytes)| format!("{rank} 0 {bytes} 1"));
        assert_eq!(lines[1..], expected.collect::<Vec<_>>(), "{action}");
    }
}

#[test]
fn rubbish_costs_the_rank_its_profile_and_no_other() {
    let rubbish = "case $PMI_RANK in 1) echo rubbish >> /proc/self/fd/12;; *) ";
    let run = scela().np(4).agents(4).fanout(2).program(sh(&format!("{rubbish}{};; esac", row("5"))));
    let (outcome, lines) = profile(run);
    outcome.has_code(0).says_only("scela-run: warning: rank 1 has written no communication profile\n");
    assert_eq!(lines, ["scela-comm 1 ranks 4 pairs 3", "0 0 5 1", "2 0 5 1", "3 0 5 1"]);
}

#[test]
fn a_job_that_never_started_has_one_error() {
    let (outcome, lines) = profile(scela().np(2).program(vec!["/nonexistent/program".into()]));
    outcome.has_code(251).says("/nonexistent/program").never_says("profile");
    assert!(lines.is_empty(), "{lines:?}");
}

#[test]
fn ranks_load_a_staged_copy_of_the_library() {
    let script = "echo ${LD_PRELOAD#$SCELA_STAGE_DIR}; grep -q ${LD_PRELOAD%%:*} /proc/self/maps && echo mapped";
    for (options, expected) in [
        (&["--stage"][..], "/libscela-trace.so\nmapped\n"),
        (&["--stage", "-genv", "LD_PRELOAD", "/nonexistent.so"], "/libscela-trace.so:/nonexistent.so\nmapped\n"),
    ] {
        let (outcome, _) = profile(scela().np(1).args(options).program(sh(script)));
        outcome.has_code(0).wrote(expected);
    }
}

#[test]
fn a_profile_of_no_rank_leaves_the_old_one() {
    let place = TempDir::new().expect("a directory for the profile");
    let file = place.path().join("p.comm");
    let text = "scela-comm 1 ranks 1 pairs 0\n";
    fs::write(&file, text).expect("the old profile is written");
    let run = |run: Run| run.arg("--profile-comm").arg(&file).run();
    run(scela().np(2).program(vec!["/nonexistent/program".into()])).has_code(251);
    let told = format!("warning: no rank has written a communication profile; '{}' was not changed", file.display());
    run(scela().np(2).program(sh("true"))).has_code(0).says(&told);
    assert_eq!(fs::read_to_string(&file).expect("it is there"), text);
    fs::remove_file(&file).expect("the old profile is removed");
    run(scela().np(2).program(sh("true"))).has_code(0).says(&told.replace("changed", "created"));
    assert!(!file.exists());
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_the_start() {
    let run = scela().np(1).args(["--profile-comm", "/nonexistent/p"]).program(sh("echo started"));
    let outcome = run.run();
    outcome.has_code(251).wrote("").says("the communication profile cannot be written to '/nonexistent/p'");
}
