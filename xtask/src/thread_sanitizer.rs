//! The unit tests of everything that threads share memory in, under ThreadSanitizer: it reports two
//! accesses of which one writes and that nothing orders.
//!
//! The standard library is built with it as well, because its locks and channels would seem to
//! order nothing otherwise.

use anyhow::{Result, bail};

use crate::shell;

const USAGE: &str = "\
usage: cargo xtask thread-sanitizer [CRATE...]

  CRATE  only the unit tests of these crates

needs a nightly toolchain with its sources: rustup toolchain install nightly --component rust-src";

/// Crates whose threads share memory that is not only behind locks of the standard library, or
/// that have many threads.
const CRATES: [&str; 8] = [
    "nm-accel",
    "nm-exchange",
    "nm-lab",
    "nm-probe",
    "nm-replica",
    "nm-ring",
    "nm-sys",
    "nm-transport",
];

/// It counts page faults, of which ThreadSanitizer has its own.
const SKIPPED: &str = "filling_causes_no_page_fault";

/// `cargo xtask thread-sanitizer`: runs the tests, and fails if one fails or a race is reported.
pub fn run(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg == "--help") {
        println!("{USAGE}");
        return Ok(());
    }
    if let Some(option) = args.iter().find(|arg| arg.starts_with('-')) {
        bail!("there is no option {option}\n{USAGE}");
    }
    if !shell::output("rustup run nightly rustc --version").is_ok_and(|(_, is_ok)| is_ok) {
        bail!("there is no nightly toolchain\n{USAGE}");
    }
    let crates: Vec<&str> = match args {
        [] => CRATES.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    let packages: String = crates.iter().map(|name| format!("-p {name} ")).collect();
    let line = format!(
        "rustup run nightly cargo test --lib --locked --no-fail-fast -Zbuild-std \
         --target x86_64-unknown-linux-gnu --target-dir target/thread-sanitizer {packages}\
         -- --skip {SKIPPED}"
    );
    // A report ends the process with this code, so that the test run fails.
    let variables = [("RUSTFLAGS", "-Zsanitizer=thread"), ("TSAN_OPTIONS", "exitcode=66")];
    shell::run_with(&line, &variables)
}
