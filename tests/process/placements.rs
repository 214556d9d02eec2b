//! Placement by what ranks send to each other, and away from hosts that were lost: on the command line, without starting anything.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;
use tests::{Run, eventually, scela, sh};

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(TempDir::new().expect("a directory"))
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let file = self.0.path().join(name);
        fs::write(&file, text).expect("the file is written");
        file
    }

    /// A history in which each of these hosts was lost just now, one after the other.
    fn history(&self, lost: &[&str]) -> PathBuf {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs();
        let events: String = lost.iter().map(|host| format!("{now} {host}\n")).collect();
        self.file("faults", &format!("scela-faults 1\n{events}"))
    }

    /// Four ranks of which each sends to the one after the next.
    fn matrix(&self) -> PathBuf {
        self.file("m", "scela-comm 1 ranks 4 pairs 4\n0 2 1000 1\n2 0 1000 1\n1 3 1000 1\n3 1 1000 1\n")
    }
}

fn explained(hosts: &str) -> Run {
    scela().np(4).args(["-hosts", hosts, "--explain"]).program(sh("true"))
}

#[test]
fn ranks_are_placed_beside_those_that_they_send_to() {
    let place = Place::new();
    let saved = place.0.path().join("map");
    let run = explained("a:2,b:2").args(["--map-by", "comm", "--topology", "torus:2"]);
    let outcome = run.arg("--comm-matrix").arg(place.matrix()).arg("--save-rankmap").arg(&saved).run();
    outcome.has_code(0).wrote_among_others("  hops per byte           1.000        0.000\n");
    let map = fs::read_to_string(&saved).expect("the rank map is saved");
    let again = explained("a:2,b:2").arg("-rankmap").arg(format!("@{}", saved.display())).run();
    again.has_code(0).wrote_among_others("a,b: 2 ranks on each");
    assert!(map.contains("*0") && map.contains("*1"), "{map}");
}

#[test]
fn a_scotch_that_misbehaves_is_ended_and_gives_no_mapping() {
    for (script, why) in [
        ("exec sleep 1000", "timed out"),
        ("exec yes", "it printed too much"),
        ("kill -9 $$", "it failed without a message"),
        ("echo 4; echo 0 9; echo 1 0; echo 2 0; echo 3 0", "its mapping is not whole"),
    ] {
        let place = Place::new();
        let program =
            place.file("scotch_gmap", &format!("#!/bin/sh\necho $$ >{}/pid\n{script}\n", place.0.path().display()));
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("the program may be executed");
        let run = explained("a:2,b:2").args(["--map-by", "comm", "--topology", "torus:2"]);
        let run = run.env("PATH", format!("{}:/usr/bin:/bin", place.0.path().display()));
        let outcome = run.arg("--comm-matrix").arg(place.matrix()).run();
        outcome.has_code(0).wrote_among_others("  hops per byte           1.000        0.000\n");
        // On a busy machine any program may take longer than its time.
        let said = outcome.out();
        let has_said = |why: &str| said.contains(&format!("  scotch_gmap, before exchanges: no mapping: {why}\n"));
        assert!(has_said(why) || has_said("timed out"), "{script}: {said}");
        let pid = fs::read_to_string(place.0.path().join("pid")).unwrap_or_default();
        let is_there = || !pid.is_empty() && PathBuf::from("/proc").join(pid.trim()).exists();
        assert!(eventually(|| (!is_there()).then_some(())).is_some(), "{script}: process {pid} still runs");
    }
}

