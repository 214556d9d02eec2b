//! Tests of the parent module.

use nla::core::limits::CACHE_ENTRIES_DEFAULT;

use super::*;

/// Checks what a parser returns for good words, and its messages about bad ones.
#[track_caller]
pub(in crate::cli) fn check<T: std::fmt::Debug + PartialEq>(
    parse: impl Fn(&OsStr) -> Parsed<T>,
    good: &[(&str, T)],
    bad: &[(&str, &str)],
) {
    for (typed, value) in good {
        assert_eq!(parse(OsStr::new(typed)).as_ref(), Ok(value), "{typed}");
    }
    for (typed, message) in bad {
        let problem = parse(OsStr::new(typed)).expect_err(typed);
        assert_eq!(problem.to_string(), *message, "{typed}");
    }
}

#[test]
fn numbers() {
    check(
        |value| number(value, 1, RANKS_MAX),
        &[("1", 1), ("007", 7), ("16777216", RANKS_MAX)],
        &[
            ("", "the value is empty"),
            ("0", "0 is out of range, it must be 1 to 16,777,216"),
            ("-4", "-4 is out of range, it must be 1 to 16,777,216"),
            ("16777217", "16777217 is out of range, it must be 1 to 16,777,216"),
            ("99999999999999999999", "99999999999999999999 is out of range, it must be 1 to 16,777,216"),
            ("four", "'four' is not a whole number"),
            ("+4", "'+4' is not a whole number"),
            ("4.0", "'4.0' is not a whole number"),
            ("4 ", "'4 ' is not a whole number"),
            ("-", "'-' is not a whole number"),
            ("٤", "'٤' is not a whole number"),
        ],
    );
}

#[test]
fn times() {
    let ms = Duration::from_millis;
    check(
        timeout,
        &[
            ("1", ms(1000)),
            ("90s", ms(90_000)),
            ("1.5", ms(1500)),
            (".25", ms(250)),
            ("2.", ms(2000)),
            ("30m", ms(1_800_000)),
            ("1.5h", ms(5_400_000)),
            ("0.0166667m", Duration::from_nanos(1_000_002_000)),
            ("0.0000000019", Duration::from_nanos(1)),
            ("8760h", TIMEOUT_MAX),
        ],
        &[
            ("", "the value is empty"),
            ("0", "the time must be greater than 0"),
            ("0.0h", "the time must be greater than 0"),
            ("s", "'s' is not a length of time"),
            (".", "'.' is not a length of time"),
            ("5x", "'5x' is not a length of time"),
            ("-5", "'-5' is not a length of time"),
            ("1e3", "'1e3' is not a length of time"),
            ("inf", "'inf' is not a length of time"),
            ("1.2.3", "'1.2.3' is not a length of time"),
            ("1h30m", "'1h30m' is not a length of time"),
            ("8760.1h", "'8760.1h' is too long, the most is 8760 hours"),
            ("99999999999", "'99999999999' is too long, the most is 8760 hours"),
        ],
    );
    let s = Duration::from_secs;
    check(
        early_signal,
        &[("USR1@300", (10, s(300))), ("sigusr2@5m", (12, s(300))), ("15@0.5", (15, ms(500))), ("URG", (23, s(60)))],
        &[
            ("", "'' is no signal"),
            ("USR3@1", "'USR3' is no signal"),
            ("0@1", "'0' is no signal"),
            ("65", "'65' is no signal"),
            ("B:USR1", "'B:USR1' is no signal"),
            ("KILL@1", "no program can handle 'KILL'"),
            ("19@1", "no program can handle '19'"),
            ("USR1@", "the value is empty"),
            ("USR1@0", "the time must be greater than 0"),
            ("USR1@x", "'x' is not a length of time"),
        ],
    );
    check(
        kill_grace,
        &[("0", Duration::ZERO), ("0.5", ms(500)), ("24h", KILL_GRACE_MAX)],
        &[("25h", "'25h' is too long, the most is 24 hours")],
    );
    check(
        dead_time,
        &[
            ("0.5", (DEAD_TIME_MIN, None)),
            ("20s", (ms(20_000), None)),
            ("1h,24h", (DEAD_TIME_MAX, Some(STOP_TIME_MAX))),
            ("2,2", (ms(2000), Some(ms(2000)))),
        ],
        &[
            ("2,25h", "'25h' is too long, the most is 24 hours"),
            ("2,1", "the second time, '1', is shorter than the first"),
            ("2,", "the value is empty"),
            ("2,3,4", "'3,4' is not a length of time"),
            ("0", "'0' is too short, the least is 0.5 seconds"),
            ("0.499", "'0.499' is too short, the least is 0.5 seconds"),
            ("3601", "'3601' is too long, the most is 1 hour"),
        ],
    );
    check(
        heartbeat,
        &[("0.05", HEARTBEAT_MIN), ("20m", HEARTBEAT_MAX)],
        &[
            ("0.049", "'0.049' is too short, the least is 0.05 seconds"),
            ("1201", "'1201' is too long, the most is 20 minutes"),
        ],
    );
}

