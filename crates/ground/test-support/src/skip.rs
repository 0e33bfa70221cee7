//! Tests that need what not every machine has: they say that they did not run, and where everything
//! is installed they fail instead.

use std::io::Write;
use std::thread;

/// Set by `cargo xtask test` and `cargo xtask ci`, which install what the tests need.
const COMPLETE: &str = "CI";

/// Whether a test can run here. If not, it says so on stderr, past the runner's capture.
///
/// # Panics
/// If it cannot, and the machine is to have everything (`CI` is set).
pub fn can_run(is_possible: bool, needs: &str) -> bool {
    if !is_possible {
        let name = thread::current().name().unwrap_or("a test").to_string();
        assert!(!must_run(), "{name} did not run: {needs}");
        let _ = writeln!(std::io::stderr(), "{name} did not run: {needs}");
    }
    is_possible
}

/// [`can_run`] by a result: what is needed, or why it is missing.
///
/// # Panics
/// As [`can_run`].
pub fn needed<T, E: std::fmt::Display>(found: Result<T, E>) -> Option<T> {
    match found {
        Ok(found) => Some(found),
        Err(error) => {
            can_run(false, &error.to_string());
            None
        }
    }
}

fn must_run() -> bool {
    std::env::var_os(COMPLETE).is_some()
}
