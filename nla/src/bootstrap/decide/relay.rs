//! Relays between the process above an agent and the agents that this agent has started: commands down, reports up.

use std::collections::BTreeSet;
use std::time::Duration;

use super::failure::StartFailure;
use crate::bootstrap::protocol::{BootCommand, BootReport, Joining, TargetReport};

/// An event of the agent.
#[derive(Clone, Debug)]
pub(in crate::bootstrap) enum RelayInput {
    /// A command arrived from above; `None` if the channel has ended.
    Command(Option<BootCommand>),
    /// An agent below has reported.
    Report(TargetReport),
    /// The agent itself has joined, or could not.
    Joined(Result<Duration, StartFailure>),
}

/// A command to the task around the relay.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::bootstrap) enum RelayAction {
    /// Send the report up.
    Report(BootReport),
    /// Pass the command on to the agent that leads to the target.
    Pass(u32, BootCommand),
    /// Join the tree.
    Join(Joining),
    /// The channel is not needed any more: close it.
    Close,
    /// Stop: the agent leaves, or is left alone. The agents below leave when their channels end.
    Stop,
}

/// One agent's relay.
pub(in crate::bootstrap) struct Relay {
    /// Targets below of which more reports follow.
    unsettled: BTreeSet<u32>,
    is_placed: bool,
    has_joined: bool,
}

impl Relay {
    /// Creates the relay of the agent at `target`, which starts agents at the `below` next targets.
    pub(in crate::bootstrap) fn new(target: u32, below: u32) -> Self {
        Self { unsettled: (target + 1..=target + below).collect(), is_placed: false, has_joined: false }
    }

    pub(in crate::bootstrap) fn handle(&mut self, input: RelayInput, actions: &mut Vec<RelayAction>) {
        match input {
            RelayInput::Command(Some(BootCommand::Join(joining))) => {
                if !std::mem::replace(&mut self.is_placed, true) {
                    actions.push(RelayAction::Join(joining));
                }
            }
            RelayInput::Command(Some(BootCommand::Below(target, command))) => {
                actions.push(RelayAction::Pass(target, *command));
            }
            RelayInput::Command(Some(BootCommand::Alive)) => {}
            RelayInput::Command(Some(BootCommand::Leave) | None) => actions.push(RelayAction::Stop),
            RelayInput::Report((target, report)) => {
                if matches!(report, BootReport::Joined { .. } | BootReport::NotStarted(_)) {
                    self.unsettled.remove(&target);
                }
                actions.push(RelayAction::Report(BootReport::Below(target, Box::new(report))));
                self.close_if_done(actions);
            }
            RelayInput::Joined(Ok(took)) => {
                self.has_joined = true;
                actions.push(RelayAction::Report(BootReport::Joined { took }));
                self.close_if_done(actions);
            }
            RelayInput::Joined(Err(failure)) => {
                actions.extend([RelayAction::Report(BootReport::NotStarted(failure)), RelayAction::Stop]);
            }
        }
    }

    fn close_if_done(&self, actions: &mut Vec<RelayAction>) {
        if self.has_joined && self.unsettled.is_empty() {
            actions.push(RelayAction::Close);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::StartPhase;
    use crate::core::AgentId;
    use crate::link::ListensAt;
    use crate::wire::TreePosition;

    const JOINED: BootReport = BootReport::Joined { took: Duration::ZERO };

    fn handle(relay: &mut Relay, input: RelayInput) -> Vec<RelayAction> {
        let mut actions = Vec::new();
        relay.handle(input, &mut actions);
        actions
    }

    fn below(target: u32, report: BootReport) -> RelayAction {
        RelayAction::Report(BootReport::Below(target, Box::new(report)))
    }

    #[test]
    fn an_agent_alone_closes_its_channel_once_it_has_joined() {
        let mut relay = Relay::new(3, 0);
        let actions = handle(&mut relay, RelayInput::Joined(Ok(Duration::ZERO)));
        assert_eq!(actions, [RelayAction::Report(JOINED), RelayAction::Close]);
    }

    #[test]
    fn the_channel_stays_until_all_below_have_joined_or_failed() {
        let mut relay = Relay::new(3, 2);
        let joined = handle(&mut relay, RelayInput::Joined(Ok(Duration::ZERO)));
        assert_eq!(joined, [RelayAction::Report(JOINED)]);
        assert_eq!(handle(&mut relay, RelayInput::Report((4, JOINED))), [below(4, JOINED)]);
        let lost = BootReport::NotStarted(StartFailure::late());
        let last = handle(&mut relay, RelayInput::Report((5, lost.clone())));
        assert_eq!(last, [below(5, lost), RelayAction::Close]);
    }

    #[test]
    fn an_agent_gets_its_position_once() {
        let position = TreePosition { agents: 3, fanout: 2, agent: AgentId(3) };
        let joining = Joining { position, parent: ListensAt::default(), opener_port: Some(9), ancestors: Vec::new() };
        let command = || BootCommand::Join(joining.clone());
        let mut relay = Relay::new(3, 0);
        assert_eq!(handle(&mut relay, RelayInput::Command(Some(command()))), [RelayAction::Join(joining.clone())]);
        assert_eq!(handle(&mut relay, RelayInput::Command(Some(command()))), []);
    }

    #[test]
    fn commands_for_targets_below_are_passed_on() {
        let command = BootCommand::Below(5, Box::new(BootCommand::Leave));
        let actions = handle(&mut Relay::new(3, 2), RelayInput::Command(Some(command)));
        assert_eq!(actions, [RelayAction::Pass(5, BootCommand::Leave)]);
    }

    #[test]
    fn an_agent_that_is_not_needed_or_cannot_join_stops() {
        for end in [Some(BootCommand::Leave), None] {
            assert_eq!(handle(&mut Relay::new(3, 2), RelayInput::Command(end)), [RelayAction::Stop]);
        }
        let failure = StartFailure::new(StartPhase::ConnectBack, "its parent cannot be reached");
        let actions = handle(&mut Relay::new(3, 2), RelayInput::Joined(Err(failure.clone())));
        assert_eq!(actions, [RelayAction::Report(BootReport::NotStarted(failure)), RelayAction::Stop]);
    }
}
