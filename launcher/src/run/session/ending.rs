//! The end of a session: what is left is waited for, and what is to be said of it is said.

use std::collections::BTreeSet;
use std::io::{self, Write as _};

use nla::bootstrap::{Bootstrap, Links};
use nla::core::{AgentId, DriverCounts, Failure, Outcome};
use nla::link::LinkEvent;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{FLUSH_TIME, LEAVE_TIME, Session};
use crate::exit;
use crate::plan::checks::missing_program_hint;
use crate::plan::library::explain_silence;
use crate::run::report::{Verbosity, epilogue};
use crate::run::stats::{Sink, Statistics};
use crate::run::timing::Names;

/// What is said at the end, if asked for.
pub(super) struct Asides {
    pub(super) demo: bool,
    pub(super) timing: bool,
    pub(super) stats: Option<Sink>,
    pub(super) fanout: u32,
}

impl Session {
    /// The session is over: the last words are written, and no process is left when this returns.
    pub(super) async fn leave(
        &mut self,
        events: &mut mpsc::Receiver<(AgentId, LinkEvent)>,
        bootstrap: &mut Bootstrap,
        links: Links,
    ) {
        for child in self.children.values() {
            child.link.close();
        }
        let mut left: BTreeSet<_> = self.children.keys().copied().filter(|child| !self.gone.contains(child)).collect();
        let farewells = async {
            while !left.is_empty() {
                match events.recv().await {
                    Some((peer, LinkEvent::Lost(_))) => drop(left.remove(&peer)),
                    Some(_) => {}
                    None => return,
                }
            }
        };
        let guardians = async {
            let late = bootstrap.wait(LEAVE_TIME).await;
            if late > 0 {
                self.reporter.error(&format!("{late} guardians did not end; look for processes named scela-guard"));
            }
        };
        match links {
            Links::Connections => drop(tokio::join!(timeout(FLUSH_TIME, farewells), guardians)),
            // What ends the sessions would cut the last words off.
            Links::RemoteShells => {
                let _ = timeout(LEAVE_TIME, farewells).await;
                guardians.await;
            }
        }
        self.children.clear();
    }

    pub(super) fn conclude(&mut self, mut outcome: Outcome, asides: Asides, target: &dyn Fn(u32) -> String) -> u8 {
        let Asides { demo, timing, stats, fanout } = asides;
        let now = self.clock.now();
        self.phases.on_end(now);
        let host = |failure: &Failure| self.locations.of_agent(failure.agent).to_owned();
        if let Some(mut text) = epilogue(&outcome, self.size, host) {
            let shows_path = self.reporter.verbosity == Verbosity::Verbose;
            if let Some(hint) = missing_program_hint(&outcome, &self.session, &self.first.commands, shows_path) {
                text.push_str(&format!("\n  hint: {hint}"));
            }
            self.reporter.error(&text);
        }
        let silent = self.size > 1 && self.root.is_silent();
        if silent
            && let Some(why) = self.first.commands.iter().find_map(|command| explain_silence(&self.session, command))
        {
            self.reporter.note(&format!(
                "warning: no rank has spoken PMI: if these were MPI ranks, they ran as {} copies of rank 0 of 1\n  {why}",
                self.size
            ));
        }
        let table = match stats.map(|sink| sink.take(&self.statistics(fanout))) {
            Some(Err(text)) => {
                self.reporter.error(&text);
                if outcome == Outcome::Success {
                    outcome = Outcome::OutputLost;
                }
                None
            }
            Some(Ok(table)) => table,
            None => None,
        };
        let code = exit::code(&outcome);
        self.reporter
            .step(now, &format!("the session is over, code {code}{}", if silent { "; no rank spoke PMI" } else { "" }));
        let names = Names { target, agents: Some(&self.locations) };
        let phases = || self.phases.table(self.root.timing(), self.tree.size() - 1, &names);
        if demo && code == exit::SUCCESS {
            // Nobody to tell if nobody reads.
            let _ = writeln!(io::stdout(), "{}", crate::run::report::demo_text(self.size, self.tree, &phases()));
        } else if timing {
            self.reporter.note(&format!("phases:\n{}", phases()));
        }
        if let Some(table) = table.filter(|_| code != exit::NOT_LAUNCHED) {
            self.reporter.note(&table);
        }
        code
    }

    fn statistics(&self, fanout: u32) -> Statistics {
        let counted = DriverCounts {
            down: self.down,
            link_bytes: self.meter.link_bytes(),
            stream_bytes: self.meter.stream_bytes(),
            ..DriverCounts::default()
        };
        Statistics {
            policy: self.session.cache,
            ranks: self.size,
            agents: self.tree.size() - 1,
            fanout,
            stats: self.root.stats(counted, self.fences.clone()),
        }
    }
}
