//! The history of hosts that sessions have lost or could not reach, and what it says about the next session.
//!
//! # The file
//!
//! ```text
//! scela-faults 1
//! 1764150000 n3
//! 1764160000 n7 n8 n9
//! ```
//!
//! Each line after the first is one event: seconds since 1970, and the hosts that one session lost. A cut of the network
//! takes many hosts at once and says little about each: an event of k hosts counts as 1/k for each of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

use crate::limits::{FAULT_BYTES_MAX, FAULT_EVENTS_MAX, FAULT_HOSTS_MAX, FAULT_NAME_BYTES_MAX};
use crate::topology::Topology;

/// The first line of a file.
const HEADER: &str = "scela-faults 1";

/// After this time an event counts half.
pub const HALF_LIFE_S: u64 = 7 * 24 * 3600;

/// From this probability on a host counts as one that may fail. A single event falls below it after a month.
pub const PROBABILITY_MIN: f64 = 0.05;

/// The clocks of machines that share a file may differ by this time.
const CLOCKS_DIFFER_S: u64 = 3600;

/// Hosts that one session lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Seconds since 1970.
    pub at_s: u64,
    /// The hosts, each once. Never empty.
    pub hosts: Vec<String>,
}

impl Event {
    /// Returns an event of these hosts. Names that no host has, and hosts beyond [`FAULT_HOSTS_MAX`], are left out. Returns `None`
    /// if no host is left.
    fn of<'a>(at_s: u64, hosts: impl Iterator<Item = &'a str>) -> Option<Self> {
        let is_name = |name: &&str| {
            let is_part = |byte: u8| byte.is_ascii_graphic();
            !name.is_empty() && name.len() <= FAULT_NAME_BYTES_MAX && name.bytes().all(is_part)
        };
        let mut hosts: Vec<String> = hosts.filter(is_name).take(FAULT_HOSTS_MAX).map(str::to_owned).collect();
        hosts.sort_unstable();
        hosts.dedup();
        (!hosts.is_empty()).then_some(Self { at_s, hosts })
    }

    /// Returns the length of its line.
    fn bytes(&self) -> usize {
        let digits = self.at_s.checked_ilog10().unwrap_or(0) as usize + 1;
        digits + self.hosts.iter().map(|host| 1 + host.len()).sum::<usize>() + 1
    }
}

/// The events, the oldest first. They are at most [`FAULT_EVENTS_MAX`], and their file has at most [`FAULT_BYTES_MAX`] bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    events: Vec<Event>,
    /// The lengths of their lines together.
    bytes: usize,
}

/// The statement of a history about a host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outage {
    /// The probability that the host fails, by decay of its events.
    pub probability: f64,
    /// Its events.
    pub events: u32,
    /// The last of them.
    pub last_s: u64,
}

impl History {
    /// Parses a file. Lines that are no events are skipped: one bad line must not cost the rest. Of a file that is too long,
    /// events are dropped as by [`add`](Self::add) at `now_s`. Returns `None` if the first line is another one.
    pub fn parse(text: &str, now_s: u64) -> Option<Self> {
        let mut lines = text.lines();
        match lines.next() {
            None => return Some(Self::default()),
            Some(HEADER) => {}
            Some(_) => return None,
        }
        let mut history = Self::default();
        for line in lines {
            let mut words = line.split_ascii_whitespace();
            let Some(at_s) = words.next().and_then(|word| word.parse().ok()) else { continue };
            let Some(event) = Event::of(at_s, words) else { continue };
            history.insert(event);
            history.shorten(now_s, 0, 0);
        }
        Some(history)
    }

