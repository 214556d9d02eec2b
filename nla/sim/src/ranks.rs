//! Ranks: not processes, but where each is in its program.

use bytes::Bytes;
use nla::core::{Action, Exit, GetCounts, Input};
use pmi::board::PendingPuts;
use pmi::{Answer, Board, LookUp, Puts, Rank, Ranks, Request};

use crate::events::What;
use crate::faults::Mutation;
use crate::oracle::Doom;
use crate::program::Op;
use crate::world::{NS, World};

/// How long ranks are started before others get a turn, as in the driver.
const BATCH_TIME: u64 = 2_000_000;
/// How many gets that find their entry are answered before others get a turn.
const TURN: u32 = 256;
/// In place of a rank: all ranks of the agent, in step.
const SWEEP: u32 = u32::MAX;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// Where a rank is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Stage {
    /// It is to be started.
    Queued,
    /// It goes on with its program when its time has come.
    Running,
    /// It waits for the release of a fence.
    InFence,
    /// It waits for an entry.
    InGet,
    /// It gets all entries, in step with the others of its agent.
    InSweep,
    /// It has aborted and waits for its end.
    Aborted,
    /// It ends.
    Dying,
    /// It has ended, or was never started.
    Ended,
}

#[derive(Debug)]
struct Local {
    rank: u32,
    /// In its program.
    position: u32,
    /// How many it was released from.
    fences: u32,
    stage: Stage,
    stubborn: bool,
    /// A code, or with a signal the number beyond 255.
    exit: u16,
    /// What it has put since its last fence.
    pending: Option<Box<PendingPuts>>,
}

/// The ranks of one agent.
#[derive(Debug, Default)]
pub(crate) struct Locals {
    /// In order.
    all: Vec<Local>,
    /// Those before were started.
    started: usize,
    sweep: Sweep,
}

/// All ranks of an agent get all entries in step: each key is got by all of them before the next.
#[derive(Debug, Default)]
struct Sweep {
    entered: usize,
    /// The rank whose entry they are at.
    at: u32,
    waiting: bool,
}

impl Locals {
    /// These are to be started.
    pub(crate) fn enqueue(&mut self, ranks: &Ranks, stubborn: &Ranks) {
        self.all.reserve_exact(ranks.len() as usize);
        self.all.extend(ranks.iter().map(|rank| Local {
            rank: rank.0,
            position: 0,
            fences: 0,
            stage: Stage::Queued,
            stubborn: stubborn.contains(rank),
            exit: 0,
            pending: None,
        }));
    }

    /// Those that were not started never will be.
    pub(crate) fn cancel(&mut self) -> Ranks {
        let from = self.started;
        self.started = self.all.len();
        self.all[from..].iter_mut().for_each(|local| local.stage = Stage::Ended);
        self.all[from..].iter().map(|local| Rank(local.rank)).collect()
    }

    /// All are killed at once.
    pub(crate) fn end_all(&mut self) {
        self.started = self.all.len();
        self.all.iter_mut().for_each(|local| local.stage = Stage::Ended);
    }

    /// A rank that has not ended.
    pub(crate) fn alive(&self) -> Option<u32> {
        self.all.iter().find(|local| local.stage != Stage::Ended).map(|local| local.rank)
    }

    fn index(&self, rank: Rank) -> Option<usize> {
        let first = self.all.first()?.rank;
        let near = rank.0.wrapping_sub(first) as usize;
        match self.all.get(near) {
            Some(local) if local.rank == rank.0 => Some(near),
            _ => self.all.binary_search_by_key(&rank.0, |local| local.rank).ok(),
        }
    }
}

