//! Words of remote hosts, of ranks and of file names are printed without characters that a terminal acts on.

use tests::{Outcome, Run, scela, sh};

use crate::script;

/// A text that clears the screen, sets the title, and writes a line that looks like the launcher's.
const HOSTILE: &str = "\x1b[2J\x1b]0;owned\x07\u{9b}31mdone\rscela-run: all is well";
/// The same text as it is printed.
const PRINTED: &str = "\\u{1b}[2J\\u{1b}]0;owned\\u{7}\\u{9b}31mdone\\rscela-run: all is well";

/// Asserts that nothing but newlines in `outcome` acts on a terminal.
#[track_caller]
fn is_printable(outcome: &Outcome) {
    for text in [outcome.out(), outcome.err()] {
        let found = text.chars().find(|c| c.is_control() && *c != '\n');
        outcome.check(found.is_none(), &format!("{found:?} should not be printed"));
    }
}

/// Begins a run on two hosts whose remote shell is a shell script. `$1` is the host.
fn through(shell: &str) -> Run {
    let run = scela().args(["-hosts", "n1,n2", "-ppn", "1", "--launch", "flat"]);
    let path = run.world().file("remote-shell");
    std::fs::write(&path, shell).unwrap();
    run.arg("--bootstrap").arg(format!("exec:sh {} {{host}}", path.display())).program(sh("true"))
}

/// Returns the shell command that writes [`HOSTILE`] and a newline.
fn say() -> String {
    let octal: String = HOSTILE.bytes().map(|byte| format!("\\{byte:03o}")).collect();
    format!("printf '{octal}\\n'")
}

#[test]
fn a_remote_shells_last_words_are_escaped() {
    let refuse = format!("{} >&2; exit 255\n", say());
    let outcome = through(&refuse).run();
    outcome.has_code(251).says(&format!("n[1-2]: {PRINTED}\n"));
    is_printable(&outcome);
    // The debug log has the same words.
    is_printable(through(&refuse).env("SCELA_LOG", "debug").run().has_code(251).says("a remote shell has ended"));
}

#[test]
fn a_remote_shells_greeting_is_not_printed() {
    let outcome = through(&format!("{}; echo its greeting >&2; {} >&2; exit 1\n", say(), say())).run();
    outcome.has_code(251).says(PRINTED);
    is_printable(&outcome);
}

#[test]
fn the_words_of_a_failed_host_among_others_are_escaped() {
    // The launch continues with the spare n2, on this machine, and only notes the failure of n1.
    let shell = format!("case $1 in n1) {} >&2; exit 255;; esac\nshift\nexec \"$@\"\n", say());
    let outcome = through(&shell).args(["-np", "1", "--spares", "1"]).run();
    outcome.has_code(0).says(PRINTED);
    is_printable(&outcome);
}

#[test]
fn a_ranks_abort_message_is_escaped() {
    let abort = ">cmd=abort exitcode=9 message=no\x1b[2J\u{9b}31m\rway";
    for options in [&[][..], &["-v"]] {
        let outcome = scela().np(1).args(options).program(script(["init", abort, "pause"])).run();
        outcome.has_code(9).says("called MPI_Abort(9): no\u{fffd}[2J\u{fffd}31m\u{fffd}way\n");
        is_printable(&outcome);
    }
}

#[test]
fn the_lines_of_ranks_are_escaped_in_the_trace() {
    let abort = ">cmd=abort exitcode=9 message=no\x1b[2J\u{9b}31m\rway";
    let outcome = scela().np(1).env("SCELA_LOG", "trace").program(script(["init", abort, "pause"])).run();
    outcome.has_code(9).says("C=cmd=abort exitcode=9 message=no\\x1b[2J\\xc2\\x9b31m\\rway");
    is_printable(&outcome);
}

#[test]
fn file_names_in_errors_are_escaped() {
    let outcome = scela().np(1).arg("--stats=no\x1b[2J/stats").program(sh("true")).run();
    outcome.has_code(251).says("cannot be written to 'no\\u{1b}[2J/stats': No such file or directory");
    is_printable(&outcome);
}