    /// Adds an event that happens now. Names that no host has, and hosts beyond [`FAULT_HOSTS_MAX`], are left out. If there is no
    /// room, other events are dropped: first those in the future, which a wrong clock wrote, then the oldest.
    pub fn add<'a>(&mut self, now_s: u64, hosts: impl Iterator<Item = &'a str>) {
        let Some(event) = Event::of(now_s, hosts) else { return };
        self.shorten(now_s, 1, event.bytes());
        self.insert(event);
    }

    fn insert(&mut self, event: Event) {
        let at = self.events.partition_point(|other| other.at_s <= event.at_s);
        self.bytes += event.bytes();
        self.events.insert(at, event);
    }

    /// Drops events until so many more events and bytes have room.
    fn shorten(&mut self, now_s: u64, events: usize, bytes: usize) {
        let bytes = HEADER.len() + 1 + bytes;
        while self.events.len() + events > FAULT_EVENTS_MAX || self.bytes + bytes > FAULT_BYTES_MAX {
            let Some(last) = self.events.last() else { return };
            let at = if is_past(last, now_s) { 0 } else { self.events.len() - 1 };
            self.bytes -= self.events.remove(at).bytes();
        }
    }

    /// Returns the events, the oldest first.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns the file.
    pub fn text(&self) -> String {
        let mut text = format!("{HEADER}\n");
        for Event { at_s, hosts } in &self.events {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{at_s} {}", hosts.join(" "));
        }
        text
    }

    /// Returns the outage of each host in the history. Ignores events more than an hour after `now_s`: a wrong clock wrote them.
    /// An event of k hosts adds 1/k to the rate of each, halved for each [`HALF_LIFE_S`] since then; the probability of a rate r is
    /// 1 - exp(-r).
    pub fn outages(&self, now_s: u64) -> BTreeMap<&str, Outage> {
        let mut rates = BTreeMap::<&str, (f64, u32, u64)>::new();
        for Event { at_s, hosts } in self.events.iter().filter(|event| is_past(event, now_s)) {
            let age = now_s.saturating_sub(*at_s) as f64 / HALF_LIFE_S as f64;
            let each = libm::exp2(-age) / hosts.len() as f64;
            for host in hosts {
                let (rate, events, last_s) = rates.entry(host.as_str()).or_default();
                (*rate, *events, *last_s) = (*rate + each, *events + 1, (*last_s).max(*at_s));
            }
        }
        let outage =
            |(rate, events, last_s): (f64, u32, u64)| Outage { probability: 1.0 - libm::exp(-rate), events, last_s };
        rates.into_iter().map(|(host, rate)| (host, outage(rate))).collect()
    }
}

/// Returns whether an event has happened, by clocks that differ a little.
fn is_past(event: &Event, now_s: u64) -> bool {
    event.at_s <= now_s.saturating_add(CLOCKS_DIFFER_S)
}

/// Returns the first consecutive hosts none of which may fail and whose slots suffice for `ranks` (listing 5.1 of the
/// publication): not more of them than needed.
pub fn window(is_faulty: &[bool], slots: &[u64], ranks: u64) -> Option<Range<usize>> {
    let mut first = 0;
    let mut sum = 0u64;
    for (at, (is_faulty, slots)) in is_faulty.iter().zip(slots).enumerate() {
        if *is_faulty {
            (first, sum) = (at + 1, 0);
            continue;
        }
        sum += slots;
        if sum >= ranks {
            return Some(first..at + 1);
        }
    }
    None
}

/// The links that [`quiet_window`] follows in total.
const FOLLOWED_LINKS: usize = 16_000_000;

/// Returns the first [`window`] of places, with a rank on each, between whose places no route passes a place that may
/// fail. If there is none, or the search takes too long, it is the first window at all.
pub fn quiet_window(topology: &Topology, is_faulty: &[bool], ranks: u32) -> Option<Range<usize>> {
    let slots = vec![1; is_faulty.len()];
    let any = window(is_faulty, &slots, u64::from(ranks))?;
    let mut left = FOLLOWED_LINKS;
    let mut route = Vec::new();
    let mut is_quiet = |range: &Range<usize>| {
        let places = || range.clone().map(|place| place as u32);
        for (from, to) in places().flat_map(|from| places().map(move |to| (from, to))).filter(|(from, to)| from != to) {
            route.clear();
            topology.route(from, to, &mut route);
            left = left.checked_sub(route.len())?;
            let mut ends = route.iter().flat_map(|link| topology.ends(*link)).flatten();
            if ends.any(|place| is_faulty[place as usize]) {
                return Some(false);
            }
        }
        Some(true)
    };
    let mut first = any.start;
    while let Some(found) = window(&is_faulty[first..], &slots[first..], u64::from(ranks)) {
        let range = first + found.start..first + found.end;
        match is_quiet(&range) {
            Some(true) => return Some(range),
            Some(false) => first = range.start + 1,
            None => break,
        }
    }
    Some(any)
}

/// Returns the order in which hosts are used: the [`window`] first, then the other sound ones, then those that may fail.
/// Only the last number of hosts may fail; it is the second value.
pub fn ordered(is_faulty: &[bool], slots: &[u64], ranks: u64) -> (Vec<usize>, usize) {
    let window = window(is_faulty, slots, ranks).unwrap_or(0..0);
    let mut order: Vec<usize> = (0..is_faulty.len()).collect();
    order.sort_by_key(|at| (is_faulty[*at], !window.contains(at), *at));
    (order, is_faulty.iter().filter(|faulty| **faulty).count())
}

