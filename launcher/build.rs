//! Passes the commit to the program, if git knows it, and exports the function that libpmix calls.

use std::path::Path;
use std::process::Command;

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
    if let Some(unwinder) = static_unwinder() {
        println!("cargo::rustc-link-arg-bins=-Wl,--push-state,--whole-archive,{unwinder},--pop-state");
    }
    if !is_static() {
        println!("cargo::rustc-link-arg-bins=-no-pie");
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

/// Returns the path of gcc's static unwinder. Without libgcc_s.so, `scela-run` starts 0.1 ms sooner, and its processes have fewer
/// mappings to copy and to remove. `None` if it is not found, or for another target: the program is linked as usual then.
fn static_unwinder() -> Option<String> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    if variable("CARGO_CFG_TARGET_ENV") != "gnu" || variable("HOST") != variable("TARGET") {
        return None;
    }
    let linker = std::env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".to_owned());
    let output = Command::new(linker).arg("-print-file-name=libgcc_eh.a").output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    // A compiler that does not know the file prints its name only.
    Path::new(&path).is_absolute().then_some(path).filter(|path| Path::new(path).exists())
}
