//! Whole command lines: spellings, commands, configfiles.

mod bounds;
mod cluster;
mod configfiles;
mod errors;
mod never_panics;

use super::*;
use crate::plan::request::{Command, EnvChange, EnvPolicy, Mpi, Program, StatsTo, StdinTo, TypedAt, Universe};
use nla::core::limits::RANKS_MAX;
use nla::core::{CachePolicy, CleanShm, FailurePolicy};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

/// Splits a line at blanks.
fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn no_file(path: &Path) -> io::Result<Vec<u8>> {
    panic!("no test asked for {}", path.display());
}

fn request_of(args: Vec<OsString>, read_file: ReadFile<'_>) -> Request {
    match parse(OsStr::new("scela-run"), args, read_file) {
        Ok(Typed::Run(request)) => *request,
        Ok(other) => panic!("not a session but {other:?}"),
        Err(error) => panic!("{error}"),
    }
}

fn request(line: &str) -> Request {
    request_of(words(line), &no_file)
}

fn options(line: &str) -> Options {
    request(&format!("{line} ./a")).options
}

fn command_of(line: &str) -> Command {
    let mut commands = request(line).commands;
    assert_eq!(commands.len(), 1, "{line}");
    commands.remove(0)
}

fn named(program: &str) -> Program {
    Program::Named(program.into())
}

/// Returns a command with nothing typed but its program.
fn plain(program: &str) -> Command {
    Command {
        nprocs: None,
        program: named(program),
        args: Vec::new(),
        wdir: None,
        path: None,
        env: Vec::new(),
        env_policy: None,
        place: TypedAt::CommandLine,
    }
}

fn set(name: &str, value: &str) -> EnvChange {
    EnvChange::Set(name.into(), value.into())
}

/// Checks that each spelling changes the defaults in this way.
fn check_options(spellings: &[&str], change: impl FnOnce(&mut Options)) {
    let mut expected = Options::default();
    change(&mut expected);
    for spelling in spellings {
        assert_eq!(options(spelling), expected, "{spelling}");
    }
}

/// Checks that each spelling changes the command in this way, and no option of the session.
fn check_command(spellings: &[&str], change: impl FnOnce(&mut Command)) {
    let mut expected = plain("./a");
    change(&mut expected);
    for spelling in spellings {
        let request = request(&format!("{spelling} ./a"));
        assert_eq!(request.commands, [expected.clone()], "{spelling}");
        assert_eq!(request.options, Options::default(), "{spelling}");
    }
}

#[test]
fn an_empty_command_line_has_defaults() {
    assert_eq!(request("./a"), Request { options: Options::default(), commands: vec![plain("./a")] });
}

#[test]
fn options_of_a_command() {
    check_command(
        &[
            "-n 4",
            "-np 4",
            "-c 4",
            "-sz 4",
            "--n 4",
            "--np 4",
            "--c 4",
            "--sz 4",
            "-n=4",
            "--np=4",
            "-n4",
            "-np4",
            "-c4",
            "-np 1 -n 4",
            "-np 4 --",
        ],
        |command| command.nprocs = Some(4),
    );
    check_command(&["-np 16777216"], |command| command.nprocs = Some(RANKS_MAX));
    check_command(&["-wdir /tmp", "--wdir /tmp", "-wd /tmp", "--wd=/tmp", "-wdir a -wdir /tmp"], |command| {
        command.wdir = Some("/tmp".into())
    });
    check_command(&["-env K V=1", "--env K V=1", "-env K=V=1", "--env=K=V=1", "--env=K V=1"], |command| {
        command.env = vec![set("K", "V=1")]
    });
    check_command(&["-env A 1 -env B -np -env A 2 -env C="], |command| {
        command.env = vec![set("A", "1"), set("B", "-np"), set("A", "2"), set("C", "")];
    });
    check_command(&["-path /opt:/b", "--path=/opt:/b"], |command| command.path = Some("/opt:/b".into()));
    check_command(&["-wdir=-np"], |command| command.wdir = Some("-np".into()));
    check_command(&["-env IFS=:"], |command| command.env = vec![set("IFS", ":")]);
    check_command(&["-envnone", "--envnone", "-envall -envnone"], |command| {
        command.env_policy = Some(EnvPolicy::None);
    });
    check_command(&["-envall", "--envall", "-envlist A -envall"], |command| {
        command.env_policy = Some(EnvPolicy::All);
    });
    check_command(&["-envlist A,B", "--envlist=A,B", "-envnone -envlist A,B"], |command| {
        command.env_policy = Some(EnvPolicy::List(vec!["A".into(), "B".into()]));
    });
}