/// Returns the order in which hosts that may fail are used, if sound hosts lack `missing` slots: those that the ranks need first,
/// and the soundest first of the others. `hosts` has the slots of each, and the probability that it fails. The needed hosts fail at
/// most as often as those of the three simple orders: the soundest first, the largest first, the order given.
pub fn safest_order(hosts: &[(u64, f64)], missing: u64) -> Vec<usize> {
    let mut soundest: Vec<usize> = (0..hosts.len()).collect();
    soundest.sort_by(|one, other| hosts[*one].1.total_cmp(&hosts[*other].1));
    let mut largest = soundest.clone();
    largest.sort_by_key(|at| std::cmp::Reverse(hosts[*at].0));
    let given = (0..hosts.len()).collect();
    let fails = |chosen: &Vec<usize>| 1.0 - chosen.iter().map(|at| 1.0 - hosts[*at].1).product::<f64>();
    let sets = [soundest.clone(), largest, given].map(|order| needed_of(hosts, order, missing)).into_iter();
    let needed = sets.min_by(|one, other| fails(one).total_cmp(&fails(other))).unwrap_or_default();
    let mut is_needed = vec![false; hosts.len()];
    needed.iter().for_each(|at| is_needed[*at] = true);
    needed.into_iter().chain(soundest.into_iter().filter(|at| !is_needed[*at])).collect()
}

