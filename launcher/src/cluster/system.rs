//! The properties of its machine and environment that the launcher reads before it makes a plan.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nla::sys::{self, EndSignalsHeld};

/// Bytes of a command's standard error that are read.
const COMPLAINT_BYTES_MAX: usize = 1024;

/// How long a command may take whose answer is useful but not necessary.
const SOON: Duration = Duration::from_secs(2);

/// How long a resource manager's command may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// The time between two looks for a signal that ends this process, while it waits for a command's output.
const LOOK_TIME: Duration = Duration::from_millis(20);

/// The time between two looks for the exit of a command that has closed its output.
const EXIT_LOOK_TIME: Duration = Duration::from_millis(1);

/// The launcher's machine and environment, which decide on which nodes a session runs.
///
/// Each read has a bound. A result of one byte more than the bound shows that it was exceeded.
pub trait System {
    /// Returns the value of a variable; `None` if it is not set or empty.
    fn variable(&self, name: &str) -> Option<OsString>;

    /// Reads a file. Waits for the writer of a FIFO for some seconds only.
    fn file(&self, path: &Path, bytes_max: usize) -> io::Result<Vec<u8>>;

    /// Reads standard input to its end.
    fn standard_input(&self, bytes_max: usize) -> io::Result<Vec<u8>>;

    /// Runs a command and returns what it prints. If it fails, the error is the first line of its standard error.
    fn answer(&self, command: &[&str], bytes_max: usize) -> io::Result<Vec<u8>>;

    /// Does the same for a command that the session can do without, and waits less long.
    fn answer_soon(&self, command: &[&str], bytes_max: usize) -> io::Result<Vec<u8>>;
}

/// This process, its environment and its machine.
#[derive(Debug)]
pub struct Process<'a> {
    /// Its environment.
    pub environment: &'a [(OsString, OsString)],
}

impl System for Process<'_> {
    fn variable(&self, name: &str) -> Option<OsString> {
        let (_, value) = self.environment.iter().find(|(known, _)| known == OsStr::new(name))?;
        (!value.is_empty()).then(|| value.clone())
    }

    fn file(&self, path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
        bounded(sys::open_input(path)?, bytes_max)
    }

    fn standard_input(&self, bytes_max: usize) -> io::Result<Vec<u8>> {
        bounded(io::stdin().lock(), bytes_max)
    }

    fn answer(&self, command: &[&str], bytes_max: usize) -> io::Result<Vec<u8>> {
        answer_within(ANSWER_TIME, command, bytes_max)
    }

    fn answer_soon(&self, command: &[&str], bytes_max: usize) -> io::Result<Vec<u8>> {
        answer_within(SOON, command, bytes_max)
    }
}

fn bounded(source: impl Read, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Runs a command as [`System::answer`] does, for at most `time`. A command that takes longer or prints too much is killed with the
/// processes of its group. The same happens if a signal is to end this process; the signal takes effect after that.
pub(crate) fn answer_within(time: Duration, command: &[&str], bytes_max: usize) -> io::Result<Vec<u8>> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let _held = EndSignalsHeld::begin();
    let deadline = Instant::now() + time;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let (said, complaint) = (child.stdout.take(), child.stderr.take());
    let said = reader(said, bytes_max);
    let complaint = reader(complaint, COMPLAINT_BYTES_MAX);
    let heard = received(&said, deadline, &mut child);
    // Too much output, or none in time: end the command.
    if heard.as_ref().map_or(true, |bytes| bytes.len() > bytes_max) {
        end(&mut child);
        return heard;
    }
    let words = received(&complaint, deadline, &mut child);
    let is_late = |error: &io::Error| matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::Interrupted);
    if words.as_ref().is_err_and(is_late) {
        end(&mut child);
        return words;
    }
    if exited(&mut child, deadline)?.success() {
        return heard;
    }
    let words = words.unwrap_or_default();
    let words = String::from_utf8_lossy(&words);
    let first = words.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it failed without a message");
    Err(io::Error::other(first.chars().filter(|c| !c.is_control()).collect::<String>()))
}

/// The bytes that a thread has read, or the payload of its panic.
type ReadResult = thread::Result<io::Result<Vec<u8>>>;

/// Reads a pipe in a thread that ends with the pipe.
fn reader(pipe: Option<impl Read + Send + 'static>, bytes_max: usize) -> mpsc::Receiver<ReadResult> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let read = || pipe.map_or_else(|| Ok(Vec::new()), |pipe| bounded(pipe, bytes_max));
        let result = catch_unwind(AssertUnwindSafe(read));
        // The receiver may have timed out.
        let _ = sender.send(result);
    });
    receiver
}

/// Returns what the reader of a command's pipe has read, or an error at the deadline or after a signal that is to end this process.
/// If the reader has panicked, ends the command and continues the panic in this thread.
fn received(reader: &mpsc::Receiver<ReadResult>, deadline: Instant, child: &mut Child) -> io::Result<Vec<u8>> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match reader.recv_timeout(left.min(LOOK_TIME)) {
            Ok(Ok(bytes)) => return bytes,
            Ok(Err(payload)) => {
                end(child);
                resume_unwind(payload)
            }
            Err(RecvTimeoutError::Disconnected) => return Err(io::ErrorKind::TimedOut.into()),
            Err(RecvTimeoutError::Timeout) => may_wait(left)?,
        }
    }
}

