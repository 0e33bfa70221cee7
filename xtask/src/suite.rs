//! All tests of the workspace, counted.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{setup, shell};

/// How many tests of one program run at a time.
const THREADS: &str = "RUST_TEST_THREADS";

/// Most tests wait for something, so a CPU has time for several.
const THREADS_PER_CPU: usize = 2;

/// What the test runners of one or several commands reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
    /// The runners' lines about the tests that failed: what each printed, and their names.
    failures: Vec<String>,
    /// Whether the next lines are about tests that failed.
    is_in_failures: bool,
}

/// `cargo xtask test`: installs what the tests need, then runs them; `args` go to `cargo test`.
pub fn run(args: &[String]) -> Result<()> {
    setup::run()?;
    cargo_test(&format!("cargo test --workspace --locked {}", args.join(" ")))?.conclude()
}

/// Set where everything is installed that the tests need: a test that cannot run fails then, and
/// says elsewhere that it did not run (`nm_test_support::skip`).
const COMPLETE: &str = "CI";

/// Runs a `cargo test` where everything is installed, showing its output, and adds up what the
/// runners count.
pub fn cargo_test(line: &str) -> Result<Counts> {
    let counts = counted(line, shell::command(line).env(COMPLETE, "1"))?;
    if counts.passed == 0 && counts.failed == 0 {
        bail!("`{line}` ran no test");
    }
    Ok(counts)
}

/// The same where nothing was installed. No test at all is no error.
pub fn quick_test(line: &str) -> Result<Counts> {
    counted(line, &mut shell::command(line))
}

fn counted(line: &str, command: &mut Command) -> Result<Counts> {
    eprintln!("$ {line}");
    if std::env::var_os(THREADS).is_none() {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        command.env(THREADS, (cpus * THREADS_PER_CPU).to_string());
    }
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
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
    Ok(counts)
}

impl Counts {
    /// The last lines of a run: what failed, because its report stands thousands of lines above,
    /// and the counts. An error if a test failed.
    pub fn conclude(&self) -> Result<()> {
        for line in &self.failures {
            println!("{line}");
        }
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed > 0 {
            bail!("{} tests failed", self.failed);
        }
        Ok(())
    }

    /// Adds a runner's line: the numbers of `test result: ok. 3 passed; 1 failed; …`, or a line
    /// between `failures:` and that one.
    fn add(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else {
            self.is_in_failures |= line == "failures:";
            if self.is_in_failures {
                self.failures.push(line.to_owned());
            }
            return;
        };
        self.is_in_failures = false;
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
            "test disks::a_torn_record_is_found ... FAILED",
            "failures:",
            "---- disks::a_torn_record_is_found stdout ----",
            "failures:",
            "    disks::a_torn_record_is_found",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
            "test result: ok. 10 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        ] {
            counts.add(line);
        }
        assert_eq!((counts.passed, counts.failed), (13, 2));
        let failures = [
            "failures:",
            "---- disks::a_torn_record_is_found stdout ----",
            "failures:",
            "    disks::a_torn_record_is_found",
        ];
        assert_eq!(counts.failures, failures);
        assert!(counts.conclude().is_err());
    }
}
