//! Processes as /proc describes them, and signals to them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::waiting::eventually;

/// How long a process may take to execute a program. After that its arguments and environment count as empty.
const EXEC_TIME_MAX: Duration = Duration::from_secs(30);

/// More than the arguments or the environment of most processes have.
const READ_BYTES: usize = 128 << 10;

/// A snapshot of a process.
#[derive(Clone, Debug)]
pub struct Process {
    /// The pid.
    pub pid: i32,
    /// The parent's pid.
    pub parent: i32,
    /// The process group.
    pub group: i32,
    /// The session.
    pub session: i32,
    /// The state: R, S, D, T, Z and so on.
    pub state: char,
    /// The first 15 bytes of the name: of its program, or the one that the process has given itself.
    pub name: String,
    /// The command line; empty for a zombie.
    pub argv: Vec<String>,
}

impl Process {
    /// Returns the process `pid`, if it exists. Waits while the process executes a program.
    pub fn of(pid: i32) -> Option<Self> {
        let read = || strings(&read_at_once(Path::new(&format!("/proc/{pid}/cmdline"))));
        let (stat, argv) = read_whole(pid, read, Vec::is_empty)?;
        let Stat { state, parent, group, session, name, .. } = stat;
        Some(Self { pid, parent, group, session, state, name, argv })
    }

    /// Returns all processes.
    pub fn all() -> Vec<Self> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(Self::of).collect()
    }

    /// Returns the children that its main thread has started and that are still its children, oldest first.
    pub fn children(&self) -> Vec<Self> {
        let pids = fs::read_to_string(self.file(&format!("task/{}/children", self.pid))).unwrap_or_default();
        pids.split_ascii_whitespace().filter_map(|pid| Self::of(pid.parse().ok()?)).collect()
    }

    /// Returns the initial environment, empty if it may not be read. Waits while the process executes a program.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let read = || strings(&read_at_once(&self.file("environ")));
        let entries = match read() {
            entries if entries.is_empty() => read_whole(self.pid, read, Vec::is_empty).unwrap_or_default().1,
            entries => entries,
        };
        entries.iter().filter_map(|entry| entry.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    /// Returns the rank's number, if the process is a rank or was started by one.
    pub fn rank(&self) -> Option<u32> {
        self.environment().get("PMI_RANK")?.parse().ok()
    }

    /// Returns the targets of the process's descriptors.
    pub fn open_files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.file("fd")).into_iter().flatten().flatten();
        entries.filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
    }

    /// Returns the inodes of the process's sockets.
    pub fn socket_inodes(&self) -> Vec<u64> {
        let inode = |link: &PathBuf| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
        self.open_files().iter().filter_map(inode).collect()
    }

    /// Returns the bytes of its anonymous resident memory.
    pub fn anonymous_bytes(&self) -> u64 {
        let status = fs::read_to_string(self.file("status")).unwrap_or_default();
        let kibibytes =
            |line: &str| line.strip_prefix("RssAnon:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok();
        status.lines().find_map(kibibytes).unwrap_or_default() * 1024
    }

    /// Returns the present state, or `None` if the process no longer exists.
    pub fn state_now(&self) -> Option<char> {
        Stat::of(self.pid).map(|stat| stat.state)
    }

    /// Returns whether no thread of the process runs any more. Its parent may not have reaped it.
    pub fn has_ended(&self) -> bool {
        self.state_now().is_none_or(|state| is_dead(state) && self.thread_states().len() <= 1)
    }

    /// Returns whether all threads of the process are stopped, or whether it has ended.
    pub fn has_stopped(&self) -> bool {
        self.thread_states().into_iter().all(|state| state == 'T' || state == 't' || is_dead(state))
    }

    /// Returns the states of its threads.
    fn thread_states(&self) -> Vec<char> {
        let threads = fs::read_dir(self.file("task")).into_iter().flatten().flatten();
        threads.filter_map(|thread| Stat::read(&thread.path().join("stat"))).map(|stat| stat.state).collect()
    }

    /// Returns the number of bytes that the process has written, 0 if it no longer exists.
    pub fn written_bytes(&self) -> u64 {
        let counts = fs::read_to_string(self.file("io")).unwrap_or_default();
        counts.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse().ok()).unwrap_or_default()
    }

    /// Sends a signal to the process, and waits until it is stopped after SIGSTOP, or has ended after SIGKILL: both signals
    /// take effect some time after they were sent. Ignores a process that no longer exists.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        Self::signal_all([self], signal);
    }

    /// Sends a signal to all of these processes, then waits for each as [`signal`](Self::signal) does.
    #[track_caller]
    pub fn signal_all<'a>(processes: impl IntoIterator<Item = &'a Self>, signal: Signal) {
        let processes: Vec<_> = processes.into_iter().inspect(|process| process.send(signal)).collect();
        for process in processes {
            if eventually(|| process.has_taken(signal).then_some(())).is_none() {
                panic!("{signal} has no effect on {process:?}, whose threads are {:?}", process.thread_states());
            }
        }
    }

    /// Sends a signal to the process, which may take effect later.
    pub fn send(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.pid), signal);
    }

    /// Returns whether SIGSTOP or SIGKILL has taken effect. Other signals show none here.
    pub fn has_taken(&self, signal: Signal) -> bool {
        match signal {
            Signal::SIGSTOP => self.has_stopped(),
            Signal::SIGKILL => self.has_ended(),
            _ => true,
        }
    }

    /// Returns the path of one of the process's files in /proc.
    pub fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid))
    }
}

