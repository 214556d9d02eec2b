//! What a session runs at the other end: plain `sh`, which gets its script, like everything else, by
//! standard input. So the command of the session is two plain words, which mean the same to every login
//! shell, and to commands that use none.
//!
//! The script says first, behind a mark of its own since shells may greet, whether the program is there,
//! and becomes it. It does not ask the program first whether it is of this version, which would be a start of it
//! more: a program knows its version itself, and only if it did not become an agent does a second session look
//! closely. If the program is not there, the script finds a directory where a file can be executed, asks for the
//! program and takes it from its input. A program that was sent stays there under a name with its
//! content's hash, for the next session; only files of one's own are trusted. Where there is no such directory
//! an interpreter that can make a system call takes it into memory, for this session only. Nothing more is
//! sent before the script has said its word: a shell may read on beyond the end of what it executes.
//!
//! In a step there is nobody to ask: its script is a word of the command and has nothing secret in it, and all
//! tasks read the same input, which is the order, or the program and then the order. Who has the program then
//! skips it.

use super::agent_channel::NODE;
use super::protocol::{RemoteProgram, Sent};

/// The version that a program at the other end has to have, as `scela-run --agent-id` prints it.
pub fn agent_id() -> String {
    format!("scela-{}-{}", env!("CARGO_PKG_VERSION"), crate::wire::VERSION)
}

/// The number of the system call that makes a file in memory, for which interpreters have no name.
const MEMFD_CREATE: i64 = libc::SYS_memfd_create;

/// What a session runs.
pub(super) const COMMAND: [&str; 2] = ["/bin/sh", "-s"];

/// Finds the program, or takes it in. Before it come variables: `p` path, `v` anything if it is to be asked for its
/// version, `m` mark, `i` id, `f` the name of the file if it is sent, `s` its size or nothing if it is not, `a`
/// anything if it is sent to all, unasked, `c` the number of memfd_create, `n` what errors begin with, `l` label, `t`
/// dead-time. All of it is read before any of it is done.
///
/// What the interpreters run makes a file in memory, with MFD_EXEC (16) where the kernel knows that, and ends
/// there if it was given nothing else; else it asks for the program, reads no byte too many, and becomes a
/// shell that has the file open.
const OWN: &str = r#"
perl='
use strict;
my ($call, $size, $mark, $then, @words) = @ARGV;
my $name = "scela-run";
my $file = syscall($call, $name, 16);
$file = syscall($call, $name, 0) if $file < 0;
exit 1 if $file < 0;
open(my $out, ">:raw", "/proc/self/fd/$file") or exit 1;
exit 0 unless defined $size;
binmode STDIN;
syswrite(STDOUT, "$mark need\n");
while ($size > 0) {
  my $got = sysread(STDIN, my $piece, $size < 65536 ? $size : 65536);
  exit 126 unless $got && $got == syswrite($out, $piece);
  $size -= $got;
}
close($out);
exec "/bin/sh", "-c", $then, "/proc/self/fd/$file", @words;
'
python='
import ctypes, os, sys
call = ctypes.CDLL(None).syscall
number = int(sys.argv[1])
file = call(number, b"scela-run", 16)
if file < 0: file = call(number, b"scela-run", 0)
if file < 0: sys.exit(1)
if len(sys.argv) == 2: sys.exit(0)
size, mark, then = int(sys.argv[2]), sys.argv[3], sys.argv[4]
os.write(1, (mark + " need\n").encode())
while size > 0:
  piece = os.read(0, min(size, 65536))
  if not piece: sys.exit(126)
  size -= len(piece)
  while piece: piece = piece[os.write(file, piece):]
