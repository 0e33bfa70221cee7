//! All tests of the workspace, counted.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::{setup, shell};

/// What the test runners of one or several commands counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
}

/// `cargo xtask test`: installs what the tests need, then runs them; `args` go to `cargo test`.
pub fn run(args: &[String]) -> Result<()> {
    setup::run()?;
    let counts = cargo_test(&format!("cargo test --workspace --locked {}", args.join(" ")))?;
    println!("{} passed, {} failed", counts.passed, counts.failed);
    if counts.failed > 0 {
        bail!("{} tests failed", counts.failed);
    }
    Ok(())
}

/// Runs a `cargo test`, showing its output, and adds up what the runners count.
pub fn cargo_test(line: &str) -> Result<Counts> {
    eprintln!("$ {line}");
    let mut child =
        shell::command(line).stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let mut counts = Counts::default();
    for text in BufReader::new(child.stdout.take().expect("piped")).lines() {
        let text = text?;
        println!("{text}");
        counts.add(&text);
    }
    let status = child.wait()?;
    if !status.success() && counts.failed == 0 {
        bail!("`{line}` ended with {status} before it could count its tests");
    }
    if counts.passed == 0 && counts.failed == 0 {
        bail!("`{line}` ran no test");
    }
    Ok(counts)
}

impl Counts {
    /// Adds the numbers of a runner's line `test result: ok. 3 passed; 1 failed; …`.
    fn add(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else { return };
        let count = |word: &str| -> u64 {
            let words: Vec<&str> = counts.split([' ', ';']).filter(|w| !w.is_empty()).collect();
            let at = words.iter().position(|found| *found == word);
            at.and_then(|at| words.get(at.checked_sub(1)?)?.parse().ok()).unwrap_or(0)
        };
        self.passed += count("passed");
        self.failed += count("failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_several_runners_are_added() {
        let mut counts = Counts::default();
        for line in [
            "running 5 tests",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
            "test result: ok. 10 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        ] {
            counts.add(line);
        }
        assert_eq!(counts, Counts { passed: 13, failed: 2 });
    }
}
