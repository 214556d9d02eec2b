//! The MPI tier: programs that nobody here wrote, or that know MPI only, under `scela-run`.
//!
//! Two MPI libraries speak for the two generations of PMI-1 clients: Debian's mpich 4.0 (fixed
//! buffers of 1,024 bytes, UCX) and PyPI's mpich 5 (lines of any length, OFI), the only one that
//! can spawn on a machine without a fabric. Debian's Open MPI 4 and PyPI's Intel MPI are unmodified
//! users of our libpmi.so and libpmi2.so. `tests/run` installs all four. A fifth, MPICH built from
//! its source against our libraries, takes longer: `tests/mpi/mpich-from-source`.
//!
//! | file | about |
//! |---|---|
//! | `worlds` | who the ranks are, that they can talk, and that all they say arrives |
//! | `ends` | MPI_Abort, exits and signals in the middle of MPI |
//! | `spawns` | MPI_Comm_spawn, MPI_Publish_name and what belongs to them |
//! | `open_mpi` | who is told of our libpmi.so, and who is not |
//! | `intel` | the three ways in which Intel MPI may speak to us |
//! | `library` | where the libraries are, and how programs are built with them |
//!
//! What lies in /dev/shm is not looked at: MPICH itself leaves `mpich_shm_*` behind when it is
//! killed, under Hydra as well, and other tests may be running.

mod ends;
mod intel;
mod library;
mod open_mpi;
mod spawns;
mod worlds;
