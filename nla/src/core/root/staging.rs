//! From the last join to the launch of the first namespace: all agents get the session's plan, and its files.

use super::{Notice, Phase, Root, RootAction, Turn};
use crate::core::message::Down;
use crate::core::parent::Parent;

impl Root {
    /// Sends the session's plan once all agents have joined.
    pub(super) fn begin_session(&mut self, turn: &mut Turn<'_>) {
        if !matches!(self.phase, Phase::Joining { .. }) || !self.children.all_ready() || self.first.is_none() {
            return;
        }
        let next = if self.session.stage.is_empty() { Phase::Running } else { Phase::Staging };
        self.enter(next, "all agents have joined");
        self.session.sent = turn.now;
        self.to_children(&Down::Session(Box::new(self.session.clone())), turn);
        turn.push(RootAction::Notice(Notice::Joined));
    }

    /// Launches the first namespace once all agents have the session's files.
    pub(super) fn launch_first(&mut self, turn: &mut Turn<'_>) {
        if matches!(self.phase, Phase::Staging) && self.children.all_staged() {
            self.enter(Phase::Running, "all agents have the files");
            turn.push(RootAction::Notice(Notice::Staged));
        }
        if matches!(self.phase, Phase::Running)
            && let Some(plan) = self.first.take()
        {
            self.launch(plan, None, turn);
        }
    }
}
