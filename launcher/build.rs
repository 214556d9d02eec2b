//! Passes the commit to the program, if git knows it, exports the function that libpmix calls, and orders functions in the program.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

mod linking;

fn main() {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    println!("cargo::rerun-if-changed=build.rs");
    // nla's `accept` (nla/src/sys/pmix/accept.rs).
    let exports = Path::new(env!("CARGO_MANIFEST_DIR")).join("exports.txt");
    println!("cargo::rerun-if-changed={}", exports.display());
    println!("cargo::rustc-link-arg-bins=-Wl,--dynamic-list={}", exports.display());
    if let Some(argument) = linking::static_unwinder("bin") {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    if !is_static() {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
    if let Some(script) = start_script() {
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{}", script.display());
    }
    // Built from an archive, git may find the repository of another project around it.
    let is_own = git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).filter(|_| is_own);
    println!(
        "cargo::rustc-env=SCELA_COMMIT={}",
        commit.as_ref().map_or(String::new(), |commit| format!(" ({commit})"))
    );
    if commit.is_some() {
        // HEAD changes when another branch is checked out, its log with each commit.
        for file in ["HEAD", "logs/HEAD"] {
            if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
                println!("cargo::rerun-if-changed={path}");
            }
        }
    }
}

/// Returns whether the C library is linked statically. Its start-up code expects the kind of program that rustc has chosen.
///
/// Otherwise the program gets fixed addresses: 15,000 relocations and the 46 pages that they copy are a sixteenth of the time of a
/// small job. Libraries, heaps, stacks and mappings keep their random addresses (docs/security.md).
fn is_static() -> bool {
    std::env::var("CARGO_CFG_TARGET_FEATURE")
        .is_ok_and(|features| features.split(',').any(|feature| feature == "crt-static"))
}

/// Returns a linker script that puts the functions of a small job's start at one place of the text: a process maps 64 KiB of text
/// with each page fault, and a small job would touch nearly all of it, in three processes. docs/performance.md says how the list of
/// functions is made. A function that it lacks, or that no longer exists, costs time only.
///
/// `None` without optimization, where functions are too many and differ, and if the linker does not accept the script.
fn start_script() -> Option<PathBuf> {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("start_functions.txt");
    println!("cargo::rerun-if-changed={}", list.display());
    if std::env::var("OPT_LEVEL").is_ok_and(|level| level == "0") {
        return None;
    }
    let mut text = String::from("SECTIONS\n{\n  .text.start : {\n");
    for line in fs::read_to_string(list).ok()?.lines().filter(|line| !line.starts_with('#')) {
        let (crate_name, function) = line.split_once(' ')?;
        // Archives of crates have objects whose names begin with that of the crate.
        let object = if crate_name == "*" { "*".to_owned() } else { format!("*:{crate_name}-*") };
        writeln!(text, "    {object}(.text.{function})").ok()?;
    }
    text.push_str("  }\n}\nINSERT BEFORE .text;\n");
    let script = PathBuf::from(std::env::var_os("OUT_DIR")?).join("start.ld");
    fs::write(&script, text).ok()?;
    // lld and GNU ld accept it, others may not.
    linking::links_with("bin", &format!("-Wl,-T,{}", script.display())).then_some(script)
}
