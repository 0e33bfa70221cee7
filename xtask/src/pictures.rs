//! `cargo xtask pictures`: writes the pictures in docs/images again.

use anyhow::Result;

use crate::shell;

/// The tests that draw them write them where `PICTURES` is set.
pub fn run() -> Result<()> {
    shell::run_with("cargo test -p nm-report --test it -- pictures::", &[("PICTURES", "1")])
}
