//! Tests of the plan.

use super::*;

const RULES: Rules = Rules { at_once: 2, retries: 0, in_order: true, halts: false };

/// A plan with what it has asked for. `now` is the number of inputs.
struct Map {
    plan: Plan,
    inputs: u64,
}

impl Map {
    fn of(rules: Rules, commands: usize) -> Self {
        Self { plan: Plan::new(rules, &vec![false; commands]), inputs: 0 }
    }

    fn handle(&mut self, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        self.plan.handle(Duration::from_secs(self.inputs), input, &mut actions);
        self.inputs += 1;
        self.plan.check_invariants();
        actions
    }

    /// Handles inputs, and checks what is to be done, but for the journal.
    #[track_caller]
    fn expect(&mut self, input: Input, expected: &[Action]) {
        let mut actions = self.handle(input);
        actions.retain(|action| !matches!(action, Action::Record { .. }));
        assert_eq!(actions, expected);
    }
}

use Action::{Drop, Hold, Over, Print, Start};
use Input::{Begin, NotStarted, OutputLost, PoolLost, Printed};

/// A command that has written something has ended.
fn ended(command: usize, code: u8) -> Input {
    Input::Ended { command, code, is_silent: false }
}

/// A row about an attempt from `began` to `end`, in seconds.
fn row(command: usize, code: u8, attempts: u32, began: u64, end: u64) -> Action {
    let (began, ended) = (Duration::from_secs(began), Duration::from_secs(end));
    Action::Record { command, code, attempts, began, ended }
}

#[test]
fn a_success_is_recorded_once_its_output_was_printed() {
    let mut map = Map::of(Rules { at_once: 3, ..RULES }, 5);
    let silent = |command| Input::Ended { command, code: 0, is_silent: true };
    assert_eq!(map.handle(Begin), [Start(0), Start(1), Start(2)]);
    assert_eq!(map.handle(ended(1, 0)), [Start(3), Hold(1)]);
    assert_eq!(map.handle(ended(2, 7)), [row(2, 7, 1, 0, 2), Start(4), Hold(2)], "it is run again anyway");
    assert_eq!(map.handle(silent(3)), [row(3, 0, 1, 1, 3), Hold(3)], "nothing of it can be lost");
    assert_eq!(map.handle(ended(0, 0)), [Print(0)]);
    assert_eq!(map.handle(Printed), [row(0, 0, 1, 0, 4), Print(1)]);
    assert_eq!(map.handle(Printed), [row(1, 0, 1, 0, 1), Print(2)]);
    assert_eq!(map.handle(Printed), [Print(3)], "its row was written");
    assert_eq!(map.handle(silent(4)), [row(4, 0, 1, 2, 8), Hold(4)]);
}

#[test]
fn a_success_whose_output_was_dropped_is_not_recorded() {
    let mut map = Map::of(Rules { at_once: 4, ..RULES }, 4);
    map.handle(Begin);
    map.expect(ended(0, 0), &[Print(0)]);
    map.expect(ended(1, 0), &[Hold(1)]);
    assert_eq!(map.handle(OutputLost(1)), [Drop(0), Drop(1), Action::Signal(15)]);
    assert_eq!(map.handle(Printed), [], "the end of a print that has failed");
    assert_eq!(map.handle(ended(2, 0)), [Drop(2)]);
    assert_eq!(map.handle(ended(3, 143)), [row(3, 143, 1, 0, 6), Drop(3), Over]);
    assert_eq!((map.plan.counts().succeeded, map.plan.unprinted()), (3, 3));
}

#[test]
fn successes_that_were_not_printed_are_counted() {
    let mut map = Map::of(Rules { at_once: 3, ..RULES }, 3);
    map.handle(Begin);
    map.handle(ended(0, 0));
    map.handle(Printed);
    map.handle(Input::Ended { command: 1, code: 0, is_silent: true });
    map.handle(ended(2, 0));
    for _ in 0..=SIGNALS_PASSED {
        map.handle(Input::Signal(2));
    }
    assert!(map.plan.is_over);
    assert_eq!((map.plan.counts().succeeded, map.plan.unprinted()), (3, 1));
}

#[test]
fn outputs_come_in_the_order_of_the_list() {
    let mut map = Map::of(RULES, 4);
    map.expect(Begin, &[Start(0), Start(1)]);
    map.expect(ended(1, 0), &[Start(2), Hold(1)]);
    map.expect(ended(2, 0), &[Start(3), Hold(2)]);
    map.expect(ended(0, 0), &[Print(0)]);
    map.expect(Printed, &[Print(1)]);
    map.expect(ended(3, 0), &[Hold(3)]);
    map.expect(Printed, &[Print(2)]);
    map.expect(Printed, &[Print(3)]);
    map.expect(Printed, &[Over]);
    assert_eq!(map.plan.code(), 0);
}

