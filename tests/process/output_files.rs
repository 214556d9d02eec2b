//! Files that the user names for output: links and files that another user put into a directory like /tmp are refused.

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;

use nix::unistd::Uid;
use tempfile::TempDir;
use tests::{scela, sh, skip};

/// The user who plants links. The run is root's.
const ATTACKER: u32 = 65_502;

/// Makes a directory like /tmp.
fn shared() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    // Another user than the attacker, and than the one of the run.
    lchown(place.path(), Some(65_503), None).unwrap();
    place
}

/// Makes a link of the attacker's.
fn plant(target: &Path, link: &Path) {
    symlink(target, link).unwrap();
    lchown(link, Some(ATTACKER), Some(ATTACKER)).unwrap();
}

/// Returns the option that writes statistics to this file.
fn stats_to(path: &Path) -> String {
    format!("--stats={}", path.display())
}

#[test]
fn another_users_link_is_refused_and_its_target_untouched() {
    if !Uid::effective().is_root() {
        return skip("only root can make links of another user");
    }
    let (place, home) = (shared(), tempfile::tempdir().unwrap());
    let (mine, out) = (home.path().join("mine"), place.path().join("out"));
    fs::write(&mine, "mine").unwrap();
    plant(&mine, &out);
    let why = format!("it is a link of another user (uid {ATTACKER}), in a directory that others write to");
    let pattern = scela().np(1).arg("-outfile-pattern").arg(&out).program(sh("echo line")).run();
    pattern.has_code(1).says(&format!("'{}' cannot be written: {why}\n", out.display()));
    let stats = scela().np(1).arg(stats_to(&out)).program(sh("echo started >&2")).run();
    stats.has_code(251).says(&format!("cannot be written to '{}': {why}\n", out.display())).never_says("started");
    let trace = scela().np(1).arg(format!("--trace={}", out.display())).program(sh("echo started >&2")).run();
    trace.has_code(251).says(&format!("cannot be written to '{}': {why}\n", out.display())).never_says("started");
    plant(&mine, &place.path().join("agent-1.recording"));
    let recording = scela().np(1).env("SCELA_RECORD", place.path()).env("SCELA_LOG", "warn");
    let recording = recording.program(sh("echo started >&2")).run();
    recording.has_code(252).says("agent-1.recording: it is a link of another user").never_says("started");
    assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
    let (work, results) = (tempfile::tempdir().unwrap(), place.path().join("results"));
    plant(home.path(), &results);
    let collect = scela().np(1).arg("--collect").arg(format!("made={}", results.display()));
    let outcome = collect.directory(work.path()).program(sh("echo line >made")).run();
    outcome.has_code(1).says(&format!(": '{}' cannot be written: {why}\n", results.display()));
    assert!(!home.path().join("made").exists());
}

#[test]
fn another_users_link_in_the_middle_of_a_path_is_refused() {
    if !Uid::effective().is_root() {
        return skip("only root can make links of another user");
    }
    let (place, home) = (shared(), tempfile::tempdir().unwrap());
    let (mine, planted) = (home.path().join("mine"), place.path().join("planted"));
    fs::write(&mine, "mine").unwrap();
    plant(home.path(), &planted);
    let out = planted.join("mine");
    let why = format!("it is a link of another user (uid {ATTACKER}), in a directory that others write to");
    let pattern = scela().np(1).arg("-outfile-pattern").arg(&out).program(sh("echo line")).run();
    pattern.has_code(1).says(&format!("'{}' cannot be written: {why}\n", out.display()));
    let stats = scela().np(1).arg(stats_to(&out)).program(sh("echo started >&2")).run();
    stats.has_code(251).says(&format!("cannot be written to '{}': {why}\n", out.display())).never_says("started");
    assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
}

#[test]
fn the_users_own_files_links_and_devices_are_written_as_before() {
    let place = tempfile::tempdir().unwrap();
    let (out, link) = (place.path().join("out"), place.path().join("link"));
    fs::write(&out, "a line of the run before\n").unwrap();
    fs::set_permissions(&out, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("out", &link).unwrap();
    for path in [&out, &link] {
        scela().np(1).arg("-outfile-pattern").arg(path).program(sh("echo line")).run().is_quiet_success();
        assert_eq!(fs::read_to_string(&out).unwrap(), "line\n");
    }
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o640);
    scela().np(1).args(["-outfile-pattern", "/dev/null"]).program(sh("echo line")).run().is_quiet_success();
    scela().np(1).args(["-outfile-pattern", "/dev/stdout"]).program(sh("echo line")).run().has_code(0).wrote("line\n");
    scela().np(1).arg("--stats=/dev/stderr").program(sh("true")).run().has_code(0).says("\"version\"");
}

#[test]
fn a_report_whose_file_a_rank_removed_is_written_under_its_name() {
    let place = tempfile::tempdir().unwrap();
    let report = place.path().join("report");
    for option in ["--stats", "--trace"] {
        let run = scela().np(1).arg(format!("{option}={}", report.display()));
        run.program(sh(&format!("rm {} && echo removed", report.display()))).run().has_code(0).wrote("removed\n");
        let text = fs::read_to_string(&report).unwrap();
        assert!(text.starts_with('{') && text.trim_end().ends_with('}'), "{option}: {text}");
        fs::remove_file(&report).unwrap();
    }
}

#[test]
fn new_files_of_output_have_the_mode_of_the_umask_and_recordings_are_private() {
    let place = tempfile::tempdir().unwrap();
    let (out, stats) = (place.path().join("out"), place.path().join("stats"));
    let run = scela().np(1).shell("umask 027").env("SCELA_RECORD", place.path());
    let run = run.arg("-outfile-pattern").arg(&out).arg(stats_to(&stats));
    run.program(sh("echo line")).run().has_code(0);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode(&out), mode(&stats)], [0o640; 2]);
    assert_eq!(mode(&place.path().join("agent-1.recording")), 0o600);
}
