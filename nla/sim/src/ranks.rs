//! Ranks. A simulated rank is no process, but a position in a program.

mod lockstep;

use std::rc::Rc;

use bytes::Bytes;
use nla::core::{Action, Exit, Input};
use pmi::board::PendingPuts;
use pmi::{Answer, LookUp, Puts, Rank, Ranks, Request};

use crate::events::EventKind;
use crate::faults::Mutation;
use crate::ledger::{KeyValue, Writer};
use crate::oracle::{ExpectedEnd, Get};
use crate::program::Op;
use crate::world::{NS, State, World};
use lockstep::{LOCKSTEP, Lockstep};

/// The time in which a group of ranks is started, in nanoseconds: that of the driver.
const BATCH_TIME: u64 = 2_000_000;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGCONT: i32 = 18;
/// Added to a signal number in [`LocalRank::exit`].
const SIGNALLED: u16 = 256;

/// The state of a rank.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Stage {
    /// It has not been started.
    Queued,
    /// It continues its program at its next event.
    Running,
    /// It waits for the release of a fence.
    InFence,
    /// It waits for the answer to a get.
    InGet,
    /// It gets all entries, in lockstep with the other ranks of its agent.
    InLockstep,
    /// It has aborted the job and waits to be killed.
    Aborted,
    /// It has exited or was killed, but is not yet reaped.
    Dying,
    /// It was reaped, or will never be started.
    Ended,
}

#[derive(Debug)]
struct LocalRank {
    rank: u32,
    /// How often it has started again, on this agent or on others.
    start: u32,
    /// The number of its next step in the program.
    position: u32,
    /// The number of fences that have released it.
    fences: u32,
    stage: Stage,
    ignores_term: bool,
    /// The exit code, or [`SIGNALLED`] plus the number of the signal.
    exit: u16,
    /// Its puts since its last fence.
    pending: Option<Box<PendingPuts>>,
    /// It has started again and has passed no fence together with the others.
    catches_up: bool,
    /// Its entries since the last fence that it entered together with the others.
    held: Vec<KeyValue>,
}

impl LocalRank {
    fn new(rank: u32, start: u32, stage: Stage, ignores_term: bool) -> Self {
        Self {
            rank,
            start,
            position: 0,
            fences: 0,
            stage,
            ignores_term,
            exit: 0,
            pending: None,
            catches_up: start > 0,
            held: Vec::new(),
        }
    }
}

/// The ranks of one agent.
#[derive(Debug, Default)]
pub(crate) struct LocalRanks {
    /// The ranks: first those that were placed here, in ascending order, then those that have moved here.
    all: Vec<LocalRank>,
    /// The number of the former.
    placed: usize,
    /// The number of ranks that were started.
    started: usize,
    lockstep: Lockstep,
}

impl LocalRanks {
    /// Adds ranks to be started.
    pub(crate) fn enqueue(&mut self, ranks: &Ranks, ignoring_term: &Ranks) {
        self.all.reserve_exact(ranks.len() as usize);
        self.all
            .extend(ranks.iter().map(|rank| LocalRank::new(rank.0, 0, Stage::Queued, ignoring_term.contains(rank))));
        self.placed = self.all.len();
    }

    /// Adds a process of a rank that starts again here. Returns its index.
    pub(crate) fn restart(&mut self, rank: Rank, start: u32, ignores_term: bool) -> usize {
        let local = LocalRank::new(rank.0, start, Stage::Running, ignores_term);
        if let Some(index) = self.index(rank) {
            self.all[index] = local;
            return index;
        }
        self.started += usize::from(self.started == self.all.len());
        self.all.push(local);
        self.all.len() - 1
    }

    /// The number of ranks that were ever here.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether a process of this rank runs here.
    pub(crate) fn runs(&self, rank: Rank) -> bool {
        self.index(rank).is_some_and(|index| self.all[index].stage.is_running())
    }

