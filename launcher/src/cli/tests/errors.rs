//! The messages about wrong command lines, word for word.

use super::*;
use std::error::Error;

pub(super) fn error_of(args: Vec<OsString>, read_file: ReadFile<'_>) -> UsageError {
    match parse(OsStr::new("/opt/bin/scela-run"), args, read_file) {
        Err(error) => error,
        Ok(typed) => panic!("not an error: {typed:?}"),
    }
}

/// Checks the message and the hint of each line.
pub(super) fn check(cases: &[(&str, &str, &str)]) {
    for (line, message, hint) in cases {
        let error = error_of(words(line), &no_file);
        assert_eq!(error.to_string(), *message, "{line}");
        assert_eq!(error.hint(), *hint, "{line}");
        assert_eq!(error.place(), &TypedAt::CommandLine);
    }
}

/// Checks the message and the hint of each file.
fn check_file(cases: &[(&str, &str, &str)]) {
    for (text, message, hint) in cases {
        let error = error_of(words("-configfile f"), &|_| Ok(text.as_bytes().to_vec()));
        assert_eq!(error.to_string(), *message, "{text}");
        assert_eq!(error.hint(), *hint, "{text}");
    }
}

const LISTS: &str = "'scela-run --help' lists all options";

#[test]
fn unknown_options() {
    let near = |name: &str| format!("did you mean '{name}'? {LISTS}");
    let far = format!("{LISTS}; options of the program go after its name");
    check(&[
        ("-nq 4 ./a", "there is no option '-nq'", &near("-np")),
        ("--nq=4 ./a", "there is no option '--nq'", &near("--np")),
        ("-np 2 -prepend ./a", "there is no option '-prepend'", &near("-prepend-rank")),
        ("--timout 3 ./a", "there is no option '--timout'", &near("--timeout")),
        ("./a : -wdri /tmp ./b", "there is no option '-wdri'", &near("-wdir")),
        ("---np 4 ./a", "there is no option '---np'", &near("--np")),
        ("--nump 4 ./a", "there is no option '--nump'", &near("--np")),
        ("-z ./a", "there is no option '-z'", &far),
        ("-n4x ./a", "there is no option '-n4x'", &far),
        ("--n4 ./a", "there is no option '--n4'", &near("--np")),
        ("--no-such-thing ./a", "there is no option '--no-such-thing'", &far),
        ("-= ./a", "there is no option '-'", &far),
    ]);
}

#[test]
fn options_of_other_launchers() {
    let remove = format!("remove it; {LISTS}");
    check(&[
        (
            "-bind-to-core ./a",
            "scela-run has no option '-bind-to-core', which in other launchers binds ranks to cores",
            &format!("use '--bind-to'; {LISTS}"),
        ),
        (
            "--bycore ./a",
            "scela-run has no option '--bycore', which in other launchers says how ranks are placed",
            &remove,
        ),
        (
            "-machine hosts ./a",
            "scela-run has no option '-machine', which in other launchers names a file of hosts",
            &format!("use '-f'; {LISTS}"),
        ),
        (
            "-display-map ./a",
            "scela-run has no option '-display-map', which in other launchers shows where ranks are placed",
            &format!("use '--explain'; {LISTS}"),
        ),
        (
            "--enable-recovery ./a",
            "scela-run has no option '--enable-recovery', which in other launchers lets the other ranks go on when one \
             fails",
            &format!("use '-disable-auto-cleanup'; {LISTS}"),
        ),
        (
            "--mca btl tcp ./a",
            "scela-run has no option '--mca', which in other launchers sets a parameter of Open MPI",
            &remove,
        ),
        (
            "-perhost 2 ./a",
            "scela-run has no option '-perhost', which in other launchers limits the ranks on a node",
            &format!("use '-ppn'; {LISTS}"),
        ),
        (
            "-soft 1:4 ./a",
            "scela-run has no option '-soft', which in other launchers lets a job start with fewer ranks than asked \
             for; scela-run starts all or none",
            &remove,
        ),
        (
            "-arch x86_64 ./a",
            "scela-run has no option '-arch', which in other launchers asks for hosts of one architecture, which \
             scela-run does not know",
            &format!("use '-hosts'; {LISTS}"),
        ),
        (
            "--num-ranks 4 ./a",
            "scela-run has no option '--num-ranks', which in other launchers gives the number of ranks",
            &format!("use '-np'; {LISTS}"),
        ),
        (
            "--ntasks=4 ./a",
            "scela-run has no option '--ntasks', which in other launchers gives the number of ranks",
            &format!("use '-np'; {LISTS}"),
        ),
    ]);
}

