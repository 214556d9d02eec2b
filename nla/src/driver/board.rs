//! The board of a namespace on one agent: in the agent's memory or, once a rank has asked for it, in a segment that the
//! agent shares with its ranks. The entries are stored in one of the two, never in both.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pmi::segment::directory;
use pmi::{Board, Epoch, JobAttributes, Ranks};

use crate::sys::Segment;

/// The board of a namespace, and the shared segment if there is one.
pub(super) struct SharedBoard {
    board: Board,
    attributes: Arc<JobAttributes>,
    shared: Shared,
    /// The number of ranks that have been sent the segment.
    pub(super) readers: u64,
}

enum Shared {
    /// No rank has asked for a segment.
    No,
    /// The board is in the segment; the job's attributes are entries below its own.
    In { segment: Segment, attributes: Epoch },
    /// The segment is full. Ranks that have mapped it are still released through it.
    Closed { segment: Segment },
    /// This board cannot be shared.
    Never,
}

impl SharedBoard {
    /// Creates a board that also answers gets of `attributes`. Only a whole board can be shared: a rank concludes that
    /// a key that is missing from the segment was not put.
    pub(super) fn new(attributes: Arc<JobAttributes>, board: Board) -> Self {
        let shared = if board.is_whole() { Shared::No } else { Shared::Never };
        Self { board, attributes, shared, readers: 0 }
    }

    /// Returns the published entries.
    pub(super) fn board(&self) -> &Board {
        &self.board
    }

    /// Publishes an epoch's entries, in the segment too if there is one.
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

    /// Releases the ranks that wait in the segment. `failed`: their fence failed.
    pub(super) fn release(&mut self, failed: bool) {
        if let Shared::In { segment, .. } | Shared::Closed { segment } = &mut self.shared {
            segment.release(failed);
        }
    }

    /// Sets the ranks that have died, which ranks can ask for.
    pub(super) fn set_dead(&mut self, dead: &Ranks) {
        self.board.set_dead(dead);
    }

    /// Returns the segment's descriptor for a rank, or `None` if the board is not shared.
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

/// Publishes the directory of the epochs in the segment. Fails if an epoch is not stored there.
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

    /// Looks up each key as a rank that has the descriptor does.
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
    fn the_segment_has_the_entries_published_before_it() {
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
    fn a_shared_board_is_stored_once() {
        let mut shared = shared_board();
        shared.publish(epoch("a", "1"));
        let _descriptor = shared.open().expect("a segment");
        shared.publish(epoch("b", "2"));
        let Shared::In { segment, .. } = &shared.shared else { panic!("shared") };
        assert!(shared.board.runs().iter().all(|run| segment.offset_of(run.bytes()).is_some()));
    }

    #[test]
    fn an_empty_board_has_the_attributes() {
        let descriptor = shared_board().open().expect("a segment");
        assert_eq!(found(descriptor, &["universeSize"]), [Some("8".to_owned())]);
    }
}
