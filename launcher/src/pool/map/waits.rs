//! The words about commands that wait in the pool: each is said once for all of them.

use super::super::absences::Absent;
use super::super::watch::Watch;

/// Watches the controller for commands that wait.
#[derive(Debug)]
pub(super) struct Waits {
    /// Whether the controller answers.
    pub(super) watch: Watch,
    /// The nodes that commands lack, as the user was told, without times.
    told: Absent,
}

impl Waits {
    /// Begins before the first command waits in this pool.
    pub(super) fn new(pool: &str) -> Self {
        Self { watch: Watch::new(pool, "commands wait"), told: Absent::default() }
    }

    /// Takes the reason why a command waits, with its text, and returns the text if it is for the user: if the commands lack nodes,
    /// and not those of the last text. That commands wait for slots is no news.
    pub(super) fn on_waits(&mut self, text: String, absent: &Absent) -> Option<String> {
        let new = absent.without_ages();
        let is_news = !new.is_empty() && new != self.told;
        self.told = new;
        is_news.then_some(text)
    }

    /// Notes that a command has started, so commands lack no nodes.
    pub(super) fn on_started(&mut self) {
        self.told = Absent::default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::absences::{AbsenceKind, AbsentNodes};
    use super::*;

    #[test]
    fn what_all_commands_lack_is_told_once() {
        let absent = |names: &str, age_ms| {
            let (names, why) = (names.to_owned(), String::new());
            Absent { groups: vec![AbsentNodes { names, count: 1, kind: AbsenceKind::Drained, why, age_ms }], others: 0 }
        };
        let mut waits = Waits::new("night");
        let mut told = |absent: &Absent| waits.on_waits("text".to_owned(), absent).is_some();
        assert!(!told(&Absent::default()));
        assert!(told(&absent("n1", 0)));
        assert!(!told(&absent("n1", 5000)));
        assert!(told(&absent("n2", 0)));
        assert!(!told(&Absent::default()));
        assert!(told(&absent("n2", 0)));
        waits.on_started();
        assert!(waits.on_waits("text".to_owned(), &absent("n2", 0)).is_some());
    }
}
