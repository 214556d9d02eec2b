//! Processes without the key connect to the launcher while its agents join.

use nla::core::AgentId;
use nla::wire::{Initiator, Role, SessionId};
use tests::{Cluster, Strangers, Target, scela};

use crate::rank;

/// More strangers than the launcher and its queue of connections have room for, all from the address of one host.
#[test]
fn strangers_keep_no_host_out() {
    let Some(cluster) = Cluster::new_or_skip(8) else { return };
    let role = Role::Link { parent: AgentId::ROOT };
    let (_, hello) = Initiator::new(SessionId(1), &[7; 32], role).expect("a hello");
    for options in [&["--launch", "flat"][..], &["--launch", "tree", "--fanout", "2"]] {
        let strangers = Strangers::start(cluster.front_end(), Target::Ports, 10_000, hello.clone());
        let run = scela().on(&cluster).args(["-hosts", &cluster.names()]).np(16).args(options);
        run.program(rank(["everybody", "2"])).run().has_code(0).says("a connection was refused");
        let made = strangers.stop();
        assert!(made > 0, "strangers found a port");
    }
}
