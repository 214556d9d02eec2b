//! The ranks' environment: which of the launcher's variables they inherit, and which are set in addition.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use nla::core::{Inherit, Variable};

use nla::sys::image::PATH_DEFAULT;

use crate::plan::request::{EnvChange, EnvPolicy, Options};

/// Returns the environment of one command's ranks: the inherited variables, and those set in addition. Adds a note for
/// each variable that is to be passed on but is not set.
pub(crate) fn environment(
    options: &Options,
    own: &[EnvChange],
    own_policy: Option<&EnvPolicy>,
    known: &[(OsString, OsString)],
    remarks: &mut Vec<String>,
) -> (Inherit, Vec<Variable>) {
    let inherit = match own_policy.or(options.genv_policy.as_ref()) {
        None | Some(EnvPolicy::All) => Inherit::All,
        Some(EnvPolicy::None) => Inherit::Nothing,
        Some(EnvPolicy::List(names)) => Inherit::Names(names.iter().map(|name| name.as_bytes().to_vec()).collect()),
    };
    let mut set: Vec<Variable> = Vec::new();
    for change in options.genv.iter().chain(own) {
        match change {
            EnvChange::Set(name, value) => set.push((name.as_bytes().to_vec(), value.as_bytes().to_vec())),
            EnvChange::Pass(name) => match known.iter().find(|(known, _)| known == name) {
                Some((name, value)) => set.push((name.as_bytes().to_vec(), value.as_bytes().to_vec())),
                None => {
                    let remark = format!("'{}' is to be passed to the ranks, but is not set", name.to_string_lossy());
                    if !remarks.contains(&remark) {
                        remarks.push(remark);
                    }
                }
            },
        }
    }
    if let Some(cpus) = options.binding.cpus_per_rank {
        let is_inherited = |name: &[u8]| match &inherit {
            Inherit::All => true,
            Inherit::Nothing => false,
            Inherit::Names(names) => names.iter().any(|known| known == name),
        };
        let is_inherited = is_inherited(THREADS.as_bytes()) && known.iter().any(|(name, _)| name == THREADS);
        if !is_inherited && !set.iter().any(|(name, _)| name == THREADS.as_bytes()) {
            set.push((THREADS.into(), cpus.to_string().into()));
        }
    }
    (inherit, set)
}

/// The number of threads of a program that uses OpenMP. Other programs would start one on each processor.
const THREADS: &str = "OMP_NUM_THREADS";

/// Returns PATH with `directories` in front. The rest is PATH's value in `set`, else the one that the command inherits from
/// `known`.
pub(crate) fn search_path(
    directories: &OsStr,
    inherit: &Inherit,
    set: &[Variable],
    known: &[(OsString, OsString)],
) -> Variable {
    const PATH: &[u8] = b"PATH";
    let inherits = match inherit {
        Inherit::All => true,
        Inherit::Nothing => false,
        Inherit::Names(names) => names.iter().any(|name| name == PATH),
    };
    let inherited =
        || known.iter().find(|(name, _)| inherits && name.as_bytes() == PATH).map(|(_, path)| path.as_bytes());
    let set = set.iter().rfind(|(name, _)| name == PATH).map(|(_, path)| path.as_slice());
    let others = set.or_else(inherited).unwrap_or(PATH_DEFAULT);
    (PATH.to_vec(), [directories.as_bytes(), b":", others].concat())
}

