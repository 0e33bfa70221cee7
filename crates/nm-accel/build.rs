//! How the library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Calls between exported functions stay inside the library. Otherwise the dynamic linker would
    // lead them to a function of the same name in the program, which may itself call the library
    // (Erlang's `sigaction` calls `__sigaction`) and would never return.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-Bsymbolic-functions");
}
