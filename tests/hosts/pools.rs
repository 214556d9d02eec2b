//! Pools on several hosts.

use tests::{Cluster, Pool, eventually, sh};

use crate::rank;

fn node(pool: &Pool<'_>, name: &str) -> serde_json::Value {
    let state = pool.state();
    let nodes = state["nodes"].as_array().expect("the pool has nodes");
    nodes.iter().find(|node| node["node"] == name).unwrap_or_else(|| panic!("{name} is one of them: {state}")).clone()
}

#[test]
fn jobs_run_on_the_nodes_of_a_pool() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let pool = Pool::start_on(&cluster, &["--slots", "2"]);
    let outcome = pool.job().np(6).program(sh("hostname")).run();
    let text = String::from_utf8_lossy(&outcome.is_quiet_success().stdout).into_owned();
    let mut hosts: Vec<&str> = text.lines().collect();
    hosts.sort_unstable();
    assert_eq!(hosts, ["node001", "node001", "node002", "node002", "node003", "node003"]);
    pool.job().np(6).program(rank(["neighbours", "2"])).run().is_quiet_success();
    pool.job().np(1).program(sh("exit 7")).run().has_code(7);
}
