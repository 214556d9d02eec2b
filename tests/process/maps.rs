//! `scela pool map`: lists of commands over a pool.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tests::{Pool, Process, Random, Terminal, eventually};

/// A command that says that it is here, and stays.
const STAYS: &str = "echo here; while :; do sleep 0.02; done";

fn commands<T: ToString>(lines: impl IntoIterator<Item = T>) -> Vec<String> {
    lines.into_iter().map(|line| line.to_string()).collect()
}

/// Makes a named pipe for each number below `count`.
fn pipes(directory: &Path, count: usize) {
    (0..count).for_each(|number| mkfifo(&directory.join(number.to_string()), Mode::S_IRWXU).unwrap());
}

fn rows(journal: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(journal).unwrap();
    text.lines().skip(1).map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// Returns a random order of numbers.
fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut random = Random::of_session(seed, 1);
    let mut order: Vec<usize> = (0..count).collect();
    (1..count).for_each(|last| order.swap(last, random.of(0..=last as i64) as usize));
    order
}

#[test]
fn outputs_are_whole_and_in_the_order_of_the_list_whichever_command_ends_first() {
    const COUNT: usize = 8;
    let pool = Pool::start(&["--slots", "8"]);
    for seed in 0..3 {
        let directory = tempfile::tempdir().unwrap();
        pipes(directory.path(), COUNT);
        let order = shuffled(COUNT, seed);
        let mut list = vec![String::new(); COUNT];
        for (place, own) in order.iter().enumerate() {
            // Each command waits for the one that ends before it.
            let wait = if place == 0 { String::new() } else { format!("read line <{own}; ") };
            let next = order.get(place + 1).map(|next| format!("echo >{next}; ")).unwrap_or_default();
            list[*own] = format!("echo a{own}; echo c{own} >&2; {wait}printf 'b{own}\\n'; {next}");
        }
        let outcome = pool.map(&list).directory(directory.path()).run();
        let lines = |first: &[&str]| -> String {
            (0..COUNT).flat_map(|own| first.iter().map(move |letter| format!("{letter}{own}\n"))).collect()
        };
        outcome.has_code(0).wrote(&lines(&["a", "b"])).says_only(&lines(&["c"]));
    }
}

#[test]
fn outputs_may_come_in_the_order_of_the_ends() {
    const COUNT: usize = 4;
    let pool = Pool::start(&["--slots", "4"]);
    let directory = tempfile::tempdir().unwrap();
    pipes(directory.path(), COUNT);
    let list = commands((0..COUNT).map(|own| format!("read line <{own}; echo end {own}")));
    let running = pool.map(&list).arg("--unordered").directory(directory.path()).spawn();
    let order = [2, 0, 3, 1];
    for own in order {
        fs::write(directory.path().join(own.to_string()), "\n").unwrap();
        running.wait_for(&format!("end {own}\n"));
    }
    running.finish().is_quiet_success().wrote("end 2\nend 0\nend 3\nend 1\n");
}

#[test]
fn a_thousand_commands_print_in_order_with_few_files() {
    let pool = Pool::start(&["--slots", "4"]);
    let directory = tempfile::tempdir().unwrap();
    pipes(directory.path(), 1);
    // All others wait for the first one, which waits for the last one.
    let first = "read line <0; echo 1".to_owned();
    let others = (2..1000).map(|number| format!("echo {number}"));
    let list: Vec<String> = [first].into_iter().chain(others).chain(["echo 1000; echo >0".to_owned()]).collect();
    let run = pool.map(&list).directory(directory.path()).shell("ulimit -n 128");
    let expected: String = (1..=1000).map(|number| format!("{number}\n")).collect();
    run.run().is_quiet_success().wrote(&expected);
}

#[test]
fn the_limit_on_files_bounds_the_commands_at_a_time() {
    let pool = Pool::start(&["--slots", "2"]);
    let list: Vec<String> = (0..40).map(|number| format!("echo {number}")).collect();
    let outcome = pool.map(&list).args(["-j", "40"]).shell("ulimit -n 96").run();
    let expected: String = (0..40).map(|number| format!("{number}\n")).collect();
    outcome.has_code(0).wrote(&expected).says_only(
        "scela: warning: 4 commands run at a time, not 40, because of the limit on open files (ulimit -Hn)\n",
    );
}

