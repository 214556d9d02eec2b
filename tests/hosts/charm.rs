//! charm4py over several hosts.

use tests::{Cluster, quote, scela_run, skip};

use crate::mpich::{VENV, venv_of};
use crate::out;

#[test]
fn charm4py_runs_on_two_hosts() {
    let charmrun = venv_of(VENV).join("bin/charmrun");
    if !charmrun.is_file() {
        return skip(&format!("there is no {}; ./tests/run installs charm4py", charmrun.display()));
    }
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    let shell = format!("{} -hosts {}", scela_run().display(), cluster.names());
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/mpi/programs/reduce.py");
    let words = format!("{} +p4 ++mpiexec ++remote-shell {} {program}", charmrun.display(), quote(&shell));
    // All hosts read charmrun's script from the directory in which it runs.
    let script = format!("cd {} && exec {words}", cluster.shared().display());
    // The output ends with scela-run, for which charmrun does not wait.
    let said = out(cluster.front_end().run(["sh", "-c", &script]));
    assert!(said.contains("4 processors on 2 hosts: sum 6\n"), "{said}");
}
