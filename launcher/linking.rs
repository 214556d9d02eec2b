//! Arguments for the linker. The build scripts of `scela-run` and of the C libraries use them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the argument that links gcc's static unwinder into a target of this type (`bin` or `cdylib`), in place of libgcc_s.so.
///
/// Without that library `scela-run` starts 0.1 ms sooner, and its processes have fewer mappings to copy and to remove. A rank that
/// uses libpmi starts and ends in a tenth less time: there is no other library to find, to map and to initialise. Returns `None` if
/// the unwinder is not found, cannot be linked, or is one for another target: the target is linked as usual then.
pub(crate) fn static_unwinder(crate_type: &str) -> Option<String> {
    if variable("CARGO_CFG_TARGET_ENV") != "gnu" || variable("HOST") != variable("TARGET") {
        return None;
    }
    let linker = env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".to_owned());
    let output = Command::new(linker).arg("-print-file-name=libgcc_eh.a").output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    // A compiler that does not know the file prints its name only.
    if !Path::new(&path).is_absolute() {
        return None;
    }
    let argument = format!("-Wl,--push-state,--whole-archive,{path},--pop-state");
    links_with(crate_type, &argument).then_some(argument)
}

/// Returns whether an empty target of this type can be linked with this argument.
pub(crate) fn links_with(crate_type: &str, argument: &str) -> bool {
    let directory = PathBuf::from(variable("OUT_DIR"));
    let source = directory.join("empty.rs");
    if fs::write(&source, "fn main() {}\n").is_err() {
        return false;
    }
    let flags = variable("CARGO_ENCODED_RUSTFLAGS");
    let linker = env::var("RUSTC_LINKER").map(|linker| format!("-Clinker={linker}"));
    Command::new(variable("RUSTC"))
        .args(["--target", &variable("TARGET"), "--crate-type", crate_type, "-Copt-level=1"])
        .args(flags.split('\x1f').filter(|flag| !flag.is_empty()))
        .args(linker)
        .arg(format!("-Clink-arg={argument}"))
        .arg("-o")
        .arg(directory.join("empty"))
        .arg(source)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}
