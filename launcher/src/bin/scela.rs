//! `scela`: the same program under the name of its subcommands. See [`launcher::program`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

use launcher::program::{self, Called};
use nla::sys::LargePages;

/// Boards of large jobs are long allocations.
#[global_allocator]
static ALLOCATOR: LargePages = LargePages;

fn main() -> ExitCode {
    program::main(Called::Scela)
}
