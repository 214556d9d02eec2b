//! Tests of the schedule: each input, and exactly the actions that follow.

use super::super::absences::{AbsenceKind, AbsentNodes};
use super::super::waits::{Needs, Room, Sharing, Unusable};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn ask(ranks: u32) -> Ask {
    Ask { ranks: Some(ranks), waits: true, ..Ask::default() }
}

fn here(slots: u32) -> Vec<Node> {
    vec![Node::new("here", slots, Health::Up)]
}

/// A job that was started.
fn starts(job: JobNumber, slots: u32) -> Action {
    Action::Start(job, [(0, slots)].into())
}

/// A schedule whose launchers start at once.
struct Pool {
    schedule: Schedule,
    now: Time,
    wake: Option<Time>,
}

impl Pool {
    fn of(slots: u32) -> Self {
        let mut pool =
            Self { schedule: Schedule::new(here(slots), Lifetime::default(), 100), now: Time::ZERO, wake: None };
        pool.handle(Input::Timeout);
        pool
    }

    /// Returns the actions besides those that start launchers.
    fn handle(&mut self, input: Input) -> Vec<Action> {
        let (mut inputs, mut done) = (vec![input], Vec::new());
        while let Some(input) = inputs.pop() {
            let mut actions = Vec::new();
            self.schedule.handle(self.now, input, &mut actions);
            self.schedule.check_invariants();
            for action in actions {
                match action {
                    Action::AddStandby => inputs.push(Input::StandbyReady),
                    Action::WakeAt(at) => self.wake = Some(at),
                    action => done.push(action),
                }
            }
        }
        done
    }

    fn free(&self) -> u32 {
        self.schedule.nodes.room(&ask(1)).free
    }

    /// Returns why each job that waits does so.
    fn reasons(&self) -> Vec<(JobNumber, Why)> {
        self.schedule.jobs().filter_map(|shown| Some((shown.job, shown.wait?.why))).collect()
    }

    fn submit(&mut self, job: JobNumber, ranks: u32) -> Vec<Action> {
        self.handle(Input::Submitted(job, ask(ranks)))
    }

    fn end(&mut self, job: JobNumber) -> Vec<Action> {
        self.handle(Input::Ended(job))
    }
}

fn no_room(slots: u32, free: u32) -> Why {
    Why::Room(Room { needs: Needs::Slots { slots, sharing: Sharing::Any }, free, unusable: Unusable::default() })
}

fn waits(job: JobNumber, needs: u32, free: u32, ahead: u32) -> Action {
    Action::TellWaits(job, Wait { why: no_room(needs, free), ahead }, Absent::default())
}

#[test]
fn jobs_start_in_order_as_slots_become_free() {
    let mut pool = Pool::of(4);
    assert_eq!(pool.submit(1, 3), [starts(1, 3)]);
    assert_eq!(pool.submit(2, 2), [waits(2, 2, 1, 0)]);
    assert_eq!(pool.submit(3, 4), [waits(3, 4, 1, 1)]);
    assert_eq!(pool.end(1), [starts(2, 2)]);
    assert_eq!(pool.end(2), [starts(3, 4)]);
    assert_eq!((pool.free(), pool.schedule.ended()), (0, 2));
}

#[test]
fn jobs_that_fit_overtake_the_first_only_for_a_while() {
    let mut pool = Pool::of(4);
    assert_eq!(pool.submit(1, 3), [starts(1, 3)]);
    assert_eq!(pool.submit(2, 4), [waits(2, 4, 1, 0)]);
    assert_eq!(pool.submit(3, 1), [starts(3, 1)]);
    assert_eq!(pool.wake, Some(BACKFILL_TIME));
    pool.now = BACKFILL_TIME;
    assert_eq!(pool.end(3), []);
    let kept = Action::TellWaits(4, Wait { why: Why::Kept(2), ahead: 1 }, Absent::default());
    assert_eq!(pool.submit(4, 1), [kept], "the slot is kept for job 2");
    assert_eq!(pool.reasons(), [(2, no_room(4, 1)), (4, Why::Kept(2))]);
    assert_eq!(pool.end(1), [starts(2, 4)]);
    assert_eq!(pool.end(2), [starts(4, 1)]);
}

