//! The help text, made by clap from the table of options.

use clap::builder::Str;
use clap::{Arg, ArgAction};

use super::options::{OPTIONS, Spec};
use crate::exit::EXIT_CODES;

/// Name, version and, if git knew it, the commit.
pub(super) const VERSION: &str = concat!("scela-run ", env!("CARGO_PKG_VERSION"), env!("SCELA_COMMIT"), "\n");

/// The environment variables that scela-run reads, and what they do.
pub const ENVIRONMENT: &[(&str, &str)] = &[
    ("SCELA_LOG", "log to stderr: error, warn, info, debug or trace (default: warn)"),
    ("SCELA_PMI_LIBRARY", "ScELA's libpmi.so, if it is not beside scela-run or in ../lib"),
    ("NO_COLOR", "if set and not empty, no colours on a terminal"),
    ("XDG_CACHE_HOME", "where --calibrate keeps what it measured (default: ~/.cache)"),
];

/// The examples of the help text: the words after the program's name, and their meaning.
pub const EXAMPLES: &[(&str, &str)] = &[
    ("-np 4 ./a.out", "four ranks on your laptop"),
    ("-np 64 --demo", "check that it works here; needs no MPI"),
    ("-l -np 4 ./a.out", "each line of output begins with its rank"),
    ("-f hosts -np 512 ./a.out", "512 ranks on the hosts of a file, over ssh"),
    ("-hosts node[01-32] -ppn 16 --explain ./a.out", "print what would be started where, and how fast"),
    ("-np 1 ./head : -np 7 -wdir /tmp ./tail", "two programs, eight ranks, one MPI_COMM_WORLD"),
    ("-x OMP_NUM_THREADS=2 --timeout 1.5h ./a.out", "a variable for all ranks, and a time limit"),
    ("-outfile-pattern out.%r -np 16 ./a.out", "a file for each rank"),
    ("--simulate 16384x64 --fanouts 2,3,4,8", "find the best fan-out for a million ranks"),
];

const ABOUT: &str = "\
Starts the ranks of parallel programs and supervises them until they end.

A name may have one dash or two, and a value may follow as the next word or after '=':
-np 4, --np 4 and --np=4 are the same. If an option is given twice, the last one counts.
Options end at the program's name; what follows it is the program's, up to a lone ':'.";

const TEMPLATE: &str = "{about}\n\nUsage:\n{usage}\n\n{all-args}{after-help}\n";

/// Returns the command line as clap describes it, made of the table of options: for the help text, man pages
/// and completions. [`cli`](super) says why [`parse`](super::parse) does not parse with it.
pub fn command() -> clap::Command {
    build("scela-run", Length::Full)
}

fn build(called: &str, length: Length) -> clap::Command {
    let usage = format!(
        "  {called} [OPTIONS] PROGRAM [ARGS] [: [OPTIONS] PROGRAM [ARGS]]...\n  \
         {called} [OPTIONS] -configfile FILE\n  \
         {called} [OPTIONS] --demo\n  \
         {called} [OPTIONS] --simulate NODESxPPN\n  \
         {called} [OPTIONS] --calibrate LIST"
    );
    clap::Command::new("scela-run")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .override_usage(usage)
        .help_template(TEMPLATE)
        .after_help(match length {
            Length::Full => after_help(called),
            Length::Screen => format!("'{called} --help' lists all options, examples, exit codes and variables."),
        })
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(
            OPTIONS.iter().filter(|spec| length == Length::Full || spec.short.is_some()).map(|spec| arg(spec, length)),
        )
}

fn arg(spec: &'static Spec, length: Length) -> Arg {
    let (letters, words): (Vec<&str>, Vec<&str>) = spec.names.iter().partition(|name| name.len() == 1);
    let mut letters = letters.into_iter().filter_map(|name| name.chars().next());
    let mut words = words.into_iter();
    let mut arg = Arg::new(Str::from(spec.names[0]))
        .help(match length {
            Length::Full => spec.help.to_owned(),
            Length::Screen => spec.short.unwrap_or(spec.help).to_owned(),
        })
        .help_heading(match length {
            Length::Full => spec.group,
            Length::Screen => "Options",
        })
        .action(if spec.values.is_empty() && spec.optional.is_none() { ArgAction::SetTrue } else { ArgAction::Set });
    if let Some(letter) = letters.next() {
        arg = arg.short(letter);
    }
    if let Some(word) = words.next() {
        arg = arg.long(word);
    }
    if !spec.values.is_empty() {
        arg = arg.num_args(spec.values.len()).value_names(spec.values.iter().copied());
    }
    if let Some(optional) = &spec.optional {
        arg = arg.num_args(0..=1).value_name(optional.name);
    }
    arg.visible_short_aliases(letters).visible_aliases(words)
}

