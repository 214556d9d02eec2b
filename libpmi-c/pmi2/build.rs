//! Gives the shared library the name under which programs were linked with Slurm's, and has it stay
//! once it is loaded: a program that opens and closes it again finds its tie to the launcher again.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpmi2.so.0");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
