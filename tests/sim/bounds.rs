//! What an agent sends about a fence does not grow with the number of ranks.

use nla::core::CachePolicy;
use sim::{FenceMessages, Pattern, Report, Spec};

const NODES: u32 = 256;
const PPN: u32 = 64;
const FANOUT: u32 = 8;

fn fences(cache: CachePolicy) -> Report {
    let spec = Spec { nodes: NODES, ppn: PPN, fanout: FANOUT, cache, pattern: Pattern::Fences, ..Spec::default() };
    let report = sim::run(&spec).expect("16,384 ranks can be simulated");
    assert_eq!((report.ranks, report.outcome.as_str()), (16_384, "success"));
    assert_eq!(report.fences.len(), 2);
    report
}

#[test]
fn one_message_up_and_one_to_each_child_where_puts_are_merged() {
    for cache in [CachePolicy::Hcma, CachePolicy::Hcmab, CachePolicy::HcmabLru { entries: 100 }] {
        let report = fences(cache);
        assert_eq!(report.fence_messages, FenceMessages { up: 1, down: FANOUT.into() }, "{cache}");
        for (number, level) in report.levels.iter().enumerate() {
            let links = level.down_board.messages / 2;
            assert_eq!((level.up_board.messages, level.down_board.messages), (2 * links, 2 * links), "{number}");
        }
        let links: u64 = report.levels.iter().map(|level| level.up_board.messages / 2).sum();
        assert_eq!(links, NODES.into(), "each agent says one word about each of two fences");
    }
}

#[test]
fn one_message_up_for_each_entry_below_where_they_are_not() {
    let report = fences(CachePolicy::Hcs);
    // The root's children are equal subtrees.
    let below = u64::from(NODES / FANOUT * PPN);
    assert_eq!(report.fence_messages, FenceMessages { up: below + 1, down: FANOUT.into() });
    // Through the links below the root passes each entry once, and two fences.
    assert_eq!(report.levels[0].up_board.messages, u64::from(NODES * PPN) + 2 * u64::from(FANOUT));
}

#[test]
fn control_messages_are_a_few_for_each_agent() {
    let report = fences(CachePolicy::Hcmab);
    let sum = |lane: fn(&sim::Level) -> u64| report.levels.iter().map(lane).sum::<u64>();
    // Down: the session, the plan, the end, the leave. Up: ready, contact, started, ended, and some exits.
    assert_eq!(sum(|level| level.down_control.messages), 4 * u64::from(NODES));
    let up = sum(|level| level.up_control.messages);
    assert!((5 * NODES..=8 * NODES).contains(&(up as u32)), "{up} for {NODES} agents");
}
