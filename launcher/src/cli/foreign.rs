//! Options of other launchers that scela-run does not have, and that users' scripts may contain.
//! The error names them. If they were ignored, a script that asks for binding would be slow without a message.

/// An option of Hydra, Open MPI, Intel MPI or Slurm.
#[derive(Debug)]
pub(super) struct Foreign {
    /// Its names without dashes.
    pub(super) names: &'static [&'static str],
    /// Its purpose, to follow "which in other launchers".
    pub(super) purpose: &'static str,
    /// Our option for the same.
    pub(super) instead: Option<&'static str>,
}

const fn foreign(names: &'static [&'static str], purpose: &'static str) -> Foreign {
    Foreign { names, purpose, instead: None }
}

const fn ours(names: &'static [&'static str], purpose: &'static str, instead: &'static str) -> Foreign {
    Foreign { names, purpose, instead: Some(instead) }
}

#[rustfmt::skip]
const FOREIGN: &[Foreign] = &[
    // Hosts and how to reach them.
    ours(&["machine", "default-hostfile", "nodefile"], "names a file of hosts", "-f"),
    ours(&["nodelist", "w", "hostlist", "machines", "machinelist"], "names hosts", "-hosts"),
    ours(&["arch"], "asks for hosts of one architecture, which scela-run does not know", "-hosts"),
    foreign(&["localhost"], "names the launcher's own host"),
    ours(&["plm"], "chooses how to reach hosts", "--bootstrap"),
    foreign(&["enable-x", "disable-x"], "turns X forwarding on or off"),
    ours(&["nolocal", "skip-launch-node"], "keeps ranks off the launcher's host", "--exclude"),
    foreign(&["prefix"], "says where the launcher is installed on other hosts"),
    foreign(&["nameserver", "ompi-server"], "names a server for published names"),

    // Placement and binding.
    ours(&["binding", "bind-to-core", "bind-to-socket", "bind-to-none", "cpu-bind", "cpu-set", "cpu-list"],
        "binds ranks to cores", "--bind-to"),
    ours(&["bynode", "byslot"], "says how ranks are placed", "--map-by"),
    foreign(&["bycore", "distribution", "order-nodes", "ordered"], "says how ranks are placed"),
    foreign(&["rank-by", "rankfile", "rf", "rr", "grr"], "says how ranks are numbered"),
    ours(&["agents"], "says how many agents run on a node", "--agents-per-node"),
    foreign(&["topolib"], "chooses a library for the machine's topology"),
    ours(&["display-map", "display", "print-rank-map"], "shows where ranks are placed", "--explain"),
    ours(&["npersocket", "ntasks-per-socket"], "puts ranks on sockets", "--map-by"),
    ours(&["cpus-per-proc", "cpus-per-task"], "gives ranks several cores", "--cpus-per-rank"),
    foreign(&["oversubscribe", "nooversubscribe", "use-hwthread-cpus", "overlap"],
        "says how many ranks a node may hold"),
    ours(&["gpus-per-proc", "gpus-per-task"], "gives ranks GPUs", "--gpus-per-rank"),
    foreign(&["gpu-subdevs-per-proc", "g", "gpus"], "gives ranks a share of GPUs"),
    ours(&["perhost", "ntasks-per-node"], "limits the ranks on a node", "-ppn"),
    ours(&["ntasks", "num-ranks", "num-procs", "nranks", "nprocs", "numprocs", "ranks"], "gives the number of ranks", "-np"),
    foreign(&["soft"], "lets a job start with fewer ranks than asked for; scela-run starts all or none"),
    foreign(&["partition", "p", "account", "A", "mem", "qos", "jobid"], "asks for an allocation"),

    // Programs and their system.
    ours(&["app", "multi-prog"], "names a file of programs", "-configfile"),
    ours(&["cwd", "chdir", "D"], "sets the working directory", "-wdir"),
    ours(&["export"], "chooses what to pass of the environment", "-genvlist"),
    foreign(&["preload-binary", "preload-files", "bcast"], "copies files to the hosts"),
    foreign(&["mca", "gmca", "omca", "prtemca", "pmixmca", "am", "tune"],
        "sets a parameter of Open MPI"),
    foreign(&["allow-run-as-root"], "lets root start ranks, which scela-run always allows"),
    foreign(&["profile", "check_mpi", "gtool", "tv", "xterm", "debug"],
        "starts the program under a tool"),

    // Output, ends and reports.
    foreign(&["prepend-pattern"], "begins lines of output with a pattern"),
    foreign(&["timestamp-output"], "begins lines of output with the time"),
    foreign(&["ordered-output"], "sorts output by rank"),
    foreign(&["merge-stderr-to-stdout"], "joins the ranks' two streams"),
    foreign(&["demux"], "chooses how the launcher waits for output"),
    foreign(&["unbuffered", "u"], "turns the buffering of lines off"),
    ours(&["output-filename", "output", "outfile", "o"], "writes stdout to files", "-outfile-pattern"),
    ours(&["error", "e", "errfile"], "writes stderr to files", "-errfile-pattern"),
    ours(&["input", "i"], "chooses which ranks read standard input", "--stdin"),
    ours(&["time", "t"], "limits how long the session may run", "--timeout"),
    ours(&["info"], "prints how the launcher was built", "--version"),
    ours(&["job-name", "J"], "gives the session a name", "--label"),
    foreign(&["print-all-exitcodes"], "prints the exit code of each rank"),
    ours(&["enable-recovery", "continuous"], "lets the other ranks go on when one fails", "-disable-auto-cleanup"),
    foreign(&["kill-on-bad-exit", "K"], "ends all ranks when one fails, as scela-run does by default"),
    foreign(&["disable-hostname-propagation"], "lets ranks find out their host's name themselves"),
    ours(&["do-not-launch", "test-only"], "starts nothing", "--explain"),
];

/// Returns the entry of this name, given without dashes.
pub(super) fn find(name: &str) -> Option<&'static Foreign> {
    FOREIGN.iter().find(|foreign| foreign.names.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::super::options;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_name_occurs_once_and_is_not_ours() {
        let mut seen = BTreeSet::new();
        for name in FOREIGN.iter().flat_map(|foreign| foreign.names) {
            assert!(seen.insert(name), "{name} occurs twice");
            assert!(options::find(name).is_none(), "{name} is ours");
        }
    }

    #[test]
    fn replacements_are_our_options() {
        for instead in FOREIGN.iter().filter_map(|foreign| foreign.instead) {
            assert!(options::find(instead.trim_start_matches('-')).is_some(), "{instead}");
        }
    }
}
