//! Links the library with the name under which it is installed. `nodelete` keeps it loaded: its functions stay in use.

#[path = "../launcher/linking.rs"]
mod linking;

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libscela-trace.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if let Some(argument) = linking::static_unwinder("cdylib") {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
