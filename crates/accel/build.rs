//! How the library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Calls between exported functions stay inside the library. Otherwise the dynamic linker would
    // lead them to a function of the same name in the program, which may itself call the library
    // (Erlang's `sigaction` calls `__sigaction`) and would never return. The library exports no
    // data, so this binds functions only. Not every linker knows `-Bsymbolic-functions`.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-Bsymbolic");
}
