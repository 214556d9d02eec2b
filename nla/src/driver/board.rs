//! A namespace's board as an agent holds it: in its own memory, or, once a rank has asked for it,
//! in a segment that it shares with its ranks. Then it lies there and nowhere else.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pmi::segment::directory;
use pmi::{Board, Epoch, JobAttributes};

use crate::sys::Segment;

/// See the module.
pub(super) struct SharedBoard {
    board: Board,
    attributes: Arc<JobAttributes>,
    shared: Shared,
    readers: u64,
}

enum Shared {
    /// Nobody has asked.
    No,
    /// The entries of the facts lie below those of the board.
    In { segment: Segment, attributes: Epoch },
    /// The segment is full. Those who have it are still released by it.
    Closed { segment: Segment },
    /// There can be none here.
    Never,
}

impl SharedBoard {
    /// A board on which `facts` are found all the same. Only a whole one can be shared: what is
    /// not in the segment is nowhere.
    pub(super) fn new(attributes: Arc<JobAttributes>, board: Board) -> Self {
        let shared = if board.is_whole() { Shared::No } else { Shared::Never };
        Self { board, attributes, shared, readers: 0 }
    }

    /// What has been published.
    pub(super) fn board(&self) -> &Board {
        &self.board
    }

    /// Makes an epoch's entries visible, here and in the segment.
    pub(super) fn publish(&mut self, epoch: Epoch) {
        let Shared::In { segment, attributes } = &mut self.shared else {
            self.board.publish(epoch);
            return;
        };
        self.board.publish_with(epoch, |epoch| epoch.relocated(|bytes| segment.append(bytes).ok()));
        if let Err(error) = announce(segment, &self.board, attributes) {
            tracing::warn!(%error, "the shared board is full; ranks will ask their agent");
            segment.close();
            self.shared = match std::mem::replace(&mut self.shared, Shared::Never) {
                Shared::In { segment, .. } => Shared::Closed { segment },
                other => other,
            };
        }
    }

    /// Lets those go on who wait in the segment.
    pub(super) fn release(&mut self) {
        if let Shared::In { segment, .. } | Shared::Closed { segment } = &mut self.shared {
            segment.release();
        }
    }

    /// A rank has been given the segment.
    pub(super) fn note_reader(&mut self) {
        self.readers += 1;
    }

    /// How many have.
    pub(super) fn readers(&self) -> u64 {
        self.readers
    }

    /// The segment's descriptor for a rank, unless there can be none.
    pub(super) fn open(&mut self) -> Option<OwnedFd> {
        if let Shared::No = self.shared {
            self.shared = match self.share() {
                Ok(shared) => shared,
                Err(error) => {
                    tracing::warn!(%error, "no memory can be shared with ranks; they will ask their agent");
                    Shared::Never
                }
            };
        }
        match &self.shared {
            Shared::In { segment, .. } => segment.reader().try_clone_to_owned().ok(),
            Shared::No | Shared::Closed { .. } | Shared::Never => None,
        }
    }

    fn share(&mut self) -> io::Result<Shared> {
        let mut segment = Segment::new()?;
        let mut place = |epoch: Epoch| epoch.relocated(|bytes| segment.append(bytes).ok());
        let attributes = place(self.attributes.entries());
        self.board.relocate(place);
        announce(&mut segment, &self.board, &attributes)?;
        Ok(Shared::In { segment, attributes })
    }
}

/// Publishes the directory of all that lies in the segment; fails if not all does.
fn announce(segment: &mut Segment, board: &Board, attributes: &Epoch) -> io::Result<()> {
    let epochs = board.runs().iter().rev().chain([attributes]).filter(|epoch| !epoch.is_empty());
    let places: Option<Vec<(u64, u64)>> =
        epochs.map(|epoch| Some((segment.offset_of(epoch.bytes())?, epoch.bytes().len() as u64))).collect();
    let places = places.ok_or(io::ErrorKind::OutOfMemory)?;
    segment.publish(&directory(places))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use pmi::segment::{LOG_AT, PUBLISHED_AT, Published, View};

    use super::*;

    fn shared_board() -> SharedBoard {
        let attributes = Arc::new(JobAttributes {
            kvsname: "kvs".into(),
            spawner: None,
            size: 2,
            universe_size: 8,
            mapping: Some("(vector,(0,1,2))".into()),
            preputs: Epoch::from_entries([(&b"port"[..], &b"p"[..])]),
            puts_at_once: false,
        });
        SharedBoard::new(attributes, Board::new())
    }

    fn epoch(key: &str, value: &str) -> Epoch {
        Epoch::from_entries([(key.as_bytes(), value.as_bytes())])
    }

    /// What a rank with the descriptor finds under each key.
    fn found(descriptor: OwnedFd, keys: &[&str]) -> Vec<Option<String>> {
        let mut bytes = Vec::new();
        std::fs::File::from(descriptor).read_to_end(&mut bytes).expect("the segment can be read");
        let word = bytes[PUBLISHED_AT..].first_chunk().expect("eight bytes");
        let published = Published::from_word(u64::from_le_bytes(*word));
        let log = &bytes[LOG_AT..LOG_AT + published.log_bytes()];
        let view = View::new(log, published.directory_at()).expect("a directory");
        keys.iter().map(|key| view.get(key.as_bytes()).map(|value| String::from_utf8_lossy(value).into())).collect()
    }

    #[test]
    fn what_was_published_before_anybody_asked_is_there_too() {
        let mut shared = shared_board();
        shared.publish(epoch("a", "1"));
        let descriptor = shared.open().expect("a segment");
        shared.publish(epoch("b", "2"));
        shared.publish(epoch("a", "3"));
        let keys = ["a", "b", "c", "port", "universeSize", "PMI_process_mapping"];
        let some = |value: &str| Some(value.to_owned());
        let expected = [some("3"), some("2"), None, some("p"), some("8"), some("(vector,(0,1,2))")];
        assert_eq!(found(descriptor, &keys), expected);
        assert_eq!(shared.board().get(b"a"), Some(&b"3"[..]));
    }

    #[test]
    fn there_is_one_copy() {
        let mut shared = shared_board();
        shared.publish(epoch("a", "1"));
        let _descriptor = shared.open().expect("a segment");
        shared.publish(epoch("b", "2"));
        let Shared::In { segment, .. } = &shared.shared else { panic!("shared") };
        assert!(shared.board.runs().iter().all(|run| segment.offset_of(run.bytes()).is_some()));
    }

    #[test]
    fn an_empty_board_has_the_facts() {
        let descriptor = shared_board().open().expect("a segment");
        assert_eq!(found(descriptor, &["universeSize"]), [Some("8".to_owned())]);
    }
}