#[test]
fn the_program_may_be_meant_as_the_name_of_a_pool() {
    for (line, is_meant) in
        [("--pool", true), ("-np 4 --pool", true), ("--pool -np 4", false), ("--pool=a", false), ("", false)]
    {
        assert_eq!(options(line).pool_before_program, is_meant, "{line}");
    }
}

#[test]
fn options_of_the_session() {
    check_options(&["-ppn 2", "--ppn=2", "-N 2", "--N 2", "-npernode 2", "--npernode 2"], |o| {
        o.ppn = Some(2);
    });
    check_options(&["-genv K V", "--genv K V", "-genv K=V", "-x K=V", "--x=K=V", "-x=K=V"], |o| {
        o.genv = vec![set("K", "V")];
    });
    check_options(&["-x K", "--x K", "-x=K"], |o| o.genv = vec![EnvChange::Pass("K".into())]);
    check_options(&["-genv A 1 -x A -x A=2"], |o| {
        o.genv = vec![set("A", "1"), EnvChange::Pass("A".into()), set("A", "2")];
    });
    check_options(&["-genvnone", "--genvnone"], |o| o.genv_policy = Some(EnvPolicy::None));
    check_options(&["-genvall", "--genvall"], |o| o.genv_policy = Some(EnvPolicy::All));
    check_options(&["-genvlist A,B", "--genvlist=A,B"], |o| {
        o.genv_policy = Some(EnvPolicy::List(vec!["A".into(), "B".into()]));
    });
    check_options(&["-mpi openmpi", "--mpi=OpenMPI", "--mpi none --mpi openmpi"], |o| o.mpi = Mpi::OpenMpi);
    check_options(&["--mpi none"], |o| o.mpi = Mpi::None);
    check_options(&["--mpi auto"], |_| {});
    check_options(&["-memory-alloc-kinds mpi,cuda:device", "--memory-alloc-kinds=mpi,cuda:device"], |o| {
        o.memory_alloc_kinds = Some("mpi,cuda:device".to_owned());
    });
    check_options(&["-initial-errhandler mpi_errors_return", "--initial-errhandler=MPI_ERRORS_RETURN"], |o| {
        o.genv = vec![set("OMPI_MCA_mpi_initial_errhandler", "mpi_errors_return")];
    });
    check_options(&["-l", "--l", "-prepend-rank", "--prepend-rank", "-tag-output", "--tag-output"], |o| {
        o.prepend_rank = true
    });
    check_options(&["-outfile-pattern o.%r", "--outfile-pattern=o.%r"], |o| {
        o.outfile_pattern = Some("o.%r".into());
    });
    check_options(&["-errfile-pattern e.%r", "--errfile-pattern=e.%r"], |o| {
        o.errfile_pattern = Some("e.%r".into());
    });
    check_options(&["-s none", "-stdin none", "--stdin none", "--stdin=none"], |o| {
        o.stdin = Some(StdinTo::None);
    });
    check_options(&["-s all"], |o| o.stdin = Some(StdinTo::All));
    check_options(&["-s 0,3-5", "--stdin=3-5,0"], |o| {
        o.stdin = Some(StdinTo::Ranks(vec![(0, 0), (3, 5)]));
    });
    check_options(&["-s ./0"], |o| o.stdin = Some(StdinTo::File("./0".into())));
    check_options(&["-timeout 90", "--timeout 90", "--timeout=1.5m"], |o| {
        o.timeout = Some(Duration::from_secs(90));
    });
    check_options(&["--timeout 90 --signal USR1@30", "-signal=SIGUSR1@30s -timeout 1.5m"], |o| {
        o.timeout = Some(Duration::from_secs(90));
        o.early_signal = Some((10, Duration::from_secs(30)));
    });
    check_options(&["-usize 64", "--usize 64"], |o| o.universe = Some(Universe::Ranks(64)));
    check_options(&["-usize INFINITE", "-usize infinite"], |o| o.universe = Some(Universe::Infinite));
    check_options(&["-usize SYSTEM"], |o| o.universe = Some(Universe::System));
    check_options(&["--exit-timeout 90", "-exit-timeout 1.5m"], |o| o.exit_timeout = Some(Duration::from_secs(90)));
    check_options(&["--stuck-after 90", "-stuck-after 1.5m"], |o| o.stuck_after = Some(Duration::from_secs(90)));
    check_options(&["-kill-grace 0.5", "--kill-grace=.5"], |o| {
        o.kill_grace = Some(Duration::from_millis(500));
    });
    check_options(&["-dead-time 1.5", "--dead-time=1.5s"], |o| {
        o.dead_time = Some(Duration::from_millis(1500));
    });
    check_options(&["--dead-time 2,3m"], |o| {
        (o.dead_time, o.stop_time) = (Some(Duration::from_secs(2)), Some(Duration::from_secs(180)));
    });
    check_options(&["-heartbeat 6", "--heartbeat=6"], |o| o.heartbeat = Some(Duration::from_secs(6)));
    check_options(&["--heartbeat 11 --dead-time 33"], |o| {
        (o.heartbeat, o.dead_time) = (Some(Duration::from_secs(11)), Some(Duration::from_secs(33)));
    });
    check_options(&["", "--on-failure abort", "-disable-auto-cleanup -on-failure ABORT"], |_| {});
    check_options(&["--on-failure continue", "-on-failure=Continue", "-disable-auto-cleanup"], |o| {
        o.on_failure = FailurePolicy::Continue;
    });
    check_options(&["--with-ft ulfm", "-with-ft=MPI"], |o| {
        o.on_failure = FailurePolicy::Continue;
        o.genv.push(EnvChange::Set("OMPI_MCA_mpi_ft_enable".into(), "1".into()));
    });
    check_options(&["--with-ft none", "--with-ft off"], |_| {});
    check_options(&["--on-failure restart", "-on-failure restart=job"], |o| o.on_failure = FailurePolicy::Restart);
    check_options(&["--on-failure restart --max-restarts 7"], |o| {
        (o.on_failure, o.max_restarts) = (FailurePolicy::Restart, Some(7));
    });
    check_options(&["", "--clean-shm mpi", "-clean-shm=MPI"], |_| {});
    check_options(&["-clean-shm none", "--clean-shm=none"], |o| o.clean_shm = CleanShm::None);
    check_options(&["--clean-shm none --clean-shm all"], |o| o.clean_shm = CleanShm::All);
    check_options(&["-v", "--v", "-verbose", "--verbose", "-q -v"], |o| o.verbose = 1);
    check_options(&["-vv", "-v -v", "-v --verbose", "-vvv -q -vv"], |o| o.verbose = 2);
    check_options(&["-q", "--q", "-quiet", "--quiet", "-vv -q"], |o| o.quiet = true);
    check_options(&["-agents-per-node 5", "--agents-per-node=5"], |o| o.agents_per_node = Some(5));
    check_options(&["-agents-as-nodes", "--agents-as-nodes"], |o| o.agents_as_nodes = true);
    check_options(&["-fanout 2", "--fanout=2"], |o| o.fanout = Some(2));
    check_options(&["", "--cache hcmab", "-cache=HCMAB"], |_| {});
    check_options(&["-cache hcs", "--cache=HCS", "--cache hcma --cache hcs"], |o| o.cache = CachePolicy::Hcs);
    check_options(&["--cache hcmab-lru --cache-entries 7", "-cache-entries=7 -cache hcmab-lru"], |o| {
        o.cache = CachePolicy::HcmabLru { entries: 7 };
    });
    check_options(&["-pmi-port", "--pmi-port"], |o| o.pmi_port = true);
    check_options(&["-no-rank-sessions", "--no-rank-sessions"], |o| o.no_rank_sessions = true);
    check_options(&["-timing", "--timing"], |o| o.timing = true);
    check_options(&["-stats", "--stats", "--stats s.json --stats", "--stats --"], |o| o.stats = Some(StatsTo::Table));
    check_options(&["--stats s.json", "-stats s.json", "--stats=s.json", "--stats --stats=s.json"], |o| {
        o.stats = Some(StatsTo::File("s.json".into()));
    });
    check_options(&["--stats .json"], |o| o.stats = Some(StatsTo::File(".json".into())));
    check_options(&["--stats=-s"], |o| o.stats = Some(StatsTo::File("-s".into())));
    check_options(&["--profile-comm p", "-profile-comm p", "--profile-comm=p"], |o| o.profile_comm = Some("p".into()));
    check_options(&["--profile-comm p --profile-comm-collectives none"], |o| {
        (o.profile_comm, o.profile_collectives) = (Some("p".into()), Some(false));
    });
    check_options(&["--trace t.json", "-trace=t.json", "--trace=a --trace t.json"], |o| {
        o.trace = Some("t.json".into())
    });
    check_options(&["-label cfd-3", "--label=cfd-3"], |o| o.label = Some("cfd-3".to_owned()));
    check_options(&["--pool=a", "--pool=b --pool=a", "--pool --pool=a"], |o| o.pool = Some("a".to_owned()));
}