#[test]
fn no_slots_are_kept_for_a_job_that_waits_for_nodes() {
    let mut pool = Pool { schedule: Schedule::new(vec![], Lifetime::default(), 100), now: Time::ZERO, wake: None };
    (0..3).for_each(|at| drop(pool.handle(Input::NodeAdded(at, Node::new("node", 2, Health::Up)))));
    let started = |job, at, slots| Action::Start(job, [(at, slots)].into());
    let waits =
        |pool: &Pool| pool.reasons().into_iter().map(|(job, why)| (job, why == Why::Kept(1))).collect::<Vec<_>>();
    let ups: [fn(&mut Pool); 2] =
        [|pool| drop(pool.handle(Input::NodeDrained(2, false))), |pool| drop(pool.handle(Input::NodeUp(2, 2)))];
    for (is_drained, up) in [true, false].into_iter().zip(ups) {
        if is_drained {
            pool.handle(Input::NodeDrained(2, true));
        } else {
            pool.handle(Input::NodeHealth(2, Health::Down("lost".to_owned())));
        }
        pool.wake = None;
        pool.handle(Input::Submitted(1, Ask { nodes: Some(3), ..ask(3) }));
        pool.now += 2 * BACKFILL_TIME;
        assert_eq!(pool.submit(2, 2), [started(2, 0, 2)]);
        assert_eq!((waits(&pool), pool.wake), (vec![(1, false)], None));
        // The next job waits for others to end, so slots are kept for it.
        pool.submit(3, 4);
        assert_eq!(pool.wake, Some(pool.now + BACKFILL_TIME));
        pool.now += BACKFILL_TIME;
        pool.submit(4, 1);
        assert_eq!(pool.reasons().last(), Some(&(4, Why::Kept(3))));
        pool.handle(Input::Signal(vec![3, 4], 15));
        // Once the node is used again, the first job waits for the others only.
        up(&mut pool);
        assert_eq!(pool.submit(3, 1), [started(3, 1, 1)]);
        pool.now += BACKFILL_TIME;
        pool.submit(4, 1);
        assert_eq!(waits(&pool), [(1, false), (4, true)]);
        pool.handle(Input::Signal(vec![4], 15));
        assert_eq!(pool.end(2), [Action::Start(1, [(0, 1), (1, 1), (2, 1)].into())]);
        pool.end(1);
        pool.end(3);
    }
}

#[test]
fn a_job_whose_client_has_left_gives_back_its_slots_and_its_launcher() {
    let mut pool = Pool::of(2);
    assert_eq!(pool.submit(1, 2), [starts(1, 2)]);
    for _ in 0..2 {
        assert_eq!(pool.handle(Input::NotWanted(1)), []);
        assert_eq!(pool.schedule.standbys, STANDBYS + 1, "another one was started for the next job");
    }
    assert_eq!((pool.submit(2, 2), pool.schedule.ended()), (vec![starts(2, 2)], 0));
}

#[test]
fn a_job_that_no_launcher_has_taken_is_started_again_before_later_ones() {
    let mut pool = Pool::of(2);
    assert_eq!(pool.submit(1, 2), [starts(1, 2)]);
    assert_eq!(pool.submit(2, 2), [waits(2, 2, 0, 0)]);
    assert_eq!(pool.handle(Input::NotTaken(1)), [starts(1, 2)]);
    assert_eq!(pool.end(1), [starts(2, 2)]);
    pool.handle(Input::Stop);
    assert_eq!(pool.handle(Input::NotTaken(2)), [Action::Refuse(2, JobRefusal::Stopping), Action::Over]);
    assert_eq!((pool.free(), pool.schedule.ended()), (2, 1));
}

