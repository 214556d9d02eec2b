//! Links the library with the name under which it is installed. `nodelete` keeps it loaded: its functions stay in use.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libscela-trace.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
