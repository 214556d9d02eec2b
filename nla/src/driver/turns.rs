//! The order in which an agent serves ranks that ask at the same time: first those that have asked last.
//!
//! A rank that is answered at once runs on, asks again and is answered again, while its memory is in the processor's caches. With
//! hundreds of ranks per processor, one request of each in turn costs more time for loading their memory again than for all
//! system calls. So a pass serves a few ranks, and then looks for ranks that have asked meanwhile. No rank waits longer than
//! [`WAIT_MAX`] for its turn.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use tokio::task::yield_now;
use tracing::Span;

use crate::tasks::Tasks;

/// The number of ranks that a pass serves per processor. 512 ranks on two processors that get all entries take 0.73 times the time
/// of one request of each in turn; with 4 and with 16 per processor 0.74 and 0.82.
const AT_ONCE: usize = 8;
/// A request that has waited for this time is served before later ones.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// The turns of all ranks of an agent. Bounded by the number of ranks: each waits for one turn at most.
pub(super) struct Turns {
    /// The number of ranks that a pass serves.
    at_once: usize,
    /// The number of ranks that this pass may still serve.
    free: Cell<usize>,
    waiting: RefCell<VecDeque<Waiting>>,
    /// A task calls those that wait.
    has_caller: Cell<bool>,
    tasks: Tasks,
}

struct Waiting {
    since: Instant,
    is_due: Rc<Cell<bool>>,
    waker: Waker,
}

impl Waiting {
    /// Lets the rank continue. Returns whether it still waits: its process may have ended.
    fn call(self) -> bool {
        let waits = Rc::strong_count(&self.is_due) > 1;
        self.is_due.set(true);
        self.waker.wake();
        waits
    }
}

impl Turns {
    /// `processors`: those that the ranks may use.
    pub(super) fn new(processors: usize, tasks: Tasks) -> Rc<Self> {
        let at_once = AT_ONCE * processors;
        let (waiting, has_caller) = (RefCell::default(), Cell::new(false));
        Rc::new(Self { at_once, free: Cell::new(at_once), waiting, has_caller, tasks })
    }

    /// Waits until a rank that has asked may be served. Cancel-safe: a rank that no longer waits takes no turn.
    pub(super) async fn next(self: &Rc<Self>) {
        let mut turn: Option<Rc<Cell<bool>>> = None;
        poll_fn(|context| match &turn {
            None if self.free.get() > 0 => {
                self.free.set(self.free.get() - 1);
                Poll::Ready(())
            }
            None => {
                let is_due = Rc::clone(turn.insert(Rc::default()));
                let since = Instant::now();
                self.waiting.borrow_mut().push_back(Waiting { since, is_due, waker: context.waker().clone() });
                if !self.has_caller.replace(true) {
                    self.tasks.spawn("turns", Span::none(), Rc::clone(self).call_all());
                }
                Poll::Pending
            }
            Some(is_due) if is_due.get() => Poll::Ready(()),
            Some(_) => Poll::Pending,
        })
        .await;
    }

    /// Calls ranks, one pass after another, until none waits.
    async fn call_all(self: Rc<Self>) {
        loop {
            // Those that have asked meanwhile are served first.
            yield_now().await;
            self.call(Instant::now());
            if self.waiting.borrow().is_empty() {
                break;
            }
        }
        self.has_caller.set(false);
    }

    /// Ends a pass: calls those that wait too long, then the latest ones while this pass has turns left.
    fn call(&self, now: Instant) {
        let mut waiting = self.waiting.borrow_mut();
        let is_late = |oldest: &Waiting| now.duration_since(oldest.since) >= WAIT_MAX;
        while waiting.front().is_some_and(is_late) {
            waiting.pop_front().map(Waiting::call);
        }
        while self.free.get() > 0
            && let Some(latest) = waiting.pop_back()
        {
            if latest.call() {
                self.free.set(self.free.get() - 1);
            }
        }
        self.free.set(self.at_once);
    }
}

#[cfg(test)]
mod tests {
    use std::panic;

    use tokio::runtime::Builder;
    use tokio::task::{LocalSet, spawn_local};

    use super::*;
    use crate::tasks::Panics;

    fn turns(processors: usize) -> Rc<Turns> {
        Turns::new(processors, Panics::new("agent").tasks())
    }

    /// Runs tasks that ask for `requests` turns each, all at the same time, and returns the order in which they got them.
    fn order(ranks: usize, requests: usize) -> Vec<usize> {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let order = Rc::new(RefCell::new(Vec::new()));
        LocalSet::new().block_on(&runtime, async {
            let turns = turns(1);
            let work = |rank| {
                let (turns, order) = (Rc::clone(&turns), Rc::clone(&order));
                async move {
                    for _ in 0..requests {
                        turns.next().await;
                        order.borrow_mut().push(rank);
                        // The rank's next request comes with the next events.
                        yield_now().await;
                    }
                }
            };
            let tasks: Vec<_> = (0..ranks).map(|rank| spawn_local(work(rank))).collect();
            for task in tasks {
                task.await.unwrap_or_else(|error| panic::resume_unwind(error.into_panic()));
            }
        });
        order.take()
    }

    #[test]
    fn ranks_that_have_been_answered_are_served_again_before_those_that_wait() {
        let order = order(50, 20);
        assert_eq!(order.len(), 1000);
        let early = order.iter().take(200).map(|rank| 1_u64 << rank).fold(0, |ranks, rank| ranks | rank);
        assert!(early.count_ones() <= 20, "{order:?}");
    }

    #[test]
    fn few_ranks_are_served_in_rounds() {
        let order = order(AT_ONCE, 30);
        for round in order.chunks(AT_ONCE) {
            assert_eq!(round.iter().fold(0, |ranks, rank| ranks | 1 << rank), (1 << AT_ONCE) - 1, "{order:?}");
        }
    }

    fn waiting(turns: &Turns, count: usize) -> Vec<Rc<Cell<bool>>> {
        let all: Vec<_> = (0..count).map(|_| Rc::new(Cell::new(false))).collect();
        for is_due in &all {
            let is_due = Rc::clone(is_due);
            let waker = Waker::noop().clone();
            turns.waiting.borrow_mut().push_back(Waiting { since: Instant::now(), is_due, waker });
        }
        all
    }

    #[test]
    fn the_latest_are_called_first_until_others_have_waited_too_long() {
        let turns = turns(1);
        let all = waiting(&turns, AT_ONCE + 3);
        let called = || all.iter().filter(|is_due| is_due.get()).count();
        turns.call(Instant::now());
        assert_eq!(called(), AT_ONCE);
        assert!(all[..3].iter().all(|is_due| !is_due.get()));
        turns.free.set(0);
        turns.call(Instant::now() + WAIT_MAX);
        assert_eq!(called(), all.len());
    }

    #[test]
    fn a_rank_that_has_ended_takes_no_turn() {
        let turns = turns(1);
        let mut all = waiting(&turns, AT_ONCE + 2);
        all.pop();
        turns.call(Instant::now());
        assert_eq!(all.iter().filter(|is_due| is_due.get()).count(), AT_ONCE);
        assert!(!all[0].get());
    }
}
