//! `--stats`: what each level of the tree sent, answered and stored, compared with the expected numbers and with
//! the kernel's counts.

use std::fs;

use nix::sys::signal::Signal;
use nix::unistd::Uid;
use serde_json::Value;
use tempfile::TempDir;
use tests::{Outcome, Run, Tree, scela, sh};

use crate::{rank, script};

const AGENTS: u32 = 12;
const RANKS: u64 = 24;

/// Makes a run write its statistics to a directory that outlives it.
fn with_statistics(run: Run) -> (Run, TempDir) {
    let place = tempfile::tempdir().unwrap();
    (run.arg("--stats").arg(place.path().join("stats.json")), place)
}

/// Begins a run of 24 ranks on a tree of twelve agents, three of which are children of the launcher.
fn run_on_twelve_agents(policy: &str) -> (Run, TempDir) {
    let run = scela().np(RANKS as u32).agents(AGENTS).arg("--agents-as-nodes").fanout(3);
    with_statistics(run.args(policy.split(' ')))
}

/// The statistics that a run wrote.
struct Stats(Value);

impl Stats {
    fn of(place: &TempDir) -> Self {
        let text = fs::read(place.path().join("stats.json")).unwrap();
        let stats = Self(serde_json::from_slice(&text).unwrap());
        assert_eq!(stats.0["version"], 1);
        stats
    }