#[test]
fn commands_have_ranks_the_directory_and_no_input() {
    let pool = Pool::start(&["--slots", "4"]);
    let directory = tempfile::tempdir().unwrap();
    let list = commands(["# a comment", "", "echo $PMI_SIZE $VALUE $(pwd)", "cat; echo $(umask)"]);
    let run = pool.map(&list).args(["-np", "2", "-j", "1"]).env("VALUE", "v").directory(directory.path());
    let line = format!("2 v {}\n", directory.path().display());
    let outcome = run.shell("umask 027").run();
    outcome.is_quiet_success().wrote(&format!("{line}{line}0027\n0027\n"));
}

#[test]
fn the_exit_code_is_the_number_of_failed_commands() {
    let pool = Pool::start(&[]);
    let list = commands(["exit 3", "true", "exit 4", "exit 3"]);
    let outcome = pool.map(&list).run();
    outcome.has_code(3).says(
        "scela: error: 3 of 4 commands failed\n  code 3: 2 commands: 1,4 (the first is exit 3)\n  \
         code 4: command 3 (exit 4)\n",
    );
    // A command that cannot be started has a code of its shell.
    pool.map(&commands(["/no/such/program"])).run().has_code(1).says("code 127: command 1 (/no/such/program)");
}

#[test]
fn a_failed_command_is_run_again_and_its_last_output_printed() {
    let pool = Pool::start(&["--slots", "1"]);
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    let counted = "echo >>tries; tries=$(wc -l <tries); echo try $tries; [ $tries -ge 3 ]";
    let list = commands([counted, "echo always; exit 9"]);
    let run = pool.map(&list).args(["--retries", "2", "--journal", "journal"]).directory(directory.path());
    run.run().has_code(1).wrote("try 3\nalways\n").says("1 of 2 commands failed\n  code 9: command 2 (");
    let rows = rows(&journal);
    // The first one may be printed after the second one has failed.
    let row = |number| rows.iter().find(|row| row[0] == number).unwrap();
    assert_eq!((row("1")[3..5].join(" "), row("2")[3..5].join(" ")), ("0 3".to_owned(), "9 3".to_owned()));
    assert_eq!((rows.len(), &row("1")[5][..]), (2, counted));
}

#[test]
fn a_journal_says_what_need_not_run_again() {
    let pool = Pool::start(&["--slots", "2"]);
    let directory = tempfile::tempdir().unwrap();
    let list = commands(["echo one", "echo two; test -e there", "echo three"]);
    let map = |list: &[String], options: &[&str]| {
        pool.map(list).args(["--journal", "journal"]).args(options).directory(directory.path()).run()
    };
    map(&list, &[]).has_code(1).wrote("one\ntwo\nthree\n");
    map(&list, &[]).has_code(251).says("the journal journal has rows already\n  hint: --resume skips");
    fs::write(directory.path().join("there"), "").unwrap();
    // The rest of a row that was being written when a map was killed.
    let path = directory.path().join("journal");
    fs::write(&path, [&fs::read(&path).unwrap()[..], b"2\t17"].concat()).unwrap();
    map(&list, &["--resume"]).is_quiet_success().wrote("two\n");
    map(&list, &["--resume"]).is_quiet_success().wrote("");
    let numbers: Vec<_> = rows(&path).into_iter().map(|row| (row[0].clone(), row[3].clone())).collect();
    assert_eq!(numbers.len(), 4);
    assert_eq!(numbers.last(), Some(&("2".to_owned(), "0".to_owned())));
    let other = commands(["echo one", "echo 2", "echo three"]);
    map(&other, &["--resume"]).has_code(251).says(
        "it has command 2 as 'echo two; test -e there', and the list has 'echo 2'\n  hint: --resume needs the list",
    );
    map(&list[..1], &["--resume"]).has_code(251).says("and the list has no such command");
}

#[test]
fn a_command_whose_output_was_not_printed_is_run_again() {
    let pool = Pool::start(&["--slots", "2"]);
    let directory = tempfile::tempdir().unwrap();
    let map = |journal: &str, options: &[&str]| {
        // The others run one after the other, and wait for the first one to be printed.
        let list =
            commands(["while [ ! -e go ]; do sleep 0.02; done; echo one", "echo two", "echo three", "echo >>silent"]);
        pool.map(&list).args(["--journal", journal]).args(options).directory(directory.path())
    };
    let running = map("killed", &[]).spawn();
    let journal = directory.path().join("killed");
    let numbers = || rows(&journal).into_iter().map(|row| row[0].clone()).collect::<Vec<_>>();
    running.wait_until("the last one has ended", || (journal.exists() && numbers().last()? == "4").then_some(()));
    running.launcher().signal(Signal::SIGKILL);
    running.finish_killed().wrote("");
    fs::write(directory.path().join("go"), "").unwrap();
    map("killed", &["--resume"]).run().is_quiet_success().wrote("one\ntwo\nthree\n");
    assert_eq!(fs::read_to_string(directory.path().join("silent")).unwrap().lines().count(), 1, "it is not run again");
    assert_eq!(numbers(), ["4", "1", "2", "3"]);

    let full = map("full", &[]).shell("exec >/dev/full").run();
    full.has_code(1).says("standard output cannot be written: No space left on device");
    map("full", &["--resume"]).run().is_quiet_success().wrote("one\ntwo\nthree\n");
}

