//! Tests of a starter's ports and of its clock.

use std::net::Ipv4Addr;

use tokio::net::TcpStream;
use tokio::task::LocalSet;

use super::*;
use crate::bootstrap::callback::CallbackListener;
use crate::bootstrap::protocol::tests::order;
use crate::bootstrap::protocol::{RemoteProgram, StartTimes};
use crate::tasks::Panics;

const TIMES: StartTimes = StartTimes { hosts: Duration::ZERO, start: Duration::from_secs(20) };

/// Runs a test with a starter at target 1 of 3, whose port must be reachable from `reach`, and with what is below it.
fn run(reach: Reach, test: impl AsyncFnOnce(Starter, Below)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let order = BootOrder { reach, ..order(1, 3, 2) };
        let below = order.below.clone().unwrap();
        let program = RemoteProgram::Command("none".to_owned());
        let method = Method::RemoteShell { words: vec!["none".to_owned()], lasts: false, program };
        let tasks = Panics::new("test").tasks();
        test(Starter::new(order, method, None, None, TIMES, tasks), below).await;
    });
}

#[test]
fn a_port_is_free_once_it_is_closed_or_dropped() {
    run(Reach::Here, async |starter, _| {
        for closes in [true, false] {
            let own = [Ipv4Addr::LOCALHOST.into()];
            let mut listener = CallbackListener::open(&starter.shared, 1..=3, &own).await.unwrap();
            let address = listener.addresses[0];
            TcpStream::connect(address).await.unwrap();
            if closes {
                listener.close().await;
                assert!(TcpStream::connect(address).await.is_err(), "a closed port");
            }
            drop(listener);
            let until_closed = async { while TcpStream::connect(address).await.is_ok() {} };
            tokio::time::timeout(TIMES.start, until_closed).await.expect("a dropped port");
        }
    });
}

#[test]
fn without_a_port_the_targets_below_have_failed_and_no_other() {
    run(Reach::Nowhere, async |mut starter, below| {
        starter.start_tree(1, &below, Vec::new());
        for expected in [2, 3] {
            let (target, report) = starter.next().await;
            assert!(target == expected && matches!(report, BootReport::NotStarted(_)), "{target}: {report:?}");
        }
    });
}

/// Else its deadline would never pass.
#[test]
fn the_time_of_a_starter_passes() {
    run(Reach::Here, async |starter, _| {
        let passes = async {
            while starter.shared.now() == Time::ZERO {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TIMES.start, passes).await.expect("it passes");
    });
}
