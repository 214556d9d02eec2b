//! libscela-trace.so: counts the bytes and messages that a rank of an unmodified MPI program sends to each other rank.
//!
//! The dynamic loader loads it before the MPI library (LD_PRELOAD), so the program calls the functions of this library by
//! the names of MPI's. Each of them calls MPI's own function and then counts. Handles of communicators, datatypes and
//! requests are words that only MPI interprets, so one library serves the three ABIs (MPICH's, Open MPI's and that of MPI 5)
//! on 64-bit systems, where each argument occupies a register or a slot of 8 bytes.
//!
//! - [`functions`]: the functions of MPI, by their names in C and in Fortran.
//! - [`arguments`]: reads the arguments of a call in either language.
//! - [`mpi`]: finds MPI's own functions and its ABI.
//! - [`record`]: the messages that each function adds to the counts.
//! - [`peers`]: translates ranks of communicators and windows to ranks of the job.
//! - [`schedule`]: the messages of collective operations.
//! - [`counters`], [`row`]: the counts, and their form for the agent.
//!
//! It changes nothing in its host program: no thread, signal handler, output or error of MPI; no panic leaves it. Without an
//! agent's file it counts in vain.

mod arguments;
mod counters;
mod functions;
mod mpi;
mod peers;
mod record;
pub mod row;
pub mod schedule;