/// Waits for the exit of a command that has closed its output. Ends it at the deadline, or after a signal that is to end this process.
fn exited(child: &mut Child, deadline: Instant) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if let Err(late) = may_wait(left) {
            end(child);
            return Err(late);
        }
        thread::sleep(left.min(EXIT_LOOK_TIME));
    }
}

/// Fails if no time is left, or after a signal that is to end this process.
fn may_wait(left: Duration) -> io::Result<()> {
    if EndSignalsHeld::has_arrived() {
        return Err(io::ErrorKind::Interrupted.into());
    }
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
}

/// Kills a command and the processes of its group, and waits for it.
fn end(child: &mut Child) {
    // It is the leader of its group, and has not been reaped.
    sys::kill_group(child.id());
    let _ = child.wait();
}

/// A `System` for tests.
#[cfg(test)]
pub(crate) mod fake {
    use std::collections::BTreeMap;

    use super::*;

    /// Variables, files and answers by name; everything else is missing.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct Fake {
        variables: BTreeMap<String, String>,
        files: BTreeMap<String, String>,
        answers: BTreeMap<String, String>,
    }

    impl Fake {
        pub(crate) fn with(variables: &[(&str, &str)]) -> Self {
            variables.iter().fold(Self::default(), |fake, (name, value)| fake.and(name, value))
        }

        pub(crate) fn and(&self, name: &str, value: &str) -> Self {
            let mut fake = self.clone();
            fake.variables.insert(name.to_owned(), value.to_owned());
            fake
        }

        pub(crate) fn without(&self, name: &str) -> Self {
            let mut fake = self.clone();
            fake.variables.remove(name);
            fake
        }

        /// Standard input is the file `-`.
        pub(crate) fn file(mut self, path: &str, text: &str) -> Self {
            self.files.insert(path.to_owned(), text.to_owned());
            self
        }

        pub(crate) fn answer(mut self, command: &str, text: &str) -> Self {
            self.answers.insert(command.to_owned(), text.to_owned());
            self
        }
    }

    fn read(texts: &BTreeMap<String, String>, name: &str) -> io::Result<Vec<u8>> {
        texts.get(name).map(|text| text.clone().into_bytes()).ok_or(io::ErrorKind::NotFound.into())
    }

    impl System for Fake {
        fn variable(&self, name: &str) -> Option<OsString> {
            self.variables.get(name).map(OsString::from)
        }

        fn file(&self, path: &Path, _bytes_max: usize) -> io::Result<Vec<u8>> {
            read(&self.files, &path.to_string_lossy())
        }

        fn standard_input(&self, _bytes_max: usize) -> io::Result<Vec<u8>> {
            read(&self.files, "-")
        }

        fn answer(&self, command: &[&str], _bytes_max: usize) -> io::Result<Vec<u8>> {
            read(&self.answers, &command.join(" "))
        }

        fn answer_soon(&self, command: &[&str], bytes_max: usize) -> io::Result<Vec<u8>> {
            self.answer(command, bytes_max)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn empty_variables_count_as_unset() {
        let environment = [("A", "1"), ("B", "")].map(|(name, value)| (name.into(), value.into()));
        let process = Process { environment: &environment };
        assert_eq!(process.variable("A"), Some("1".into()));
        assert_eq!((process.variable("B"), process.variable("C")), (None, None));
    }

    #[test]
    fn one_byte_beyond_the_bound_is_read() {
        assert_eq!(bounded(&b"abc"[..], 3).unwrap(), b"abc");
        assert_eq!(bounded(&b"abcde"[..], 3).unwrap(), b"abcd");
    }

    #[test]
    fn commands_answer_or_fail_with_their_message() {
        let answer = |script, time| answer_within(time, &["sh", "-c", script], 8);
        let long = Duration::from_secs(30);
        assert_eq!(answer("echo n1", long).unwrap(), b"n1\n");
        assert_eq!(answer("exec yes", long).unwrap().len(), 9);
        assert_eq!(answer("echo no such job >&2; exit 1", long).unwrap_err().to_string(), "no such job");
        assert_eq!(answer("exit 1", long).unwrap_err().to_string(), "it failed without a message");
        assert_eq!(answer("exec sleep 60", Duration::from_millis(10)).unwrap_err().kind(), io::ErrorKind::TimedOut);
        let closed = answer("exec >&- 2>&-; exec sleep 60", Duration::from_millis(10));
        assert_eq!(closed.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(answer_within(long, &["/nowhere/flux"], 8).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_processes_of_a_late_command_are_ended() {
        let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), write.as_raw_fd());
        let script = format!("sleep 60 > {path} & wait");
        let late = answer_within(Duration::from_secs(1), &["sh", "-c", &script], 8);
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        // The pipe ends with the last process that has it.
        drop(write);
        assert_eq!(File::from(read).read(&mut [0]).unwrap(), 0);
    }

    /// A pipe whose reader panics.
    struct Broken;

    impl Read for Broken {
        fn read(&mut self, _bytes: &mut [u8]) -> io::Result<usize> {
            panic!("the pipe is broken")
        }
    }

    #[test]
    fn a_panic_of_a_reader_continues_in_the_thread_that_asked() {
        let mut child = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let late = Instant::now() + Duration::from_secs(30);
        let asked = catch_unwind(AssertUnwindSafe(|| received(&reader(Some(Broken), 8), late, &mut child)));
        assert_eq!(asked.unwrap_err().downcast_ref(), Some(&"the pipe is broken"));
        assert!(child.try_wait().unwrap().is_some(), "the command was ended");
    }
}