impl World {
    /// Starts the next batch of an agent's ranks.
    pub(crate) fn start_ranks(&mut self, here: usize, clock: &mut u64) {
        let until = *clock + BATCH_TIME;
        let mut batch = Ranks::new();
        let locals = &mut self.places[here].locals;
        while let Some(local) = locals.all.get_mut(locals.started)
            && *clock < until
        {
            *clock += self.costs.rank_start;
            local.stage = Stage::Running;
            batch.insert(Rank(local.rank));
            let spread = if self.delay > 0 { self.random.below(self.delay) } else { 0 };
            self.queue.push(*clock + self.costs.rank_boot + spread, here as u32, What::Step(locals.started as u32));
            locals.started += 1;
        }
        let more = locals.started < locals.all.len();
        if !batch.is_empty() {
            self.input(here, clock, Input::Started(NS, batch));
        }
        if more {
            self.queue.push(*clock, here as u32, What::StartRanks);
        }
    }

    /// A rank, or all in step, go on.
    pub(crate) fn step(&mut self, here: usize, index: u32, at: u64) {
        let began = self.processors.begin(here, at);
        let mut clock = began;
        if index == SWEEP {
            self.sweep(here, &mut clock);
        } else {
            self.go_on(here, index as usize, &mut clock);
        }
        self.processors.done(here, began, clock);
    }

    fn go_on(&mut self, here: usize, index: usize, clock: &mut u64) {
        let program = std::rc::Rc::clone(&self.program);
        loop {
            let Some(local) = self.places[here].locals.all.get_mut(index) else { return };
            if local.stage != Stage::Running {
                return;
            }
            let rank = Rank(local.rank);
            let op = program.op(rank.0, local.position);
            local.position += 1;
            match op {
                Op::Join => {
                    *clock += self.costs.join;
                    self.places[here].counted.segments += u64::from(self.segment);
                    self.input(here, clock, Input::FromRank(NS, rank, Request::Joined));
                }
                Op::Put { key, value } => self.put(here, index, clock, &key, &value),
                Op::PutCard => self.put(here, index, clock, program.card_key(rank.0), program.card(rank.0)),
                Op::Fence => return self.enter(here, index, clock),
                Op::Get { key } => match self.get(here, index, clock, &key) {
                    Some(value) => self.check(here, index, *clock, value.as_deref()),
                    None => return,
                },
                Op::GetCard(of) => match self.get(here, index, clock, program.card_key(of)) {
                    Some(value) => self.check(here, index, *clock, value.as_deref()),
                    None => return,
                },
                Op::GetAllCards => {
                    local.stage = Stage::InSweep;
                    let locals = &mut self.places[here].locals;
                    locals.sweep.entered += 1;
                    if locals.sweep.entered == locals.all.len() {
                        self.sweep(here, clock);
                    }
                    return;
                }
                Op::Compute(nanoseconds) => {
                    self.queue.push(*clock + nanoseconds, here as u32, What::Step(index as u32));
                    return;
                }
                Op::Finalize => {
                    *clock += self.costs.finalize;
                    self.input(here, clock, Input::FromRank(NS, rank, Request::Finalized));
                }
                Op::Abort => {
                    self.doom = Doom::Yes;
                    local.stage = Stage::Aborted;
                    let request = Request::Abort { code: 7, message: String::new() };
                    return self.input(here, clock, Input::FromRank(NS, rank, request));
                }
                Op::Exit(code) => return self.end(here, index, *clock, code.into()),
                Op::Leave => {
                    self.doom = Doom::Yes;
                    return self.end(here, index, *clock, 0);
                }
                Op::Die(signal) => {
                    self.doom = Doom::Yes;
                    return self.end(here, index, *clock, 256 + u16::from(signal));
                }
            }
        }
    }

    fn put(&mut self, here: usize, index: usize, clock: &mut u64, key: &[u8], value: &[u8]) {
        *clock += self.costs.put;
        let local = &mut self.places[here].locals.all[index];
        let rank = Rank(local.rank);
        let noted = local.pending.get_or_insert_default().push(rank, key, value);
        debug_assert!(noted, "programs put little");
        if self.cache.puts_at_once() {
            let mut puts = Puts::new();
            puts.push(rank, key, value);
            self.input(here, clock, Input::FromRank(NS, rank, Request::Put { puts }));
        }
    }

