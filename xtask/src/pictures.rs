//! `cargo xtask pictures`: writes the pictures in docs/images again.

use anyhow::Result;

use crate::shell;

/// The tests that draw them write them where `PICTURES` is set.
pub fn run() -> Result<()> {
    for test in
        ["-p nm-report --test it -- pictures::", "-p nearmetal --test it -- exchange_page::the"]
    {
        shell::run_with(&format!("cargo test {test}"), &[("PICTURES", "1")])?;
    }
    Ok(())
}