#[test]
fn a_job_that_no_launcher_has_taken_says_so_and_gets_the_next_one() {
    let mut schedule = Schedule::new(here(4), Lifetime::default(), 100);
    let mut started = |input| {
        let mut actions = Vec::new();
        schedule.handle(Time::ZERO, input, &mut actions);
        actions.retain(|action| matches!(action, Action::Start(..)));
        let waiting = |shown: Shown<'_>| Some((shown.job, shown.wait?.why, shown.is_returned));
        (actions, schedule.jobs().filter_map(waiting).collect::<Vec<_>>())
    };
    started(Input::Timeout);
    started(Input::StandbyReady);
    assert_eq!(started(Input::Submitted(1, ask(2))), (vec![starts(1, 2)], Vec::new()));
    assert_eq!(started(Input::Submitted(2, ask(2))), (Vec::new(), vec![(2, Why::Launcher, false)]));
    let both = vec![(1, Why::Again, true), (2, Why::Launcher, false)];
    assert_eq!(started(Input::NotTaken(1)), (Vec::new(), both));
    assert_eq!(started(Input::StandbyReady), (vec![starts(1, 2)], vec![(2, Why::Launcher, false)]));
    assert_eq!(started(Input::StandbyReady), (vec![starts(2, 2)], Vec::new()));
}

#[test]
fn a_job_behind_one_for_which_a_launcher_starts_waits_for_that_launcher() {
    let mut schedule = Schedule::new(here(2), Lifetime::default(), 100);
    let mut reasons = |input| {
        schedule.handle(Time::ZERO, input, &mut Vec::new());
        schedule.jobs().filter_map(|shown| Some((shown.job, shown.wait?.why))).collect::<Vec<_>>()
    };
    reasons(Input::Timeout);
    reasons(Input::Submitted(1, ask(2)));
    // The slots are free, and job 1 gets them.
    assert_eq!(reasons(Input::Submitted(2, ask(2))), [(1, Why::Launcher), (2, Why::Launcher)]);
    assert_eq!(reasons(Input::StandbyReady), [(2, no_room(2, 0))]);
}

#[test]
fn a_job_that_is_larger_than_the_pool_runs_alone() {
    let mut pool = Pool::of(2);
    assert_eq!(pool.submit(1, 64), [starts(1, 2)]);
    assert_eq!(pool.handle(Input::Submitted(2, Ask { ranks: None, ..ask(0) })), [waits(2, 2, 0, 0)]);
    assert_eq!(pool.end(1), [starts(2, 2)]);
}

#[test]
fn priorities_come_before_arrivals() {
    let mut pool = Pool::of(1);
    pool.submit(1, 1);
    pool.submit(2, 1);
    let first = Ask { priority: 5, ..ask(1) };
    assert_eq!(pool.handle(Input::Submitted(3, first)), [waits(3, 1, 0, 0)]);
    assert_eq!(pool.end(1), [starts(3, 1)]);
    assert_eq!(pool.end(3), [starts(2, 1)]);
}

#[test]
fn a_job_that_may_not_wait_is_refused() {
    let mut pool = Pool::of(2);
    let at_once = |ranks| Ask { waits: false, ..ask(ranks) };
    assert_eq!(pool.handle(Input::Submitted(1, at_once(2))), [starts(1, 2)]);
    let busy = JobRefusal::Busy(no_room(1, 0), Absent::default());
    assert_eq!(pool.handle(Input::Submitted(2, at_once(1))), [Action::Refuse(2, busy)]);
    assert!(!pool.schedule.knows(2));
}

/// Nodes that a job lacks: their names, kinds of absence and seconds.
fn absent(nodes: &[(&str, AbsenceKind, u64)]) -> Absent {
    let group = |(names, kind, seconds): &(&str, AbsenceKind, u64)| AbsentNodes {
        names: (*names).to_owned(),
        count: 1,
        kind: *kind,
        why: if *kind == AbsenceKind::Down { "lost".to_owned() } else { String::new() },
        age_ms: seconds * 1000,
    };
    Absent { groups: nodes.iter().map(group).collect(), others: 0 }
}

