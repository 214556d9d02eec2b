//! The output of ranks: whole lines, in order, byte for byte, however slow the reader is.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::lines::line;
use tests::{Outcome, Process, Running, Terminal, World, scela, sh};

use crate::rank;

/// The maximum of the anonymous memory of a session's own processes, in total.
const MEMORY_BYTES_MAX: u64 = 64 << 20;

/// Asserts that each of `ranks` wrote `count` lines of up to `bytes_max` bytes, whole and in order.
fn check_lines(outcome: &Outcome, ranks: u32, count: u64, bytes_max: u64) {
    let mut next = vec![0; ranks as usize];
    let mut text = outcome.stdout.as_slice();
    while !text.is_empty() {
        let end = text.iter().position(|byte| *byte == b'\n').map_or(text.len(), |end| end + 1);
        let (got, rest) = text.split_at(end);
        let got = String::from_utf8_lossy(got);
        let rank: usize = got.split(' ').next().and_then(|rank| rank.parse().ok()).unwrap_or(usize::MAX);
        let number = *next.get(rank).unwrap_or_else(|| panic!("a torn line: {got:?}"));
        assert_eq!(got, line(rank as u32, number, bytes_max), "line {number} of rank {rank}");
        next[rank] += 1;
        text = rest;
    }
    assert!(next.iter().all(|lines| *lines == count), "lines from each rank: {next:?}");
}

fn memory_bytes(world: &World) -> u64 {
    let processes = world.processes();
    processes.iter().filter(|process| process.name.starts_with("scela-")).map(Process::anonymous_bytes).sum()
}

#[test]
fn each_line_has_the_label_of_its_rank() {
    let outcome = scela().np(3).agents(2).arg("-l").program(sh("echo a; printf 'b\\n\\n'; echo c >&2")).run();
    outcome
        .has_code(0)
        .wrote_lines((0..3).flat_map(|rank| [format!("[{rank}] a"), format!("[{rank}] b"), format!("[{rank}] ")]));
    let mut errors: Vec<_> = outcome.stderr.lines().map(Result::unwrap).collect();
    errors.sort();
    assert_eq!(errors, ["[0] c", "[1] c", "[2] c"], "{outcome}");
}

#[test]
fn lines_have_their_labels_in_a_file_too() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("output");
    let run = scela().np(2).agents(2).arg("-l").shell(&format!("exec >'{}' 2>&1", file.display()));
    run.program(sh("echo a; echo b >&2")).run().has_code(0);
    let text = fs::read_to_string(file).unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort();
    assert_eq!(lines, ["[0] a", "[0] b", "[1] a", "[1] b"]);
}

#[test]
fn lines_written_in_pieces_arrive_whole_in_a_file() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("output");
    let run = scela().np(64).agents(4).fanout(2).shell(&format!("exec >'{}'", file.display()));
    let mut outcome = run.program(rank(["pieces", "200", "600"])).run();
    outcome.is_quiet_success();
    outcome.stdout = fs::read(file).unwrap();
    check_lines(&outcome, 64, 200, 600);
}

#[test]
fn lines_written_in_pieces_arrive_whole() {
    let outcome = scela().np(64).agents(4).fanout(2).program(rank(["pieces", "200", "600"])).run();
    check_lines(outcome.is_quiet_success(), 64, 200, 600);
}

#[test]
fn a_last_line_in_pieces_arrives_whole() {
    // The last output of a rank is still in the pipe when the agent notices the rank's exit.
    for _ in 0..6 {
        let outcome = scela().np(64).agents(4).fanout(2).program(rank(["pieces", "8", "600"])).run();
        check_lines(outcome.is_quiet_success(), 64, 8, 600);
    }
}

#[test]
fn streams_stay_apart() {
    let script = r#"
        i=0
        while [ $i -lt 50 ]; do i=$((i + 1)); echo out $PMI_RANK $i; echo err $PMI_RANK $i >&2; done"#;
    let outcome = scela().np(8).agents(3).program(sh(script)).run();
    let (out, err) = (outcome.out(), outcome.err());
    outcome.check(
        out.lines().count() == 400 && out.lines().all(|line| line.starts_with("out ")),
        "standard output has only the lines written to it",
    );
    outcome.check(
        err.lines().count() == 400 && err.lines().all(|line| line.starts_with("err ")),
        "standard error has only the lines written to it",
    );
}