/// The fields of a process or thread in its `stat`, as far as they are used.
#[derive(Clone, Default, Debug)]
struct Stat {
    name: String,
    state: char,
    parent: i32,
    group: i32,
    session: i32,
    /// The bytes of its address space: 0 for a zombie and for a thread of the kernel.
    size: u64,
    /// The addresses of its code and of its stack. They differ from one program to the next.
    program: [u64; 2],
}

impl Stat {
    fn of(pid: i32) -> Option<Self> {
        Self::read(&PathBuf::from(format!("/proc/{pid}/stat")))
    }

    fn read(path: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(path).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name may contain blanks and parentheses.
        let (before, after) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after.split_ascii_whitespace().collect();
        // The state is field 3 of proc(5).
        let field = |number: usize| fields.get(number - 3).copied();
        let id = |number| field(number)?.parse::<i32>().ok();
        let address = |number| field(number)?.parse::<u64>().ok();
        Some(Self {
            name: before.split_once('(')?.1.to_owned(),
            state: field(3)?.chars().next()?,
            parent: id(4)?,
            group: id(5)?,
            session: id(6)?,
            size: address(23)?,
            program: [address(26)?, address(28)?],
        })
    }

    /// Returns whether the process is in execve(2), and has got the new address space without arguments and environment. The
    /// kernel sets the address of the code last. For processes that may not be inspected it shows 1.
    fn is_in_exec(&self) -> bool {
        self.size > 0 && self.program[0] == 0
    }
}

/// Returns whether a process or thread in this state runs no more.
fn is_dead(state: char) -> bool {
    state == 'Z' || state == 'X'
}

/// Reads something that is usually not empty of one program of a process: again, if it is empty because the process is in
/// execve(2). Returns it with what the kernel said of the process before.
fn read_whole<T>(pid: i32, read: impl Fn() -> T, is_empty: impl Fn(&T) -> bool) -> Option<(Stat, T)> {
    let deadline = Instant::now() + EXEC_TIME_MAX;
    loop {
        let (before, value) = (Stat::of(pid)?, read());
        if before.size == 0 || !is_empty(&value) {
            return Some((before, value));
        }
        let after = Stat::of(pid)?;
        if before.program == after.program && !after.is_in_exec() || Instant::now() >= deadline {
            return Some((after, value));
        }
        thread::yield_now();
    }
}

/// Reads a file of /proc with one call: a second one would find nothing more if the process has executed another program
/// meanwhile. Returns nothing if it cannot be read.
fn read_at_once(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; READ_BYTES];
    let read = File::open(path).and_then(|mut file| {
        let count = file.read(&mut bytes)?;
        bytes.truncate(count);
        if count == READ_BYTES { file.read_to_end(&mut bytes) } else { Ok(count) }
    });
    if read.is_ok() { bytes } else { Vec::new() }
}

fn strings(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Ends a child with its test.
    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    impl Ended {
        fn start(words: &[&str]) -> (Self, Process) {
            let mut command = Command::new(words[0]);
            let child = command.args(&words[1..]).env("MARKED", "yes").stdout(Stdio::null()).spawn();
            let child = Self(child.expect("the program is installed"));
            let process = Process::of(child.0.id() as i32).expect("it was not waited for");
            (child, process)
        }
    }

    #[test]
    fn a_stat_is_parsed_whatever_the_name() {
        let text = "7 (a) b (c) S 1 2 3 0 -1 4194304 101 0 1 0 0 0 0 0 20 0 1 0 139919 4096 392 18446744073709551615 \
                    0 0 140722549427664 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
        let stat = Stat::parse(text).expect("it is complete");
        assert_eq!((stat.name.as_str(), stat.state), ("a) b (c", 'S'));
        assert_eq!((stat.parent, stat.group, stat.session), (1, 2, 3));
        assert!(stat.is_in_exec());
        assert!(!Stat { size: 0, ..stat.clone() }.is_in_exec());
        assert!(!Stat { program: [1, 1], ..stat }.is_in_exec());
        assert!(Stat::parse("7 (a) S 1").is_none());
    }

    #[test]
    fn a_process_that_executes_programs_has_its_arguments_and_environment_at_any_time() {
        let (_child, process) = Ended::start(&["sh", "-c", "exec sh -c \"$0\" \"$0\"", "exec sh -c \"$0\" \"$0\""]);
        for look in 0..2000 {
            assert_eq!(process.environment().get("MARKED").map(String::as_str), Some("yes"), "look {look}");
            let now = Process::of(process.pid).expect("it does not end");
            assert!(now.argv.first().is_some_and(|word| word == "sh"), "look {look}: {now:?}");
        }
    }

    #[test]
    fn signals_that_stop_and_kill_have_taken_effect() {
        let (_child, process) = Ended::start(&["sh", "-c", "while :; do :; done"]);
        for _ in 0..50 {
            process.signal(Signal::SIGSTOP);
            assert_eq!(process.state_now(), Some('T'));
            process.signal(Signal::SIGCONT);
        }
        process.signal(Signal::SIGKILL);
        assert_eq!(process.state_now(), Some('Z'));
        // It is no error that it has ended.
        process.signal(Signal::SIGSTOP);
    }
}
