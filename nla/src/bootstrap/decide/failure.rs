//! Why an agent could not be started, as far as the session that was to start it tells.

use serde::{Deserialize, Serialize};

use crate::core::bounded;

/// How far the start of an agent had come when it failed.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum StartPhase {
    /// The command that opens sessions could not be run here.
    Command,
    /// The host's name means nothing.
    Name,
    /// Nobody answers at its address, or there is no way to it.
    Connect,
    /// It is there and takes no connection: nobody listens, or too many have called at once.
    Refused,
    /// It answered and would not go on: too many sessions at once, as a rule.
    Busy,
    /// Its key is not the one that is known, or is not known.
    HostKey,
    /// It did not let the user in.
    Login,
    /// The session was there; the program that becomes the agent could not be found, sent or executed.
    Program,
    /// It said nothing, or nothing that an agent says, for too long.
    Answer,
    /// It could not reach its parent.
    ConnectBack,
    /// It was there, and did not come into the tree over its session.
    Join,
    /// It is too small for an agent: descriptors, memory, processes.
    Limits,
    /// The resource manager did not start it, or has ended it.
    Step,
    /// It ended for another reason.
    Ended,
}

impl StartPhase {
    /// How often it is tried again, since it may go well a moment later. As long as other sessions are on their way
    /// from here, they may be why.
    pub fn retries(self) -> u32 {
        match self {
            Self::Busy => 8,
            Self::Refused => 5,
            _ => 0,
        }
    }
}

/// An agent could not be started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StartFailure {
    /// How far it had come.
    pub phase: StartPhase,
    /// What the session, or who opened it, said last: one line.
    pub words: String,
}

impl StartFailure {
    /// The time in which all agents must be there is over, or what of it there was for this one.
    pub fn late() -> Self {
        Self::new(StartPhase::Answer, "no answer in time (--start-timeout)")
    }

    /// A failure in these words, cut to a bound.
    pub fn new(phase: StartPhase, words: impl Into<String>) -> Self {
        Self { phase, words: bounded(words.into()) }
    }
}

/// What a session that ended before there was an agent says by its exit code and its last words, which
/// are whatever it wrote to its standard error, lines of greetings among them.
///
/// The words are OpenSSH's, of shells and of the script that becomes the agent; what is not known is
/// [`StartPhase::Ended`].
pub(in crate::bootstrap) fn judge(code: Option<i32>, said: &str) -> StartFailure {
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    // The last line that means something; greetings come before it.
    let telling = lines().rev().find_map(|line| Some((phase_of(line)?, line)));
    if let Some((phase, line)) = telling {
        return StartFailure::new(phase, stripped(line));
    }
    let last = lines().next_back();
    let phase = match code {
        Some(126 | 127) => StartPhase::Program,
        _ => StartPhase::Ended,
    };
    let words = match (last, code) {
        (Some(line), _) => line.to_owned(),
        (None, Some(0)) => "the session ended by itself and said nothing".to_owned(),
        (None, Some(code)) => format!("the session ended with code {code} and said nothing"),
        (None, None) => "the session was ended and said nothing".to_owned(),
    };
    StartFailure::new(phase, words)
}

fn phase_of(line: &str) -> Option<StartPhase> {
    use StartPhase::{Busy, Connect, HostKey, Limits, Login, Name, Program, Refused};
    const WORDS: [(&str, StartPhase); 26] = [
        ("Could not resolve hostname", Name),
        ("Name or service not known", Name),
        ("Host key verification failed", HostKey),
        ("REMOTE HOST IDENTIFICATION HAS CHANGED", HostKey),
        ("Permission denied (", Login),
        ("Too many authentication failures", Login),
        ("This account is currently not available", Login),
        ("account is locked", Login),
        ("Connection refused", Refused),
        ("Connection timed out", Connect),
        ("No route to host", Connect),
        ("Network is unreachable", Connect),
        ("Operation timed out", Connect),
        ("kex_exchange_identification", Busy),
        ("ssh_exchange_identification", Busy),
        ("Exceeded MaxStartups", Busy),
        ("Connection closed by remote host", Busy),
        ("Connection reset by", Busy),
        ("Connection closed by", Busy),
        ("scela: no place", Program),
        ("scela: ", Program),
        ("command not found", Program),
        ("No such file or directory", Program),
        ("Exec format error", Program),
        ("Cannot allocate memory", Limits),
        ("Resource temporarily unavailable", Limits),
    ];
    WORDS.iter().find(|(words, _)| line.contains(words)).map(|(_, phase)| *phase)
}

/// Without what everybody knows, so that lines of many hosts are equal: the name of the command, and of
/// the host where ssh puts it.
fn stripped(line: &str) -> String {
    let line = line.strip_prefix("ssh: ").unwrap_or(line);
    let line = line.strip_prefix("scela: ").unwrap_or(line);
    if let Some(rest) = line.strip_prefix("Could not resolve hostname ") {
        return rest.split_once(": ").map_or(rest, |(_, why)| why).to_owned();
    }
    // connect to host H port 22: WHY; user@H: WHY
    match line.rsplit_once(": ") {
        Some((head, why)) if head.starts_with("connect to host ") || !head.contains(' ') => why.to_owned(),
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ssh_says_is_understood() {
        use StartPhase::*;
        for (code, said, phase, words) in [
            (
                255,
                "ssh: Could not resolve hostname nosuch: Name or service not known\n",
                Name,
                "Name or service not known",
            ),
            (
                255,
                "ssh: Could not resolve hostname n1: Temporary failure in name resolution",
                Name,
                "Temporary failure in name resolution",
            ),
            (255, "ssh: connect to host n3 port 22: Connection refused\r\n", Refused, "Connection refused"),
            (255, "ssh: connect to host n3 port 22: No route to host", Connect, "No route to host"),
            (255, "me@n1: Permission denied (publickey).", Login, "Permission denied (publickey)."),
            (255, "Welcome!\nHost key verification failed.\n", HostKey, "Host key verification failed."),
            (
                255,
                "kex_exchange_identification: read: Connection reset by peer\nConnection reset by 10.0.0.1 port 22",
                Busy,
                "Connection reset by 10.0.0.1 port 22",
            ),
            (
                126,
                "scela: no place on this host lets a file be executed",
                Program,
                "no place on this host lets a file be executed",
            ),
            (
                127,
                "bash: line 1: /opt/scela-run: No such file or directory",
                Program,
                "bash: line 1: /opt/scela-run: No such file or directory",
            ),
            (127, "", Program, "the session ended with code 127 and said nothing"),
            (0, "\n", Ended, "the session ended by itself and said nothing"),
            (1, "out of luck", Ended, "out of luck"),
        ] {
            assert_eq!(judge(Some(code), said), StartFailure { phase, words: words.to_owned() }, "{said}");
        }
        assert_eq!(judge(None, "").phase, Ended);
    }

    #[test]
    fn words_have_a_bound() {
        let failure = judge(Some(1), &"x".repeat(100_000));
        assert_eq!(failure.words.len(), crate::core::limits::TEXT_BYTES_MAX);
    }
}