    fn enter(&mut self, here: usize, index: usize, clock: &mut u64) {
        *clock += self.costs.arrival;
        let at_once = self.cache.puts_at_once();
        let local = &mut self.places[here].locals.all[index];
        local.stage = Stage::InFence;
        let (rank, number) = (Rank(local.rank), local.fences);
        let put = local.pending.take().map(|mut pending| pending.take()).unwrap_or_default();
        let puts = if at_once { Puts::new() } else { put };
        self.watch.on_arrived(number, *clock);
        self.input(here, clock, Input::FromRank(NS, rank, Request::Fence { puts, in_segment: false }));
        if let Some(Mutation::EarlyRelease { agent }) = self.mutation
            && agent as usize == here
        {
            self.mutation = None;
            self.act(here, clock, Action::Release(NS, std::iter::once(rank).collect()));
        }
    }

    /// Ranks of a fence go on.
    pub(crate) fn release(&mut self, here: usize, clock: &mut u64, ranks: &Ranks) {
        if let Some(Mutation::LoseRelease { agent, after }) = self.mutation
            && agent as usize == here
        {
            self.mutable += 1;
            if self.mutable == after + 1 {
                return;
            }
        }
        if self.segment {
            *clock += self.costs.release;
        }
        for rank in ranks.iter() {
            let locals = &mut self.places[here].locals;
            let Some(index) = locals.index(rank) else { continue };
            let local = &mut locals.all[index];
            if local.stage != Stage::InFence {
                continue;
            }
            if !self.segment {
                *clock += self.costs.release;
            }
            local.stage = Stage::Running;
            local.fences += 1;
            self.watch.on_released(rank.0, local.fences - 1, *clock);
            self.queue.push(*clock + self.costs.local, here as u32, What::Step(index as u32));
        }
    }

    // ---- gets ----

    /// A rank's get: the answer, if it is here. Else the rank waits.
    fn get(&mut self, here: usize, index: usize, clock: &mut u64, key: &Bytes) -> Option<Option<Bytes>> {
        let place = &mut self.places[here];
        let local = &mut place.locals.all[index];
        let own = local.pending.as_ref().and_then(|pending| pending.get(key));
        let own_is_none = own.is_none();
        let found = match (own, &place.board) {
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
            *clock += if self.segment { 0 } else { self.costs.get_hit };
            self.tally.gets.here += 1;
            place.counted.board_gets += u64::from(own_is_none && !self.segment);
            return Some(self.mutated(here, value));
        }
        *clock += self.costs.get_asked;
        local.stage = Stage::InGet;
        let rank = Rank(local.rank);
        self.ask(here, clock, rank, key)
    }

    /// Hands a get to the core: the answer, if it comes at once.
    fn ask(&mut self, here: usize, clock: &mut u64, rank: Rank, key: &Bytes) -> Option<Option<Bytes>> {
        self.asking = Some((here, rank));
        self.input(here, clock, Input::FromRank(NS, rank, Request::Get { key: key.clone() }));
        self.asking = None;
        let value = self.answered.take()?;
        self.tally.gets.here += 1;
        if let Some(index) = self.places[here].locals.index(rank) {
            let local = &mut self.places[here].locals.all[index];
            if local.stage == Stage::InGet {
                local.stage = Stage::Running;
            }
        }
        Some(self.mutated(here, value))
    }

    fn mutated(&mut self, here: usize, value: Option<Bytes>) -> Option<Bytes> {
        if let Some(Mutation::WrongValue { agent, after }) = self.mutation
            && agent as usize == here
        {
            self.mutable += 1;
            if self.mutable == after + 1 {
                return Some(Bytes::from_static(b"wrong"));
            }
        }
        value
    }