    /// The ranks that have not ended, and the numbers of their open fences.
    pub(crate) fn living(&self) -> impl Iterator<Item = (u32, u32)> {
        self.all.iter().filter(|local| local.stage != Stage::Ended).map(|local| (local.rank, local.fences))
    }

    /// Takes the entries that a process has put ahead of the open fence and that may be known elsewhere.
    pub(crate) fn take_unfinished(&mut self, rank: u32) -> Vec<KeyValue> {
        let Some(index) = self.index(Rank(rank)) else { return Vec::new() };
        let local = &mut self.all[index];
        let puts = local.pending.take().map(|mut pending| pending.take()).unwrap_or_default();
        if local.catches_up { Vec::new() } else { entries(&puts) }
    }

    /// Cancels the starts of all ranks that were not started, and returns these ranks.
    pub(crate) fn cancel(&mut self) -> Ranks {
        let from = self.started;
        self.started = self.all.len();
        let queued = self.all[from..].iter_mut().filter(|local| local.stage == Stage::Queued);
        queued
            .map(|local| {
                local.stage = Stage::Ended;
                Rank(local.rank)
            })
            .collect()
    }

    /// Kills all ranks at once.
    pub(crate) fn end_all(&mut self) {
        self.started = self.all.len();
        self.all.iter_mut().for_each(|local| local.stage = Stage::Ended);
    }

    /// Returns a rank that has not ended, if there is one.
    pub(crate) fn alive(&self) -> Option<u32> {
        self.all.iter().find(|local| local.stage != Stage::Ended).map(|local| local.rank)
    }

    /// The ranks that have ended with code 0.
    pub(crate) fn finished(&self) -> impl Iterator<Item = Rank> {
        self.all.iter().filter(|local| local.stage == Stage::Ended && local.exit == 0).map(|local| Rank(local.rank))
    }

    fn index(&self, rank: Rank) -> Option<usize> {
        let first = self.all.first()?.rank;
        // Most placements give an agent consecutive ranks.
        let near = rank.0.wrapping_sub(first) as usize;
        match self.all.get(near) {
            Some(local) if local.rank == rank.0 => Some(near),
            _ => {
                let (placed, moved) = self.all.split_at(self.placed);
                let at = placed.binary_search_by_key(&rank.0, |local| local.rank).ok();
                at.or_else(|| moved.iter().position(|local| local.rank == rank.0).map(|at| self.placed + at))
            }
        }
    }
}

impl World {
    /// Starts the next group of an agent's ranks.
    pub(crate) fn start_ranks(&mut self, here: usize, clock: &mut u64) {
        let until = *clock + BATCH_TIME;
        let mut batch = Ranks::new();
        while *clock < until {
            let delay = self.setup.faults.delay;
            let costs = &self.setup.costs;
            let locals = &mut self.members[here].ranks;
            let Some(local) = locals.all.get_mut(locals.started) else { break };
            if local.stage != Stage::Queued {
                locals.started += 1;
                continue;
            }
            *clock += costs.rank_start;
            local.stage = Stage::Running;
            batch.insert(Rank(local.rank));
            let spread = if delay > 0 { self.random.below(delay) } else { 0 };
            let step = EventKind::RankStep(locals.started as u32, 0);
            self.queue.push(*clock + costs.rank_boot + spread, here as u32, step);
            locals.started += 1;
        }
        let locals = &self.members[here].ranks;
        let more = locals.started < locals.all.len();
        if !batch.is_empty() {
            self.input(here, clock, Input::Started(NS, batch));
        }
        if more {
            self.queue.push(*clock, here as u32, EventKind::StartRanks);
        }
    }

    /// A rank, or all ranks in lockstep, continue their program.
    pub(crate) fn step(&mut self, here: usize, index: u32, start: u32, clock: &mut u64) {
        if index == LOCKSTEP {
            self.get_in_lockstep(here, clock);
        } else if self.members[here].ranks.all.get(index as usize).is_some_and(|local| local.start == start) {
            self.run_program(here, index as usize, clock);
        }
    }

