//! The checks of all parsers (`parsers`) over the kept corpus in `fuzz/corpus`, and over mutations of it from a seed.
//!
//! `SCELA_FUZZ_RUNS` sets the number of mutations of each target, `SCELA_FUZZ_SEED` their seed, which is printed. Without
//! them a target takes at most a few seconds, so that these tests run on any toolchain in continuous integration;
//! CONTRIBUTING.md says how to run the same checks under libFuzzer.

mod corpus;
mod mutations;
#[expect(unreachable_pub, reason = "fuzz/ has these modules as a library")]
mod parsers;
mod seeds;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use corpus::Corpus;
use mutations::Mutator;
use parsers::{TARGETS, Target};

/// Mutations of a target without `SCELA_FUZZ_RUNS`.
const RUNS: u64 = 20_000;
/// A target stops after this time if `SCELA_FUZZ_RUNS` is not set.
const TARGET_TIME: Duration = Duration::from_secs(3);
/// No check takes longer, on a loaded machine and without optimization.
const CHECK_TIME_MAX: Duration = Duration::from_secs(20);
/// The seed without `SCELA_FUZZ_SEED`.
const SEED: u64 = 1;
/// The most memory of this process, with the checks of several targets at the same time.
const MEMORY_KB_MAX: u64 = 2 << 20;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Runs a target's check. If it fails, or takes too long, says which input it was and how to repeat it.
fn run(target: Target, input: &[u8], origin: &str) {
    let began = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.check)(input)));
    let is_late = began.elapsed() > CHECK_TIME_MAX;
    if outcome.is_err() || is_late {
        let name = target.name;
        let why = if is_late { "took too long" } else { "failed" };
        panic!(
            "{name}: the check of {origin} {why} (see above).\n  to repeat it: printf '%b' '{}' > fuzz/corpus/{name}/new && \
             cargo test -p tests --test fuzz {name}",
            octal(input)
        );
    }
}

/// Returns bytes as the shell's `printf %b` reads them.
fn octal(bytes: &[u8]) -> String {
    let letter = |byte: &u8| match byte {
        b' '..=b'~' if !b"'\\".contains(byte) => char::from(*byte).to_string(),
        byte => format!("\\0{byte:03o}"),
    };
    bytes.iter().map(letter).collect()
}

/// Checks a target's corpus, then mutations of it.
fn check(name: &str) {
    let target = parsers::target(name);
    let corpus = Corpus::of(name);
    for (file, input) in corpus.files() {
        run(target, input, file);
    }
    let seed = number("SCELA_FUZZ_SEED").unwrap_or(SEED);
    let wanted = number("SCELA_FUZZ_RUNS");
    let mut mutator = Mutator::new(seed, corpus.inputs());
    let began = Instant::now();
    let mut runs = 0;
    while runs < wanted.unwrap_or(RUNS) && (wanted.is_some() || began.elapsed() < TARGET_TIME) {
        run(target, &mutator.next_input(), &format!("mutation {runs} of SCELA_FUZZ_SEED={seed}"));
        runs += 1;
    }
    println!("{name}: {} inputs, {runs} mutations of SCELA_FUZZ_SEED={seed}", corpus.inputs().len());
    let peak = peak_memory_kb();
    assert!(peak <= MEMORY_KB_MAX, "{name}: this process used {peak} kB");
}

/// Returns the peak of this process's memory in kB.
fn peak_memory_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the kernel reports a peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*

        #[test]
        fn every_target_is_a_test_and_a_program_of_libfuzzer() {
            let tested = [$(stringify!($name)),*];
            assert_eq!(TARGETS.iter().map(|target| target.name).collect::<Vec<_>>(), tested);
            for name in tested {
                let program = corpus::fuzz_directory().join(format!("fuzz_targets/{name}.rs"));
                let text = std::fs::read_to_string(&program).unwrap_or_else(|error| panic!("{program:?}: {error}"));
                assert!(text.contains(&format!("parsers::target(\"{name}\").check)(data)")), "{program:?} runs another target");
            }
        }
    };
}

targets! {
    allocations bindings boards boot command_lines config_files fault_histories hello host_lists hosts_files journals lanes mappings matrices messages models
    patterns pieces pmi1 pmi2 pmix pools profiles recordings shell_channel spawns ssh staging steps topologies
}

#[test]
fn a_failure_shows_its_input() {
    let fails = Target { name: "fails", check: |data| assert!(!data.starts_with(b"a'"), "on purpose") };
    run(fails, b"b", "an input");
    let failure = catch_unwind(|| run(fails, b"a'\\\n\xff", "an input")).expect_err("the check fails");
    let text = failure.downcast_ref::<String>().expect("a message");
    assert!(text.starts_with("fails: the check of an input failed"), "{text}");
    assert!(text.contains(r"printf '%b' 'a\0047\0134\0012\0377' > fuzz/corpus/fails/new"), "{text}");
}