#[test]
fn outputs_may_come_in_the_order_of_their_ends() {
    let mut map = Map::of(Rules { in_order: false, ..RULES }, 3);
    map.expect(Begin, &[Start(0), Start(1)]);
    map.expect(ended(1, 0), &[Start(2), Print(1)]);
    map.expect(ended(2, 0), &[Hold(2)]);
    map.expect(ended(0, 0), &[Hold(0)]);
    map.expect(Printed, &[Print(2)]);
    map.expect(Printed, &[Print(0)]);
    map.expect(Printed, &[Over]);
}

#[test]
fn a_list_without_commands_is_over_at_once() {
    Map::of(RULES, 0).expect(Begin, &[Over]);
    let mut map = Map { plan: Plan::new(RULES, &[true, true]), inputs: 0 };
    map.expect(Begin, &[Over]);
    assert_eq!((map.plan.code(), map.plan.counts()), (0, Counts::default()));
}

#[test]
fn skipped_commands_are_neither_run_nor_printed() {
    let mut map = Map { plan: Plan::new(RULES, &[true, false, true, false]), inputs: 0 };
    map.expect(Begin, &[Start(1), Start(3)]);
    map.expect(ended(3, 0), &[Hold(3)]);
    map.expect(ended(1, 0), &[Print(1)]);
    map.expect(Printed, &[Print(3)]);
    map.expect(Printed, &[Over]);
    assert_eq!(map.plan.counts(), Counts { all: 2, succeeded: 2, ..Counts::default() });
}

#[test]
fn a_command_that_fails_is_run_again_before_later_ones() {
    let mut map = Map::of(Rules { at_once: 1, retries: 2, ..RULES }, 2);
    map.expect(Begin, &[Start(0)]);
    map.expect(ended(0, 3), &[Start(0)]);
    map.expect(ended(0, 252), &[Start(0)]);
    map.expect(Input::Started(0), &[]);
    let actions = map.handle(ended(0, 4));
    assert_eq!(actions, [row(0, 4, 3, 3, 4), Start(1), Print(0)]);
    map.expect(Printed, &[]);
    map.expect(ended(1, 9), &[Start(1)]);
    map.expect(ended(1, 0), &[Print(1)]);
    map.expect(Printed, &[Over]);
    assert_eq!(map.plan.failed(), &BTreeMap::from([(4, vec![0])]));
    assert_eq!(map.plan.code(), 1);
}

#[test]
fn the_exit_code_counts_failed_commands() {
    for (failed, code) in [(1, 1), (100, 100), (101, 101), (300, 101)] {
        let mut map = Map::of(Rules { at_once: 400, ..RULES }, 300);
        map.handle(Begin);
        (0..300).for_each(|index| drop(map.handle(ended(index, u8::from(index < failed)))));
        assert_eq!(map.plan.code(), code);
    }
}

#[test]
fn a_failure_may_halt_the_rest() {
    let mut map = Map::of(Rules { halts: true, ..RULES }, 5);
    map.expect(Begin, &[Start(0), Start(1)]);
    map.expect(ended(1, 1), &[Hold(1)]);
    map.expect(ended(0, 0), &[Print(0)]);
    map.expect(Printed, &[Print(1)]);
    map.expect(Printed, &[Over]);
    assert_eq!(map.plan.counts(), Counts { all: 5, succeeded: 1, failed: 1, running: 0, waiting: 3 });
    assert_eq!(map.plan.code(), 1);
}

#[test]
fn a_signal_is_passed_on_twice_and_then_ends_the_map() {
    let mut map = Map::of(Rules { retries: 5, ..RULES }, 5);
    map.expect(Begin, &[Start(0), Start(1)]);
    map.expect(Input::Signal(2), &[Action::Signal(2)]);
    map.expect(NotStarted(1), &[]);
    map.expect(Input::Signal(15), &[Action::Signal(15)]);
    map.expect(Input::Signal(2), &[Over]);
    assert_eq!(map.plan.code(), 130);
    assert_eq!(map.plan.counts(), Counts { all: 5, running: 1, waiting: 4, ..Counts::default() });
}

#[test]
fn commands_that_a_signal_has_ended_are_printed_and_not_run_again() {
    let mut map = Map::of(Rules { retries: 5, ..RULES }, 3);
    map.expect(Begin, &[Start(0), Start(1)]);
    map.expect(Input::Signal(15), &[Action::Signal(15)]);
    map.expect(ended(1, 143), &[Hold(1)]);
    map.expect(NotStarted(0), &[Print(1)]);
    map.expect(Printed, &[Over]);
    assert_eq!(map.plan.code(), 143);
}

