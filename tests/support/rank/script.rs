//! A rank that sends to the PMI server what its arguments say, step by step, and prints the answers with its rank in
//! front.
//!
//! | step | does |
//! |---|---|
//! | `cmd=...`, or anything else not named below | sends it as a line, prints the line of the answer |
//! | `>TEXT` | sends it as a line |
//! | `>>TEXT` | sends it without a newline |
//! | `~TEXT` | sends it as a line, byte by byte, prints the answer |
//! | `*COUNT TEXT` | sends it as a line COUNT times without reading any answer |
//! | `repeat COUNT TEXT` | sends it as a line and reads a line of answer, COUNT times; fails if an answer reports an error |
//! | `#COUNT` | sends COUNT letters `x` |
//! | `%HEX` | sends these bytes |
//! | `<COUNT` | prints COUNT lines of answer |
//! | `<end` | prints lines of answer until the server closes the connection, then `end` |
//! | `init`, `fence`, `finalize` | does so, and fails if the answer reports an error |
//! | `put KEY VALUE` | puts, and fails if the answer reports an error |
//! | `get KEY` | prints `KEY=VALUE`, or `KEY is absent` |
//! | `@RANK`, `@*` | the following steps are for this rank only, or for all ranks |
//! | `say TEXT` | prints it |
//! | `sh COMMAND` | runs it with `sh -c`, and fails if it does |
//! | `touch FILE`, `await FILE` | creates a file, waits until a file exists |
//! | `exit CODE`, `pause` | exits, or waits for ever |
//!
//! `{rank}` and `{size}` in a step are replaced.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::{process, thread};

use crate::Finding;
use crate::connection::{self, Stream};

struct Conversation {
    stream: Box<dyn Stream>,
    read: Vec<u8>,
}

/// Runs `steps`.
pub(crate) fn run(steps: &[&str]) -> Result<(), Finding> {
    let mut conversation = Conversation { stream: connection::stream()?, read: Vec::new() };
    let (rank, size) = (connection::rank(), connection::size());
    let mut is_mine = true;
    for step in steps {
        if let Some(who) = step.strip_prefix('@') {
            is_mine = who == "*" || who == rank.to_string();
        } else if is_mine {
            let step = step.replace("{rank}", &rank.to_string()).replace("{size}", &size.to_string());
            conversation.step(&step).map_err(|error| format!("{step:?}: {error}"))?;
        }
    }
    Ok(())
}

impl Conversation {
    fn step(&mut self, step: &str) -> Result<(), Finding> {
        let (word, rest) = step.split_once(' ').unwrap_or((step, ""));
        match (word, rest) {
            ("init", "") => self.init(),
            ("fence", "") => self.exact("cmd=barrier_in", "cmd=barrier_out"),
            ("finalize", "") => self.exact("cmd=finalize", "cmd=finalize_ack"),
            ("put", rest) => {
                let (key, value) = rest.split_once(' ').ok_or("a key and a value are needed")?;
                self.exact(&format!("cmd=put kvsname=any key={key} value={value}"), "cmd=put_result rc=0")
            }
            ("get", key) => self.get(key),
            ("repeat", rest) => {
                let (count, text) = rest.split_once(' ').ok_or("a count and a text are needed")?;
                (0..count.parse::<u32>()?).try_for_each(|_| self.exact(text, "cmd="))
            }
            ("say", text) => say(text),
            ("sh", command) => match Command::new("sh").args(["-c", command]).status()? {
                status if status.success() => Ok(()),
                status => Err(format!("the command ended with {status}").into()),
            },
            ("touch", file) => Ok(File::create(file).map(drop)?),
            ("await", file) => await_file(Path::new(file)),
            ("exit", code) => process::exit(code.parse()?),
            ("pause", "") => loop {
                thread::park();
            },
            _ => self.bytes(step),
        }
    }

    fn bytes(&mut self, step: &str) -> Result<(), Finding> {
        if let Some(text) = step.strip_prefix(">>") {
            self.send(text.as_bytes())
        } else if let Some(text) = step.strip_prefix('>') {
            self.send(format!("{text}\n").as_bytes())
        } else if let Some(text) = step.strip_prefix('~') {
            for byte in text.bytes().chain([b'\n']) {
                self.send(&[byte])?;
                thread::yield_now();
            }
            self.show()
        } else if let Some(rest) = step.strip_prefix('*') {
            let (count, text) = rest.split_once(' ').ok_or("a count and a text are needed")?;
            self.send(format!("{text}\n").repeat(count.parse()?).as_bytes())
        } else if let Some(count) = step.strip_prefix('#') {
            self.send(&vec![b'x'; count.parse()?])
        } else if let Some(hex) = step.strip_prefix('%') {
            let digits: Vec<char> = hex.chars().collect();
            let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16);
            let bytes: Vec<u8> = digits.chunks(2).map(byte).collect::<Result<_, _>>()?;
            self.send(&bytes)
        } else if step == "<end" {
            while let Some(line) = self.line()? {
                say(&line)?;
            }
            say("end")
        } else if let Some(count) = step.strip_prefix('<') {
            (0..count.parse::<u32>()?).try_for_each(|_| self.show())
        } else {
            self.send(format!("{step}\n").as_bytes())?;
            self.show()
        }
    }

    fn init(&mut self) -> Result<(), Finding> {
        if let Some(rank) = connection::port_rank()
            && self.read.is_empty()
        {
            self.send(format!("cmd=initack pmiid={rank}\n").as_bytes())?;
            for _ in 0..4 {
                self.line()?.ok_or("the server closed during initack")?;
            }
        }
        self.exact("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init")
    }

    fn get(&mut self, key: &str) -> Result<(), Finding> {
        self.send(format!("cmd=get kvsname=any key={key}\n").as_bytes())?;
        let answer = self.line()?.ok_or("the server closed")?;
        match answer.split_once(" value=").filter(|(head, _)| head.starts_with("cmd=get_result rc=0")) {
            Some((_, value)) => say(&format!("{key}={value}")),
            None if answer.starts_with("cmd=get_result rc=-1") => say(&format!("{key} is absent")),
            None => Err(format!("the answer was {answer:?}").into()),
        }
    }

    fn exact(&mut self, request: &str, answer: &str) -> Result<(), Finding> {
        self.send(format!("{request}\n").as_bytes())?;
        let got = self.line()?.ok_or("the server closed")?;
        let is_good = got.starts_with(answer) && !got.contains("rc=-");
        if is_good { Ok(()) } else { Err(format!("the answer was {got:?}").into()) }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Finding> {
        self.stream.write_all(bytes)?;
        Ok(self.stream.flush()?)
    }

    fn show(&mut self) -> Result<(), Finding> {
        let line = self.line()?.ok_or("the server closed")?;
        say(&line)
    }

    fn line(&mut self) -> Result<Option<String>, Finding> {
        let mut block = [0; 4096];
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            match self.stream.read(&mut block) {
                Ok(0) => return Ok(None),
                Ok(count) => self.read.extend_from_slice(&block[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Prints one line on standard output, in one write.
fn say(text: &str) -> Result<(), Finding> {
    let line = format!("{}: {text}\n", connection::rank());
    let mut stdout = std::io::stdout();
    stdout.write_all(line.as_bytes())?;
    Ok(stdout.flush()?)
}

fn await_file(file: &Path) -> Result<(), Finding> {
    let found = tests::eventually(|| fs::exists(file).is_ok_and(|there| there).then_some(()));
    found.ok_or_else(|| "timeout: the file does not exist".into())
}