#[test]
fn a_slow_reader_gets_a_million_lines_in_bounded_memory() {
    let (ranks, lines) = (64, 15_625);
    let run = scela().np(ranks).agents(3).fanout(2).unread().deadline(Duration::from_secs(120));
    let file = run.world().file("fenced");
    let words = ["fences-beside-lines", "100", &file.display().to_string(), &lines.to_string()].map(str::to_owned);
    let mut running = run.program(rank(words.iter().map(String::as_str))).spawn();
    // Without a reader all pipes fill up. Fences continue nevertheless.
    running.wait_until("a hundred fences while no process reads the output", || file.exists().then_some(()));
    let stuck = memory_bytes(running.world());
    let mut reader = BufReader::with_capacity(4096, running.take_output().unwrap());
    let mut out = Vec::new();
    let mut most = stuck;
    loop {
        let before = out.len();
        // Read in small pieces.
        if reader.by_ref().take(64 * 1024).read_to_end(&mut out).unwrap() == 0 {
            break;
        }
        if before >> 23 != out.len() >> 23 {
            most = most.max(memory_bytes(running.world()));
        }
    }
    let mut outcome = running.finish();
    outcome.stdout = out;
    check_lines(outcome.has_code(0), ranks, lines, 80);
    assert!(most < MEMORY_BYTES_MAX, "the session's own memory rose to {most} bytes");
}

/// A single agent writes to the pipe itself.
#[test]
fn lines_of_both_streams_in_one_pipe_arrive_whole_from_one_agent() {
    let script = r#"
        line=$(head -c 3000 /dev/zero | tr '\0' x)
        i=0
        while [ $i -lt 100 ]; do i=$((i + 1)); echo out $line; echo err $line >&2; done"#;
    let outcome = scela().np(8).agents(1).shell("exec 2>&1").program(sh(script)).run();
    outcome.is_quiet_success();
    let out = outcome.out();
    let lines: Vec<_> = out.lines().collect();
    let count = |name: &str| lines.iter().filter(|line| line.len() == 3004 && line.starts_with(name)).count();
    assert_eq!((count("out "), count("err "), lines.len()), (800, 800, 1600));
}

#[test]
fn a_reader_that_pauses_gets_all_lines_of_one_agent() {
    let (ranks, lines) = (8, 20_000);
    let run = scela().np(ranks).agents(1).unread();
    let file = run.world().file("fenced");
    let words = ["fences-beside-lines", "3", &file.display().to_string(), &lines.to_string()].map(str::to_owned);
    let mut running = run.program(rank(words.iter().map(String::as_str))).spawn();
    // More than the pipes of the ranks, the pipe to the reader and the agent can hold.
    running.wait_until("the launcher has output that is not read", || {
        let written: u64 = running.world().ranks().iter().map(|(_, rank)| rank.written_bytes()).sum();
        (written > 900 * 1024).then_some(())
    });
    let mut out = Vec::new();
    running.take_output().unwrap().read_to_end(&mut out).unwrap();
    let mut outcome = running.finish();
    outcome.stdout = out;
    check_lines(outcome.has_code(0), ranks, lines, 80);
}

#[test]
fn a_closed_standard_output_ends_the_job() {
    for agents in [1, 3] {
        let mut running = scela().np(8).agents(agents).unread().program(sh("exec yes")).spawn();
        let mut first = String::new();
        BufReader::new(running.take_output().unwrap()).read_line(&mut first).unwrap();
        assert_eq!(first, "y\n");
        let outcome = running.finish();
        outcome.has_code(141).took_less_than(Duration::from_secs(20));
    }
}