#[test]
fn a_singleton_is_refused() {
    let message = "'-pmi_args' comes from an MPI program that was started without a launcher";
    let hint = "start that program with 'scela-run -np 1 PROGRAM'; a launcher cannot be added later";
    check(&[("-pmi_args 40123 default_interface default_key 4711", message, hint)]);
    check(&[("-np 0 -pmi_args 40123", message, hint)]);
}

#[test]
fn values() {
    let tells = |option: &str| format!("'scela-run --help' describes the values of '{option}'");
    let missing = "'scela-run --help' describes it; write a ':' or an option's name as a value after '='";
    let empty = |option: &str| format!("a variable on the command line may be unset; {}", tells(option));
    let ranks = "write ranks as in '-s 0,3-5'; put ./ before a file's name";
    let time = "write seconds, or a number with s, m or h, as in '--timeout 1.5h'";
    let label = "a label names the session; to begin each line with its rank use '-prepend-rank'";
    let bad_range = |option: &str, value: &str| format!("option '{option}': {value} is out of range, it must be");
    check(&[
        ("-np", "option '-np' needs a value: -np N", missing),
        ("-np : ./a", "option '-np' needs a value: -np N", missing),
        ("-wdir -np 4 ./a", "option '-wdir' needs a value: -wdir DIR", missing),
        ("--label -l ./a", "option '--label' needs a value: --label TEXT", missing),
        ("-env", "option '-env' needs a value: -env NAME VALUE", missing),
        ("-env K", "option '-env' needs a value: -env NAME VALUE", missing),
        ("-genv K : ./a", "option '-genv' needs a value: -genv NAME VALUE", missing),
        ("--configfile", "option '--configfile' needs a value: --configfile FILE", missing),
        ("--demo=yes", "option '--demo' takes no value, and was given 'yes'", "write '--demo' alone"),
        ("-l= ./a", "option '-l' takes no value, and was given ''", "write '-l' alone"),
        ("-np four ./a", "option '-np': 'four' is not a whole number", "write a number, as in '-np 4'"),
        ("-np 0", &format!("{} 1 to 16,777,216", bad_range("-np", "0")), "write '-np 1', or leave '-np' out"),
        ("-np 1e6 ./a", "option '-np': '1e6' is not a whole number", "write all digits: '-np 1000000'"),
        ("-np 1,024 ./a", "option '-np': '1,024' is not a whole number", "write all digits: '-np 1024'"),
        (
            "-memory-alloc-kinds mpi;gpu ./a",
            "option '-memory-alloc-kinds': 'mpi;gpu' is not a list of kinds of memory",
            "write them with commas, as in '-memory-alloc-kinds mpi,system,cuda:device'",
        ),
        (
            "-initial-errhandler errors_return ./a",
            "option '-initial-errhandler': there is no error handler 'errors_return', only mpi_errors_abort, \
             mpi_errors_are_fatal, mpi_errors_return",
            "did you mean 'mpi_errors_return'?",
        ),
        (
            "-outfile-pattern out.%z ./a",
            "option '-outfile-pattern': '%z' in 'out.%z' is unknown; the placeholders are %r (rank), %n (namespace), \
             %h (host), %j (session) and %% (a percent sign)",
            "write '-outfile-pattern out.%r' for a file for each rank",
        ),
        ("-np ./a", "option '-np': './a' is not a whole number", "write a number, as in '-np 4'"),
        ("-np 0 ./a", &format!("{} 1 to 16,777,216", bad_range("-np", "0")), "write '-np 1', or leave '-np' out"),
        ("-n -4 ./a", &format!("{} 1 to 16,777,216", bad_range("-n", "-4")), "write '-n 1', or leave '-n' out"),
        ("-n0 ./a", &format!("{} 1 to 16,777,216", bad_range("-n", "0")), "write '-n 1', or leave '-n' out"),
        (
            "--ppn=0 ./a",
            &format!("{} 1 to 16,777,216", bad_range("--ppn", "0")),
            "write '--ppn 1', or leave '--ppn' out",
        ),
        ("--np= ./a", "option '--np': the value is empty", &empty("--np")),
        (
            "--save-rankmap - ./a",
            "option '--save-rankmap': a rank map cannot go to standard output, which belongs to the ranks",
            "write '--save-rankmap program.map'",
        ),
        (
            "--profile-comm - ./a",
            "option '--profile-comm': a communication profile cannot go to standard output, which belongs to the ranks",
            "write '--profile-comm program.comm'",
        ),
        (
            "--profile-comm f --profile-comm-collectives all ./a",
            "option '--profile-comm-collectives': 'all' is not known",
            "write 'schedule' or 'none'",
        ),
        (
            "--profile-comm-collectives none ./a",
            "option '--profile-comm-collectives' has no effect without '--profile-comm FILE'",
            "add '--profile-comm FILE', or leave '--profile-comm-collectives' out",
        ),
        ("--stats= ./a", "option '--stats': the value is empty", &empty("--stats")),
        ("--trace= ./a", "option '--trace': the value is empty", &empty("--trace")),
        ("--report= ./a", "option '--report': the value is empty", &empty("--report")),
        (
            "--trace=- ./a",
            "option '--trace': a trace cannot go to standard output, which belongs to the ranks",
            "write '--trace trace.json'",
        ),
        (
            "-n 4 -trace ./a b.json",
            "option '-trace' needs a value: -trace FILE.json",
            "a name that does not end in '.json' must follow '=': -trace=FILE",
        ),
        ("-wdir= ./a", "option '-wdir': the value is empty", &empty("-wdir")),
        (
            "-fanout 1 ./a",
            &format!("{} 2 to 1,024", bad_range("-fanout", "1")),
            "write '-fanout 2', or leave '-fanout' out",
        ),
        (
            "--fanout 1025 ./a",
            &format!("{} 2 to 1,024", bad_range("--fanout", "1025")),
            "write '--fanout 1024', or leave '--fanout' out",
        ),
        (
            "--agents-per-node 0 ./a",
            &format!("{} 1 to 4,096", bad_range("--agents-per-node", "0")),
            "write '--agents-per-node 1', or leave '--agents-per-node' out",
        ),
        ("-env =V ./a", "option '-env': the variable's name is empty", &tells("-env")),
        ("-x =V ./a", "option '-x': the variable's name is empty", &tells("-x")),
        (
            "-x OMPI_* ./a",
            "option '-x': 'OMPI_*' is a pattern, and only one variable's name is understood",
            "give '-x' once for each variable",
        ),
        (
            "-genvlist A,,B ./a",
            "option '-genvlist': 'A,,B' has an empty name in its list",
            "write names and commas only: '-genvlist HOME,PATH'",
        ),
        ("-s 5-3 ./a", "option '-s': the ranks 5-3 go downwards", ranks),
        ("-s 1, ./a", "option '-s': '1,' is not a list of ranks", ranks),
        ("--timeout 5x ./a", "option '--timeout': '5x' is not a length of time", time),
        (
            "--timeout 0 ./a",
            "option '--timeout': the time must be greater than 0",
            "leave '--timeout' out for a session without a time limit",
        ),
        (
            "--signal USR1@30 ./a",
            "option '--signal' has no effect without '--timeout'",
            "add '--timeout TIME', or leave it out",
        ),
        (
            "--timeout 30 --signal USR1@0.5m ./a",
            "option '--signal': 30 s before the end is not within the 30 s of '--timeout'",
            "write a shorter time after '@', or a longer '--timeout'",
        ),
        (
            "--timeout 90 --signal USR3 ./a",
            "option '--signal': 'USR3' is no signal",
            "write '--signal USR1@300' for USR1 300 s before the end of --timeout",
        ),
        (
            "--kill-grace 25h ./a",
            "option '--kill-grace': '25h' is too long, the most is 24 hours",
            &tells("--kill-grace"),
        ),
        (
            "--dead-time 0.1 ./a",
            "option '--dead-time': '0.1' is too short, the least is 0.5 seconds",
            "write '--dead-time 0.5', or leave '--dead-time' out",
        ),
        (
            "--dead-time 2,1 ./a",
            "option '--dead-time': the second time, '1', is shorter than the first",
            "write '--dead-time 2,2', or a longer time",
        ),
        (
            "--heartbeat 11 ./a",
            "option '--heartbeat': 11 s is more than a third of the dead time of 20 s",
            "write '--heartbeat 6.666', or leave '--heartbeat' out",
        ),
        (
            "-heartbeat 0.6 -dead-time 1 ./a",
            "option '-heartbeat': 0.6 s is more than a third of the dead time of 1 s",
            "write '-heartbeat 0.333', or leave '-heartbeat' out",
        ),
        (
            "--max-restarts 2 ./a",
            "option '--max-restarts' has no effect without '--on-failure restart'",
            "add '--on-failure restart', or leave '--max-restarts' out",
        ),
        (
            "--on-failure ignore ./a",
            "option '--on-failure': there is no action 'ignore', only abort, continue, restart, restart=job, restart=rank",
            "leave '--on-failure' out",
        ),
        (
            "--clean-shm some ./a",
            "option '--clean-shm': 'some' selects no files, only none, mpi, all do",
            "leave '--clean-shm' out",
        ),
        (
            "--cache hcmba ./a",
            "option '--cache': there is no policy 'hcmba', only hcs, hcma, hcmab, hcmab-lru",
            "did you mean 'hcmab'?",
        ),
        (
            "--cache lru ./a",
            "option '--cache': there is no policy 'lru', only hcs, hcma, hcmab, hcmab-lru",
            "leave '--cache' out",
        ),
        (
            "--simulate 0x1",
            "option '--simulate': 0 is out of range, it must be 1 to 16,777,216",
            "write it as in '--simulate 1024x64'",
        ),
        (
            "--simulate 4 ",
            "option '--simulate': '4' is not a number of nodes, an 'x' and a number of ranks on each",
            "write it as in '--simulate 1024x64'",
        ),
        (
            "--simulate 4x4 --pattern 1:q",
            "option '--pattern': there is no pattern '1:q', only 1:2, 1:p, fence and none",
            "did you mean '1:p'?",
        ),
        (
            "--cache hcs --cache-entries 7 ./a",
            "option '--cache-entries': the policy 'hcs' has no bound on its entries",
            "leave '--cache-entries' out, or add '--cache hcmab-lru'",
        ),
        (
            "--cache-entries 0 --cache hcmab-lru ./a",
            "option '--cache-entries': 0 is out of range, it must be 1 to 268,435,456",
            "write '--cache-entries 1', or leave '--cache-entries' out",
        ),
        (
            "--mpi openpmi ./a",
            "option '--mpi': there is no kind 'openpmi' of MPI library here, only auto, none, openmpi and pmix",
            "did you mean 'openmpi'?",
        ),
        (
            "--mpi=pmi2 ./a",
            "option '--mpi': there is no kind 'pmi2' of MPI library here, only auto, none, openmpi and pmix",
            "leave '--mpi' out: scela-run detects which PMI version a rank speaks",
        ),
        (
            "--label ./a ./b",
            "option '--label': the label './a' is not letters, digits, '.', '_' and '-', beginning with a letter or \
             digit",
            label,
        ),
    ]);
}

