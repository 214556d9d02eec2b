//! The topology of the node, which MPICH 5 gets as a file for hwloc.

use tests::{Outcome, scela, sh};

use crate::library::{pypi_mpich, script};

fn sorted(outcome: &Outcome) -> Vec<String> {
    let mut lines: Vec<String> = outcome.is_quiet_success().out().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// With a variable of hwloc, ranks read /sys themselves.
#[test]
fn ranks_share_the_same_parts_of_the_node_with_the_file_as_without() {
    let Some(mpi) = pypi_mpich() else { return };
    for bind_to in ["none", "hwthread:overload-allowed"] {
        let run = || mpi.scela().np(4).args(["--bind-to", bind_to]).program(script("parts.py", &[]));
        let with_file = sorted(&run().run());
        assert_eq!(with_file, sorted(&run().env("HWLOC_NOTHING", "1").run()), "{bind_to}");
        assert!(with_file.iter().any(|line| line.starts_with("core 3: ")), "{with_file:?}");
    }
}

/// No rank has asked for it.
#[test]
fn ranks_that_do_not_ask_inherit_an_empty_file() {
    scela().np(2).program(sh("test -f /dev/fd/11 && cat /dev/fd/11")).run().is_quiet_success().wrote("");
}