/// A rank writes without end to a standard output that is not read, and the others wait.
fn unread(agents: u32) -> Running {
    let run = scela().np(4).agents(agents).fanout(2).unread().args(["--kill-grace", "0.2"]);
    let running = run.program(sh("[ $PMI_RANK = 0 ] && exec yes; exec sleep 1000")).spawn();
    // More than the pipe to the reader can hold.
    let is_stuck = |(_, rank): &(u32, Process)| rank.name == "yes" && rank.written_bytes() > 512 * 1024;
    running.wait_until("rank 0 has written more than is read", || {
        let ranks = running.world().ranks();
        (ranks.len() == 4 && ranks.iter().any(is_stuck)).then_some(())
    });
    running
}

const DROPPED: &str = "scela-run: warning: standard output was not read for 2.2 s: output was dropped, at least ";

#[test]
fn a_failure_is_reported_and_the_job_ends_although_its_output_is_not_read() {
    for agents in [1, 2] {
        let running = unread(agents);
        running.rank(2).signal(Signal::SIGKILL);
        running.wait_for_error("was killed by signal 9 (KILL)\n").wait_for_error(DROPPED);
        let outcome = running.finish();
        outcome.has_code(137).took_less_than(Duration::from_secs(20));
        outcome.check(outcome.err().matches("error: ").count() == 1, "the first cause is reported once");
        let is_first = outcome.err().find("signal 9") < outcome.err().find(DROPPED);
        outcome.check(is_first, "it is reported when the end begins");
    }
}

#[test]
fn a_signal_ends_a_job_whose_output_is_not_read() {
    for agents in [1, 2] {
        let running = unread(agents);
        running.signal(Signal::SIGTERM).wait_for_error(DROPPED);
        running.finish().has_code(143);
    }
}

#[test]
fn a_closed_standard_error_does_not_end_the_job() {
    let run = scela().np(4).agents(2).shell("exec 2>&-");
    run.program(sh("echo err >&2; echo out")).run().has_code(0).wrote("out\nout\nout\nout\n");
}

#[test]
fn a_full_disk_is_reported() {
    let run = scela().np(2).shell("exec >/dev/full");
    run.program(sh("echo text; exec sleep 1000")).run().has_code(1).says("standard output cannot be written: ");
}

#[test]
fn output_files_are_named_by_the_pattern() {
    let run = scela().np(3).agents(2);
    let directory = run.world().file("files");
    let (out, err) = (directory.join("%j/out.%r"), directory.join("%h.err.%r"));
    // Directories without a placeholder must exist. The directory named after the label is created.
    fs::create_dir(&directory).unwrap();
    let label = run.world().label().to_owned();
    let run = run.arg("-outfile-pattern").arg(&out).arg("-errfile-pattern").arg(&err);
    // The files are read before the test's world removes its directory.
    let script = r#"echo out $PMI_RANK; echo err $PMI_RANK >&2; printf unfinished"#;
    let running = run.program(sh(script)).spawn();
    let read = |path: String| fs::read_to_string(directory.join(path)).unwrap_or_default();
    running.wait_until("all files are written", || {
        let done = |rank| {
            read(format!("{label}/out.{rank}")) == format!("out {rank}\nunfinished")
                && read(format!("{}.err.{rank}", crate::host())) == format!("err {rank}\n")
        };
        (0..3).all(done).then_some(())
    });
    running.finish().is_quiet_success().wrote("");
}

#[test]
fn both_streams_may_go_to_one_file() {
    let run = scela().np(3).agents(2);
    let directory = run.world().file("files");
    fs::create_dir(&directory).unwrap();
    // The second name leads to the same files.
    let (out, err) = (directory.join("all.%r"), directory.join("../files/all.%r"));
    let run = run.arg("-outfile-pattern").arg(&out).arg("-errfile-pattern").arg(&err);
    let script = "for i in $(seq 500); do echo out $i; echo err $i >&2; done; echo end";
    let running = run.program(sh(script)).spawn();
    let is_whole = |rank: u32| {
        let text = fs::read_to_string(directory.join(format!("all.{rank}"))).unwrap_or_default();
        let lines = |word: &str| text.lines().filter(|line| line.starts_with(word)).map(str::to_owned).collect();
        let expected = |word: &str| (1..=500).map(|i| format!("{word} {i}")).collect::<Vec<_>>();
        let (out, err): (Vec<String>, Vec<String>) = (lines("out "), lines("err "));
        out == expected("out") && err == expected("err") && text.lines().count() == 1001
    };
    running.wait_until("all lines of all ranks are in their files", || (0..3).all(is_whole).then_some(()));
    running.finish().is_quiet_success().wrote("");
}

