//! Standard input reaches the selected ranks, all of it and once.

use std::fs;
use std::io::Write;
use std::time::Duration;

use tests::lines::{Sum, noise};
use tests::{Terminal, scela, sh};

use crate::rank;

const LARGE: usize = 50 << 20;

#[test]
fn a_large_input_reaches_rank_0() {
    let bytes = noise(LARGE);
    let empty = Sum::default();
    let expected = [format!("0: {}", Sum::of(&bytes)), format!("1: {empty}"), format!("2: {empty}")];
    scela().np(3).agents(2).stdin(bytes).program(rank(["sum"])).run().is_quiet_success().wrote_lines(expected);
}

#[test]
fn a_large_input_reaches_all_ranks() {
    let bytes = noise(LARGE / 5);
    let line = format!("{}", Sum::of(&bytes));
    let run = scela().np(7).agents(5).fanout(2).args(["-s", "all"]).stdin(bytes);
    run.program(rank(["sum"])).run().is_quiet_success().wrote_lines((0..7).map(|rank| format!("{rank}: {line}")));
}

#[test]
fn input_reaches_a_list_of_ranks() {
    let bytes = noise(1 << 20);
    let sum = |rank| if [1, 3, 4].contains(&rank) { Sum::of(&bytes) } else { Sum::default() };
    let expected: Vec<_> = (0..6).map(|rank| format!("{rank}: {}", sum(rank))).collect();
    let run = scela().np(6).agents(4).fanout(2).args(["-s", "1,3-4"]).stdin(bytes.clone());
    run.program(rank(["sum"])).run().is_quiet_success().wrote_lines(expected);
}

#[test]
fn input_for_no_rank_leaves_each_with_an_empty_input() {
    let run = scela().np(2).agents(2).args(["-s", "none"]).stdin(noise(1 << 20));
    let empty = Sum::default();
    run.program(rank(["sum"])).run().is_quiet_success().wrote_lines([format!("0: {empty}"), format!("1: {empty}")]);
}

#[test]
fn an_input_file_reaches_all_ranks() {
    let run = scela().np(5).agents(3).fanout(2);
    let bytes = noise(3 << 20);
    let path = run.world().file("input");
    fs::write(&path, &bytes).unwrap();
    let line = Sum::of(&bytes).to_string();
    let outcome = run.arg("-s").arg(&path).program(rank(["sum"])).run();
    outcome.is_quiet_success().wrote_lines((0..5).map(|rank| format!("{rank}: {line}")));
}

#[test]
fn a_missing_input_file_is_reported() {
    let outcome = scela().np(2).args(["-s", "./no-such-file"]).program(rank(["sum"])).run();
    outcome.has_code(2).says("option '-stdin': './no-such-file' cannot be read: No such file or directory");
}

#[test]
fn a_slow_reader_gets_all_input() {
    let bytes = noise(4 << 20);
    let expected = [format!("0: {}", Sum::of(&bytes)), format!("1: {}", Sum::default())];
    scela()
        .np(2)
        .agents(2)
        .stdin(bytes)
        .program(rank(["sum", "slowly"]))
        .run()
        .is_quiet_success()
        .wrote_lines(expected);
}

#[test]
fn a_rank_that_never_reads_does_not_delay_the_end() {
    let run = scela().np(3).agents(3).fanout(2).args(["-s", "all"]).stdin(noise(8 << 20));
    let outcome = run.program(sh("[ $PMI_RANK = 2 ] || exit 0; echo done")).run();
    outcome.is_quiet_success().wrote("done\n").took_less_than(Duration::from_secs(20));
}

#[test]
fn a_rank_that_exits_without_reading_does_not_keep_input_from_the_others() {
    let bytes = noise(4 << 20);
    let expected = [0, 2].map(|rank| format!("{rank}: {}", Sum::of(&bytes)));
    let mut program = sh(r#"[ $PMI_RANK = 1 ] && exit 0; exec "$1" sum"#);
    program.push(env!("CARGO_BIN_EXE_rank").into());
    let run = scela().np(3).agents(2).args(["-s", "all"]).stdin(bytes);
    run.program(program).run().is_quiet_success().wrote_lines(expected);
}

#[test]
fn a_closed_standard_input_counts_as_empty() {
    let empty = Sum::default();
    let outcome = scela().np(2).agents(2).stdin_closed().program(rank(["sum"])).run();
    outcome.is_quiet_success().wrote_lines([format!("0: {empty}"), format!("1: {empty}")]);
}

#[test]
fn input_and_its_end_arrive_at_once() {
    let mut running = scela().np(2).agents(2).stdin_pipe().program(sh("exec cat")).spawn();
    let mut stdin = running.stdin.take().unwrap();
    stdin.write_all(b"first\n").unwrap();
    running.wait_for("first\n");
    stdin.write_all(b"second\n").unwrap();
    running.wait_for("second\n");
    drop(stdin);
    running.finish().is_quiet_success().wrote("first\nsecond\n");
}

#[test]
fn a_large_file_as_standard_input_arrives_whole() {
    let run = scela().np(1);
    let bytes = noise(LARGE);
    let path = run.world().file("input");
    fs::write(&path, &bytes).unwrap();
    let outcome = run.stdin_file(path).program(rank(["sum"])).run();
    outcome.is_quiet_success().wrote(&format!("0: {}\n", Sum::of(&bytes)));
}

#[test]
fn input_from_a_terminal_arrives() {
    let mut terminal =
        Terminal::open(scela().np(2).agents(2).program(sh("while read word; do echo got $word; done; echo end")));
    terminal.enter("").wait_for("end\r\n");
    terminal.type_in("hello\n").wait_for("got hello");
    terminal.type_in("\x04").wait_for_times("end\r\n", 2).wait_for_prompt();
    assert_eq!(terminal.code(), 0);
    terminal.close();
}

#[test]
fn a_background_job_does_not_read_from_the_terminal() {
    let mut terminal = Terminal::open(scela().np(1).program(sh("cat; echo end of input")));
    terminal.enter(" &").wait_for("end of input");
    terminal.enter("wait").wait_for_prompt();
    assert_eq!(terminal.code(), 0);
    terminal.close();
}

#[test]
fn a_fifo_without_a_writer_holds_up_neither_ranks_nor_the_end() {
    let run = scela().np(2);
    let fifo = run.world().file("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
    run.args(["-stdin".as_ref(), fifo.as_os_str()])
        .program(sh("echo $PMI_RANK"))
        .run()
        .is_quiet_success()
        .wrote_lines(["0", "1"]);
}

#[test]
fn a_standard_input_that_cannot_be_read_is_a_failure() {
    let run = scela().np(2);
    let directory = run.world().file("directory");
    fs::create_dir(&directory).unwrap();
    let outcome = run.stdin_file(directory).program(sh("cat; sleep 60")).run();
    outcome.has_code(1).says("standard input cannot be read: Is a directory");
}
