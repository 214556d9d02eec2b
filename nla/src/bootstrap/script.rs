//! The script that a remote shell runs: it finds the agent's program on the node, or receives it, and executes it.
//!
//! The remote shell runs plain `sh`, which reads this script from standard input like everything else. So the command
//! has two plain words, which mean the same to every login shell, and to a command that starts no login shell.
//!
//! The script first writes whether the program is there. A mark of its own precedes that word, since shells may print
//! greetings. It does not ask the program for its version first, which would cost one more start: the program checks
//! the version itself, and if it does not become an agent, a second remote shell asks. If the program is not there, the
//! script finds a directory where files can be executed, asks for the program, and reads it from standard input. If
//! there is no such directory, an interpreter that can make a system call reads the program into memory, for this
//! session only. The starter sends nothing more before the script has written its word: a shell may read beyond the end
//! of the command that it executes.
//!
//! A task of a step cannot ask. Its script is a word of the command, so it contains no secret, and all tasks read the
//! same input: the order, or the program and then the order. A task that has the program skips it.
//!
//! **systemd-logind may kill what an ssh connection leaves** when it closes (`KillUserProcesses=yes`). If the script runs in
//! the scope of a login session, it asks logind, and its word says that the remote shell must last as long as the agent.
//!
//! **Other users of the node must not choose what the script runs.** The program found under the launcher's path must
//! belong to root, to this user, or to the owner of the starter's own program, whose code this user runs already.
//! Neither group nor others may write to it. The script opens it, checks owner and mode of the descriptor, and executes the
//! descriptor, so that a later change of the path does no harm. A program that can only be executed, not read, is
//! executed by its path, if owner and mode also permit that for every directory above it: sticky directories may be
//! writable, and none may be a link. A name that is missing while it is checked is refused.
//!
//! A program that was sent is stored in `.scela-UID`, a directory that the script makes with mode 0700, enters, and then
//! checks: the working directory must belong to this user, have mode 0700, and be the inode that its path names without
//! following links. The script then uses relative paths only, so that a later change of the path does no harm. It
//! writes the file under a unique name, opens it once as descriptor 9, compares its SHA-256, renames it for later
//! sessions, and executes the descriptor. A stored file passes the same checks each time. If another user has taken
//! every such name, the script uses a directory of `mktemp -d` and removes it before the program starts.

use super::agent_channel::NODE;
use super::program;
use super::protocol::{RemoteProgram, Sent};

/// Returns the version that the program at the other end must have, as `scela-run --agent-id` prints it.
pub fn agent_id() -> String {
    format!("scela-{}-{}", env!("CARGO_PKG_VERSION"), crate::wire::VERSION)
}

/// The number of memfd_create, which the interpreters cannot call by name.
const MEMFD_CREATE: i64 = libc::SYS_memfd_create;

/// The script's word if the program is there, and systemd-logind would kill the agent at the end of the remote shell.
pub(super) const HERE_LASTS: &str = "here lasts";

/// The command that a remote shell runs.
pub(super) const COMMAND: [&str; 2] = ["/bin/sh", "-s"];

/// Finds the program, or receives it. Assignments of variables precede it: `p` the path, `v` non-empty to ask the
/// program for its version, `m` the mark, `i` the version, `h` the SHA-256 of the program that can be sent, `s` its size
/// or empty, `o` the owner of the starter's own program, `a` non-empty if the program is sent to all tasks unasked, `q`
/// non-empty if a sent program is removed before it starts, `c` the number of memfd_create, `n` the prefix of error
/// messages, `l` the label, `t` the dead-time. The shell reads all of the script before it executes any of it.
///
/// Neither interpreter may load modules from the working directory, which may be another user's: Python would begin there,
/// and takes further places from the environment.
///
/// The programs for the interpreters make a file in memory, with MFD_EXEC (16) if the kernel supports it. Without
/// further arguments they exit then; otherwise they ask for the program, read exactly its bytes, and become a shell that
/// has the file open.
///
/// A task of a step, which has no mark, reads its input to the end even if it fails: when a task leaves input unread,
/// `srun` finds its connection to that node reset, and ends the step on all nodes.
///
/// `command exec` redirects: a plain `exec` would end the shell if the file could not be opened. Commands get descriptor
/// 9 as their standard input, since some shells close it on exec.
const OWN: &str = r#"
perl='
BEGIN { @INC = grep { $_ ne "." } @INC }
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
import sys
sys.path[:] = [place for place in sys.path if place]
import ctypes, os
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
if ! whole "$0" "$6"; then
  e="what arrived in memory is not what was sent"
