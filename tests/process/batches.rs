//! `scela simulate-batch`: batches of jobs, with SimGrid's `smpirun` and without.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;
use tests::{scela_run, skip};

/// Runs two jobs of eight ranks that send to their neighbours.
fn simulate(words: &[&str], path: Option<&Path>) -> Output {
    let mut command = Command::new(scela_run().with_file_name("scela"));
    command.args(["simulate-batch", "--pattern", "ring", "-n", "8", "--topology", "torus:4x4", "--batches", "1"]);
    command.args(["--jobs", "1000", "--compute", "0", "--probability", "0"]).args(words).env_remove("SCELA_LOG");
    if let Some(path) = path {
        command.env("PATH", path);
    }
    command.output().unwrap()
}

fn texts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Returns the time of block placement's batch.
fn block_s(said: &str) -> f64 {
    let line = said.lines().find(|line| line.starts_with("block")).unwrap_or_else(|| panic!("{said}"));
    line.split_ascii_whitespace().nth(1).and_then(|time| time.parse().ok()).unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn simgrid_simulates_the_messages_of_each_placement() {
    let (code, said, complaint) = texts(&simulate(&["--messages", "auto"], None));
    if said.contains("there is no smpirun") {
        return skip("there is no smpirun; ./tests/run installs it");
    }
    assert_eq!((code, complaint.as_str()), (Some(0), ""), "{said}");
    assert!(said.contains("\ntime of messages: SimGrid ") && said.lines().count() == 8, "{said}");
    let (_, by_links, _) = texts(&simulate(&["--messages", "links"], None));
    // SimGrid's links have less than their nominal bandwidth, and no message is more than twice as slow here.
    let ratio = block_s(&said) / block_s(&by_links);
    assert!(ratio > 1.0 && ratio < 2.0, "{ratio}\n{said}\n{by_links}");
}

#[test]
fn without_simgrid_the_model_of_links_is_used() {
    let empty = TempDir::new().unwrap();
    let (code, said, complaint) = texts(&simulate(&[], Some(empty.path())));
    assert_eq!((code, complaint.as_str()), (Some(0), ""), "{said}");
    let named = "\ntime of messages: the model of links, as there is no smpirun in PATH (Debian: libsimgrid-dev)\n";
    assert!(said.contains(named), "{said}");
    let (code, said, complaint) = texts(&simulate(&["--messages", "simgrid"], Some(empty.path())));
    assert_eq!((code, said.as_str()), (Some(2), ""));
    assert_eq!(complaint, "scela: error: --messages simgrid: there is no smpirun in PATH (Debian: libsimgrid-dev)\n");
}

#[test]
fn a_simgrid_that_fails_is_replaced_for_all_placements() {
    let place = TempDir::new().unwrap();
    let script =
        "#!/bin/sh\n[ \"$1\" = -version ] && echo SimGrid version 9.9 && exit\necho no such platform >&2\nexit 1\n";
    let smpirun = place.path().join("smpirun");
    fs::write(&smpirun, script).unwrap();
    fs::set_permissions(&smpirun, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", place.path().display());
    let (code, said, complaint) = texts(&simulate(&[], Some(Path::new(&path))));
    assert_eq!(code, Some(0), "{said}{complaint}");
    let warning = "scela: warning: SimGrid 9.9 cannot simulate the messages: smpirun: no such platform; all times are by the model \
                   of links\n";
    assert_eq!(complaint, warning);
    assert!(said.contains("\ntime of messages: the model of links, as SimGrid failed\n"), "{said}");
    assert_eq!(block_s(&said), block_s(&texts(&simulate(&["--messages", "links"], None)).1));
}
