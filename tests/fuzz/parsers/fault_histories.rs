//! Histories of lost hosts.

use placement::faults::History;
use placement::limits::{FAULT_BYTES_MAX, FAULT_EVENTS_MAX, FAULT_HOSTS_MAX};

/// A history that is read is within its bounds, and the same when written and read again.
pub(super) fn check(data: &[u8]) {
    let Some(history) = History::parse(&String::from_utf8_lossy(data), 1 << 30) else { return };
    assert!(history.events().len() <= FAULT_EVENTS_MAX);
    assert!(history.events().iter().all(|event| !event.hosts.is_empty() && event.hosts.len() <= FAULT_HOSTS_MAX));
    assert!(history.outages(u64::MAX).values().all(|outage| (0.0..=1.0).contains(&outage.probability)));
    assert!(history.text().len() <= FAULT_BYTES_MAX);
    assert_eq!(History::parse(&history.text(), 1 << 30).as_ref(), Some(&history));
}
