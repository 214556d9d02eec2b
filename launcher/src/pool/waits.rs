//! The reasons for which a job waits, as values and as texts.

use std::fmt::{self, Display, Formatter};

use nla::figures::counted;
use serde::{Deserialize, Serialize};

use super::message::JobNumber;

/// A job that waits.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Wait {
    /// The reason.
    pub why: Why,
    /// The jobs that are before it in the queue.
    pub ahead: u32,
}

/// The reason for which a job does not start now.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Why {
    /// It needs more than is free.
    Room(Room),
    /// There is room, which is kept for this job: it has been overtaken for long enough.
    Kept(JobNumber),
    /// There is room, and no launcher stands by.
    Launcher,
    /// The same, after a launcher was given the job and has not taken it.
    Again,
}

/// The demand of a job, beside what is free.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Room {
    /// The demand.
    pub needs: Needs,
    /// The slots, or the nodes, of that kind that are free.
    pub free: u32,
    /// The nodes that can have no jobs.
    pub unusable: Unusable,
}

/// The demand of a job.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Needs {
    /// So many slots, of any nodes that it may share.
    Slots {
        /// The slots.
        slots: u32,
        /// The nodes that it may share.
        sharing: Sharing,
    },
    /// So many nodes.
    Nodes {
        /// The nodes.
        nodes: u32,
        /// The slots that it needs of each; `None` for all of them.
        each: Option<u32>,
        /// The nodes that it may share.
        sharing: Sharing,
    },
}

/// The numbers of nodes that can have no jobs.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Unusable {
    /// Those that the user has drained.
    pub drained: u32,
    /// Those whose keepers are lost.
    pub down: u32,
    /// Those whose keepers are being started.
    pub starting: u32,
}

/// The nodes that a job may share with others.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Sharing {
    /// All of them.
    Any,
    /// Those on which no other job uses accelerators or other devices, as it is unknown how many there are.
    Devices,
    /// Those that have free devices for its ranks.
    Free,
    /// None.
    Alone,
}

impl Room {
    /// Returns whether there is as much as the job needs.
    pub fn suffices(&self) -> bool {
        let (Needs::Slots { slots: needs, .. } | Needs::Nodes { nodes: needs, .. }) = self.needs;
        self.free >= needs
    }
}

impl Display for Wait {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)?;
        match self.ahead {
            0 => Ok(()),
            1 => write!(f, "; 1 job is before it"),
            ahead => write!(f, "; {ahead} jobs are before it"),
        }
    }
}

impl Display for Why {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Room(room) => room.fmt(f),
            Self::Kept(job) => write!(f, "the slots for it are kept for job {job}, which has waited longer"),
            Self::Launcher => write!(f, "its launcher is being started"),
            Self::Again => write!(f, "its launcher was lost before the job began, and another one is being started"),
        }
    }
}

impl Display for Room {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { needs, free, unusable } = self;
        let are = if *free == 1 { "is" } else { "are" };
        write!(f, "it needs {needs}, and {free} {are} free")?;
        let Unusable { drained, down, starting } = unusable;
        let named = [(drained, "drained"), (down, "down"), (starting, "starting")];
        let named: Vec<String> = named
            .iter()
            .filter(|(number, _)| **number > 0)
            .map(|(number, state)| format!("{number} {state}"))
            .collect();
        if named.is_empty() {
            return Ok(());
        }
        let nodes = if drained + down + starting == 1 { "node is" } else { "nodes are" };
        write!(f, " ({} {nodes} not used: {})", drained + down + starting, named.join(", "))
    }
}

impl Display for Needs {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (what, sharing) = match self {
            Self::Slots { slots, sharing } => (counted((*slots).into(), "slot"), sharing),
            Self::Nodes { nodes, each, sharing } => {
                let nodes = counted((*nodes).into(), "node");
                let each = match each {
                    Some(each) => format!(" with {} each", counted((*each).into(), "slot")),
                    None => " with all their slots".to_owned(),
                };
                (nodes + &each, sharing)
            }
        };
        f.write_str(&what)?;
        f.write_str(match sharing {
            Sharing::Any => "",
            Sharing::Devices => " on nodes whose devices no other job uses",
            Sharing::Free => " with the devices that its ranks ask for",
            Sharing::Alone => " on nodes without other jobs",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(needs: Needs, free: u32, unusable: Unusable) -> String {
        Why::Room(Room { needs, free, unusable }).to_string()
    }

    #[test]
    fn texts_say_what_is_missing() {
        let slots = |slots, sharing| Needs::Slots { slots, sharing };
        let nodes = |nodes, each, sharing| Needs::Nodes { nodes, each, sharing };
        let all = Unusable::default();
        assert_eq!(room(slots(1, Sharing::Any), 0, all), "it needs 1 slot, and 0 are free");
        assert_eq!(
            room(slots(3, Sharing::Alone), 2, all),
            "it needs 3 slots on nodes without other jobs, and 2 are free"
        );
        assert_eq!(room(nodes(2, None, Sharing::Any), 1, all), "it needs 2 nodes with all their slots, and 1 is free");
        let some = Unusable { drained: 1, down: 1, starting: 0 };
        assert_eq!(
            room(nodes(3, Some(4), Sharing::Any), 2, some),
            "it needs 3 nodes with 4 slots each, and 2 are free (2 nodes are not used: 1 drained, 1 down)"
        );
        let text = "it needs 1 slot on nodes whose devices no other job uses, and 0 are free";
        assert_eq!(room(slots(1, Sharing::Devices), 0, all), text);
        let one = Unusable { starting: 1, ..all };
        assert_eq!(
            room(slots(2, Sharing::Any), 1, one),
            "it needs 2 slots, and 1 is free (1 node is not used: 1 starting)"
        );
    }

    #[test]
    fn texts_name_the_jobs_before() {
        let text = |why, ahead| Wait { why, ahead }.to_string();
        let kept = "the slots for it are kept for job 7, which has waited longer";
        assert_eq!(text(Why::Kept(7), 1), format!("{kept}; 1 job is before it"));
        assert_eq!(text(Why::Launcher, 2), "its launcher is being started; 2 jobs are before it");
        assert_eq!(text(Why::Launcher, 0), "its launcher is being started");
        let again = "its launcher was lost before the job began, and another one is being started";
        assert_eq!(text(Why::Again, 0), again);
    }
}