#[test]
fn missing_programs() {
    let one = "name one after the options, 'scela-run -np 4 ./a.out', or try 'scela-run --demo'";
    let many = "each ':' begins another command: 'scela-run -np 1 ./a.out : -np 3 ./b.out'";
    check(&[
        ("", "there is no program to run", one),
        ("-np 4", "there is no program to run", one),
        ("-np 4 --", "there is no program to run", one),
        (
            "-genv FOO true",
            "there is no program to run: '-genv' took 'true' as the value of 'FOO'",
            "name a program after it, or write '-genv FOO=VALUE true'",
        ),
        (":", "command 1 of 2 has no program", many),
        ("-np 4 : ./b", "command 1 of 2 has no program", many),
        ("./a : -- : ./b", "command 2 of 3 has no program", many),
        ("./a :", "command 2 of 2 has no program", many),
        ("./a : -genv A 1", "command 2 of 2 has no program", many),
    ]);
    for args in [vec![OsString::new()], vec!["--".into(), "".into()]] {
        let error = error_of(args, &no_file);
        assert_eq!(error.to_string(), "the program's name is empty");
        assert_eq!(error.hint(), "a variable on the command line may be unset");
    }
}

#[test]
fn the_demo_excludes_other_programs() {
    check(&[
        (
            "--demo ./a",
            "option '--demo' runs a built-in program, so './a' cannot be given too",
            "try 'scela-run -np 64 --demo'",
        ),
        (
            "-np 2 ./a : --demo",
            "option '--demo' runs a built-in program, so './a' cannot be given too",
            "try 'scela-run -np 64 --demo'",
        ),
        (
            "--demo : --demo",
            "command 1 of 2 has no program",
            "each ':' begins another command: 'scela-run -np 1 ./a.out : -np 3 ./b.out'",
        ),
    ]);
}

