//! The ABI tier: our libpmi.so.0 and libpmi2.so.0 as C programs see them, beside those of Slurm.
//!
//! The same C sources are compiled twice, with our headers and libraries and with Debian's (libpmi0-dev,
//! libpmi2-0-dev), and run under the same launchers: `scela-run`, Hydra, a Slurm of our own, and none.
//!
//! | file | about |
//! |---|---|
//! | `walks` | every function with arguments of all kinds, compared line by line with Slurm's libraries |
//! | `differences` | the lists of what differs, each with its reason |
//! | `exports` | names, SONAMEs and headers |
//! | `host` | threads, forks, and what a host program finds changed (nothing) |
//! | `board` | the shared board, seen by programs that use libpmi, here and on hosts |
//! | `libraries` | where the libraries are, and how programs are built with them |
//! | `launchers` | who starts the ranks |

mod board;
mod differences;
mod exports;
mod host;
mod launchers;
mod libraries;
mod walks;