os.execv("/bin/sh", ["/bin/sh", "-c", then, "/proc/self/fd/%d" % file] + sys.argv[5:])
'
held='
test "$("$0" --agent-id 2>/dev/null </dev/null)" = "$2" || {
  echo "scela: $5, and in memory it does not run: $("$0" --agent-id 2>&1 </dev/null | head -n 1)" >&2
  exit 126
}
echo "$1 here"
exec "$0" --guard "$2" "$3" "$4"
'
interpreter() {
  "$1" "$2" "$3" "$c" >/dev/null 2>&1 </dev/null || return 0
  exec "$1" "$2" "$3" "$c" "$s" "$m" "$held" "$m" "$i" "$l" "$t" "$n$e"
}
runs() { test "$("$1" --agent-id 2>/dev/null </dev/null)" = "$i"; }
is() { test -x "$1" && { test -z "$v" || runs "$1"; }; }
why() { "$1" --agent-id 2>&1 </dev/null | head -n 1; }
skip() { test -z "$a" || head -c "$s" >/dev/null; }
go() { echo "$m here"; exec "$1" --guard "$i" "$l" "$t"; }
no() { echo "scela: $n$1" >&2; exit 126; }
scela() {
  is "$p" && skip && go "$p"
  e="there is no $p"
  test -e "$p" && e="$p is not of this version, or cannot be executed"
  test -n "$s" || no "$e"
  umask 077
  w=
  for d in "$XDG_RUNTIME_DIR" /dev/shm "$TMPDIR" /tmp "$HOME"; do
    test -n "$d" && test -d "$d" || continue
    test -O "$d/$f" && is "$d/$f" && skip && go "$d/$f"
    test -z "$w" || continue
    n=$(mktemp "$d/.scela-XXXXXX" 2>/dev/null) || continue
    if echo "exit 0" >"$n" && chmod 700 "$n" && "$n" </dev/null; then w=$n; else rm -f "$n"; fi
  done 2>/dev/null
  if test -z "$w"; then
    e="$e, and no directory lets a file be executed (XDG_RUNTIME_DIR, /dev/shm, TMPDIR, /tmp, HOME)"
    interpreter perl -e "$perl"
    for x in python3 python /usr/libexec/platform-python; do interpreter "$x" -c "$python"; done
    no "no place: $e, and neither perl nor python can take it into memory"
  fi
  echo "$m need"
  if head -c "$s" >"$w" && runs "$w"; then
    k=${w%/*}/$f
    mv -f "$w" "$k" 2>/dev/null && w=$k
    go "$w"
  fi
  e="$e, and the one that was sent does not run there: $(why "$w")"
  rm -f "$w"
  no "$e"
}
scela
"#;

/// What a task of a step runs, before its script.
pub(super) const STEP_COMMAND: [&str; 2] = ["/bin/sh", "-c"];

/// The script for each task of a step. If `sent` is something, that comes before the order in the input.
pub(super) fn step_script(program: &RemoteProgram, sent: Option<&Sent>, label: &str, dead_ms: &str) -> String {
    match program {
        // Nobody reads what it says to its output.
        RemoteProgram::Own { path, .. } => {
            let all = if sent.is_some() { "y" } else { "" };
            let named = format!("n=\"${NODE}: \"\n");
            // There is no second session.
            assignments(&[("a", all), ("v", "y")]) + &named + &own_script(path, sent, "", label, dead_ms)
        }
        RemoteProgram::Command(command) => format!("exec {command} {}", guard_words(label, dead_ms)),
    }
}

/// The script for the shell. `mark` begins the lines that it says; `label` and `dead_ms` are the guardian's
/// words. With `looks`, a program that is there is asked for its version.
pub(super) fn script(program: &RemoteProgram, looks: bool, mark: &str, label: &str, dead_ms: &str) -> String {
    match program {
        RemoteProgram::Own { path, sent } => {
            let looks = if looks { "y" } else { "" };
            let variables = assignments(&[("a", ""), ("v", looks), ("n", "")]);
            variables + &own_script(path, sent.as_ref(), mark, label, dead_ms)
        }
        // The user's own words, which the shell takes apart.
        RemoteProgram::Command(command) => {
            format!("{{ echo {mark} here; exec {command} {}; }}\n", guard_words(label, dead_ms))
        }
    }
}

/// What a program is told to become.
fn guard_words(label: &str, dead_ms: &str) -> String {
    ["--guard", &agent_id(), label, dead_ms].map(quoted).join(" ")
}

fn own_script(path: &str, sent: Option<&Sent>, mark: &str, label: &str, dead_ms: &str) -> String {
    let (name, size) = sent.map(|sent| (sent.name.as_str(), sent.size.to_string())).unwrap_or_default();
    let variables = [
        ("p", path),
        ("m", mark),
        ("i", &agent_id()),
        ("f", name),
        ("s", &size),
        ("c", &MEMFD_CREATE.to_string()),
        ("l", label),
        ("t", dead_ms),
    ];
    assignments(&variables) + OWN
}

fn assignments(variables: &[(&str, &str)]) -> String {
    variables.iter().map(|(name, value)| format!("{name}={}\n", quoted(value))).collect()
}

/// A word for `sh` that stands for itself.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Command, Output, Stdio};

    use super::*;
    use crate::bootstrap::program::tests::install;

    const MARK: &str = "0123456789abcdef";

    /// Runs the script as a session would, with a directory for the program; what is sent follows when it
    /// is asked for.
    fn run(program: &RemoteProgram, directory: &Path, file: &[u8]) -> Output {
        session(true, program, directory, file)
    }

    fn session(looks: bool, program: &RemoteProgram, directory: &Path, file: &[u8]) -> Output {
        use std::io::{BufRead, BufReader, Read, Write};
        let mut child = Command::new(COMMAND[0])
            .args(&COMMAND[1..])
            .env("XDG_RUNTIME_DIR", directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(script(program, looks, MARK, "a label", "5000").as_bytes()).unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        output.read_line(&mut said).unwrap();
        if said.ends_with("need\n") {
            input.write_all(file).unwrap();
            output.read_line(&mut said).unwrap();
        }
        if said.ends_with("here\n") {
            input.write_all(b"an order").unwrap();
        }
        drop(input);
        output.read_to_string(&mut said).unwrap();
        Output { stdout: said.into_bytes(), ..child.wait_with_output().unwrap() }
    }

    fn own(path: &Path, file: &[u8]) -> RemoteProgram {
        let sent = Sent { name: ".scela-test-0".into(), size: file.len() as u64 };
        RemoteProgram::Own { path: path.to_str().unwrap().to_owned(), sent: Some(sent) }
    }

    /// A program that answers as a scela-run of this version would, or says its words and its input.
    fn program() -> String {
        format!("#!/bin/sh\nif test \"$1\" = --agent-id; then echo {}; else echo run \"$@\"; cat; fi\n", agent_id())
    }

    #[test]
    fn the_program_that_is_there_is_run() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("it's here");
        install(&path, program().as_bytes());
        let said = format!("{MARK} here\nrun --guard {} a label 5000\nan order", agent_id());
        for looks in [false, true] {
            let output = session(looks, &own(&path, b""), directory.path(), b"");
            assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{output:?}");
        }
        let command = RemoteProgram::Command(format!("env A=b '{}'", path.display()).replace("it's", r"it'\''s"));
        let output = run(&command, directory.path(), b"");
        assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{output:?}");
    }

    #[test]
    fn a_missing_one_is_taken_from_the_input_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let ran = format!("here\nrun --guard {} a label 5000\nan order", agent_id());
        for said in [format!("{MARK} need\n{MARK} {ran}"), format!("{MARK} {ran}")] {
            let file = program();
            let own = own(Path::new("/nonexistent/scela-run"), file.as_bytes());
            let output = run(&own, directory.path(), file.as_bytes());
            assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{output:?}");
        }
        let kept: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().flatten().map(|kept| kept.file_name()).collect();
        assert_eq!(kept, [".scela-test-0"]);
    }

    #[test]
    fn what_is_not_sent_has_to_be_there() {
        let directory = tempfile::tempdir().unwrap();
        let own = RemoteProgram::Own { path: "/nonexistent/scela-run".to_owned(), sent: None };
        let output = run(&own, directory.path(), b"");
        assert_eq!(output.status.code(), Some(126));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "scela: there is no /nonexistent/scela-run\n");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_task_of_a_step_runs_what_is_there_or_says_why_not() {
        let directory = tempfile::tempdir().unwrap();
        let run = |program: &RemoteProgram| {
            let mut command = Command::new(STEP_COMMAND[0]);
            command.arg(STEP_COMMAND[1]).arg(step_script(program, None, "a label", "5000"));
            let output = command.env("SLURMD_NODENAME", "n1").stdin(Stdio::null()).output().unwrap();
            String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
        };
        let path = directory.path().join("it's here");
        assert_eq!(run(&own(&path, b"")), format!("scela: n1: there is no {}\n", path.display()));
        install(&path, b"#!/bin/sh\necho scela-0.0.0-1\n");
        assert!(run(&own(&path, b"")).contains("is not of this version"));
        install(&path, program().as_bytes());
        let guard = format!("--guard {} a label 5000\n", agent_id());
        assert_eq!(run(&own(&path, b"")), format!(" here\nrun {guard}"));
        assert_eq!(run(&RemoteProgram::Command("echo it is".into())), format!("it is {guard}"));
    }

    #[test]
    fn a_task_takes_what_is_sent_to_all_or_skips_it() {
        use std::io::Write;
        let directory = tempfile::tempdir().unwrap();
        let file = program();
        let missing = own(Path::new("/nonexistent/scela-run"), b"");
        let sent = Sent { name: ".scela-test-0".into(), size: file.len() as u64 };
        // It takes it, then finds it, and reads its order behind it both times.
        for _ in 0..2 {
            let mut command = Command::new(STEP_COMMAND[0]);
            command.arg(STEP_COMMAND[1]).arg(step_script(&missing, Some(&sent), "a label", "5000"));
            command.env("XDG_RUNTIME_DIR", directory.path()).env(NODE, "n1");
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            child.stdin.take().unwrap().write_all(format!("{file}an order").as_bytes()).unwrap();
            let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
            assert!(said.ends_with(&format!(" here\nrun --guard {} a label 5000\nan order", agent_id())), "{said}");
            assert!(directory.path().join(&sent.name).exists());
        }
    }

    #[test]
    fn only_who_looks_asks_the_program_for_its_version() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("old");
        install(&path, b"#!/bin/sh\ntest \"$1\" = --agent-id || cat >/dev/null\necho \"$1\"\n");
        let output = session(false, &own(&path, b""), directory.path(), b"");
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{MARK} here\n--guard\n"), "{output:?}");
        let file = program();
        let output = session(true, &own(&path, file.as_bytes()), directory.path(), file.as_bytes());
        assert!(String::from_utf8_lossy(&output.stdout).starts_with(&format!("{MARK} need\n{MARK} here\n")));
    }

    #[test]
    fn another_version_and_a_broken_one_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("old");
        install(&path, b"#!/bin/sh\necho scela-0.0.0-1\n");
        let other = b"#!/bin/sh\necho no library >&2\necho nor that >&2\n";
        let output = run(&own(&path, other), directory.path(), other);
        assert_eq!(output.status.code(), Some(126));
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{MARK} need\n"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("is not of this version"), "{said}");
        assert!(said.ends_with("and the one that was sent does not run there: no library\n"), "{said}");
    }
}
