//! The MPI tier: third-party programs, and programs that use MPI only, run by `scela-run`.
//!
//! Two MPI libraries represent the two generations of PMI-1 clients: Debian's mpich 4.0 (fixed buffers of 1,024
//! bytes, UCX) and PyPI's mpich 5 (lines of any length, OFI). PyPI's is the only one that can spawn on a machine
//! without a fabric. Debian's Open MPI 4 and PyPI's Intel MPI are unmodified users of ScELA's libpmi.so and
//! libpmi2.so. PyPI's Open MPI 5 finds its launcher by PMIx alone. `tests/run` installs all five. A sixth, MPICH built
//! from its source against ScELA's libraries, takes longer: `tests/mpi/mpich-from-source`.
//!
//! | file | about |
//! |---|---|
//! | `worlds` | the ranks' numbers, their communication, and their complete output |
//! | `ends` | MPI_Abort, exits and signals in the middle of MPI |
//! | `spawns` | MPI_Comm_spawn, MPI_Publish_name and related calls |
//! | `topology` | the parts of the node that MPICH finds in the file that it gets |
//! | `restarts` | a program that writes checkpoints starts again after a crash |
//! | `open_mpi` | which programs get the path of ScELA's libpmi.so |
//! | `intel` | the three ways in which Intel MPI may use PMI |
//! | `charm` | charm4py, whose charmrun starts its processes by `scela-run`, and clients of CCS |
//! | `pmix` | what ranks do through PMIx only, libpmix of two versions, and the loss of `scela-pmix` |
//! | `pmix_security` | PMIx serves the job's own ranks only |
//! | `profile` | what `--profile-comm` counts, under all libraries and in Fortran |
//! | `library` | the paths of the libraries, and how programs are compiled with them |
//!
//! Under Hydra, MPICH leaves `mpich_shm_*` in /dev/shm when its ranks are killed. Each run has a /dev/shm of its own,
//! which is removed with the run.

mod charm;
mod ends;
mod intel;
mod library;
mod open_mpi;
mod pmix;
mod pmix_security;
mod profile;
mod restarts;
mod spawns;
mod topology;
mod worlds;