/// A pattern with directories that cannot be created.
const UNWRITABLE: &str = "/proc/%j/no/such/place/%r";
/// The end of the message about a file of that pattern.
const REASON: &str = "' cannot be written: No such file or directory";

#[test]
fn a_file_that_cannot_be_written_is_reported() {
    for ranks in [1, 2] {
        // The first rank whose file cannot be written ends the job.
        let run = scela().np(ranks).args(["-outfile-pattern", UNWRITABLE]);
        run.program(sh("echo lost; exec sleep 1000")).run().has_code(1).says("/no/such/place/").says(REASON);
    }
}

#[test]
fn a_file_that_cannot_be_written_is_reported_after_all_ranks_exited() {
    // The ranks have usually exited before the file turns out to be unwritable.
    for _ in 0..10 {
        let run = scela().np(2).args(["-outfile-pattern", UNWRITABLE]);
        run.program(sh("echo lost")).run().has_code(1).says("/no/such/place/").says(REASON);
    }
}

#[test]
fn a_pattern_without_the_rank_gets_a_warning() {
    let run = scela().np(2);
    let file = run.world().file("out");
    let outcome = run.arg("-outfile-pattern").arg(&file).program(sh("echo line")).run();
    outcome.has_code(0).wrote("").says("has no %r: ranks share files, line by line");
}

#[test]
fn a_missing_directory_of_a_pattern_is_refused() {
    let outcome = scela().np(2).args(["-outfile-pattern", "/no/such/place/%r"]).program(sh("echo started >&2")).run();
    outcome
        .has_code(2)
        .says("option '-outfile-pattern': directory '/no/such/place' does not exist\n  hint: mkdir -p '/no/such/place'")
        .never_says("started");
}

#[test]
fn a_closed_standard_output_is_reported() {
    let shell = |words: &str| {
        let script = format!("\"$0\" {words} >&-");
        std::process::Command::new("sh").args(["-c", &script]).arg(tests::scela_run()).output().unwrap()
    };
    for words in ["--help", "--version", "-np 2 echo lost", "-np 2 --demo"] {
        let output = shell(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words}: {said}");
        assert!(said.contains("standard output cannot be written: Bad file descriptor"), "{words}: {said}");
    }
    assert!(shell("-np 2 true").status.success(), "a run without output should succeed");
}

#[test]
fn help_that_cannot_be_written_is_reported() {
    for words in ["--help", "-np 2 --demo", "-np 2 --demo --explain", "--np 2 --demo --timing --stats"] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let run = std::process::Command::new(tests::scela_run()).args(words.split(' ')).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(1), "{words}: {said}");
        let why = "scela-run: error: standard output cannot be written: No space left on device";
        assert!(said.contains(why), "{words}: {said}");
    }
}

#[test]
fn a_summary_of_the_demo_that_no_process_reads_is_no_failure() {
    let script = "{ \"$0\" -np 2 --demo; echo $? >&2; } | true";
    let run = std::process::Command::new("sh").args(["-c", script]).arg(tests::scela_run()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&run.stderr), "0\n");
}

#[test]
fn a_last_line_without_a_newline_is_passed_on_unchanged() {
    scela().np(1).program(sh("printf 'a\\nb'")).run().is_quiet_success().wrote("a\nb");
    let outcome = scela().np(3).agents(2).program(sh("printf '%s' x")).run();
    outcome.is_quiet_success().wrote("xxx");
}

#[test]
fn bytes_of_all_values_pass_unchanged() {
    let noise = tests::lines::noise(300_000);
    let run = scela().np(1);
    let path = run.world().file("noise");
    fs::write(&path, &noise).unwrap();
    let outcome = run.program(vec!["cat".into(), path.into()]).run();
    outcome.has_code(0);
    assert!(outcome.stdout == noise, "{} bytes of {}", outcome.stdout.len(), noise.len());
}