    /// Runs a rank's program until the rank waits, computes or ends.
    fn run_program(&mut self, here: usize, index: usize, clock: &mut u64) {
        let program = Rc::clone(&self.setup.program);
        loop {
            let Some(local) = self.members[here].ranks.all.get_mut(index) else { return };
            if local.stage != Stage::Running {
                return;
            }
            let rank = Rank(local.rank);
            let op = program.op(rank.0, local.position, local.start);
            local.position += 1;
            let key = match op {
                Op::Join => {
                    *clock += self.setup.costs.join;
                    self.members[here].driver_counts.segments += u64::from(self.setup.segment);
                    self.input(here, clock, Input::FromRank(NS, rank, Request::Joined));
                    continue;
                }
                Op::Put { key, mut value } => {
                    if local.start > 0 {
                        value.extend(format!(".{}", local.start).bytes());
                    }
                    self.put(here, index, clock, &key, &value);
                    continue;
                }
                Op::PutCard => {
                    self.put(here, index, clock, program.card_key(rank.0), program.card(rank.0));
                    continue;
                }
                Op::Finalize => {
                    *clock += self.setup.costs.finalize;
                    self.input(here, clock, Input::FromRank(NS, rank, Request::Finalized));
                    continue;
                }
                Op::Get { key } => key,
                Op::GetCard(of) => program.card_key(of).clone(),
                op => return self.suspend(here, index, clock, op),
            };
            match self.get(here, index, clock, &key) {
                Some(value) => self.check(here, index, *clock, value.as_deref()),
                None => return,
            }
        }
    }

    /// Does a step after which a rank does not continue at once.
    fn suspend(&mut self, here: usize, index: usize, clock: &mut u64, op: Op) {
        let locals = &mut self.members[here].ranks;
        let local = &mut locals.all[index];
        match op {
            Op::Fence => self.arrive(here, index, clock),
            Op::GetAllCards => {
                local.stage = Stage::InLockstep;
                locals.lockstep.entered += 1;
                if locals.lockstep.entered == locals.all.len() {
                    self.get_in_lockstep(here, clock);
                }
            }
            Op::Compute(nanoseconds) => {
                let step = EventKind::RankStep(index as u32, local.start);
                self.queue.push(*clock + nanoseconds, here as u32, step);
            }
            Op::Abort => {
                // No one may hear it from an agent that a fault has hit.
                let is_hit = self.casualties.has_agent(here as u32);
                let expected = if is_hit { ExpectedEnd::Either } else { ExpectedEnd::Failure };
                local.stage = Stage::Aborted;
                let request = Request::Abort { code: 7, message: String::new() };
                let rank = Rank(local.rank);
                self.expect(here, expected);
                self.input(here, clock, Input::FromRank(NS, rank, request));
            }
            Op::Exit(code) => self.end(here, index, *clock, code.into()),
            Op::ExitEarly => {
                let rank = local.rank;
                self.on_rank_fails(here, rank, true);
                self.end(here, index, *clock, 0);
            }
            Op::Die(signal) => self.end(here, index, *clock, SIGNALLED + u16::from(signal)),
            Op::Join | Op::Put { .. } | Op::PutCard | Op::Get { .. } | Op::GetCard(_) | Op::Finalize => {}
        }
    }

    fn put(&mut self, here: usize, index: usize, clock: &mut u64, key: &[u8], value: &[u8]) {
        *clock += self.setup.costs.put;
        let local = &mut self.members[here].ranks.all[index];
        let rank = Rank(local.rank);
        let accepted = local.pending.get_or_insert_default().push(rank, key, value);
        debug_assert!(accepted, "simulated programs put less than the bound");
        if self.setup.cache.puts_at_once() {
            let mut puts = Puts::new();
            puts.push(rank, key, value);
            self.input(here, clock, Input::FromRank(NS, rank, Request::Put { puts }));
        }
    }