#[test]
fn a_command_whose_launcher_was_killed_is_run_again() {
    let pool = Pool::start(&["--slots", "1"]);
    let directory = tempfile::tempdir().unwrap();
    let list = commands([format!("echo >>tries; [ $(wc -l <tries) = 1 ] || exec echo again; touch here; {STAYS}")]);
    for (retries, code) in [("1", 0), ("0", 1)] {
        let running = pool.map(&list).args(["--retries", retries]).directory(directory.path()).spawn();
        let here = directory.path().join("here");
        running.wait_until("the command runs", || here.exists().then_some(()));
        fs::remove_file(&here).unwrap();
        let launcher = pool.state()["jobs"][0]["launcher_pid"].as_i64().unwrap();
        Process::of(launcher as i32).unwrap().signal(Signal::SIGKILL);
        let outcome = running.finish_killed();
        outcome.has_code(code);
        if code == 0 {
            outcome.is_quiet_success().wrote("again\n");
        } else {
            outcome.says("in the pool 'default' was killed; its ranks were ended\n");
            outcome.says("1 of 1 command failed\n  code 252 (lost with a launcher or an agent): command 1 (");
        }
        fs::remove_file(directory.path().join("tries")).unwrap();
    }
}

#[test]
fn the_end_of_the_pool_is_one_error() {
    let directory = tempfile::tempdir().unwrap();
    let stays = ["a", "b"].map(|name| format!("touch {name}; {STAYS}"));
    // A job that the controller shows may not have been taken by its launcher.
    let both_run = || ["a", "b"].iter().all(|name| directory.path().join(name).exists()).then_some(());
    let pool = Pool::start(&["--slots", "2"]);
    let list = [&stays[..], &["echo never".to_owned()]].concat();
    let running = pool.map(&list).args(["--retries", "3"]).directory(directory.path()).spawn();
    running.wait_until("both commands run", both_run);
    assert!(pool.scela(&["pool", "stop"]).status.success());
    let outcome = running.finish_killed();
    outcome.has_code(252).says("scela: error: the pool 'default' ").says("2 of 3 commands failed, 1 was not started");
    assert_eq!(outcome.err().matches("the pool 'default'").count(), 1, "{outcome}");

    ["a", "b"].iter().for_each(|name| fs::remove_file(directory.path().join(name)).unwrap());
    let pool = Pool::start(&["--slots", "2"]);
    let running = pool.map(&stays).directory(directory.path()).spawn();
    running.wait_until("both commands run", both_run);
    pool.controller().signal(Signal::SIGKILL);
    let outcome = running.finish_killed();
    outcome.has_code(252).says("the pool 'default' has ended\n  hint: 'scela pool start default' starts it again\n");
    outcome.says("2 of 2 commands failed\n  code 252 (lost with a launcher or an agent): 2 commands: 1-2 (");
    assert_eq!(outcome.err().matches("the pool 'default'").count(), 1, "{outcome}");
    pool.wait_for_end();

    let pool = Pool::unstarted();
    pool.map(&commands(["true"])).run().has_code(251).says("there is no pool 'default' on this host");
}

#[test]
fn ctrl_c_ends_the_running_commands_and_starts_no_more() {
    let pool = Pool::start(&["--slots", "2"]);
    let directory = tempfile::tempdir().unwrap();
    let traps = |own: &str| format!("trap 'echo {own}; exit 5' INT; touch {own}; while :; do sleep 0.02; done");
    let list = commands([traps("a"), traps("b"), "echo never".to_owned()]);
    let running = pool.map(&list).directory(directory.path()).spawn();
    let have_begun = || (directory.path().join("a").exists() && directory.path().join("b").exists()).then_some(());
    running.wait_until("both commands run", have_begun);
    running.signal(Signal::SIGINT);
    let outcome = running.finish();
    outcome.has_code(130).wrote("a\nb\n").says("scela: INT: no more commands are started");
    outcome.says("2 of 3 commands failed, 1 was not started\n");
}