    /// Returns the number at the end of a path of names, for one level.
    fn at(&self, level: usize, path: &str) -> u64 {
        let pointer = format!("/levels/{level}/{path}");
        self.0.pointer(&pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{pointer} in {:#}", self.0))
    }

    fn levels(&self) -> usize {
        self.0["levels"].as_array().map_or(0, Vec::len)
    }

    /// Returns the sum of the numbers of all levels.
    fn sum(&self, path: &str) -> u64 {
        (0..self.levels()).map(|level| self.at(level, path)).sum()
    }

    /// Returns the messages up and down in the board lane, for each level.
    fn board_messages(&self) -> Vec<(u64, u64)> {
        let of = |level| (self.at(level, "up/board/messages"), self.at(level, "down/board/messages"));
        (0..self.levels()).map(of).collect()
    }
}

/// Runs ranks that each put `puts` entries and meet in a fence.
fn put_and_fence(policy: &str, puts: u64) -> Stats {
    let (run, place) = run_on_twelve_agents(policy);
    let puts: Vec<String> = (0..puts).map(|put| format!("put key-{{rank}}-{put} value")).collect();
    let mut steps = vec!["init"];
    steps.extend(puts.iter().map(String::as_str));
    steps.extend(["fence", "finalize"]);
    run.program(script(steps)).run().is_quiet_success();
    Stats::of(&place)
}

#[test]
fn a_fence_sends_the_messages_of_its_policy() {
    for policy in ["--cache hcs", "--cache hcma", "--cache hcmab", "--cache hcmab-lru --cache-entries 16"] {
        let stats = put_and_fence(policy, 2);
        // The launcher has three children, which have nine children. An entry of a rank travels in a message of its
        // own or with the fence, depending on the policy.
        let single = if policy.ends_with("hcs") { 2 * RANKS } else { 0 };
        let expected = [(0, 3), (3 + single, 9), (9 + single * 9 / 12, 0)];
        assert_eq!(stats.board_messages(), expected, "{policy}");
        assert_eq!((stats.at(0, "places"), stats.at(1, "places"), stats.at(2, "places")), (1, 3, 9));
        assert_eq!([0, 1, 2].map(|level| stats.at(level, "fences/count")), [1, 3, 9]);
        assert_eq!(stats.0["agents_reported"], 12);
        let name = policy.split(' ').nth(1).unwrap();
        assert_eq!((stats.0["policy"].as_str(), stats.0["ranks"].as_u64()), (Some(name), Some(RANKS)));
        // A broadcast sends every entry to each of its receivers.
        let entries = 2 * RANKS * "key-00-0value".len() as u64;
        let down = stats.at(1, "down/board/bytes");
        assert_eq!(down > 9 * entries, policy.contains("hcmab"), "{policy}: {down}");
    }
}

#[test]
fn gets_are_answered_at_the_levels_of_the_policy() {
    for policy in ["--cache hcs", "--cache hcma", "--cache hcmab", "--cache hcmab-lru --cache-entries 100"] {
        let (run, place) = run_on_twelve_agents(policy);
        let steps = ["init", "put key-{rank} value", "fence", "get key-0", "get key-13", "get key-23", "finalize"];
        run.program(script(steps)).run().has_code(0);
        let stats = Stats::of(&place);
        let (board, own) = (stats.sum("gets/board"), stats.sum("gets/own"));
        let asked = stats.sum("gets/asked");
        match policy {
            "--cache hcmab" => assert_eq!((board, own, asked), (3 * RANKS, 0, 0)),
            // The core answers each get, and the cache has room for all entries.
            "--cache hcmab-lru --cache-entries 100" => assert_eq!((board, own, asked), (0, 3 * RANKS, 0)),
            _ => {
                assert!(asked >= 11, "{policy}: most agents should ask for key-0: {asked}");
                assert!(stats.sum("gets/others") >= 3, "no other agent has answered: {:#}", stats.0);
                assert!(board > 0 && board + own < 3 * RANKS, "{policy}: {board} and {own} here");
            }
        }
        // A question is one message up, and its answer is one message down.
        let (up, down) = (stats.sum("up/board/messages"), stats.sum("down/board/messages"));
        assert_eq!(down, 12 + asked, "{policy}");
        let single = if policy.ends_with("hcs") { RANKS + RANKS * 9 / 12 } else { 0 };
        assert_eq!(up, 12 + asked + single, "{policy}");
    }
}

#[test]
fn a_bounded_cache_evicts_entries_and_keeps_its_bound() {
    let stats = put_and_fence("--cache hcmab-lru --cache-entries 16", 3);
    for level in 0..3 {
        let at = |path: &str| stats.at(level, &format!("held/{path}"));
        // The cache stores the last 16 of 72 entries. The entries of an agent's own ranks are stored separately.
        assert!((1..=16).contains(&at("max/entries")), "{:#}", stats.0);
        assert!(at("sum/entries") <= 16 * stats.at(level, "places"), "{:#}", stats.0);
        assert!(
            at("sum/evictions") >= 50 * stats.at(level, "places"),
            "the other entries should be evicted: {:#}",
            stats.0
        );
        assert_eq!(at("max/own_entries"), if level == 0 { 0 } else { 6 });
        assert_eq!(at("max/index_entries"), [72, 18, 0][level], "entries of the levels below");
    }
}

#[test]
fn fence_times_are_plausible() {
    let (run, place) = run_on_twelve_agents("--cache hcma");
    run.program(rank(["fences", "50"])).run().is_quiet_success();
    let stats = Stats::of(&place);
    for level in 0..3 {
        let seconds = |name: &str| stats.0["levels"][level]["fences"][name].as_f64().unwrap();
        let (min, median, max) = (seconds("min_s"), seconds("median_s"), seconds("max_s"));
        assert!(0.0 < min && min <= median && median <= max && max < 60.0, "{:#}", stats.0);
        assert_eq!(stats.at(level, "fences/count") % stats.at(level, "places"), 0);
        assert!(stats.at(level, "fences/count") >= 50 * stats.at(level, "places"));
    }
}

#[test]
fn the_table_is_printed_at_the_end() {
    let run = || scela().np(2).agents(2).arg("--stats").program(script(["init", "fence", "finalize"]));
    let outcome = run().run();
    outcome
        .has_code(0)
        .says("scela-run: statistics: policy hcmab, ranks: 2, fan-out: 32, agents reported: 2 of 2\n")
        .says("\n  sent over links: ")
        .says(" answered by the rank's own agent, ")
        .says("\n  level  places   msgs  bytes ")
        .says("- board down -")
        .says(" gets ")
        .says(" fences ")
        .never_says("note:");
    run().arg("-q").run().is_quiet_success();
}

#[test]
fn ranks_with_shared_memory_are_counted_once_each() {
    // Only HCMAB has a shared segment. Rank 0 does not ask for it, and the other ranks ask twice.
    for (policy, expected) in [("--cache hcmab", RANKS - 1), ("--cache hcma", 0)] {
        let (run, place) = run_on_twelve_agents(policy);
        let ask = "cmd=scela_segment";
        let steps = ["init", "@0", "say here", "@*", "fence"];
        let others = (1..RANKS).flat_map(|rank| [format!("@{rank}"), ask.to_owned(), ask.to_owned()]);
        let steps: Vec<String> = steps.map(str::to_owned).into_iter().chain(others).collect();
        let steps = steps.iter().map(String::as_str).chain(["@*", "finalize"]);
        run.program(script(steps)).run().has_code(0);
        assert_eq!(Stats::of(&place).0["ranks_with_segment"].as_u64(), Some(expected), "{policy}");
    }
    let run = scela().np(2).arg("--stats").program(script(["init", "cmd=scela_segment", "finalize"]));
    run.run().has_code(0).says("\n  note: ranks that read the board in shared memory: 2; their gets are not counted\n");
}

/// Agents on the launcher's machine write to its file themselves.
#[test]
fn output_to_a_file_passes_no_link() {
    let (run, place) = with_statistics(scela().np(3).agents(3).fanout(2));
    let file = place.path().join("output");
    let run = run.shell(&format!("exec >'{}'", file.display()));
    run.program(sh("head -c 30000 /dev/zero | tr '\\0' x; echo; echo error >&2")).run().has_code(0);
    let text = std::fs::read_to_string(file).unwrap();
    assert_eq!(text, format!("{}\n", "x".repeat(30_000)).repeat(3));
    let stats = Stats::of(&place);
    assert!((30..1000).contains(&stats.at(1, "stream_bytes")), "only standard error: {:#}", stats.0);
}

#[test]
fn output_that_is_read_late_is_counted() {
    let (run, place) = with_statistics(scela().np(3).agents(3).fanout(2).unread());
    let program = sh("head -c 100000 /dev/zero | tr '\\0' x; echo >&2");
    let mut running = run.program(program).spawn();
    // The output exceeds what an unread standard output accepts: the ranks have exited while their output is on its
    // way.
    running.wait_until("all ranks have written", || (running.stderr().text().len() >= 3).then_some(()));
    running.wait_until("all ranks have exited", || running.world().ranks().is_empty().then_some(()));
    running.read_output();
    let outcome = running.finish();
    outcome.has_code(0);
    assert_eq!(outcome.stdout.len(), 300_000);
    let stats = Stats::of(&place);
    // The count includes the headers of messages.
    assert!((300_000..306_000).contains(&stats.at(1, "stream_bytes")), "{:#}", stats.0);
    assert!((100_000..102_000).contains(&stats.at(2, "stream_bytes")), "one agent is below another: {:#}", stats.0);
    assert!(stats.sum("link_bytes") > stats.sum("stream_bytes"));
}

#[test]
fn a_lost_agent_is_missing_from_the_statistics() {
    let (run, place) = with_statistics(scela().np(7).agents(7).fanout(2));
    let running = run.program(sh("sleep 1000 & echo here; wait")).spawn();
    running.wait_for_times("here", 7);
    let tree = Tree::new(7, 2);
    tree.process(running.world(), tree.leaf()).signal(Signal::SIGKILL);
    running.finish().has_code(252);
    let stats = Stats::of(&place);
    assert_eq!((stats.0["agents"].as_u64(), stats.0["agents_reported"].as_u64()), (Some(7), Some(6)), "{:#}", stats.0);
    assert_eq!(stats.sum("places"), 7);
}

#[test]
fn a_file_that_cannot_be_created_prevents_the_launch() {
    let outcome = scela().np(1).arg("--stats=/proc/no/stats.json").program(sh("echo ran")).run();
    let why = "error: the job could not be launched: the statistics cannot be written to '/proc/no/stats.json': ";
    outcome.has_code(251).says(why).wrote("");
}

#[test]
fn a_file_that_cannot_be_written_fails_the_session() {
    let outcome = scela().np(1).arg("--stats=/dev/full").program(sh("echo ran")).run();
    let why = "error: the statistics cannot be written to '/dev/full': No space left on device";
    outcome.has_code(1).says(why).wrote("ran\n");
    // A failure of the job determines the exit code.
    scela().np(1).arg("--stats=/dev/full").program(sh("exit 3")).run().has_code(3).says(why);
}

/// The counts of the kernel for the loopback interface of a network namespace of the run's own. Only the tree's
/// links use it.
struct Kernel {
    bytes: u64,
    packets: u64,
}

/// Runs in a network namespace of its own, where the kernel counts for this run alone. The kernel retransmits when
/// a receiver gets no processor for a long time, and then counts a packet twice. In that case the run is repeated.
fn counted_by_kernel(describe: impl Fn() -> (Run, TempDir)) -> (Outcome, Stats, Kernel) {
    for _ in 0..10 {
        let (run, place) = describe();
        let file = place.path().join("counters");
        let unshare = if Uid::effective().is_root() { "unshare -n" } else { "unshare -rn" };
        // Turn off tail loss probes, which the kernel sends only to learn whether a packet was lost.
        let inside = format!(
            "ip link set lo up && echo 0 >/proc/sys/net/ipv4/tcp_early_retrans || exit 99; \"$@\"; code=$?; \
             cat /proc/net/dev /proc/net/snmp >{}; exit $code",
            file.display()
        );
        let outcome = run.shell(&format!("exec {unshare} sh -c '{inside}' sh \"$@\"")).run();
        outcome.check(outcome.code != Some(99), "a network namespace needs root or user namespaces");
        let text = fs::read_to_string(file).unwrap();
        let numbers = |name: &str| {
            let line = text.lines().rev().find_map(|line| line.trim().strip_prefix(name)).unwrap();
            line.split_ascii_whitespace().map(|number| number.parse().unwrap_or_default()).collect::<Vec<u64>>()
        };
        let (interface, tcp) = (numbers("lo:"), numbers("Tcp:"));
        if tcp[11] == 0 {
            return (outcome, Stats::of(&place), Kernel { bytes: interface[8], packets: interface[9] });
        }
    }
    panic!("the kernel retransmitted packets in each of ten runs");
}

/// Asserts that the kernel's count is the program's count plus the headers of packets and a few messages at the
/// beginning and the end of each link.
#[track_caller]
fn assert_agrees_with_kernel(stats: &Stats, kernel: &Kernel) {
    // The headers of IP and TCP: at least without, at most with TCP's options.
    const HEADERS_MIN: u64 = 40;
    const HEADERS_MAX: u64 = 66;
    // The hello and the welcome, the statistics themselves, and the leave.
    const MESSAGES_BYTES_MAX: u64 = 2048;
    let Kernel { bytes, packets } = *kernel;
    let counted = stats.sum("link_bytes");
    let least = counted + packets * HEADERS_MIN;
    let most = counted + packets * HEADERS_MAX + u64::from(AGENTS) * MESSAGES_BYTES_MAX;
    println!(
        "counted {counted} bytes; the kernel counted {bytes} in {packets} packets; difference {}",
        bytes - counted
    );
    assert!((most - counted) * 50 < bytes, "{most} exceeds the count by over 2 % of {bytes}");
    assert!(
        (least..=most).contains(&bytes),
        "{counted} bytes were counted, the kernel counted {bytes} in {packets} packets"
    );
}

#[test]
fn bytes_of_the_board_agree_with_the_kernel() {
    for policy in ["--cache hcmab", "--cache hcma"] {
        let value = "v".repeat(1000);
        let puts: Vec<String> = (0..100).map(|put| format!("put key-{{rank}}-{put} {value}")).collect();
        let mut steps = vec!["init"];
        steps.extend(puts.iter().map(String::as_str));
        steps.extend(["fence", "finalize"]);
        let (outcome, stats, kernel) = counted_by_kernel(|| {
            let (run, place) = run_on_twelve_agents(policy);
            (run.program(script(steps.iter().copied())), place)
        });
        outcome.is_quiet_success();
        assert_agrees_with_kernel(&stats, &kernel);
        // Almost all bytes on the tree's links were messages of the launch, which contains these steps, and of the
        // board.
        let lanes = ["up/board/bytes", "up/control/bytes", "down/board/bytes", "down/control/bytes"];
        let messages: u64 = lanes.iter().map(|lane| stats.sum(lane)).sum();
        assert!(messages < kernel.bytes && messages * 100 > kernel.bytes * 98, "{messages} of {}", kernel.bytes);
    }
}

#[test]
fn bytes_of_output_agree_with_the_kernel() {
    let (outcome, stats, kernel) = counted_by_kernel(|| {
        let (run, place) = run_on_twelve_agents("--cache hcmab");
        (run.program(sh("head -c 1000000 /dev/zero | tr '\\0' x")), place)
    });
    assert_eq!(outcome.has_code(0).stdout.len(), 24_000_000);
    assert_agrees_with_kernel(&stats, &kernel);
}

#[test]
fn a_long_epoch_reaches_agents_of_this_machine_through_memory() {
    let put = format!("put key-{{rank}} {}", "v".repeat(1000));
    let bytes_down = |more: &[&str]| {
        let (run, place) = with_statistics(scela().np(RANKS as u32).agents(AGENTS).fanout(3).args(more));
        run.program(script(["init", &put, "fence", "finalize"])).run().is_quiet_success();
        let stats = Stats::of(&place);
        [0, 1].map(|level| stats.at(level, "down/board/bytes"))
    };
    // Two levels below the launcher: the log reference is forwarded unchanged.
    assert!(bytes_down(&[]).iter().all(|bytes| *bytes < 1000), "only the offset in the log should be sent");
    let nodes = bytes_down(&["--agents-as-nodes"]);
    assert!(
        nodes.iter().all(|bytes| *bytes > 3 * RANKS * 1000),
        "the epoch itself should be sent to other nodes: {nodes:?}"
    );
}