    /// A rank is answered.
    pub(crate) fn on_answer(&mut self, here: usize, rank: Rank, clock: &mut u64, answer: Answer) {
        let Answer::Got(value) = answer else { return self.unexpected(*clock, &answer) };
        if self.asking == Some((here, rank)) {
            self.answered = Some(value);
            return;
        }
        let Some(index) = self.places[here].locals.index(rank) else { return };
        let value = self.mutated(here, value);
        match self.places[here].locals.all[index].stage {
            Stage::InGet => {
                *clock += self.costs.get_answered;
                self.places[here].locals.all[index].stage = Stage::Running;
                self.check(here, index, *clock, value.as_deref());
                self.queue.push(*clock + 2 * self.costs.local, here as u32, What::Step(index as u32));
            }
            Stage::InSweep if self.places[here].locals.sweep.waiting => {
                let key = self.places[here].locals.sweep.at;
                *clock += self.costs.get_answered;
                self.check_card(here, key, *clock, value.as_deref());
                self.places[here].locals.sweep.waiting = false;
                self.pass_key(here, *clock);
                self.sweep(here, clock);
            }
            // It has died meanwhile.
            _ => {}
        }
    }

    /// Holds the answer to a rank's last get against what it has to be.
    fn check(&mut self, here: usize, index: usize, clock: u64, value: Option<&[u8]>) {
        self.watch.on_got(clock);
        let local = &self.places[here].locals.all[index];
        let (rank, fences) = (local.rank, local.fences);
        match self.program.op(rank, local.position - 1) {
            Op::GetCard(of) => self.check_card(here, of, clock, value),
            Op::Get { key } => {
                let own = local.pending.as_ref().and_then(|pending| pending.get(&key));
                let expected = own.or_else(|| self.program.value_after(fences, &key));
                self.watch.compare(clock, rank, &key, value, expected);
            }
            _ => {}
        }
    }

    fn check_card(&mut self, here: usize, of: u32, clock: u64, value: Option<&[u8]>) {
        let rank = self.places[here].locals.all.first().map_or(0, |local| local.rank);
        let expected = self.program.card(of);
        if value != Some(expected) {
            let key = self.program.card_key(of);
            self.watch.compare(clock, rank, key, value, Some(expected));
        }
    }

    // ---- all gets of all ranks, in step ----

    /// All are done with a key. When it was the last, they go on.
    fn pass_key(&mut self, here: usize, clock: u64) {
        let locals = &mut self.places[here].locals;
        locals.sweep.at += 1;
        if locals.sweep.at == self.watch.ranks() {
            for index in 0..locals.all.len() {
                self.leave_sweep(here, index, clock);
            }
        }
    }

    fn leave_sweep(&mut self, here: usize, index: usize, clock: u64) {
        self.watch.on_got(clock);
        let local = &mut self.places[here].locals.all[index];
        if local.stage == Stage::InSweep {
            local.stage = Stage::Running;
            self.queue.push(clock + self.costs.local, here as u32, What::Step(index as u32));
        }
    }

    fn sweep(&mut self, here: usize, clock: &mut u64) {
        let (count, ranks) = (self.places[here].locals.all.len() as u64, u64::from(self.watch.ranks()));
        if self.places[here].board.as_ref().is_some_and(Board::is_whole) {
            return self.sweep_whole_board(here, clock, count, ranks);
        }
        let program = std::rc::Rc::clone(&self.program);
        for _ in 0..TURN {
            let of = self.places[here].locals.sweep.at;
            if u64::from(of) >= ranks {
                return;
            }
            let key = program.card_key(of);
            let place = &self.places[here];
            let Some(board) = &place.board else { return };
            let found = match board.look_up(key) {
                LookUp::Found(value) => Some(value == program.card(of)),
                LookUp::Absent => Some(false),
                LookUp::Unknown => None,
            };
            let asking = count;
            let right = match found {
                Some(right) => {
                    *clock += asking * self.costs.get_hit;
                    self.tally.gets.here += asking;
                    self.places[here].counted.board_gets += asking;
                    right
                }
                None => {
                    let Some(rank) = place.locals.all.first().map(|local| Rank(local.rank)) else { return };
                    *clock += self.costs.get_asked;
                    // The others of its agent ask after it, and are answered with it.
                    match self.ask(here, clock, rank, key) {
                        Some(value) => {
                            *clock += (asking - 1) * self.costs.get_asked;
                            self.tally.note_in_step(
                                self.places[here].depth,
                                GetCounts { own: asking - 1, ..GetCounts::default() },
                            );
                            value.as_deref() == Some(program.card(of))
                        }
                        None => {
                            // Out of step they would find it a moment later: that is what it costs.
                            *clock += (asking - 1) * self.costs.get_hit;
                            let joined = GetCounts { joined: asking - 1, ..GetCounts::default() };
                            self.tally.note_in_step(self.places[here].depth, joined);
                            self.places[here].locals.sweep.waiting = true;
                            return;
                        }
                    }
                }
            };
            if !right {
                self.check_card(here, of, *clock, None);
            }
            self.pass_key(here, *clock);
        }
        self.queue.push(*clock, here as u32, What::Step(SWEEP));
    }