#[test]
fn a_second_ctrl_c_kills_and_jobs_that_wait_are_withdrawn() {
    let pool = Pool::start(&["--slots", "2"]);
    let directory = tempfile::tempdir().unwrap();
    let list =
        commands([format!("trap '' INT; touch here; {STAYS}"), format!("touch there; {STAYS}"), STAYS.to_owned()]);
    let running = pool.map(&list).args(["-j", "3"]).directory(directory.path()).spawn();
    pool.wait_for_jobs(2, 1);
    // A command that has executed nothing may ignore SIGINT as well, or not have begun.
    let have_begun = || ["here", "there"].iter().all(|name| directory.path().join(name).exists()).then_some(());
    running.wait_until("both commands run", have_begun);
    running.signal(Signal::SIGINT).wait_for_error("Ctrl-C again kills them");
    // The one that does not ignore it ends.
    pool.wait_for_jobs(1, 0);
    running.signal(Signal::SIGINT);
    let outcome = running.finish();
    outcome.has_code(130).says("2 of 3 commands failed, 1 was not started\n");
    pool.wait_for_jobs(0, 0);
}

#[test]
fn a_third_ctrl_c_leaves_launchers_that_do_not_answer() {
    let pool = Pool::start(&["--slots", "1"]);
    let directory = tempfile::tempdir().unwrap();
    let running = pool.map(&commands([format!("touch here; {STAYS}")])).directory(directory.path()).spawn();
    // A job that the controller shows may not have been taken by its launcher, which is replaced if it is stopped then.
    running.wait_until("the command runs", || directory.path().join("here").exists().then_some(()));
    let launcher = Process::of(pool.state()["jobs"][0]["launcher_pid"].as_i64().unwrap() as i32).unwrap();
    launcher.signal(Signal::SIGSTOP);
    for times in 1..=3 {
        running.signal(Signal::SIGINT);
        let is_heard = || (running.stderr().text().matches("INT: ").count() == times).then_some(());
        assert!(eventually(is_heard).is_some(), "{:?}", running.stderr());
    }
    launcher.signal(Signal::SIGCONT);
    running.finish_killed().has_code(130).says("1 of 1 command was given up");
    pool.wait_for_jobs(0, 0);
}

#[test]
fn stopped_maps_stop_their_commands() {
    let pool = Pool::start(&["--slots", "1"]);
    let directory = tempfile::tempdir().unwrap();
    let list = commands(["echo $$ >pid; mv pid here; read line <0; echo end"]);
    pipes(directory.path(), 1);
    let running = pool.map(&list).directory(directory.path()).spawn();
    let here = directory.path().join("here");
    let pid = running.wait_until("the command runs", || fs::read_to_string(&here).ok());
    let command = Process::of(pid.trim().parse().unwrap()).unwrap();
    running.signal(Signal::SIGTSTP);
    running.wait_until("both stop", || {
        (command.state_now() == Some('T') && running.launcher().state_now() == Some('T')).then_some(())
    });
    running.signal(Signal::SIGCONT);
    running.wait_until("the command goes on", || (command.state_now() != Some('T')).then_some(()));
    fs::write(directory.path().join("0"), "\n").unwrap();
    running.finish().is_quiet_success().wrote("end\n");
}

#[test]
fn a_map_whose_controller_is_stopped_says_so_and_waits() {
    let pool = Pool::start(&["--slots", "1"]);
    let directory = tempfile::tempdir().unwrap();
    pipes(directory.path(), 1);
    let list = commands(["touch here; read line <0; echo first", "echo second"]);
    let running = pool.map(&list).args(["-j", "1"]).directory(directory.path()).spawn();
    running.wait_until("the first one runs", || directory.path().join("here").exists().then_some(()));
    let controller = pool.controller();
    controller.signal(Signal::SIGSTOP);
    fs::write(directory.path().join("0"), "\n").unwrap();
    let text = format!(
        "scela: the controller of the pool 'default', process {0}, is stopped, and commands wait for it: 'kill -CONT {0}' \
         continues it\n",
        controller.pid
    );
    running.wait_for_error(&text);
    controller.signal(Signal::SIGCONT);
    running.finish().has_code(0).wrote("first\nsecond\n").says_only(&text);
}

#[test]
fn a_failure_may_halt_the_rest() {
    let pool = Pool::start(&["--slots", "1"]);
    let list = commands(["echo a", "exit 1", "echo never", "echo never"]);
    let outcome = pool.map(&list).arg("--halt").run();
    outcome.has_code(1).wrote("a\n").says("1 of 4 commands failed, 2 were not started\n");
}