#[test]
fn the_ranks_that_read_stdin() {
    let file = |name: &str| StdinTo::File(name.into());
    check(
        stdin,
        &[
            ("none", StdinTo::None),
            ("all", StdinTo::All),
            ("0", StdinTo::Ranks(vec![(0, 0)])),
            ("0,3-5", StdinTo::Ranks(vec![(0, 0), (3, 5)])),
            ("5,3-4,9,4,0-1", StdinTo::Ranks(vec![(0, 1), (3, 5), (9, 9)])),
            ("0-9,2-3", StdinTo::Ranks(vec![(0, 9)])),
            ("16777215", StdinTo::Ranks(vec![(16_777_215, 16_777_215)])),
            ("./0", file("./0")),
            ("./none", file("./none")),
            ("0.txt", file("0.txt")),
            ("All", file("All")),
            ("1 2", file("1 2")),
        ],
        &[
            ("", "the value is empty"),
            ("0,", "'0,' is not a list of ranks"),
            ("-3", "'-3' is not a list of ranks"),
            ("-", "'-' is not a list of ranks"),
            ("1-2-3", "'1-2-3' is not a list of ranks"),
            ("5-3", "the ranks 5-3 go downwards"),
            ("16777216", "rank 16777216 is out of range, ranks go from 0 to 16,777,215"),
            ("9999999999", "rank 9999999999 is out of range, ranks go from 0 to 16,777,215"),
        ],
    );
}

#[test]
fn lists_of_names() {
    let names = |names: &[&str]| names.iter().map(OsString::from).collect::<Vec<_>>();
    check(
        env_names,
        &[("A", names(&["A"])), ("A,B_2,c d", names(&["A", "B_2", "c d"]))],
        &[
            ("", "the value is empty"),
            ("A,", "'A,' has an empty name in its list"),
            (",", "',' has an empty name in its list"),
        ],
    );
    let many = |count| OsString::from(vec!["A"; count].join(","));
    assert!(env_names(&many(ENV_NAMES_MAX)).is_ok());
    let problem = env_names(&many(ENV_NAMES_MAX + 1)).expect_err("too many");
    assert_eq!(problem.to_string(), "the list has more than 4,096 names");
}

#[test]
fn policies() {
    check(
        cache,
        &[
            ("hcs", CachePolicy::Hcs),
            ("HCMA", CachePolicy::Hcma),
            ("hcmab", CachePolicy::Hcmab),
            ("hcmab-lru", CachePolicy::HcmabLru { entries: CACHE_ENTRIES_DEFAULT }),
        ],
        &[
            ("", "the value is empty"),
            ("hcmba", "there is no policy 'hcmba', only hcs, hcma, hcmab, hcmab-lru"),
            ("lru", "there is no policy 'lru', only hcs, hcma, hcmab, hcmab-lru"),
        ],
    );
}

#[test]
fn mpi_libraries() {
    check(
        mpi,
        &[
            ("auto", Mpi::Auto),
            ("none", Mpi::None),
            ("openmpi", Mpi::OpenMpi),
            ("OpenMPI", Mpi::OpenMpi),
            ("pmix", Mpi::Pmix),
        ],
        &[
            ("", "the value is empty"),
            ("open-mpi", "there is no kind 'open-mpi' of MPI library here, only auto, none, openmpi and pmix"),
            ("pmi2", "there is no kind 'pmi2' of MPI library here, only auto, none, openmpi and pmix"),
        ],
    );
}

#[test]
fn labels() {
    const CHARACTERS: &str = "is not letters, digits, '.', '_' and '-', beginning with a letter or digit";
    let longest = "x".repeat(LABEL_BYTES_MAX);
    check(
        label,
        &[("a", "a".to_owned()), ("Run_3.b-x", "Run_3.b-x".to_owned()), (&longest, longest.clone())],
        &[
            ("", "the value is empty"),
            ("a b", &format!("the label 'a b' {CHARACTERS}")),
            ("./a", &format!("the label './a' {CHARACTERS}")),
            ("-np", &format!("the label '-np' {CHARACTERS}")),
            ("é", &format!("the label 'é' {CHARACTERS}")),
            (&"x".repeat(65), "the label has 65 bytes, the most is 64"),
        ],
    );
}