#[test]
fn a_job_is_told_which_nodes_it_lacks_and_when_that_changes() {
    let mut pool = Pool { schedule: Schedule::new(vec![], Lifetime::default(), 100), now: Time::ZERO, wake: None };
    (0..3).for_each(|at| drop(pool.handle(Input::NodeAdded(at, Node::new(format!("n{at}"), 2, Health::Up)))));
    pool.handle(Input::NodeDrained(0, true));
    pool.now += 5 * SECOND;
    assert_eq!(pool.submit(1, 4), [Action::Start(1, [(1, 2), (2, 2)].into())]);
    // It has enough nodes, and waits for the first job.
    let room = |slots, free, drained, down| {
        let needs = Needs::Slots { slots, sharing: Sharing::Any };
        Why::Room(Room { needs, free, unusable: Unusable { drained, down, starting: 0 } })
    };
    let tell =
        |job, why, nodes: &[(&str, AbsenceKind, u64)]| Action::TellWaits(job, Wait { why, ahead: 0 }, absent(nodes));
    assert_eq!(pool.submit(2, 4), [tell(2, room(4, 0, 1, 0), &[])]);
    assert_eq!(pool.schedule.lack(pool.now, 2), None);
    pool.wake = None;
    assert_eq!(pool.handle(Input::NodeHealth(1, Health::Down("lost".to_owned()))), []);
    assert_eq!(pool.wake, Some(pool.now + Told::PAUSE), "many nodes may be lost now");
    pool.now += Told::PAUSE;
    let both = [("n1", AbsenceKind::Down, 10), ("n0", AbsenceKind::Drained, 15)];
    assert_eq!(pool.handle(Input::Timeout), [tell(2, room(4, 0, 1, 1), &both)]);
    assert_eq!(pool.handle(Input::Timeout), []);
    // A client that attaches itself now is told, too.
    let wait = Wait { why: room(4, 0, 1, 1), ahead: 0 };
    assert_eq!(pool.schedule.lack(pool.now, 2), Some((wait, absent(&both))));
    assert_eq!(pool.schedule.lack(pool.now, 1), None);
    // A job that may not wait is refused for the same.
    let at_once = Input::Submitted(3, Ask { waits: false, ..ask(4) });
    let busy = JobRefusal::Busy(room(4, 0, 1, 1), absent(&both));
    assert_eq!(pool.handle(at_once), [Action::Refuse(3, busy)]);
    // The first job ends. That changes what is free, and not what is lacking.
    assert_eq!(pool.end(1), []);
    pool.now += Told::PAUSE;
    assert_eq!(pool.handle(Input::NodeHealth(1, Health::Starts)), []);
    assert_eq!(pool.handle(Input::NodeUp(1, 2)), [Action::Start(2, [(1, 2), (2, 2)].into())]);
}