#[test]
fn v_counts_without_overflow() {
    assert_eq!(options(&format!("-{}", "v".repeat(1000))).verbose, 255);
    assert_eq!(options(&"-v ".repeat(1000)).verbose, 255);
}

#[test]
fn words_after_the_program_are_its_arguments() {
    let command = command_of("-np 2 ./a -np 3 --help -- -x");
    assert_eq!(command.nprocs, Some(2));
    assert_eq!(command.args, words("-np 3 --help -- -x"));
    assert_eq!(command_of("-- -np 3").program, named("-np"));
    assert_eq!(command_of("- 3").program, named("-"));
    assert_eq!(command_of("np 3").program, named("np"));
    assert_eq!(command_of("./a ::").args, words("::"));
}

#[test]
fn only_a_word_that_ends_in_json_is_a_file_of_statistics() {
    for (line, program) in
        [("--stats ./a x.json", "./a"), ("--stats -- x.json", "x.json"), ("--stats a.JSON", "a.JSON")]
    {
        let request = request(line);
        assert_eq!(request.options.stats, Some(StatsTo::Table), "{line}");
        assert_eq!(request.commands[0].program, named(program), "{line}");
    }
    let request = request("./a : --stats s.json -np 2 ./b");
    assert_eq!(request.options.stats, Some(StatsTo::File("s.json".into())));
    assert_eq!(request.commands[1].program, named("./b"));
}