    /// A rank arrives at its next fence.
    fn arrive(&mut self, here: usize, index: usize, clock: &mut u64) {
        *clock += self.setup.costs.arrival;
        let local = &mut self.members[here].ranks.all[index];
        local.stage = Stage::InFence;
        let (rank, number) = (Rank(local.rank), local.fences);
        let pending = match &mut local.pending {
            Some(pending) if local.catches_up => pending.pass_on(),
            pending => pending.take().map(|mut pending| pending.take()).unwrap_or_default(),
        };
        if self.setup.checked {
            local.held.extend(entries(&pending));
        }
        let puts = if self.setup.cache.puts_at_once() { Puts::new() } else { pending };
        self.oracle.on_arrived(number, *clock);
        self.input(here, clock, Input::FromRank(NS, rank, Request::Fence { puts, in_segment: false }));
        self.note_contribution(here, index, number);
        if let Some(Mutation::EarlyRelease { agent }) = self.setup.mutation
            && agent as usize == here
        {
            self.setup.mutation = None;
            self.act(here, clock, Action::Release(NS, std::iter::once(rank).collect()));
        }
    }

    /// Notes the entries of a rank that waits in this fence, unless another process of the rank has done so for it. A rank
    /// that was released at once holds them back.
    fn note_contribution(&mut self, here: usize, index: usize, number: u32) {
        let local = &mut self.members[here].ranks.all[index];
        let writer = Writer { rank: local.rank, agent: here as u32, start: local.start };
        let waits = local.stage == Stage::InFence;
        if self.setup.checked && waits && !self.oracle.ledger.is_settled(writer, number) {
            self.oracle.ledger.arrive(writer, number, std::mem::take(&mut local.held));
        }
    }

    /// Releases ranks from a fence, which has failed or not.
    pub(crate) fn release(&mut self, here: usize, clock: &mut u64, ranks: &Ranks, failed: bool) {
        if let Some(Mutation::LoseRelease { agent, after }) = self.setup.mutation
            && self.mutation_strikes(here, agent, after)
        {
            return;
        }
        let costs = &self.setup.costs;
        // One futex call releases all ranks that wait in the segment.
        let (once, each) = if self.setup.segment { (costs.release, 0) } else { (0, costs.release) };
        *clock += once;
        for rank in ranks.iter() {
            let locals = &mut self.members[here].ranks;
            let Some(index) = locals.index(rank) else { continue };
            let local = &mut locals.all[index];
            if local.stage != Stage::InFence {
                continue;
            }
            *clock += each;
            local.stage = Stage::Running;
            local.fences += 1;
            local.catches_up = false;
            local.pending = None;
            self.oracle.on_released(rank.0, local.fences - 1, *clock, failed);
            let step = EventKind::RankStep(index as u32, local.start);
            self.queue.push(*clock + costs.local, here as u32, step);
        }
    }

    /// Counts an occasion of the mutation of `agent`. Returns whether this is the one at which it strikes.
    fn mutation_strikes(&mut self, here: usize, agent: u32, after: u32) -> bool {
        let is_mutated = agent as usize == here;
        self.mutation_passed += u32::from(is_mutated);
        is_mutated && self.mutation_passed == after + 1
    }

    /// The core releases a rank from a fence that is over for the others.
    fn pass(&mut self, here: usize, rank: Rank, clock: u64) {
        let Some(index) = self.members[here].ranks.index(rank) else { return };
        let local = &mut self.members[here].ranks.all[index];
        if local.stage != Stage::InFence {
            return;
        }
        local.stage = Stage::Running;
        local.fences += 1;
        let (number, step) = (local.fences - 1, EventKind::RankStep(index as u32, local.start));
        self.oracle.on_released_late(rank.0, number, clock);
        self.queue.push(clock + self.setup.costs.local, here as u32, step);
    }

    // ---- gets ----