#[test]
fn the_reason_to_wait_is_the_one_of_now() {
    let mut pool = Pool { schedule: Schedule::new(vec![], Lifetime::default(), 100), now: Time::ZERO, wake: None };
    (0..3).for_each(|at| drop(pool.handle(Input::NodeAdded(at, Node::new(format!("n{at}"), 2, Health::Up)))));
    let on_three = |job| Input::Submitted(job, Ask { nodes: Some(3), ..ask(6) });
    let missing = |free, drained, down| {
        let needs = Needs::Nodes { nodes: 3, each: Some(2), sharing: Sharing::Any };
        Why::Room(Room { needs, free, unusable: Unusable { drained, down, starting: 0 } })
    };
    pool.handle(Input::NodeDrained(0, true));
    let drained = absent(&[("n0", AbsenceKind::Drained, 0)]);
    let told = Action::TellWaits(1, Wait { why: missing(2, 1, 0), ahead: 0 }, drained);
    assert_eq!(pool.handle(on_three(1)), [told]);
    assert_eq!(pool.handle(Input::NodeHealth(1, Health::Down("lost".to_owned()))), []);
    assert_eq!(pool.reasons(), [(1, missing(1, 1, 1))]);
    assert_eq!(pool.handle(Input::NodeRemoved(2)), []);
    assert_eq!(pool.reasons(), [(1, missing(0, 1, 1))]);
    let refused = JobRefusal::TooFewNodes { asks: 3, has: 2 };
    assert_eq!(pool.handle(on_three(2)), [Action::Refuse(2, refused)]);
    pool.handle(Input::NodeUp(1, 2));
    pool.handle(Input::NodeDrained(0, false));
    let started = pool.handle(Input::NodeAdded(3, Node::new("node", 2, Health::Up)));
    assert_eq!(started, [Action::Start(1, [(0, 2), (1, 2), (3, 2)].into())]);
    assert_eq!(pool.reasons(), []);
}

#[test]
fn signals_end_jobs_that_wait_and_reach_those_that_run() {
    let mut pool = Pool::of(1);
    for job in 1..=3 {
        pool.submit(job, 1);
    }
    for signal in [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGQUIT, Signal::SIGCONT] {
        assert_eq!(pool.handle(Input::Signal(vec![3], signal as i32)), [], "{signal}: it has no ranks");
    }
    let refused = Action::Refuse(3, JobRefusal::Signalled(15));
    assert_eq!(pool.handle(Input::Signal(vec![3, 1, 9], 15)), [refused, Action::Signal(1, 15)]);
    let all = pool.handle(Input::Signal(vec![], 2));
    assert_eq!(all, [Action::Refuse(2, JobRefusal::Signalled(2)), Action::Signal(1, 2)]);
}

#[test]
fn a_pool_stops_when_its_jobs_have_ended() {
    let mut pool = Pool::of(1);
    pool.submit(1, 1);
    pool.submit(2, 1);
    let stopped = pool.handle(Input::Stop);
    assert_eq!(stopped, [Action::Refuse(2, JobRefusal::Stopping), Action::Signal(1, 15)]);
    assert_eq!(pool.submit(3, 1), [Action::Refuse(3, JobRefusal::Stopping)]);
    assert_eq!(pool.end(1), [Action::Over]);
    assert_eq!(pool.handle(Input::Timeout), []);
}

#[test]
fn a_pool_without_jobs_ends_after_its_idle_time() {
    let mut pool = Pool::of(1);
    pool.schedule.lifetime.idle = Some(SECOND);
    assert_eq!(pool.submit(1, 1), [starts(1, 1)]);
    pool.now = SECOND;
    assert_eq!(pool.end(1), []);
    assert_eq!(pool.wake, Some(2 * SECOND));
    pool.now = 2 * SECOND;
    assert_eq!(pool.handle(Input::Timeout), [Action::Over]);
}

#[test]
fn a_pool_ends_when_all_nodes_of_its_allocation_have_been_down_for_a_minute() {
    let mut pool = Pool::of(1);
    pool.schedule.lifetime.allocation = Some("Slurm job 7".to_owned());
    pool.handle(Input::NodeAdded(1, Node::new("there", 1, Health::Up)));
    let down = |at| Input::NodeHealth(at, Health::Down("its keeper was lost".to_owned()));
    assert_eq!((pool.handle(down(0)), pool.handle(Input::NodeDrained(1, true))), (vec![], vec![]));
    pool.now = 100 * SECOND;
    assert_eq!((pool.handle(Input::Timeout), pool.handle(down(1))), (vec![], vec![]));
    assert_eq!(pool.wake, Some(160 * SECOND), "one node has answered until now");
    // A node that is added, and one that answers again, begin the time anew.
    pool.handle(Input::NodeAdded(2, Node::new("new", 1, Health::Starts)));
    pool.now = 159 * SECOND;
    pool.handle(Input::NodeRemoved(2));
    assert_eq!((pool.handle(Input::NodeUp(0, 1)), pool.handle(down(0))), (vec![], vec![]));
    assert!(matches!(pool.submit(5, 1)[..], [Action::TellWaits(5, ..)]));
    // It is tried again.
    pool.now = 218 * SECOND;
    assert_eq!(pool.handle(Input::NodeHealth(0, Health::Starts)), []);
    pool.now = 219 * SECOND;
    let lost = JobRefusal::AllocationLost("Slurm job 7".to_owned());
    assert_eq!(pool.handle(Input::Timeout), [Action::Refuse(5, lost), Action::Over]);
}

