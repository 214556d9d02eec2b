//! The user is told, once and in time, about jobs that may hang.

use super::notices::notices;
use super::*;
use crate::core::limits::{LEFT_TIME, SILENT_TIME};

/// The notices of a job whose rank 0 leaves after 1 s, by the time `now`.
fn left_at(world: &mut World, now: Time) -> Vec<Notice> {
    world.up(at(1000), 1, Up::Exited { namespace: NS, fences: 1, unfinished: false, ranks: ranks("0") });
    notices(&world.after(now, RootInput::Timeout)).into_iter().cloned().collect()
}

/// Why a survey is asked for at this time.
fn survey_at(world: &mut World, now: Time) -> Option<SurveyCause> {
    world.after(now, RootInput::Timeout);
    let cause = world.root.survey.as_ref().map(|(_, cause)| *cause);
    if cause.is_some() {
        world.after(now + SURVEY_TIME, RootInput::Timeout);
    }
    cause
}

#[test]
fn ranks_that_run_on_after_the_first_one_are_named_once() {
    let mut world = World::running();
    assert_eq!(left_at(&mut world, at(1000) + LEFT_TIME - Duration::from_millis(1)), []);
    let left = Notice::RanksLeft { namespace: NS, left: ranks("0"), running: ranks("1-3"), time: LEFT_TIME };
    assert_eq!(left_at(&mut world, at(1000) + LEFT_TIME), [left]);
    assert_eq!(left_at(&mut world, at(1_000_000)), []);
    let mut world = World::running();
    world.root.stuck_after = Some(Duration::from_secs(5));
    assert!(matches!(left_at(&mut world, at(6000))[..], [Notice::RanksLeft { .. }]), "as early as other reports");
}

#[test]
fn a_job_whose_ranks_run_on_ends_after_the_exit_timeout() {
    let mut world = World::running();
    let limit = Duration::from_secs(3);
    world.root.exit_timeout = Some(limit);
    assert_eq!(left_at(&mut world, at(3999)), []);
    let outcome = Outcome::LeftBehind { limit, left: ranks("0"), running: ranks("1-3") };
    assert_eq!(left_at(&mut world, at(4000)), [Notice::Ending(outcome, SIGTERM, GRACE)]);
    let mut world = World::running();
    world.root.exit_timeout = Some(limit);
    for (child, set) in [(1, "0-1"), (2, "2-3")] {
        world.up(at(1000), child, Up::Exited { namespace: NS, fences: 1, unfinished: false, ranks: ranks(set) });
    }
    assert_eq!(world.root.watch_deadline(), None, "all have left");
}

#[test]
fn ranks_that_do_not_speak_pmi_are_looked_for_once_if_they_should() {
    let mut world = World::running();
    assert_eq!(survey_at(&mut world, at(1_000_000)), None, "they need not speak PMI");
    let mut world = World::running();
    world.root.expects_pmi = true;
    assert_eq!(survey_at(&mut world, SILENT_TIME - Duration::from_millis(1)), None);
    assert_eq!(survey_at(&mut world, SILENT_TIME), Some(SurveyCause::Silent));
    assert_eq!(survey_at(&mut world, at(1_000_000)), None, "once");
    let mut world = World::running();
    world.up(at(1000), 1, Up::Contact { namespace: NS });
    world.up(at(1000), 1, Up::Waiting { namespace: NS, number: 0 });
    assert_eq!(survey_at(&mut world, SILENT_TIME), None);
    assert_eq!(survey_at(&mut world, at(1000) + SILENT_TIME), Some(SurveyCause::Silent), "others wait for them");
    let mut world = World::running();
    world.root.expects_pmi = true;
    world.up(at(1000), 1, Up::Contact { namespace: NS });
    assert_eq!(survey_at(&mut world, SILENT_TIME), None, "they have spoken");
}

#[test]
fn ranks_whose_waits_cannot_be_seen_are_surveyed_after_each_quiet_time() {
    let after = Duration::from_secs(10);
    let mut world = World::running();
    world.root.stuck_after = Some(after);
    assert_eq!(survey_at(&mut world, at(9999)), None);
    assert_eq!(survey_at(&mut world, at(10_000)), Some(SurveyCause::Quiet));
    assert_eq!(survey_at(&mut world, at(60_000)), None);
    world.up(at(70_000), 1, Up::Exited { namespace: NS, fences: 0, unfinished: false, ranks: ranks("0") });
    assert_eq!(survey_at(&mut world, at(80_000)), Some(SurveyCause::Quiet), "a rank has left");
    let mut world = World::running();
    world.root.stuck_after = Some(after);
    world.up(at(1000), 1, Up::Contact { namespace: NS });
    assert_eq!(survey_at(&mut world, at(60_000)), None, "a wait would be seen");
    // All ranks on one node.
    let mut world = World::new(2, 1, 2);
    world.up(T, 1, Up::Ready);
    world.up(T, 1, Up::Started { namespace: NS });
    world.up(T, 1, Up::Contact { namespace: NS });
    world.root.stuck_after = Some(after);
    assert_eq!(survey_at(&mut world, at(10_000)), None);
    let pmix = crate::core::PmixPlan { library: Vec::new(), secret: String::new(), hosts: vec!["n".to_owned()] };
    world.root.session.pmix = Some(pmix);
    assert_eq!(survey_at(&mut world, at(10_000)), Some(SurveyCause::Quiet), "libpmix hides who waits");
}
