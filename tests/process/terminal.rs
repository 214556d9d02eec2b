//! Terminals and pipes that are not read: they must not hold up the launcher, its agents or the ranks.

use std::fs;
use std::time::{Duration, Instant};

use tests::{Terminal, eventually, scela};

use super::script;

/// Stops and continues the output of a terminal.
const CTRL_S: &str = "\x13";
const CTRL_Q: &str = "\x11";

const DEAD_TIME: Duration = Duration::from_secs(4);

const DROPPED: &str = "dropped here, because standard error was not read in time\r\n";

/// Runs `steps` in ranks while the output of the terminal is stopped, for longer than the dead time. If `drops_logs`,
/// waits for the count of what was dropped while the agents still run: they wait for the terminal only briefly at their
/// end. Returns what the terminal showed.
fn check_stopped_terminal(log: &str, steps: &[&str], drops_logs: bool) -> String {
    const RANKS: u32 = 3;
    let run = scela().np(RANKS).agents(RANKS).args(["-v", "--dead-time", "4"]).env("SCELA_LOG", log);
    let directory = run.world().file("");
    let file = |name: &str| directory.join(name);
    let [go, passed, end] = [("await", "go"), ("touch", "passed.{rank}"), ("await", "end")]
        .map(|(step, name)| format!("{step} {}", file(name).display()));
    let before = ["init", "fence", "say here", &go];
    let steps: Vec<&str> = before.into_iter().chain(steps.iter().copied()).chain([&*passed, &end, "exit 0"]).collect();
    let mut terminal = Terminal::open(run.program(script(steps)));
    terminal.enter("").wait_for_times("here\r\n", RANKS as usize);
    terminal.type_in(CTRL_S);
    let stopped = Instant::now();
    fs::write(file("go"), "").unwrap();
    let passed = || (0..RANKS).all(|rank| file(&format!("passed.{rank}")).exists()).then_some(());
    assert!(eventually(passed).is_some(), "the ranks wait for the terminal:\n{}", terminal.screen().text());
    // Peers that have sent no heartbeats would be lost by then.
    assert!(eventually(|| (stopped.elapsed() > 2 * DEAD_TIME).then_some(())).is_some());
    if drops_logs {
        terminal.type_in(CTRL_Q).wait_for(DROPPED);
    }
    fs::write(file("end"), "").unwrap();
    let ended = || terminal.world().ranks().is_empty().then_some(());
    assert!(eventually(ended).is_some(), "the ranks do not end:\n{}", terminal.screen().text());
    terminal.type_in(CTRL_Q).wait_for("the session is over, code 0").wait_for_prompt();
    assert_eq!(terminal.code(), 0);
    terminal.close()
}

#[test]
fn a_stopped_terminal_delays_no_rank_and_shows_all_steps_later() {
    let screen = check_stopped_terminal("warn", &["fence"; 100], false);
    assert_eq!(screen.matches("  fence ").count(), 101, "{screen}");
    assert!(!screen.contains("dropped here"), "{screen}");
}

#[test]
fn logs_that_a_stopped_terminal_does_not_take_are_dropped_and_counted() {
    // Agents log what they read.
    let puts = format!("*2000 cmd=put kvsname=any key=key value={}", "x".repeat(800));
    let screen = check_stopped_terminal("trace", &["fence", &puts], true);
    assert!(screen.contains("all ranks have ended"), "the last steps are shown");
}
