//! The processes that join as one rank. A process that a rank starts inherits the rank's place, and may join beside it.

/// The outcome of [`Joiners::judge`].
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The bytes are the rank's.
    Take,
    /// The bytes come from a process that was refused before.
    Drop,
    /// A second process joins while this one is the rank. It gets a refusal.
    Refuse {
        /// The process that is the rank.
        first: u32,
        /// Whether this is the first refusal for this rank.
        is_new: bool,
    },
}

/// The beginning of each conversation of PMI-1 and PMI-2.
const INIT: &[u8] = b"cmd=init ";

/// The processes that have joined as one rank over one inherited socket.
#[derive(Debug, Default)]
pub(super) struct Joiners {
    /// The last process that joined.
    first: Option<u32>,
    /// The processes that were refused since.
    refused: Vec<u32>,
    was_refused: bool,
}

impl Joiners {
    /// Judges bytes that one process has sent. `is_active`: the rank has joined and has not finalized.
    ///
    /// A process that has ended without finalizing gives way to the next one, as in a script that goes on after a program
    /// has failed.
    pub(super) fn judge(
        &mut self,
        sender: Option<u32>,
        bytes: &[u8],
        is_active: bool,
        is_alive: impl Fn(u32) -> bool,
    ) -> Verdict {
        let Some(sender) = sender else { return Verdict::Take };
        let joins = bytes.starts_with(INIT);
        if !joins && self.refused.is_empty() {
            return Verdict::Take;
        }
        if let Some(first) = self.first.filter(|first| is_active && *first != sender && is_alive(*first)) {
            if joins {
                self.refused.retain(|pid| *pid != sender && is_alive(*pid));
                self.refused.push(sender);
                return Verdict::Refuse { first, is_new: !std::mem::replace(&mut self.was_refused, true) };
            }
            return if self.refused.contains(&sender) { Verdict::Drop } else { Verdict::Take };
        }
        if joins {
            self.first = Some(sender);
            self.refused.clear();
        }
        Verdict::Take
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOIN: &[u8] = b"cmd=init pmi_version=1 pmi_subversion=1\n";
    const ABORT: &[u8] = b"cmd=abort exitcode=1\n";

    fn alive(_: u32) -> bool {
        true
    }

    #[test]
    fn a_second_process_is_refused_while_the_first_is_the_rank() {
        let mut joiners = Joiners::default();
        assert_eq!(joiners.judge(Some(7), JOIN, false, alive), Verdict::Take);
        assert_eq!(joiners.judge(Some(7), JOIN, true, alive), Verdict::Take, "Intel MPI initializes twice");
        assert_eq!(joiners.judge(Some(8), JOIN, true, alive), Verdict::Refuse { first: 7, is_new: true });
        assert_eq!(joiners.judge(Some(8), ABORT, true, alive), Verdict::Drop, "its abort would end the job");
        assert_eq!(joiners.judge(Some(9), JOIN, true, alive), Verdict::Refuse { first: 7, is_new: false });
        assert_eq!(joiners.judge(Some(7), ABORT, true, alive), Verdict::Take);
        assert_eq!(joiners.judge(Some(6), ABORT, true, alive), Verdict::Take, "it has not been refused");
    }

    #[test]
    fn programs_follow_each_other() {
        let mut joiners = Joiners::default();
        for pid in [7, 8] {
            assert_eq!(joiners.judge(Some(pid), JOIN, false, alive), Verdict::Take);
        }
        // The second has ended without finalizing.
        assert_eq!(joiners.judge(Some(9), JOIN, true, |pid| pid != 8), Verdict::Take);
        assert_eq!(joiners.judge(Some(10), JOIN, true, alive), Verdict::Refuse { first: 9, is_new: true });
        // The one that was refused comes again when the first has finalized.
        assert_eq!(joiners.judge(Some(10), JOIN, false, alive), Verdict::Take);
        assert_eq!(joiners.judge(Some(10), ABORT, true, alive), Verdict::Take);
    }

    #[test]
    fn processes_without_a_pid_here_are_not_judged() {
        let mut joiners = Joiners::default();
        for pid in [Some(7), None] {
            assert_eq!(joiners.judge(pid, JOIN, pid.is_none(), alive), Verdict::Take);
        }
    }
}
