//! The number of messages that an agent sends about a fence does not grow with the number of ranks.

use nla::core::limits::PIECE_BYTES;
use nla::core::{CachePolicy, PieceBytes};
use sim::{FenceMessages, Pattern, Report, Spec};

const NODES: u32 = 256;
const PPN: u32 = 64;
const FANOUT: u32 = 8;

fn fences(cache: CachePolicy) -> Report {
    fences_in_pieces(cache, None)
}

fn fences_in_pieces(cache: CachePolicy, piece_bytes: PieceBytes) -> Report {
    let spec = Spec {
        nodes: NODES,
        ppn: PPN,
        fanout: FANOUT,
        cache,
        pattern: Pattern::Fences,
        piece_bytes,
        ..Spec::default()
    };
    let report = sim::run(&spec).expect("16,384 ranks can be simulated");
    assert_eq!((report.ranks, report.outcome.as_str()), (16_384, "success"));
    assert_eq!(report.fences.len(), 2);
    report
}

#[test]
fn with_merged_puts_a_fence_takes_one_message_up_and_one_to_each_child() {
    for cache in [CachePolicy::Hcma, CachePolicy::Hcmab, CachePolicy::HcmabLru { entries: 100 }] {
        let report = fences(cache);
        assert_eq!(report.fence_messages, FenceMessages { up: 1, down: FANOUT.into() }, "{cache}");
        for (number, level) in report.levels.iter().enumerate() {
            let links = level.down_board.messages / 2;
            assert_eq!((level.up_board.messages, level.down_board.messages), (2 * links, 2 * links), "{number}");
        }
        let links: u64 = report.levels.iter().map(|level| level.up_board.messages / 2).sum();
        assert_eq!(links, NODES.into(), "each agent sends one message about each of two fences");
    }
}

#[test]
fn long_boards_take_a_message_for_each_piece() {
    let report = fences_in_pieces(CachePolicy::Hcmab, PIECE_BYTES);
    let piece = u64::from(PIECE_BYTES.expect("epochs are cut").get());
    let bytes = report.fences[0].bytes;
    assert!(bytes > 10 * piece);
    for level in &report.levels {
        let links = level.down_board.messages / (2 + bytes.div_ceil(piece));
        assert_eq!(level.down_board.messages, (2 + bytes.div_ceil(piece)) * links, "the pieces, and two releases");
        let up = level.up_board.messages;
        let bytes_per_link = level.up_board.bytes / links;
        assert!((2 * links..=(2 + bytes_per_link / piece) * links).contains(&up), "{up} on {links} links");
    }
}

#[test]
fn without_merged_puts_each_entry_is_a_message_up() {
    let report = fences(CachePolicy::Hcs);
    // All children of the root have subtrees of the same size.
    let below = u64::from(NODES / FANOUT * PPN);
    assert_eq!(report.fence_messages, FenceMessages { up: below + 1, down: FANOUT.into() });
    // The root's links carry each entry once, and two fences.
    assert_eq!(report.levels[0].up_board.messages, u64::from(NODES * PPN) + 2 * u64::from(FANOUT));
}

#[test]
fn each_agent_sends_and_receives_a_few_control_messages() {
    let report = fences(CachePolicy::Hcmab);
    let sum = |lane: fn(&sim::Level) -> u64| report.levels.iter().map(lane).sum::<u64>();
    // Down: Session, Launch, End, Leave. Up: Ready, Contact, Started, Ended, and some Exited.
    assert_eq!(sum(|level| level.down_control.messages), 4 * u64::from(NODES));
    let up = sum(|level| level.up_control.messages);
    assert!((5 * NODES..=8 * NODES).contains(&(up as u32)), "{up} for {NODES} agents");
}