#[test]
fn the_end_of_the_pool_ends_the_map_when_its_jobs_have_ended() {
    let mut map = Map::of(Rules { retries: 5, ..RULES }, 3);
    map.expect(Begin, &[Start(0), Start(1)]);
    map.expect(PoolLost, &[]);
    map.expect(ended(0, 252), &[Print(0)]);
    map.expect(NotStarted(1), &[]);
    map.expect(Printed, &[Over]);
    assert_eq!(map.plan.code(), exit::LOST);
}

#[test]
fn a_command_that_the_pool_does_not_run_again_has_failed() {
    let mut map = Map::of(Rules { retries: 5, ..RULES }, 3);
    map.expect(Begin, &[Start(0), Start(1)]);
    map.expect(ended(0, 143), &[Start(0)]);
    map.expect(PoolLost, &[]);
    map.expect(NotStarted(0), &[]);
    map.expect(ended(1, 143), &[Print(1)]);
    map.expect(Printed, &[Over]);
    assert_eq!(map.plan.failed(), &BTreeMap::from([(143, vec![0, 1])]));
    assert_eq!(map.plan.counts(), Counts { all: 3, failed: 2, waiting: 1, ..Counts::default() });
}

#[test]
fn output_that_nobody_reads_ends_the_map() {
    let mut map = Map::of(RULES, 5);
    map.expect(Begin, &[Start(0), Start(1)]);
    map.expect(ended(0, 0), &[Start(2), Print(0)]);
    map.expect(ended(2, 0), &[Start(3), Hold(2)]);
    map.expect(OutputLost(141), &[Drop(0), Drop(2), Action::Signal(15)]);
    map.expect(OutputLost(1), &[]);
    map.expect(ended(1, 143), &[Drop(1)]);
    map.expect(ended(3, 0), &[Drop(3), Over]);
    assert_eq!(map.plan.code(), 141);
}

#[test]
fn inputs_for_commands_that_do_not_run_are_ignored() {
    let mut map = Map::of(RULES, 1);
    map.expect(ended(0, 1), &[Start(0)]);
    map.expect(ended(0, 0), &[Print(0)]);
    map.expect(ended(0, 0), &[]);
    map.expect(NotStarted(0), &[]);
    map.expect(Input::Started(0), &[]);
    map.expect(Printed, &[Over]);
    map.expect(Printed, &[]);
}

/// Whatever happens in any order, each command is printed at most once, in order, a success is recorded once nothing of it is to be
/// printed, and the map ends.
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_map_ends_and_prints_each_command_once(
            commands in 0usize..12,
            at_once in 1usize..4,
            retries in 0u32..3,
            in_order: bool,
            halts: bool,
            draws in proptest::collection::vec((0u8..20, any::<u8>()), 0..60),
        ) {
            let mut map = Map::of(Rules { at_once, retries, in_order, halts }, commands);
            let (mut running, mut printed, mut kept, mut printing, mut is_over) = (Vec::new(), Vec::new(), BTreeSet::new(), false, false);
            // Those that have written nothing, or whose outputs were printed; and those with rows.
            let (mut done, mut recorded) = (BTreeSet::new(), BTreeSet::new());
            let mut input = Begin;
            let mut draws = draws.into_iter();
            for _ in 0..500 {
                for action in map.handle(input) {
                    match action {
                        Start(index) => { running.push(index); done.remove(&index); }
                        Print(index) => { printed.push(index); printing = true; kept.remove(&index); }
                        Hold(index) => prop_assert!(kept.insert(index)),
                        Drop(index) => { kept.remove(&index); printing = false; }
                        Over => is_over = true,
                        Action::Record { command, code, .. } => {
                            prop_assert!(recorded.insert(command));
                            prop_assert!(code != 0 || done.contains(&command));
                        }
                        Action::Signal(_) => {}
                    }
                }
                if is_over {
                    break;
                }
                let (what, which) = draws.next().unwrap_or((0, 0));
                input = match what {
                    0..12 if !running.is_empty() => {
                        let (command, code, is_silent) = (running.remove(usize::from(which) % running.len()), which % 3, which % 2 == 0);
                        done.extend(is_silent.then_some(command));
                        Input::Ended { command, code, is_silent }
                    }
                    12 if which > 250 => Input::Signal(2),
                    13 if which > 250 => PoolLost,
                    14 if which > 250 => OutputLost(141),
                    15 if !running.is_empty() && which > 200 => NotStarted(running.remove(0)),
                    _ if printing => { printing = false; done.extend(printed.last()); Printed }
                    _ => Begin,
                };
            }
            prop_assert!(is_over, "{:?}", map.plan);
            prop_assert!(map.plan.stop.is_some() || recorded.len() == commands);
            let mut once = printed.clone();
            once.sort_unstable();
            if in_order {
                prop_assert_eq!(&printed, &once);
            }
            once.dedup();
            prop_assert_eq!(printed.len(), once.len());
        }
    }
}
