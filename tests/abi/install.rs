//! `libpmi-c/install`: its messages, and what it installs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tests::scela_run;

use crate::libraries::repository;

#[test]
fn install_without_a_directory_prints_an_example() {
    let output = Command::new(repository().join("libpmi-c/install")).output().expect("the script cannot be started");
    let expected = "libpmi-c/install: error: expected one argument, the directory to install into\n  \
                    hint: ./libpmi-c/install /usr/local\n";
    assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stderr)), (Some(1), expected));
}

/// Installs the libraries that were built for the tests: its `cargo` builds nothing.
#[test]
fn programs_find_headers_and_libraries_below_the_prefix() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("abi/install");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(directory.join("bin")).expect("a directory");
    let cargo = directory.join("bin/cargo");
    fs::write(&cargo, "#!/bin/sh\n").expect("a file");
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("a program");
    let built = scela_run();
    std::os::unix::fs::symlink(built.parent().expect("its directory"), directory.join("release")).expect("a link");
    let path = format!("{}:{}", directory.join("bin").display(), std::env::var("PATH").expect("PATH"));
    let run = |command: &mut Command| {
        let output = command.env("PATH", &path).env("CARGO_TARGET_DIR", &directory).output().expect("it starts");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let prefix = directory.join("prefix");
    run(Command::new(repository().join("libpmi-c/install")).arg(&prefix));
    for (header, call, library) in [("pmi", "PMI_Finalize()", "pmi"), ("pmi2", "PMI2_Finalize()", "pmi2")] {
        for place in ["", "slurm/"] {
            let source = directory.join("program.c");
            fs::write(&source, format!("#include <{place}{header}.h>\nint main(void) {{ return {call}; }}\n"))
                .expect("a file");
            let [include, lib] = ["include", "lib"].map(|name| prefix.join(name));
            let program = directory.join("program");
            run(Command::new("gcc")
                .arg(&source)
                .arg("-o")
                .arg(&program)
                .arg("-I")
                .arg(include)
                .arg("-L")
                .arg(lib)
                .args([&format!("-l{library}"), &format!("-Wl,-rpath,{}", prefix.join("lib").display())]));
        }
    }
}
