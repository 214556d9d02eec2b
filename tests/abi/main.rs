//! The ABI tier: libpmi.so.0 and libpmi2.so.0 as C programs use them, compared with Slurm's.
//!
//! The same C sources are compiled twice, with ScELA's headers and libraries and with Debian's
//! (libpmi0-dev, libpmi2-0-dev), and run under the same launchers: `scela-run`, Hydra, a Slurm that the
//! tests start, and none.
//!
//! | file | contents |
//! |---|---|
//! | `walks` | every function with arguments of all kinds, compared line by line with Slurm's libraries |
//! | `differences` | the lists of differences from Slurm's libraries, each with its reason |
//! | `exports` | symbols, SONAMEs and headers |
//! | `nested` | launchers that ranks run
//! | `host` | threads, forks, and the state of the host program, which the library must not change |
//! | `install` | the messages of `libpmi-c/install` |
//! | `board` | the shared board, used by programs through libpmi, on this machine and on several hosts |
//! | `libraries` | the paths of the libraries, and how programs are built with them |
//! | `launchers` | the launchers that start the ranks |

mod board;
mod differences;
mod exports;
mod host;
mod install;
mod launchers;
mod libraries;
mod nested;
mod walks;