fn after_help(called: &str) -> String {
    let mut text = String::from("Examples:\n");
    for (typed, meaning) in EXAMPLES {
        text += &format!("  {called} {typed}\n      {meaning}\n");
    }
    text += "\nExit codes:\n";
    for (code, meaning) in EXIT_CODES {
        text += &format!("  {code:<7}{meaning}\n");
    }
    text += "\nEnvironment variables:\n";
    for (name, meaning) in ENVIRONMENT {
        text += &format!("  {name:<18} {meaning}\n");
    }
    text.trim_end().to_owned()
}

/// How much the help text says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    /// `-h`: the most common options, on one screen.
    Screen,
    /// `--help`: everything.
    Full,
}

/// Returns the help text, for the name that scela-run was called by.
pub(super) fn text(called: &str, length: Length) -> String {
    build(called, length).render_help().to_string()
}

#[cfg(test)]
mod tests {
    use nla::core::limits::DEAD_TIME;

    use super::super::limits::{BATCH_MAX, FANOUT_MAX, FANOUT_MIN};
    use super::super::options;
    use super::text as text_of;
    use super::*;
    use crate::plan::request::{FANOUT_DEFAULT, KILL_GRACE_DEFAULT};

    fn text(called: &str) -> String {
        text_of(called, Length::Full)
    }

    #[test]
    fn the_short_help_fits_a_screen() {
        let text = text_of("scela-run", Length::Screen);
        assert!(text.lines().count() <= 40, "{} lines:\n{text}", text.lines().count());
        assert!(text.lines().all(|line| line.len() <= 92), "{text}");
        for word in ["-np", "--hosts", "--demo", "--genv", "--timeout", "--explain", "'scela-run --help' lists all"] {
            assert!(text.contains(word.trim_start_matches("-n")), "{word} is not in:\n{text}");
        }
        assert!(!text.contains("--fanout"));
    }

    #[test]
    fn clap_accepts_the_table() {
        command().debug_assert();
    }

    #[test]
    fn every_name_is_shown() {
        let text = text("scela-run");
        for name in OPTIONS.iter().flat_map(|spec| spec.names) {
            let dashes = if name.len() == 1 { "-" } else { "--" };
            let shown = |end| text.contains(&format!("{dashes}{name}{end}"));
            assert!([" ", ",", "]", "\n"].into_iter().any(shown), "{name} is not in help");
        }
    }

    #[test]
    fn lines_fit_a_terminal() {
        for line in text("scela-run").lines() {
            assert!(line.len() <= 92, "{} columns: {line}", line.len());
            assert_eq!(line.trim_end(), line);
        }
    }

    #[test]
    fn headings_follow_the_order_of_the_table() {
        let text = text("scela-run");
        let mut at = 0;
        for spec in OPTIONS {
            let heading = format!("\n{}:\n", spec.group);
            let found = text.find(&heading).expect("each group has its heading");
            assert!(found >= at, "{heading}");
            at = found;
        }
    }

    #[test]
    fn defaults_and_bounds_are_the_real_ones() {
        let help = |name| options::find(name).expect("it is an option").help;
        assert!(help("fanout").contains(&format!("{FANOUT_MIN} to {FANOUT_MAX}")));
        assert!(help("fanout").contains(&format!("{FANOUT_DEFAULT} on one machine")));
        assert!(help("batch").contains(&format!("1 to {BATCH_MAX}")));
        let grace = format!("default: {} seconds", KILL_GRACE_DEFAULT.as_secs());
        assert!(help("kill-grace").contains(&grace));
        assert!(help("dead-time").contains(&format!("default: {} seconds", DEAD_TIME.as_secs())));
    }

    #[test]
    fn codes_and_variables_are_shown() {
        let text = text("mpiexec");
        for (left, right) in EXIT_CODES.iter().chain(ENVIRONMENT) {
            let line = text.lines().find(|line| line.ends_with(right)).expect("a line for it");
            assert!(line.trim_start().starts_with(left));
        }
        let codes: Vec<_> = EXIT_CODES.iter().map(|(code, _)| *code).collect();
        assert_eq!(codes, ["0", "1-255", "1", "1", "128+n", "124", "2", "251", "252", "253"]);
    }

    #[test]
    fn usage_and_examples_use_the_name_of_the_call() {
        let text = text("mpiexec");
        assert!(text.contains("\n  mpiexec [OPTIONS] -configfile FILE\n"), "{text}");
        assert!(text.contains("\n  mpiexec -np 4 ./a.out\n"), "{text}");
    }
}