    /// All entries are here: their gets are counted, not made.
    fn sweep_whole_board(&mut self, here: usize, clock: &mut u64, count: u64, ranks: u64) {
        self.tally.gets.here += count * ranks;
        let counted = &mut self.places[here].counted;
        // What ranks read in the segment nobody counts.
        counted.board_gets += if self.segment { 0 } else { count * ranks };
        let mut done = *clock;
        if self.segment {
            done += ranks * self.costs.get_read;
        } else {
            *clock += count * ranks * self.costs.get_hit;
            done = *clock;
        }
        for index in 0..count as usize {
            self.leave_sweep(here, index, done);
        }
    }

    // ---- ends ----

    /// A rank's process ends by itself.
    fn end(&mut self, here: usize, index: usize, clock: u64, exit: u16) {
        if exit != 0 {
            self.doom = Doom::Yes;
        }
        let local = &mut self.places[here].locals.all[index];
        local.stage = Stage::Dying;
        local.exit = exit;
        self.queue.push(clock + self.costs.local, here as u32, What::Ended(index as u32));
    }

    /// A signal is sent to ranks.
    pub(crate) fn signal(&mut self, here: usize, clock: u64, ranks: &Ranks, signal: i32) {
        for rank in ranks.iter() {
            let locals = &mut self.places[here].locals;
            let Some(index) = locals.index(rank) else { continue };
            let local = &mut locals.all[index];
            let ends = match local.stage {
                Stage::Queued | Stage::Dying | Stage::Ended => false,
                _ => signal == SIGKILL || !local.stubborn,
            };
            if ends {
                local.stage = Stage::Dying;
                local.exit = 256 + signal as u16;
                self.queue.push(clock + self.costs.local, here as u32, What::Ended(index as u32));
            }
        }
    }

    /// Somebody kills a rank. False if it does not run.
    pub(crate) fn kill(&mut self, at: u64, rank: u32) -> bool {
        let found = self.places.iter().enumerate().find_map(|(here, place)| {
            let index = place.locals.index(Rank(rank))?;
            let stage = place.locals.all[index].stage;
            (!matches!(stage, Stage::Queued | Stage::Dying | Stage::Ended)).then_some((here, index))
        });
        let Some((here, index)) = found else { return false };
        self.end(here, index, at, 256 + SIGTERM as u16);
        true
    }

    /// A rank's process is reaped.
    pub(crate) fn on_rank_ended(&mut self, here: usize, index: u32, clock: &mut u64) {
        let local = &mut self.places[here].locals.all[index as usize];
        if std::mem::replace(&mut local.stage, Stage::Ended) == Stage::Ended {
            return;
        }
        local.pending = None;
        *clock += self.costs.exit;
        let exit = match local.exit {
            code @ ..=255 => Exit::Code(code.into()),
            signal => Exit::Signal { signal: i32::from(signal) - 256, core: false, out_of_memory: false },
        };
        let rank = Rank(local.rank);
        self.input(here, clock, Input::RankEnded(NS, rank, exit));
    }
}
