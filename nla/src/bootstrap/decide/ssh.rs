//! Judges the end of a remote shell, by the phrases of OpenSSH, of shells, and of the script that becomes the agent.

use super::failure::{StartFailure, StartPhase};

/// Judges a remote shell that ended before its agent answered, by its exit code and by what it wrote to standard
/// error, lines of greetings among it. An unknown end is [`StartPhase::Ended`].
pub(in crate::bootstrap) fn judge(code: Option<i32>, said: &str) -> StartFailure {
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    // Shells print greetings first, so the last known phrase is the cause.
    let known = lines().rev().find_map(|line| Some((phase_of(line)?, line)));
    if let Some((phase, line)) = known {
        return StartFailure::new(phase, without_names(line));
    }
    let phase = match code {
        Some(126 | 127) => StartPhase::Program,
        _ => StartPhase::Ended,
    };
    let words = match (lines().next_back(), code) {
        (Some(line), _) => line.to_owned(),
        (None, Some(0)) => "the remote shell ended by itself and said nothing".to_owned(),
        (None, Some(code)) => format!("the remote shell ended with code {code} and said nothing"),
        (None, None) => "the remote shell was ended and said nothing".to_owned(),
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

/// Removes the names of the command and of the host, so that the lines of many hosts are equal.
fn without_names(line: &str) -> String {
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
    fn phrases_of_openssh_and_shells_name_their_phase() {
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
            (127, "", Program, "the remote shell ended with code 127 and said nothing"),
            (0, "\n", Ended, "the remote shell ended by itself and said nothing"),
            (1, "out of luck", Ended, "out of luck"),
        ] {
            assert_eq!(judge(Some(code), said), StartFailure { phase, words: words.to_owned() }, "{said}");
        }
        assert_eq!(judge(None, "").phase, Ended);
    }

    #[test]
    fn words_are_cut_to_their_bound() {
        let failure = judge(Some(1), &"x".repeat(100_000));
        assert_eq!(failure.words.len(), crate::core::limits::TEXT_BYTES_MAX);
    }
}