#[test]
fn other_pools_outlive_their_nodes() {
    let mut pool = Pool::of(1);
    pool.handle(Input::NodeHealth(0, Health::Down("its keeper was lost".to_owned())));
    pool.now = 10_000 * SECOND;
    assert_eq!(pool.handle(Input::Timeout), []);
}

#[test]
fn jobs_wait_for_launchers_and_are_refused_if_none_can_be_started() {
    let mut schedule = Schedule::new(here(4), Lifetime::default(), 100);
    let mut handle = |now, input| {
        let mut actions = Vec::new();
        schedule.handle(now, input, &mut actions);
        schedule.check_invariants();
        actions
    };
    assert_eq!(handle(Time::ZERO, Input::Submitted(1, ask(1))), [Action::AddStandby, Action::AddStandby]);
    let mut now = Time::ZERO;
    let retry = |now| Action::WakeAt(now + RETRY_PAUSE);
    assert_eq!(handle(now, Input::StandbyLost { was_ready: false }), [retry(now)]);
    assert_eq!(handle(now, Input::StandbyLost { was_ready: false }), [retry(now)]);
    for _ in 2..FAILURES_MAX / 2 {
        now += RETRY_PAUSE;
        assert_eq!(handle(now, Input::Timeout), [Action::AddStandby, Action::AddStandby]);
        handle(now, Input::StandbyLost { was_ready: false });
        handle(now, Input::StandbyLost { was_ready: false });
    }
    now += RETRY_PAUSE;
    handle(now, Input::Timeout);
    handle(now, Input::StandbyLost { was_ready: false });
    let refused = Action::Refuse(1, JobRefusal::NoLauncher);
    assert_eq!(handle(now, Input::StandbyLost { was_ready: false }), [refused, retry(now)]);
}

/// Random jobs of random sizes: each starts once, and none waits for ever.
#[test]
fn every_job_starts_once() {
    let mut seed = 1u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..50 {
        let mut pool = Pool::of(1 + random(8) as u32);
        let (mut running, mut starts) = (Vec::new(), BTreeMap::new());
        let mut note = |actions: Vec<Action>, running: &mut Vec<JobNumber>| {
            for action in actions {
                if let Action::Start(job, _) = action {
                    *starts.entry(job).or_insert(0) += 1;
                    running.push(job);
                }
            }
        };
        let jobs = 60;
        for job in 1..=jobs {
            pool.now += Duration::from_secs(random(20));
            let priority = random(3) as i32;
            let ranks = (random(4) > 0).then(|| 1 + random(10) as u32);
            let actions = pool.handle(Input::Submitted(job, Ask { ranks, priority, ..ask(0) }));
            note(actions, &mut running);
            if random(2) == 0 && !running.is_empty() {
                let ended = running.swap_remove(random(running.len() as u64) as usize);
                note(pool.end(ended), &mut running);
            }
        }
        while let Some(ended) = running.pop() {
            pool.now += SECOND;
            note(pool.end(ended), &mut running);
        }
        assert_eq!(starts.len() as u64, jobs);
        assert!(starts.values().all(|count| *count == 1));
    }
}