#[test]
fn a_line_longer_than_any_buffer_arrives_whole() {
    let outcome =
        scela().np(2).agents(2).program(sh("[ $PMI_RANK = 1 ] || head -c 3000000 /dev/zero | tr '\\0' x; echo")).run();
    outcome.is_quiet_success();
    assert_eq!(outcome.out().matches('x').count(), 3_000_000);
}

#[test]
fn an_unfinished_line_shows_at_np_1() {
    let running = scela().np(1).program(sh("printf 'name? '; exec sleep 1000")).spawn();
    running.wait_for("name? ").signal(Signal::SIGTERM);
    running.finish().has_code(143);
}

#[test]
fn an_unfinished_line_is_held_back_without_a_terminal() {
    let script = r#"[ $PMI_RANK = 0 ] && printf 'left '; echo whole; : > "$1/$PMI_RANK"; exec sleep 1000"#;
    let run = scela().np(2).agents(2);
    let directory = run.world().file("");
    let mut program = sh(script);
    program.push(directory.clone().into());
    let running = run.program(program).spawn();
    running.wait_for_times("whole\n", 2).signal(Signal::SIGTERM);
    running.finish().has_code(143).wrote_lines(["left whole", "whole"]);
}

#[test]
fn an_unfinished_line_is_held_back_up_to_a_bound() {
    const BOUND: usize = 64 << 10;
    for length in [BOUND - 1, BOUND] {
        // Rank 1 writes after rank 0.
        let script = format!(
            "if [ $PMI_RANK = 0 ]; then head -c {length} /dev/zero | tr '\\0' x; : > \"$1\"; else
                until [ -e \"$1\" ]; do sleep 0.01; done; echo other; fi; exec sleep 1000"
        );
        let run = scela().np(2);
        let mut program = sh(&script);
        program.push(run.world().file("written").into());
        let running = run.program(program).spawn();
        running.wait_for("other\n");
        let written = || running.stdout().text().matches('x').count();
        if length < BOUND {
            assert_eq!(written(), 0);
        } else {
            running.wait_until("the line is written", || (written() == length).then_some(()));
        }
        running.signal(Signal::SIGTERM);
        running.finish().has_code(143);
    }
}

#[test]
fn an_unfinished_line_shows_on_a_terminal_and_other_ranks_begin_new_lines() {
    for ranks in [1, 2] {
        let script = "if [ $PMI_RANK = 0 ]; then printf 'name? '; else until [ -e \"$1\" ]; do sleep 0.01; done; echo other; fi; exec sleep 1000";
        let run = scela().np(ranks).agents(ranks);
        let file = run.world().file("asked");
        let mut program = sh(script);
        program.push(file.clone().into());
        let mut terminal = Terminal::open(run.program(program));
        terminal.enter("").wait_for("name? ");
        if ranks == 2 {
            fs::write(&file, "").unwrap();
            terminal.wait_for("name? \r\nother\r\n");
        }
        terminal.type_in("\x03").wait_for_prompt();
        assert_eq!(terminal.code(), 130);
        terminal.close();
    }
}

#[test]
fn output_of_processes_that_ranks_leave_behind_is_whole() {
    // The `tee` of each rank has all that the rank has written once the rank has ended.
    let script = r#"exec > >(sleep 0.2; exec tee "$0.$PMI_RANK") 2>&1; for i in 1 2 3 4 5; do echo $i; done"#;
    let run = scela().np(4).agents(2);
    let place = run.world().file("log");
    let program = ["bash", "-c", script].map(Into::into).into_iter().chain([place.clone().into()]);
    let running = run.program(program.collect()).spawn();
    running.wait_until("all logs are whole", || {
        let log = |rank| fs::read_to_string(format!("{}.{rank}", place.display())).unwrap_or_default();
        (0..4).all(|rank| log(rank) == "1\n2\n3\n4\n5\n").then_some(())
    });
    let outcome = running.finish();
    outcome.has_code(0);
    assert_eq!(outcome.out().lines().count(), 20, "{}", outcome.out());
}
