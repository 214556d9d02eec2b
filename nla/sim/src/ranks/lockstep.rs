//! Gets in lockstep: all ranks of an agent get one key before any of them gets the next one.

use std::rc::Rc;

use nla::core::GetCounts;
use pmi::{Board, LookUp, Rank};

use super::Stage;
use crate::events::EventKind;
use crate::world::World;

/// Stands in an event for all ranks of the agent, in lockstep.
pub(super) const LOCKSTEP: u32 = u32::MAX;
/// The number of gets in lockstep that an agent answers before it handles other events.
const GETS_PER_EVENT: u32 = 256;

/// How far the ranks of an agent have got all entries.
#[derive(Debug, Default)]
pub(super) struct Lockstep {
    /// The number of ranks that have begun to get all entries.
    pub(super) entered: usize,
    /// The rank whose entry is next.
    pub(super) next: u32,
    pub(super) waiting: bool,
}

impl World {
    /// All ranks of an agent have got the current key. After the last key they continue their programs.
    pub(super) fn finish_key(&mut self, here: usize, clock: u64) {
        let locals = &mut self.members[here].ranks;
        locals.lockstep.next += 1;
        if locals.lockstep.next == self.oracle.ranks {
            for index in 0..locals.all.len() {
                self.leave_lockstep(here, index, clock);
            }
        }
    }

    fn leave_lockstep(&mut self, here: usize, index: usize, clock: u64) {
        self.oracle.on_got(clock);
        let local = &mut self.members[here].ranks.all[index];
        if local.stage == Stage::InLockstep {
            local.stage = Stage::Running;
            let step = EventKind::RankStep(index as u32, local.start);
            self.queue.push(clock + self.setup.costs.local, here as u32, step);
        }
    }

    /// All ranks of an agent get the next keys, until one of them has to wait or other events get a turn.
    pub(super) fn get_in_lockstep(&mut self, here: usize, clock: &mut u64) {
        let (count, ranks) = (self.members[here].ranks.all.len() as u64, u64::from(self.oracle.ranks));
        if self.members[here].board.as_ref().is_some_and(Board::is_whole) {
            return self.get_whole_board(here, clock, count, ranks);
        }
        let program = Rc::clone(&self.setup.program);
        for _ in 0..GETS_PER_EVENT {
            let member = &mut self.members[here];
            let of = member.ranks.lockstep.next;
            if u64::from(of) >= ranks {
                return;
            }
            let Some(board) = &member.board else { return };
            let is_correct = match board.look_up(program.card_key(of)) {
                LookUp::Unknown => match self.ask_in_lockstep(here, clock, of) {
                    Some(is_correct) => is_correct,
                    None => return,
                },
                found => {
                    *clock += count * self.setup.costs.get_hit;
                    self.counts.gets.here += count;
                    let is_correct = matches!(&found, LookUp::Found(value) if *value == program.card(of));
                    member.driver_counts.board_gets += count;
                    is_correct
                }
            };
            if !is_correct {
                self.check_card(here, of, *clock, None);
            }
            self.finish_key(here, *clock);
        }
        self.queue.push(*clock, here as u32, EventKind::RankStep(LOCKSTEP, 0));
    }

    /// All ranks of an agent ask its core for one entry: the first rank really does, the others are only counted.
    /// Returns whether the answer is correct; `None` if the ranks have to wait for it.
    fn ask_in_lockstep(&mut self, here: usize, clock: &mut u64, of: u32) -> Option<bool> {
        let program = Rc::clone(&self.setup.program);
        let member = &self.members[here];
        let rank = Rank(member.ranks.all.first()?.rank);
        let (others, depth) = (member.ranks.all.len() as u64 - 1, member.depth);
        *clock += self.setup.costs.get_asked;
        let answer = self.ask_core(here, clock, rank, program.card_key(of));
        let (cost, gets) = if answer.is_some() {
            (self.setup.costs.get_asked, GetCounts { own: others, ..GetCounts::default() })
        } else {
            // Charge the others a hit: real ranks ask at different times, and the later ones find the entry stored.
            (self.setup.costs.get_hit, GetCounts { joined: others, ..GetCounts::default() })
        };
        *clock += others * cost;
        self.counts.note_lockstep(depth, gets);
        self.members[here].ranks.lockstep.waiting = answer.is_none();
        answer.map(|value| value.as_deref() == Some(program.card(of)))
    }

    /// All ranks of an agent get all entries of a whole board. The gets are counted, not done.
    fn get_whole_board(&mut self, here: usize, clock: &mut u64, count: u64, ranks: u64) {
        self.counts.gets.here += count * ranks;
        let mut done = *clock;
        if self.setup.segment {
            // The ranks read in parallel, and no driver counts these gets.
            done += ranks * self.setup.costs.get_read;
        } else {
            self.members[here].driver_counts.board_gets += count * ranks;
            *clock += count * ranks * self.setup.costs.get_hit;
            done = *clock;
        }
        for index in 0..count as usize {
            self.leave_lockstep(here, index, done);
        }
    }
}