#[test]
fn a_simulation_excludes_programs() {
    let hint = "try 'scela-run --simulate 1024x64'";
    check(&[
        ("--simulate 2x2 ./a", "a simulation runs no program, and './a' is one", hint),
        ("--simulate 2x2 -np 4", "option '-np' is about a program, and a simulation runs none", hint),
        ("--latency 2us ./a", "option '--latency' needs --simulate", hint),
    ]);
}

#[test]
fn configfile_and_command_line() {
    let own_line = "put it on a line of its own in the file, or leave '-configfile' out";
    check(&[
        ("-configfile f ./a", "'f' names the programs, so the command line cannot name './a' too", own_line),
        ("-configfile f --demo", "'f' names the programs, so the command line cannot name '--demo' too", own_line),
        (
            "-np 4 -configfile f",
            "option '-np' applies to one program, so it belongs in 'f', which names the programs",
            "put it on the program's line in the file",
        ),
        (
            "-configfile f :",
            "command 1 of 2 has no program",
            "each ':' begins another command: 'scela-run -np 1 ./a.out : -np 3 ./b.out'",
        ),
    ]);
}

#[test]
fn files_that_cannot_be_read() {
    let error = error_of(words("-configfile /f"), &|_| Err(io::ErrorKind::NotFound.into()));
    assert_eq!(error.to_string(), "cannot read the configfile '/f'");
    assert_eq!(error.hint(), "check the file's name and permissions");
    let source = error.source().expect("the system's own words").to_string();
    assert_eq!(source, "entity not found");

    let error = error_of(words("-configfile f"), &|_| Ok(vec![b'\n'; CONFIGFILE_BYTES_MAX + 1]));
    assert_eq!(error.to_string(), "the configfile 'f' is larger than 16 MiB");
    assert_eq!(error.hint(), "check the file's name");
}