    /// A rank gets a key. Returns the answer if it is available at once; otherwise the rank waits.
    fn get(&mut self, here: usize, index: usize, clock: &mut u64, key: &Bytes) -> Option<Option<Bytes>> {
        let member = &mut self.members[here];
        let local = &mut member.ranks.all[index];
        let own = local.pending.as_ref().and_then(|pending| pending.get(key));
        let own_is_none = own.is_none();
        let found = match (own, &member.board) {
            (Some(value), _) => LookUp::Found(value.into()),
            (None, Some(board)) => board.look_up(key),
            (None, None) => LookUp::Absent,
        };
        let found = match found {
            LookUp::Found(value) => Some(Some(Bytes::copy_from_slice(&value))),
            LookUp::Absent => Some(None),
            LookUp::Unknown => None,
        };
        if let Some(value) = found {
            *clock += if self.setup.segment { 0 } else { self.setup.costs.get_hit };
            self.counts.gets.here += 1;
            member.driver_counts.board_gets += u64::from(own_is_none && !self.setup.segment);
            return Some(self.mutated(here, value));
        }
        *clock += self.setup.costs.get_asked;
        local.stage = Stage::InGet;
        let rank = Rank(local.rank);
        self.ask_core(here, clock, rank, key)
    }

    /// Hands a get to the core. Returns the answer if the core gives it at once.
    fn ask_core(&mut self, here: usize, clock: &mut u64, rank: Rank, key: &Bytes) -> Option<Option<Bytes>> {
        self.pending_get = Some((here, rank));
        self.input(here, clock, Input::FromRank(NS, rank, Request::Get { key: key.clone() }));
        self.pending_get = None;
        let value = self.immediate_answer.take()?;
        self.counts.gets.here += 1;
        if let Some(index) = self.members[here].ranks.index(rank) {
            let local = &mut self.members[here].ranks.all[index];
            if local.stage == Stage::InGet {
                local.stage = Stage::Running;
            }
        }
        Some(self.mutated(here, value))
    }

    /// Replaces the answer to a get if the mutation says so.
    fn mutated(&mut self, here: usize, value: Option<Bytes>) -> Option<Bytes> {
        if let Some(Mutation::WrongValue { agent, after }) = self.setup.mutation
            && self.mutation_strikes(here, agent, after)
        {
            return Some(Bytes::from_static(b"wrong"));
        }
        value
    }

    /// The core answers a rank's get.
    pub(crate) fn on_answer(&mut self, here: usize, rank: Rank, clock: &mut u64, answer: Answer) {
        let value = match answer {
            Answer::Got(value) => value,
            Answer::Passed => return self.pass(here, rank, *clock),
            answer => return self.unexpected(*clock, &answer),
        };
        if self.pending_get == Some((here, rank)) {
            self.immediate_answer = Some(value);
            return;
        }
        let Some(index) = self.members[here].ranks.index(rank) else { return };
        let value = self.mutated(here, value);
        let locals = &mut self.members[here].ranks;
        match locals.all[index].stage {
            Stage::InGet => {
                *clock += self.setup.costs.get_answered;
                locals.all[index].stage = Stage::Running;
                self.check(here, index, *clock, value.as_deref());
                let at = *clock + 2 * self.setup.costs.local;
                let step = EventKind::RankStep(index as u32, self.members[here].ranks.all[index].start);
                self.queue.push(at, here as u32, step);
            }
            Stage::InLockstep if locals.lockstep.waiting => {
                let of = locals.lockstep.next;
                *clock += self.setup.costs.get_answered;
                locals.lockstep.waiting = false;
                self.check_card(here, of, *clock, value.as_deref());
                self.finish_key(here, *clock);
                self.get_in_lockstep(here, clock);
            }
            // The rank was killed while it waited.
            _ => {}
        }
    }

    /// Compares the answer to a rank's last get with the expected one.
    fn check(&mut self, here: usize, index: usize, clock: u64, value: Option<&[u8]>) {
        self.oracle.on_got(clock);
        let local = &self.members[here].ranks.all[index];
        let (rank, fences, catches_up) = (local.rank, local.fences, local.catches_up);
        match self.setup.program.op(rank, local.position - 1, local.start) {
            Op::GetCard(of) => self.check_card(here, of, clock, value),
            Op::Get { key } => {
                let own = local.pending.as_ref().and_then(|pending| pending.get(&key));
                match own.map(<[u8]>::to_vec) {
                    Some(own) => self.oracle.compare(clock, rank, &key, value, Some(&own)),
                    None => {
                        let get = Get { rank, key: &key, fences, catches_up };
                        self.oracle.check_get(clock, &get, value, &self.casualties);
                    }
                }
            }
            _ => {}
        }
    }