elif test "$("$0" --agent-id 2>/dev/null </dev/null)" != "$2"; then
  e="in memory it does not run: $("$0" --agent-id 2>&1 </dev/null | head -n 1)"
else
  echo "$1 here$7"
  exec "$0" --guard "$2" "$3" "$4"
fi
echo "scela: $5, and $e" >&2
test -n "$1" || cat >/dev/null
exit 126
'
whole='
whole() {
  if command -v sha256sum >/dev/null; then
    x=$(sha256sum <"$1")
  else
    x=$("$1" --agent-digest </dev/null)
  fi 2>/dev/null
  test "${x%% *}" = "$2"
}
'
eval "$whole"
interpreter() {
  "$@" "$c" >/dev/null 2>&1 </dev/null || return 0
  ends_with_login
  exec "$@" "$c" "$s" "$m" "$whole$held" "$m" "$i" "$l" "$t" "$n$e" "$h" "$k"
}
runs() { test "$("$1" --agent-id 2>/dev/null </dev/null)" = "$i"; }
why() { "$1" --agent-id 2>&1 </dev/null | head -n 1; }
skip() { test -z "$a" || head -c "$s" >/dev/null; }
k=
ends_with_login() {
  while read -r x; do
    case $x in
    */session-*.scope)
      case $(timeout 2 loginctl show-session --property=KillUserProcesses </dev/null) in
      *=yes) k=' lasts' ;;
      esac
      ;;
    esac
  done </proc/self/cgroup
} 2>/dev/null
go() {
  ends_with_login
  echo "$m here$k"
  exec "$1" --guard "$i" "$l" "$t"
}
no() {
  echo "scela: $n$1" >&2
  test -n "$m" || cat >/dev/null
  exit 126
}
back() { cd -P "${b:-/}" || cd -P "$HOME" || cd /; } 2>/dev/null
opens() { test -f "$1" && test -r "$1" && { command exec 9<"$1"; } 2>/dev/null; }
safe() {
  while read -r mode _ owner _; do
    case $mode in
    -????-??-* | d????-??-* | d????????[tT]*) ;;
    *) return 1 ;;
    esac
    case $owner in
    0 | "$u" | "$o") ;;
    *) return 1 ;;
    esac
  done <<END