#[test]
fn several_commands() {
    let request = request("-genv A 1 -np 2 -env B 2 ./a x : ./b : -np 3 -wdir /d -l -- ./c -l");
    assert_eq!(request.options.genv, [set("A", "1")]);
    assert!(request.options.prepend_rank, "a global option may stand in any command");
    let a = Command { nprocs: Some(2), env: vec![set("B", "2")], args: words("x"), ..plain("./a") };
    let c = Command { nprocs: Some(3), wdir: Some("/d".into()), args: words("-l"), ..plain("./c") };
    assert_eq!(request.commands, [a, plain("./b"), c]);
}

#[test]
fn bytes_that_are_not_utf8_are_kept() {
    let bytes = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let args = vec![
        "-env".into(),
        bytes(b"K\xff"),
        bytes(b"\xfe"),
        bytes(b"-x=L\xff=\xfe=\xfd"),
        bytes(b"--wdir=/\xff"),
        bytes(b"\x80/a\xff"),
        bytes(b"\xff\xfe\n"),
        bytes(b"-np=\xff"),
    ];
    let request = request_of(args, &no_file);
    assert_eq!(request.options.genv, [EnvChange::Set(bytes(b"L\xff"), bytes(b"\xfe=\xfd"))]);
    assert_eq!(request.commands, {
        [Command {
            env: vec![EnvChange::Set(bytes(b"K\xff"), bytes(b"\xfe"))],
            wdir: Some(PathBuf::from(bytes(b"/\xff"))),
            program: Program::Named(bytes(b"\x80/a\xff")),
            args: vec![bytes(b"\xff\xfe\n"), bytes(b"-np=\xff")],
            ..plain("")
        }]
    });
}