#[test]
fn a_saved_rank_map_follows_links_keeps_modes_and_goes_into_fifos() {
    let place = Place::new();
    let save = |path: &Path| explained("a:2,b:2").arg("--save-rankmap").arg(path).run();
    let [file, link, fifo] = ["file", "link", "fifo"].map(|name| place.0.path().join(name));
    let text = "# hosts a,b\n2*0\n2*1\n";
    fs::write(&file, "old").expect("the file is written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("the mode is set");
    symlink("file", &link).expect("the link is made");
    save(&link).has_code(0);
    assert!(link.is_symlink());
    assert_eq!(fs::read_to_string(&file).expect("the rank map is saved"), text);
    assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    mkfifo(&fifo, Mode::S_IRWXU).expect("the FIFO is made");
    save(&fifo).has_code(251).says("nothing reads");
    // The FIFO is opened for reading and writing: it has a reader, and there is no wait for a writer.
    let mut reader = File::options().read(true).write(true).open(&fifo).expect("the FIFO is opened");
    save(&fifo).has_code(0);
    let mut found = vec![0; text.len()];
    reader.read_exact(&mut found).expect("the rank map is read");
    assert_eq!(found, text.as_bytes());
    // All ranks run on this machine.
    scela().np(4).arg("--explain").arg("--save-rankmap").arg(&file).program(sh("true")).run().has_code(0);
    assert_eq!(fs::read_to_string(&file).expect("the rank map is saved"), "4*0\n");
}

#[test]
fn a_saved_rank_map_counts_the_hosts_in_their_order() {
    let place = Place::new();
    let file = place.0.path().join("map");
    explained("n2,n1").args(["-ppn", "3"]).arg("--save-rankmap").arg(&file).run().has_code(0);
    assert_eq!(fs::read_to_string(&file).expect("the rank map is saved"), "# hosts n2,n1\n3*0\n1*1\n");
    let map = format!("@{}", file.display());
    let reuse = |hosts: &str| explained(hosts).args(["-rankmap", &map]).run();
    reuse("n2,n1").has_code(0).never_says("was made for");
    reuse("n1,n2").has_code(0).says("was made for the hosts n2,n1, and these are n[1-2]");
}

#[test]
fn a_report_follows_what_standard_error_has_in_its_file() {
    let place = Place::new();
    let file = place.file("log", "old\n");
    let words = "echo rank >&2; exit 0";
    let run = scela().np(1).arg("--stats=/dev/stderr").program(sh(words)).shell(&format!("exec 2>>{}", file.display()));
    run.run().has_code(0);
    let log = fs::read_to_string(&file).expect("the file is there");
    let rest = log.strip_prefix("old\nrank\n").unwrap_or_else(|| panic!("{log}"));
    assert!(rest.trim_start().starts_with('{'), "{log}");
}

#[test]
fn a_matrix_that_cannot_be_used_is_refused() {
    let place = Place::new();
    let run = |file: PathBuf| explained("a:2,b:2").args(["--map-by", "comm"]).arg("--comm-matrix").arg(file).run();
    run(place.file("bad", "scela-comm 1 ranks 4 pairs 1\n0 9 1 1\n")).has_code(2).says("line 2");
    run(place.0.path().join("none")).has_code(2).says("No such file or directory");
    run(place.file("large", "scela-comm 1 ranks 8 pairs 1\n0 7 1 1\n"))
        .has_code(2)
        .says("is of 8 ranks, and the job has 4");
}

#[test]
fn hosts_that_were_lost_are_used_last_if_the_user_asks_for_it() {
    let place = Place::new();
    let history = place.history(&["a"]);
    let run = || explained("a:4,b:4").arg("--fault-history").arg(&history);
    run().run().has_code(0).wrote_among_others("a: 4 ranks");
    let outcome = run().arg("--avoid-faults").run();
    outcome.has_code(0).wrote_among_others("b: 4 ranks").says("hosts that may fail");
}

#[test]
fn a_plan_says_what_hosts_that_may_fail_have_decided() {
    let place = Place::new();
    let history = place.history(&["b"]);
    let matrix = place.file("pair", "scela-comm 1 ranks 3 pairs 1\n0 1 1000 1\n");
    // On the ring of four hosts, messages from a to c pass b, which gets no rank.
    let run = scela().np(3).args(["-hosts", "a:1,b:1,c:1,d:1", "--explain", "--avoid-faults", "--topology", "torus:4"]);
    let run = run.arg("--fault-history").arg(&history).args(["--map-by", "comm"]).arg("--comm-matrix").arg(&matrix);
    let outcome = run.program(sh("true")).run();
    outcome.has_code(0).wrote_among_others("risk of an abort       63.2 %        0.0 %\n");
}

#[test]
fn messages_keep_away_from_a_host_that_may_fail_and_is_not_listed() {
    let place = Place::new();
    let history = place.history(&["h1"]);
    let matrix = place.file("pair", "scela-comm 1 ranks 2 pairs 1\n0 1 1000 1\n");
    let ring = "- topology: t\n  cluster_default: true\n  torus3d:\n    toruses:\n      - name: x\n        \
                dims: {x: 16, y: 1, z: 1}\n        nodes: \"h[0-15]\"\n";
    let topology = place.file("ring.yaml", ring);
    // The shortest way, from h0 to h2, leads over h1.
    let run = scela().np(2).args(["-hosts", "h5:1,h9:1,h0:1,h2:1", "--explain", "--avoid-faults", "--map-by", "comm"]);
    let run = run.arg("--fault-history").arg(&history).arg("--topology").arg(&topology);
    let outcome = run.arg("--comm-matrix").arg(&matrix).program(sh("true")).run();
    outcome.has_code(0).wrote_among_others("h[2,5]: 1 rank on each").wrote_among_others("risk of an abort");
}

#[test]
fn spares_are_sound_hosts_if_there_are_enough() {
    let place = Place::new();
    let history = place.history(&["b", "b", "c"]);
    let run = |spares: &str| {
        let run = explained("a:4,b:4,c:4,d:4").args(["--avoid-faults", "--spares", spares, "--fault-history"]);
        run.arg(&history).run()
    };
    let outcome = run("1");
    outcome.has_code(0).wrote_among_others("d: kept for hosts that fail").says("are left out unless needed: c (63 %");
    // Of the hosts that may fail, the soundest is kept.
    run("2").has_code(0).wrote_among_others("c,d: kept for hosts that fail");
}

#[test]
fn options_about_faults_without_effect_are_noted() {
    let on_this_machine = scela().np(1).args(["--avoid-faults", "--fault-history", "faults"]).program(sh("true")).run();
    let said = on_this_machine.has_code(0).says("--avoid-faults has no effect: all ranks run on this machine");
    said.says("--fault-history has no effect: all ranks run on this machine");
    let without_home = explained("a:4").arg("--avoid-faults").env("HOME", "").env("XDG_STATE_HOME", "").run();
    without_home.has_code(0).says("--avoid-faults has no effect: there is no history of faults");
}
