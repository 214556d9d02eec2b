//! Selects the last lines of standard error of the rank that failed first.

use std::collections::BTreeMap;

use bytes::Bytes;
use nla::core::{Failure, NamespaceId, printable};
use nla::driver::{LastWriter, Quote, split_stream_message};
use pmi::Rank;

use super::rank_locations::RankLocations;
use super::report::name_ranks;

/// The quotes that agents have sent, and who has written last to the launcher's standard error.
#[derive(Debug)]
pub(crate) struct LastLines {
    /// The number of agents. Each sends one quote.
    agents: u32,
    quotes: BTreeMap<(NamespaceId, Rank), Quote>,
    /// Notes nothing where agents write to the launcher's stream themselves.
    last_writer: LastWriter,
}

impl LastLines {
    pub(crate) fn new(agents: u32) -> Self {
        Self { agents, quotes: BTreeMap::new(), last_writer: LastWriter::default() }
    }

    /// Takes a message of the lane Stderr. Returns it if it is output.
    pub(crate) fn take(&mut self, message: Bytes) -> Option<Bytes> {
        if let Some(quote) = Quote::parse(&message) {
            if self.quotes.len() < self.agents as usize {
                self.quotes.insert((quote.namespace, quote.rank), quote);
            }
            return None;
        }
        if let Some((namespace, rank, data)) = split_stream_message(message.clone()) {
            self.last_writer.note((namespace, rank), &data);
        }
        Some(message)
    }

    /// Returns the last lines of the rank of this failure, without control characters, and whether they are the last ones of all
    /// ranks as well. Such lines are what the user has just read. Empty if the rank has written nothing.
    pub(crate) fn of(&self, failure: &Failure, locations: &RankLocations) -> (Vec<String>, bool) {
        let is_of = |quote: &&Quote| {
            locations.known(quote.namespace) == failure.namespace && failure.ranks.contains(quote.rank)
        };
        let Some(quote) = self.quotes.values().find(is_of) else { return (Vec::new(), false) };
        let lines = quote.lines.split(|byte| *byte == b'\n');
        let lines = lines.map(|line| printable(String::from_utf8_lossy(line).trim_end_matches('\r'))).collect();
        let rank = (quote.namespace, quote.rank);
        // A single agent sees all output, including what it writes to the terminal directly.
        let is_last = quote.is_together && (self.agents == 1 || self.last_writer.has_written(rank, quote.line_count()));
        (lines, is_last)
    }
}

/// Returns the text about the last lines of a failed rank.
pub(crate) fn quoted_text(failure: &Failure, lines: &[String]) -> String {
    let lines: String = lines.iter().map(|line| format!("\n  | {line}")).collect();
    format!("{} wrote last to standard error:{lines}", name_ranks(&failure.ranks, failure.namespace))
}

#[cfg(test)]
mod tests {
    use nla::core::{AgentId, Cause, Time};
    use pmi::Ranks;

    use super::*;

    fn output(rank: u32, lines: &str) -> Bytes {
        [&0u32.to_le_bytes()[..], &rank.to_le_bytes(), lines.as_bytes()].concat().into()
    }

    /// The quote of a rank whose lines stand together at its agent.
    fn quote(rank: u32, lines: &str) -> Bytes {
        let header = [u32::MAX, rank, 0].map(u32::to_le_bytes).concat();
        [&header[..], &[1], lines.as_bytes()].concat().into()
    }

    fn failure(rank: u32) -> Failure {
        Failure {
            at: Time::ZERO,
            agent: AgentId(1),
            namespace: NamespaceId::FIRST,
            ranks: Ranks::range(rank..rank + 1),
            cause: Cause::Code(1),
        }
    }

    #[test]
    fn lines_among_those_of_others_are_quoted() {
        let here = RankLocations::local("n1".to_owned());
        let lines_of = |agents: u32, messages: &[Bytes]| {
            let mut lines = LastLines::new(agents);
            let passed = messages.iter().filter(|message| lines.take((*message).clone()).is_some()).count();
            (lines.of(&failure(1), &here), passed)
        };
        let boom = || vec!["boom".to_owned(), "a\\u{1b}b".to_owned()];
        let own = [output(1, "boom\na\u{1b}b\n"), quote(1, "boom\na\u{1b}b")];
        assert_eq!(lines_of(2, &own), ((boom(), true), 1), "the user has just read them");
        let [first, second] = own;
        let drowned = [first.clone(), output(0, "stopped\n"), second.clone()];
        assert_eq!(lines_of(2, &drowned), ((boom(), false), 2));
        assert_eq!(
            lines_of(1, std::slice::from_ref(&second)),
            ((boom(), true), 0),
            "the agent has written the lines itself"
        );
        assert_eq!(lines_of(2, &[second]), ((boom(), false), 0), "others may have written in between");
        assert_eq!(lines_of(2, &[first, quote(0, "x")]), ((Vec::new(), false), 1), "another rank's");
        assert_eq!(quoted_text(&failure(1), &boom()), "rank 1 wrote last to standard error:\n  | boom\n  | a\\u{1b}b");
    }

    #[test]
    fn an_agent_has_one_quote() {
        let mut lines = LastLines::new(2);
        (0..5).for_each(|rank| assert_eq!(lines.take(quote(rank, "x")), None));
        assert_eq!(lines.quotes.len(), 2);
    }
}