/// Returns the first hosts of `order` with `missing` slots together. Removes hosts that are not needed, the likeliest to fail first.
fn needed_of(hosts: &[(u64, f64)], mut order: Vec<usize>, missing: u64) -> Vec<usize> {
    let mut slots = 0u64;
    order.retain(|at| {
        let lacks = slots < missing;
        slots = if lacks { slots.saturating_add(hosts[*at].0) } else { slots };
        lacks
    });
    let Some(mut spare) = slots.checked_sub(missing) else { return order };
    let mut likeliest = order.clone();
    likeliest.sort_by(|one, other| hosts[*other].1.total_cmp(&hosts[*one].1));
    let mut is_superfluous = vec![false; hosts.len()];
    for at in likeliest {
        if let Some(left) = spare.checked_sub(hosts[at].0) {
            (spare, is_superfluous[at]) = (left, true);
        }
    }
    order.retain(|at| !is_superfluous[*at]);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600;

    #[test]
    fn events_decay_and_a_cut_counts_once() {
        let mut history = History::default();
        history.add(0, ["n1"].into_iter());
        history.add(0, ["a", "b", "c", "d", "a"].into_iter());
        let now = history.outages(0);
        assert!((now["n1"].probability - 0.632).abs() < 0.001);
        assert!((now["a"].probability - 0.221).abs() < 0.001);
        let week = history.outages(7 * DAY);
        assert!((week["n1"].probability - 0.393).abs() < 0.001);
        assert!(history.outages(29 * DAY)["n1"].probability > PROBABILITY_MIN);
        assert!(history.outages(31 * DAY)["n1"].probability < PROBABILITY_MIN);
        history.add(100 * DAY, ["n9"].into_iter());
        assert!(!history.outages(31 * DAY).contains_key("n9"), "a clock was wrong");
        assert!(history.outages(100 * DAY - 60)["n9"].probability > 0.6, "clocks differ a little");
    }

    #[test]
    fn a_file_is_bounded_and_survives_bad_lines() {
        let text = "scela-faults 1\n5 n2\nx n3\n\n3 n1 \u{1b}[2J\n7\n";
        let history = History::parse(text, 5).unwrap();
        assert_eq!(history.text(), "scela-faults 1\n3 n1\n5 n2\n");
        assert_eq!(History::parse("", 5), Some(History::default()));
        assert_eq!(History::parse("#!/bin/sh\n", 5), None);
        let mut history = History::default();
        (0..2 * FAULT_EVENTS_MAX as u64).for_each(|at| history.add(at, ["n"].into_iter()));
        assert_eq!((history.events().len(), history.events()[0].at_s), (FAULT_EVENTS_MAX, FAULT_EVENTS_MAX as u64));
        let many: Vec<String> = (0..1000).map(|at| format!("n{at}")).collect();
        history.add(u64::MAX, many.iter().map(String::as_str));
        assert_eq!(history.events().last().unwrap().hosts.len(), FAULT_HOSTS_MAX);
    }

    #[test]
    fn a_full_history_drops_future_events_first_and_keeps_the_new_one() {
        let most = FAULT_EVENTS_MAX as u64;
        let mut history = History::default();
        (0..most).for_each(|at| history.add(9 * DAY + at, ["future"].into_iter()));
        history.add(DAY, ["n1"].into_iter());
        history.add(2 * DAY, ["n2"].into_iter());
        assert_eq!(history.events().len(), FAULT_EVENTS_MAX);
        assert_eq!(history.events()[..2].iter().map(|event| event.at_s).collect::<Vec<_>>(), [DAY, 2 * DAY]);
        assert_eq!(history.events().last().unwrap().at_s, 9 * DAY + most - 3);
        // These are not far in the future, and are kept as others are. The new event is not dropped, though all others are later.
        let mut history = History::default();
        (0..most).for_each(|at| history.add(DAY + at, ["n"].into_iter()));
        history.add(DAY - 60, ["new"].into_iter());
        assert_eq!((history.events()[0].at_s, history.events()[1].at_s), (DAY - 60, DAY + 1));
    }

    #[test]
    fn a_history_never_becomes_longer_than_its_bound() {
        let hosts: Vec<String> = (0..FAULT_HOSTS_MAX).map(|at| format!("node-of-rack-{at:03}")).collect();
        let hosts = || hosts.iter().map(String::as_str);
        let mut history = History::default();
        (9..9 + FAULT_EVENTS_MAX as u64).for_each(|at| history.add(at, hosts()));
        assert!((FAULT_BYTES_MAX - 5000..=FAULT_BYTES_MAX).contains(&history.text().len()));
        assert_eq!(history.text().len(), HEADER.len() + 1 + history.bytes);
        assert_eq!(history.events().last().unwrap().at_s, 8 + FAULT_EVENTS_MAX as u64);
        assert_eq!(History::parse(&history.text(), 0).as_ref(), Some(&history));
        // A file that is too long loses its oldest events.
        let line = |at: u64| format!("{at} {}\n", hosts().collect::<Vec<_>>().join(" "));
        let long = history.text() + &line(3 * DAY) + &line(3 * DAY);
        let shortened = History::parse(&long, 3 * DAY).unwrap();
        assert!(shortened.text().len() <= FAULT_BYTES_MAX);
        assert_eq!(shortened.events().last().unwrap().at_s, 3 * DAY);
        assert!(shortened.events()[0].at_s > history.events()[0].at_s);
        // Events in the future are dropped before.
        let shortened = History::parse(&long, DAY).unwrap();
        assert_eq!(shortened, history);
    }

    #[test]
    fn a_window_is_quiet_if_its_messages_pass_sound_places_only() {
        let torus = Topology::torus(&[4, 4]).unwrap();
        let faulty = |places: &[usize]| (0..16).map(|place| places.contains(&place)).collect::<Vec<bool>>();
        // Place 1 is (0,1). Routes go along columns first: from (1,1) to (0,2) through (0,1).
        assert_eq!(quiet_window(&torus, &faulty(&[1]), 4), Some(4..8));
        assert_eq!(window(&faulty(&[1]), &[1; 16], 4), Some(2..6));
        // Without a quiet window, the first one.
        assert_eq!(quiet_window(&torus, &faulty(&[0, 9]), 7), Some(1..8));
        assert_eq!(quiet_window(&torus, &faulty(&[0, 9]), 9), None);
    }

    #[test]
    fn sound_neighbours_are_used_first() {
        let is_faulty = [false, true, false, false, true, false, false, false];
        assert_eq!(window(&is_faulty, &[2; 8], 4), Some(2..4));
        assert_eq!(window(&is_faulty, &[2; 8], 5), Some(5..8));
        assert_eq!(window(&is_faulty, &[2; 8], 7), None);
        assert_eq!(ordered(&is_faulty, &[2; 8], 5), (vec![5, 6, 7, 0, 2, 3, 1, 4], 2));
        assert_eq!(ordered(&is_faulty, &[2; 8], 9), (vec![0, 2, 3, 5, 6, 7, 1, 4], 2));
    }

    #[test]
    fn few_hosts_that_may_fail_are_safer_than_many_sound_ones() {
        // One host has room for all ranks; the soundest one has not.
        assert_eq!(safest_order(&[(3, 0.27), (1, 0.22)], 3), [0, 1]);
        assert_eq!(safest_order(&[(3, 0.27), (1, 0.22)], 1), [1, 0]);
        assert_eq!(safest_order(&[(3, 0.27), (1, 0.22)], 0), [1, 0]);
        // The soundest one is not needed beside the second.
        assert_eq!(safest_order(&[(1, 0.1), (2, 0.2), (9, 0.9)], 2), [1, 0, 2]);
        assert_eq!(safest_order(&[(1, 0.1), (2, 0.2), (9, 0.9)], 3), [0, 1, 2]);
        assert_eq!(safest_order(&[(1, 0.5), (1, 0.4)], 9), [1, 0]);
        assert_eq!(safest_order(&[], 9), []);
    }
}