/// Returns whether an enclosing launcher, or an enclosing ScELA, set this variable for its own ranks. An MPI library
/// that saw it would talk to that launcher.
///
/// Ranks keep a resource manager's variables about the whole job (`SLURM_JOB_ID`, `SLURM_JOB_NODELIST`,
/// `SLURM_NTASKS`, `PBS_JOBID`, ...), because programs read them. They do not get its variables about one step or
/// task: these describe the process in which the launcher runs, not a rank. They do not get that step's binding
/// either: an `srun` in a rank would ask for processors that its node does not have and fail with "CPU binding
/// outside of job step allocation".
pub(crate) fn is_foreign(name: &[u8]) -> bool {
    const PREFIXES: [&str; 25] = [
        "PMI_",
        "PMIX_",
        "HYDI_",
        "HYDRA_",
        "SCELA_SEGMENT",
        "SCELA_INCARNATION",
        "SCELA_AGENT",
        "OMPI_COMM_WORLD_",
        "OMPI_MCA_ess_",
        "OMPI_MCA_orte_hnp_uri",
        "OMPI_MCA_orte_local_daemon_uri",
        "OMPI_MCA_orte_jobfam_session_dir",
        "OMPI_MCA_orte_app_num",
        "OMPI_MCA_orte_num_nodes",
        "JSM_NAMESPACE_",
        "PALS_",
        "ALPS_APP_",
        "MV2_COMM_WORLD_",
        "SLURM_STEP_",
        "SLURM_SRUN_COMM_",
        "SLURM_CPU_BIND",
        "SLURM_MEM_BIND",
        "SLURM_PMI",
        "SLURM_PTY_",
        "FLUX_TASK_",
    ];
    const NAMES: [&str; 20] = [
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        "MPIRUN_RSH_LAUNCH",
        // charmrun's script reads these two before PMI_RANK and PMI_SIZE.
        "MPIRUN_RANK",
        "MPIRUN_NPROCS",
        "I_MPI_PMI_LIBRARY",
        "OMPI_UNIVERSE_SIZE",
        "OMPI_APP_CTX_NUM_PROCS",
        "OMPI_FIRST_RANKS",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_STEPID",
        "SLURM_NODEID",
        "SLURM_TASK_PID",
        "SLURM_GTIDS",
        "SLURM_LAUNCH_NODE_IPADDR",
        "SLURM_DISTRIBUTION",
        "SLURM_MPI_TYPE",
        "LSB_TASKID",
        "PRTE_LAUNCHED",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
        || NAMES.iter().any(|known| name == known.as_bytes())
}

/// Returns the launcher's environment.
pub fn environment_of_process() -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| !name.is_empty() && !name.as_encoded_bytes().contains(&b'=')).collect()
}

/// Returns whether `environment` has a non-empty value for `name`.
pub fn is_set(environment: &[(OsString, OsString)], name: &str) -> bool {
    environment.iter().any(|(known, value)| known == OsStr::new(name) && !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_a_program_precede_its_path() {
        let known = [("PATH".into(), "/bin".into())];
        let set = [(b"PATH".to_vec(), b"/first".to_vec()), (b"PATH".to_vec(), b"/set".to_vec())];
        let path = |inherit, set| {
            let (name, value) = search_path(OsStr::new("/opt/a:/opt/b"), &inherit, set, &known);
            assert_eq!(name, b"PATH");
            String::from_utf8(value).unwrap()
        };
        assert_eq!(path(Inherit::All, &set), "/opt/a:/opt/b:/set", "of equal names the last one counts");
        assert_eq!(path(Inherit::All, &[]), "/opt/a:/opt/b:/bin");
        assert_eq!(path(Inherit::Names(vec![b"PATH".to_vec()]), &[]), "/opt/a:/opt/b:/bin");
        let default = String::from_utf8_lossy(PATH_DEFAULT);
        assert_eq!(path(Inherit::Nothing, &[]), format!("/opt/a:/opt/b:{default}"));
    }

    #[test]
    fn variables_of_a_step_are_removed_and_those_of_the_job_are_kept() {
        let removed = [
            "PMI_FD",
            "PMIX_RANK",
            "SLURM_STEP_NODELIST",
            "SLURM_PROCID",
            "SLURM_CPU_BIND",
            "SLURM_CPU_BIND_LIST",
            "SLURM_PMIX_MAPPING_SERV",
            "SLURM_SRUN_COMM_PORT",
            "FLUX_TASK_RANK",
            "OMPI_MCA_orte_hnp_uri",
        ];
        let kept = [
            "SLURM_JOB_ID",
            "SLURM_JOB_NODELIST",
            "SLURM_NTASKS",
            "SLURM_CPUS_PER_TASK",
            "SLURM_TASKS_PER_NODE",
            "PBS_NODEFILE",
            "LSB_JOBID",
            "FLUX_JOB_ID",
            "OMPI_MCA_btl",
            "OMPI_MCA_orte_tmpdir_base",
            "PATH",
        ];
        assert_eq!(removed.map(|name| (name, is_foreign(name.as_bytes()))), removed.map(|name| (name, true)));
        assert_eq!(kept.map(|name| (name, is_foreign(name.as_bytes()))), kept.map(|name| (name, false)));
    }
}
