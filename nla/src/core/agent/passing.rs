//! Signals for ranks that reach an agent in several ways: each rank gets one signal once.

use std::time::Duration;

use litemap::LiteMap;
use serde::{Deserialize, Serialize};

use super::{Agent, SIGCONT, SIGKILL, Turn};
use crate::core::ids::Time;

const SIGTERM: i32 = 15;

/// How long copies of one signal may arrive apart. Slurm's daemons forward it from node to node.
const SPREAD_TIME: Duration = Duration::from_secs(1);

/// The way in which a signal has reached an agent.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SignalWay {
    /// The launcher has passed it on.
    Parent,
    /// The guardian has received it.
    Guardian,
    /// A resource manager has sent it to all its descendants, including the ranks.
    Manager,
    /// Another process has sent it to this agent.
    Direct,
}

/// The signals that ranks were sent lately.
#[derive(Debug, Default)]
pub(super) struct Passing {
    last: LiteMap<i32, (Time, Vec<SignalWay>)>,
}

impl Passing {
    /// Returns whether to send the signal to the ranks. A copy that arrives in another way within [`SPREAD_TIME`] is not new.
    pub(super) fn is_new(&mut self, now: Time, signal: i32, way: SignalWay) -> bool {
        if let Some((at, ways)) = self.last.get_mut(&signal)
            && now.saturating_sub(*at) < SPREAD_TIME
            && !ways.contains(&way)
        {
            ways.push(way);
            return false;
        }
        self.last.insert(signal, (now, vec![way]));
        way != SignalWay::Manager
    }

    /// Returns whether a manager has just sent the signal to the ranks.
    fn is_from_manager(&self, now: Time, signal: i32) -> bool {
        let last = self.last.get(&signal);
        last.is_some_and(|(at, ways)| now.saturating_sub(*at) < SPREAD_TIME && ways.contains(&SignalWay::Manager))
    }
}

impl Agent {
    /// A signal for the ranks has reached this agent.
    pub(super) fn on_signal(&mut self, signal: i32, way: SignalWay, turn: &mut Turn<'_>) {
        if signal == SIGTERM {
            self.passing.is_new(turn.now, signal, way);
            self.on_terminated(signal, turn);
        } else if self.passing.is_new(turn.now, signal, way) {
            self.signal_all(signal, turn);
        }
    }

    /// Sends all ranks a signal that asks them to end, unless a manager has just sent it. Continues those that something else has
    /// stopped: a stopped process acts on a signal only when it is continued.
    pub(super) fn end_all(&self, signal: i32, turn: &mut Turn<'_>) {
        if !self.passing.is_from_manager(turn.now, signal) {
            self.signal_all(signal, turn);
        }
        if signal != SIGKILL && !self.suspended {
            self.signal_all(SIGCONT, turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_signal_that_comes_in_several_ways_is_passed_on_once() {
        use SignalWay::{Direct, Guardian, Manager, Parent};
        let at = Duration::from_millis;
        let mut passing = Passing::default();
        assert!(passing.is_new(at(0), 10, Guardian));
        assert!(!passing.is_new(at(1), 10, Parent) && !passing.is_new(at(999), 10, Direct));
        assert!(passing.is_new(at(1), 12, Parent), "another signal");
        assert!(passing.is_new(at(999), 10, Parent), "the launcher has received it twice");
        assert!(!passing.is_new(at(1000), 10, Guardian));
        assert!(passing.is_new(at(1999), 10, Direct), "much later");
        assert!(!passing.is_new(at(5000), 10, Manager), "the ranks have it");
        assert!(!passing.is_new(at(5001), 10, Guardian) && passing.is_from_manager(at(5002), 10));
        assert!(!passing.is_from_manager(at(6000), 10));
    }
}