#[test]
fn the_demo_is_a_command() {
    for line in ["-np 64 --demo", "--demo -np 64", "-demo -n64 --"] {
        let request = request(line);
        assert!(request.is_demo(), "{line}");
        let demo = Command { nprocs: Some(64), program: Program::Demo, ..plain("") };
        assert_eq!(request.commands, [demo], "{line}");
    }
    assert!(!request("./demo").is_demo());
}

#[test]
fn help_and_version() {
    let typed = |argv0: &str, line| parse(OsStr::new(argv0), words(line), &no_file).expect("the line is right");
    for line in ["-h", "-help", "--help", "--h", "-np 2 -h -bogus", "-np 0 --help", "./a : -h"] {
        match typed("/usr/bin/mpiexec", line) {
            Typed::Help(text) => assert!(text.contains("\n  mpiexec [OPTIONS] PROGRAM"), "{line}"),
            other => panic!("{line}: {other:?}"),
        }
    }
    let short = typed("scela-run", "-h");
    assert!(matches!(short, Typed::Help(text) if text.contains("'scela-run --help' lists all options")));
    let version = format!("scela-run {}{}\n", env!("CARGO_PKG_VERSION"), env!("SCELA_COMMIT"));
    for line in ["-V", "-version", "--version", "-np 2 -V ./a"] {
        assert_eq!(typed("mpirun", line), Typed::Version(version.clone()), "{line}");
    }
    let commit = env!("SCELA_COMMIT").trim_start_matches(" (").trim_end_matches(')');
    assert!(commit.is_empty() || commit.len() == 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()));
}

#[test]
fn a_simulation_has_options_and_no_program() {
    let simulated = |line: &str| match parse(OsStr::new("scela-run"), words(line), &no_file) {
        Ok(Typed::Simulate(options)) => *options,
        other => panic!("{line}: {other:?}"),
    };
    let options =
        simulated("--simulate 16x4 --fanout 8 --cache hcs --pattern 1:p --latency 2us --bandwidth=1G --seed 7");
    let expected = Simulation {
        size: (16, 4),
        fanouts: vec![8],
        cache: CachePolicy::Hcs,
        pattern: sim::Pattern::All,
        latency: Some(Duration::from_micros(2)),
        bandwidth: Some(1_000_000_000),
        seed: Some(7),
        ..Simulation::default()
    };
    assert_eq!(options, expected);
    assert_eq!(simulated("--simulate 2x2 --fanouts 2,4 --faults --cores 2").fanouts, [2, 4]);
    assert!(simulated("--simulate 2x2").fanouts.is_empty());
    for option in ["--trace t.json", "--report r.json", "--stats", "--timing"] {
        let name = option.split(' ').next().unwrap_or_default();
        let error = errors::error_of(words(&format!("--simulate 2x2 {option}")), &no_file);
        let text = format!("option '{name}' is about a session, and a simulation starts none");
        assert_eq!((error.to_string(), error.hint()), (text, format!("leave '{name}' out").as_str()));
    }
}

#[test]
fn the_examples_of_the_help_are_valid() {
    for (typed, meaning) in EXAMPLES {
        match parse(OsStr::new("scela-run"), words(typed), &no_file) {
            Ok(Typed::Run(request)) => assert!(!request.commands.is_empty(), "{meaning}"),
            Ok(Typed::Simulate(options)) => assert!(options.size > (1, 1), "{meaning}"),
            other => panic!("{meaning}: {other:?}"),
        }
    }
}