$(ls "$@" 2>/dev/null || echo failed)
END
}
own_descriptor() {
  g=/proc/self/fd/9
  opens "$1" && safe -Lnd /dev/stdin <&9
}
fixed() {
  test ! -r "$p" && x=$(cd -P "${p%/*}/" && pwd -P) || return 1
  g=${x%/}/${p##*/}
  set -- "$g"
  while test -n "$x"; do
    set -- "$x" "$@"
    x=${x%/*}
  done
  safe -nd / "$@"
}
is() {
  test -f "$p" && test -x "$p" || return 1
  own_descriptor "$p" || fixed || {
    e="$p belongs to another user, or others may write to it"
    x=$(ulimit -n)
    case $x in
    "" | ? | 1?) e="$p cannot be examined, since the limit on open files (ulimit -n) is ${x:-too low}" ;;
    esac
    return 1
  }
  test -z "$v" || runs "$g"
}
enters() {
  test ! -h "$1" && cd -P "$1/." && test -O . || return 1
  same=
  while read -r inode mode _ owner _; do
    case $mode in
    drwx--[-S]---*) ;;
    *) return 1 ;;
    esac
    test "${same:=$inode $owner}" = "$inode $owner" || return 1
  done <<END
$(ls -ndi . "$1" || echo failed)
END
}
drop() {
  rm -f "$w"
  cd /
  rmdir "$r"
} 2>/dev/null
has() {
  test -d "$1/.scela-$u" && enters "$1/.scela-$u" || return 1
  test ! -h "$f" && own_descriptor "$f" && whole "$g" "$h" || return 1
  test -z "$v" || runs "$g" || return 1
  test -z "$q" || {
    rm -f "$f"
    cd /
    rmdir "$1/.scela-$u"
  } 2>/dev/null
  return 0
}
room() {
  enters "$r" || return 1
  trap 'drop; exit 126' HUP INT TERM
  find . -name 'new-*' -mtime +1 -exec rm -f {} +
  w=$(mktemp ./new-XXXXXX) && echo "exit 0" >"$w" && chmod 700 "$w" && "$w" </dev/null &&
    head -c "$s" /dev/zero >"$w" && return
  drop
  return 1
}
own() {
  r=$1/.scela-$u
  mkdir -m 700 "$r"
  room
}
unique() {
  r=$(mktemp -d "$1/.scela-$u-XXXXXX") || return 1
  f=
  room
}
somewhere() {
  for d in "$XDG_RUNTIME_DIR" /dev/shm "$TMPDIR" /tmp "$HOME"; do
    case $d in
    /*) test -d "$d" && "$1" "$d" && return ;;
    esac
  done 2>/dev/null
  return 1
}
scela() {
  u=$(id -u)
  b=$PWD
  e="there is no $p"
  test -e "$p" && e="$p is not of this version, or cannot be executed"
  is && skip && go "$g"
  test -n "$s" || no "$e"
  umask 077
  g=/proc/self/fd/9
  f=./scela-run-$h
  somewhere has && skip && back && go "$g"
  somewhere own || somewhere unique || {
    back
    e="$e, and files cannot be executed in any directory (XDG_RUNTIME_DIR, /dev/shm, TMPDIR, /tmp, HOME)"
    interpreter perl -e "$perl"
    for x in python3 python /usr/libexec/platform-python; do interpreter "$x" -E -s -c "$python"; done
    no "no place: $e, and neither perl nor python can take it into memory"
  }
  echo "$m need"
  if ! { head -c "$s" 1<>"$w" && opens "$w" && whole "$g" "$h"; }; then
    e="$e, and the one that was sent did not arrive whole"
  elif ! runs "$g"; then
    e="$e, and the one that was sent does not run there: $(why "$g")"
  else
    test -z "$q" && test -n "$f" && mv -f "$w" "$f" 2>/dev/null || drop
    trap - HUP INT TERM
    back
    go "$g"
  fi
  drop
  no "$e"
}
scela
"#;

/// The command that a task of a step runs; its script follows.
pub(super) const STEP_COMMAND: [&str; 2] = ["/bin/sh", "-c"];

/// Returns the script for each task of a step. With `sent`, the program precedes the order in the input.
pub(super) fn step_script(program: &RemoteProgram, sent: Option<&Sent>, label: &str, dead_ms: &str) -> String {
    match program {
        // The mark is empty: nothing reads the output of a task.
        RemoteProgram::Own { path, stores, .. } => {
            let all = if sent.is_some() { "y" } else { "" };
            let named = format!("n=\"${NODE}: \"\n");
            // The program must be asked for its version, since no second attempt follows.
            let variables = assignments(&[("a", all), ("v", "y"), ("q", removal(*stores))]);
            variables + &named + &own_script(path, sent, "", label, dead_ms)
        }
        RemoteProgram::Command(command) => format!("exec {command} {}", guard_words(label, dead_ms)),
    }
}

/// Returns the script for a remote shell. `mark` precedes its words; `label` and `dead_ms` are arguments of the guardian.
/// With `checks_version`, the script asks a program that is there for its version.
pub(super) fn script(program: &RemoteProgram, checks_version: bool, mark: &str, label: &str, dead_ms: &str) -> String {
    match program {
        RemoteProgram::Own { path, sent, stores } => {
            let version = if checks_version { "y" } else { "" };
            let variables = assignments(&[("a", ""), ("v", version), ("n", ""), ("q", removal(*stores))]);
            variables + &own_script(path, sent.as_ref(), mark, label, dead_ms)
        }
        // The user's own command, which the shell splits into words.
        RemoteProgram::Command(command) => {
            format!("{{ echo {mark} here; exec {command} {}; }}\n", guard_words(label, dead_ms))
        }
    }
}

/// Returns the value of the script's variable `q`.
fn removal(stores: bool) -> &'static str {
    if stores { "" } else { "y" }
}

/// Returns the arguments that make the program a guardian with an agent, quoted for `sh`.
fn guard_words(label: &str, dead_ms: &str) -> String {
    ["--guard", &agent_id(), label, dead_ms].map(quoted).join(" ")
}

fn own_script(path: &str, sent: Option<&Sent>, mark: &str, label: &str, dead_ms: &str) -> String {
    let (digest, size) = sent.map(|sent| (sent.digest.as_str(), sent.size.to_string())).unwrap_or_default();
    let owner = program::owner().map(|owner| owner.to_string()).unwrap_or_default();
    let variables = [
        ("p", path),
        ("m", mark),
        ("i", &agent_id()),
        ("h", digest),
        ("s", &size),
        ("o", &owner),
        ("c", &MEMFD_CREATE.to_string()),
        ("l", label),
        ("t", dead_ms),
    ];
    assignments(&variables) + OWN
}

fn assignments(variables: &[(&str, &str)]) -> String {
    variables.iter().map(|(name, value)| format!("{name}={}\n", quoted(value))).collect()
}

/// Quotes a word for `sh`.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod traps;

#[cfg(test)]
mod tests;