#[test]
fn lists_that_are_none_are_refused() {
    let pool = Pool::start(&["--slots", "1"]);
    let refused = "scela: error: the list of commands in standard input cannot be run: ";
    pool.map(&commands(["a\0b"])).run().has_code(251).says(&format!("{refused}line 1 has a null byte"));
    let long = format!("true\n: {}", "x".repeat(128 * 1024));
    pool.map(&[long]).run().has_code(251).says(&format!("{refused}the command on line 2 has more than 131071 bytes"));
    pool.map(&commands(["# nothing"])).run().is_quiet_success().wrote("");
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let output = pool.scela(&["pool", "map", fifo.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.ends_with("fifo cannot be read: it is a FIFO that nothing writes to\n"), "{text}");
    let output = pool.scela(&["pool", "map", "/no/such/list"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(251)
            && text.contains("the list of commands /no/such/list cannot be read: No such file"),
        "{text}"
    );
}

#[test]
fn output_that_nobody_reads_ends_the_commands() {
    let pool = Pool::start(&["--slots", "2"]);
    let directory = tempfile::tempdir().unwrap();
    pipes(directory.path(), 1);
    let list = commands(["read line <0; echo first", &format!("touch here; {STAYS}"), "echo never"]);
    let mut running = pool.map(&list).args(["-j", "2"]).directory(directory.path()).unread().spawn();
    running.wait_until("the second one runs", || directory.path().join("here").exists().then_some(()));
    // A child that another test forks has the reading end until it executes its program.
    let output = format!("/proc/{}/fd/1", running.launcher().pid);
    let output = fs::File::options().write(true).open(output).unwrap();
    drop(running.take_output());
    let has_no_reader = || {
        let mut ends = [PollFd::new(output.as_fd(), PollFlags::empty())];
        poll(&mut ends, PollTimeout::ZERO).unwrap();
        ends[0].revents().is_some_and(|found| found.contains(PollFlags::POLLERR)).then_some(())
    };
    running.wait_until("nobody reads", has_no_reader);
    drop(output);
    fs::write(directory.path().join("0"), "\n").unwrap();
    running.finish().has_code(141).says("  code 143 (signal TERM): ");
    pool.wait_for_jobs(0, 0);
}

#[test]
fn a_closed_output_is_an_error_once_there_is_output() {
    let pool = Pool::start(&["--slots", "1"]);
    let run = |command: &str| pool.map(&commands([command])).shell("exec >&-").run();
    run("true").is_quiet_success();
    run("echo a").has_code(1).says("scela: error: standard output cannot be written: Bad file descriptor");
    let full = pool.map(&commands(["echo a"])).shell("exec >/dev/full").run();
    full.has_code(1).says("standard output cannot be written: No space left on device");
    full.says("scela: error: 1 of 1 command succeeded, but its output was not printed\n");
}

#[test]
fn progress_is_reported_on_request() {
    let pool = Pool::start(&["--slots", "2"]);
    let list = commands(["true", "exit 1", "true"]);
    pool.map(&list).run().has_code(1).never_says(" done");
    pool.map(&list).arg("--progress").run().has_code(1).says("scela: 3 of 3 done, 1 failed, 0 running\n");
}

#[test]
fn a_terminal_shows_progress_in_one_line() {
    let pool = Pool::start(&["--slots", "2"]);
    let directory = tempfile::tempdir().unwrap();
    pipes(directory.path(), 2);
    let mut terminal = Terminal::open(pool.map(&[]).directory(directory.path()));
    terminal.enter("").type_in("read line <0; echo first\nread line <1\n\x04");
    terminal.wait_for("\r\x1b[Kscela: 0 of 2 done, 0 failed, 2 running");
    fs::write(directory.path().join("0"), "\n").unwrap();
    terminal.wait_for("\r\x1b[Kfirst\r\n").wait_for("\r\x1b[Kscela: 1 of 2 done, 0 failed, 1 running, about ");
    fs::write(directory.path().join("1"), "\n").unwrap();
    terminal.wait_for("\r\x1b[K").wait_for_prompt();
    terminal.close();
}

#[test]
fn outputs_that_cannot_be_stored_are_an_error() {
    let pool = Pool::start(&["--slots", "2"]);
    let outcome = pool.map(&commands(["true", "true"])).env("TMPDIR", "/no/such/directory").run();
    outcome.has_code(1).says_only(
        "scela: error: outputs cannot be stored in /no/such/directory: No such file or directory (os error 2)\n\
         scela: error: 2 of 2 commands were not started\n",
    );
}
