//! The orders for agents that a keeper refuses.

use tokio::task::LocalSet;

use super::*;
use crate::core::limits::{DEAD_TIME_MAX, DEAD_TIME_MIN};

#[test]
fn an_order_that_is_out_of_range_forks_no_agent() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let [forks, served] = Packets::pair().unwrap();
        let relay = Relay::new(mpsc::channel(1).0, Panics::new("test").tasks());
        let order = |label: usize, dead_time| {
            let result = open(&relay, &forks, 1, &AgentSpec { label: "l".repeat(label), dead_time });
            (
                result.map_err(|error| error.kind()),
                served.receive(false).map(|packet| packet.unwrap().descriptors.len()),
            )
        };
        let bounds = [DEAD_TIME_MIN, DEAD_TIME_MAX];
        for (label, dead_time) in [(0, bounds[0]), (4096, bounds[1])] {
            let (result, forked) = order(label, dead_time);
            assert_eq!((result, forked.unwrap()), (Ok(()), 3));
        }
        let step = Duration::from_nanos(1);
        for (label, dead_time) in [(0, bounds[0] - step), (0, bounds[1] + step), (4097, bounds[0])] {
            let (result, forked) = order(label, dead_time);
            assert_eq!(result, Err(io::ErrorKind::InvalidData), "{label}, {dead_time:?}");
            assert_eq!(forked.unwrap_err().kind(), io::ErrorKind::WouldBlock, "{label}, {dead_time:?}");
        }
    });
}