    fn check_card(&mut self, here: usize, of: u32, clock: u64, value: Option<&[u8]>) {
        let rank = self.members[here].ranks.all.first().map_or(0, |local| local.rank);
        let expected = self.setup.program.card(of);
        if value != Some(expected) {
            let key = self.setup.program.card_key(of);
            self.oracle.compare(clock, rank, key, value, Some(expected));
        }
    }

    // ---- ends ----

    /// A rank's process exits or dies by itself.
    fn end(&mut self, here: usize, index: usize, clock: u64, exit: u16) {
        let local = &mut self.members[here].ranks.all[index];
        local.stage = Stage::Dying;
        local.exit = exit;
        let ended = EventKind::RankEnded(index as u32, local.start);
        self.queue.push(clock + self.setup.costs.local, here as u32, ended);
        let (rank, number) = (local.rank, local.fences);
        if self.setup.checked {
            self.note_unfinished(here, rank, number);
        }
        if exit != 0 {
            self.on_rank_fails(here, rank, false);
        }
    }

    /// An agent sends a signal to ranks.
    pub(crate) fn signal(&mut self, here: usize, clock: u64, ranks: &Ranks, signal: i32) {
        if signal == SIGCONT {
            // No simulated rank is stopped.
            return;
        }
        for rank in ranks.iter() {
            let locals = &mut self.members[here].ranks;
            let Some(index) = locals.index(rank) else { continue };
            let local = &mut locals.all[index];
            if local.stage.is_running() && (signal == SIGKILL || !local.ignores_term) {
                local.stage = Stage::Dying;
                local.exit = SIGNALLED + signal as u16;
                let ended = EventKind::RankEnded(index as u32, local.start);
                self.queue.push(clock + self.setup.costs.local, here as u32, ended);
            }
        }
    }

    /// Another process kills a rank. Returns false if the rank is not running.
    pub(crate) fn kill(&mut self, at: u64, rank: u32) -> bool {
        let found = self.members.iter().enumerate().find_map(|(here, member)| {
            let index = member.ranks.index(Rank(rank))?;
            let runs = member.state == State::Joined && member.ranks.all[index].stage.is_running();
            runs.then_some((here, index))
        });
        let Some((here, index)) = found else { return false };
        self.end(here, index, at, SIGNALLED + SIGTERM as u16);
        true
    }

    /// The agent reaps a rank's process.
    pub(crate) fn on_rank_ended(&mut self, here: usize, index: u32, start: u32, clock: &mut u64) {
        let local = &mut self.members[here].ranks.all[index as usize];
        if local.start != start || std::mem::replace(&mut local.stage, Stage::Ended) == Stage::Ended {
            return;
        }
        local.pending = None;
        *clock += self.setup.costs.exit;
        let exit = match local.exit.checked_sub(SIGNALLED) {
            None => Exit::Code(local.exit.into()),
            Some(signal) => Exit::Signal { signal: signal.into(), core: false, out_of_memory: String::new() },
        };
        let rank = Rank(local.rank);
        if exit == Exit::Code(0) && !self.casualties.is_out_of_reach(here as u32) {
            self.oracle.finished.insert(rank);
        }
        self.input(here, clock, Input::RankEnded(NS, rank, exit));
    }
}

/// The entries of puts.
fn entries(puts: &Puts) -> Vec<KeyValue> {
    let owned = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
    puts.iter().map_while(Result::ok).map(|put| (owned(put.key), owned(put.value))).collect()
}

impl Stage {
    /// Returns whether the rank has a process that has not exited.
    fn is_running(self) -> bool {
        !matches!(self, Self::Queued | Self::Dying | Self::Ended)
    }
}
