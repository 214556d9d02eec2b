//! Resource managers, and the user's choice among them.

/// A resource manager that may have allocated nodes to this job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Manager {
    /// Slurm.
    Slurm,
    /// PBS Professional, OpenPBS and Torque.
    Pbs,
    /// IBM Spectrum LSF.
    Lsf,
    /// Sun, Univa and Open Grid Engine.
    Sge,
    /// Flux.
    Flux,
}

impl Manager {
    /// Every resource manager.
    pub const ALL: [Self; 5] = [Self::Slurm, Self::Pbs, Self::Lsf, Self::Sge, Self::Flux];

    /// Returns the name that `--rm` and `--bootstrap` use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Slurm => "slurm",
            Self::Pbs => "pbs",
            Self::Lsf => "lsf",
            Self::Sge => "sge",
            Self::Flux => "flux",
        }
    }

    /// Returns the name that messages use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slurm => "Slurm",
            Self::Pbs => "PBS",
            Self::Lsf => "LSF",
            Self::Sge => "Grid Engine",
            Self::Flux => "Flux",
        }
    }
}

/// `--rm`: which resource manager's allocation to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ManagerChoice {
    /// The first manager whose variables are set.
    #[default]
    Auto,
    /// No allocation.
    None,
    /// The allocation of this manager; it is an error if there is none.
    Only(Manager),
}