#[test]
fn errors_in_a_configfile_name_their_line() {
    let tells = "write '-n 1', or leave '-n' out";
    check_file(&[
        ("", "the configfile 'f' names no program", "write a line for each program, for example: -np 4 ./a.out"),
        (
            "# none\n-genv A 1\n",
            "the configfile 'f' names no program",
            "write a line for each program, for example: -np 4 ./a.out",
        ),
        (
            "./a\n  -l -nq 4 ./b\n",
            "f, line 2, column 6: there is no option '-nq'",
            &format!("did you mean '-np'? {LISTS}"),
        ),
        ("# two\n-n 0 ./a", "f, line 2, column 1: option '-n': 0 is out of range, it must be 1 to 16,777,216", tells),
        (
            "./a\n -ppn 2 -n 4\n./b\n",
            "f, line 2, column 2: there are options for a program, but no program",
            "put the program on the same line, or end the line with a backslash",
        ),
        (
            "./a :\n./b",
            "f, line 1, column 5: there is no program on one side of this ':'",
            "remove it; each line is a command of its own",
        ),
        (
            "./a\n : ./b",
            "f, line 2, column 2: there is no program on one side of this ':'",
            "remove it; each line is a command of its own",
        ),
        ("./a\n''", "f, line 2, column 1: the program's name is empty", "a variable on the command line may be unset"),
        (
            "-n",
            "f, line 1, column 1: option '-n' needs a value: -n N",
            "'scela-run --help' describes it; write a ':' or an option's name as a value after '='",
        ),
        (
            "-configfile g ./a",
            "f, line 1, column 1: option '-configfile' is not allowed in a configfile",
            "put it on the command line",
        ),
        (
            "./a\n--help",
            "f, line 2, column 1: option '--help' is not allowed in a configfile",
            "put it on the command line",
        ),
        (
            "./a 'x\n",
            "f, line 1, column 5: the quote ' is not closed on its line",
            "close it, or write \\' for the character itself",
        ),
        (
            "./a \\",
            "f, line 1, column 5: the file ends with a backslash",
            "remove it, or write \\\\ for the character itself",
        ),
        (
            "./a \0",
            "f, line 1, column 5: there is a NUL byte, which no argument can contain",
            "check that it is a text file",
        ),
    ]);
}

#[test]
fn text_from_outside_is_escaped() {
    let typed = OsString::from_vec(b"-\x1b[2J\xff\n".to_vec());
    let message = error_of(vec![typed, "./a".into()], &no_file).to_string();
    assert_eq!(message, "there is no option '-\\u{1b}[2J\u{fffd}\\n'");

    let error = error_of(vec!["-np".into(), "x".repeat(1000).into(), "./a".into()], &no_file);
    let cut = "x".repeat(80);
    assert_eq!(error.to_string(), format!("option '-np': '{cut}…' is not a whole number"));
}

#[test]
fn hints_use_the_name_of_the_call() {
    for (argv0, called) in
        [("/usr/bin/mpirun", "mpirun"), ("mpiexec", "mpiexec"), ("", "scela-run"), ("/", "scela-run")]
    {
        let error = parse(OsStr::new(argv0), words("-zzz"), &no_file).expect_err("no such option");
        let hint = error.hint();
        assert!(hint.starts_with(&format!("'{called} --help' lists")), "{hint}");
    }
}
