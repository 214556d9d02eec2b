//! One turn of a core: a call of `handle`.

use super::ids::Time;

/// The time of an input, and the actions that follow from it.
#[derive(Debug)]
pub(super) struct Turn<'a, A> {
    pub(super) now: Time,
    pub(super) actions: &'a mut Vec<A>,
}

impl<A> Turn<'_, A> {
    pub(super) fn push(&mut self, action: A) {
        self.actions.push(action);
    }

    pub(super) fn extend(&mut self, actions: impl IntoIterator<Item = A>) {
        self.actions.extend(actions);
    }
}
