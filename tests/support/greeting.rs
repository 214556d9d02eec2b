//! A program with a library of its own, which says from where it was loaded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program, in a directory of its own: `bin/greeting` finds `lib/libinner.so` through `lib/libgreeting.so`.
#[derive(Debug)]
pub struct Greeting {
    directory: PathBuf,
}

impl Greeting {
    /// Builds it in a new directory inside `place`.
    #[track_caller]
    pub fn build(place: &Path) -> Self {
        let directory = place.join("greeting");
        for name in ["bin", "lib"] {
            fs::create_dir_all(directory.join(name)).expect("a directory can be made");
        }
        let greeting = Self { directory };
        let library = |name: &str| greeting.directory.join("lib").join(name);
        let source = |name: &str, text: &str| {
            let path = greeting.directory.join(name);
            fs::write(&path, text).expect("a source can be written");
            path
        };
        let inner = source("inner.c", "int inner(void) { return 40; }\n");
        let outer = source("outer.c", "int inner(void);\nint greeting(void) { return inner() + 2; }\n");
        let main = source("main.c", include_str!("greeting.c"));
        // LD_LIBRARY_PATH precedes DT_RUNPATH, which names the directory of the originals.
        let lib = greeting.directory.join("lib");
        let runpath =
            |directory: &str| format!("-Wl,--enable-new-dtags,-rpath,{directory},-rpath-link,{}", lib.display());
        cc(&inner, &library("libinner.so"), &["-shared", "-fPIC"], None);
        cc(&outer, &library("libgreeting.so"), &["-shared", "-fPIC", &runpath("$ORIGIN")], Some("libinner.so"));
        let own = runpath(&lib.to_string_lossy());
        cc(&main, &greeting.program(), &["-D_GNU_SOURCE", "-L", &lib.to_string_lossy(), &own], Some("libgreeting.so"));
        greeting
    }

    /// Returns the path of the program.
    pub fn program(&self) -> PathBuf {
        self.directory.join("bin/greeting")
    }

    /// Returns the directory with the program and the libraries.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of one of its libraries.
    pub fn library(&self, name: &str) -> PathBuf {
        self.directory.join("lib").join(name)
    }
}

/// Compiles a file, and links it with a library of the directory `lib`.
#[track_caller]
fn cc(source: &Path, made: &Path, options: &[&str], library: Option<&str>) {
    let mut command = Command::new("cc");
    command.args(options).arg("-o").arg(made).arg(source);
    command.arg("-L").arg(made.parent().expect("it is in a directory"));
    command.args(library.map(|name| format!("-l:{name}")));
    let built = command.output().expect("a C compiler links Rust programs too");
    assert!(built.status.success(), "{command:?}: {}", String::from_utf8_lossy(&built.stderr));
}
