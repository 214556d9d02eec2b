//! Links libpmi.so and libpmi2.so (both packages use this script) with the soname under which programs
//! were linked with Slurm's libraries. `nodelete` keeps the library loaded after dlclose, so that a
//! program that opens it again finds its connection to the launcher.

#[path = "../launcher/linking.rs"]
mod linking;

fn main() {
    let package = std::env::var("CARGO_PKG_NAME").expect("Cargo sets CARGO_PKG_NAME");
    let library = package.strip_suffix("-c").expect("the package is named after its library");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{library}.so.0");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if let Some(argument) = linking::static_unwinder("cdylib") {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    println!("cargo::rerun-if-changed=Cargo.toml");
}
