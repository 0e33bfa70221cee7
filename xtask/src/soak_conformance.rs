//! The accelerator's conformance suite again and again while other work competes for the CPUs. A
//! fault that needs an unlucky moment shows in one round of many.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, available_parallelism, spawn};

use anyhow::{Context, Result, bail};

use crate::shell;

const USAGE: &str = "\
usage: cargo xtask soak-conformance [--rounds N] [NAME...]

  --rounds N  how often the suite is run (50)
  NAME        only tests whose names contain it; several: those that contain any of them";

const ROUNDS: u32 = 50;

/// `cargo xtask soak-conformance`: runs the suite, and fails if a test failed in any round.
pub fn run(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg == "--help") {
        println!("{USAGE}");
        return Ok(());
    }
    let (rounds, names) = parse(args)?;
    let line = format!("cargo test --locked -p nm-accel --test it -- {}", names.join(" "));
    shell::run("cargo test --locked -p nm-accel --test it --no-run")?;
    let load = Load::start()?;
    let mut failures: BTreeMap<String, u32> = BTreeMap::new();
    let mut passed = 0;
    for round in 1..=rounds {
        let (text, is_ok) = output(&line)?;
        let failed = failed_tests(&text);
        if !is_ok && failed.is_empty() {
            bail!("round {round}: `{line}` failed before it could count its tests\n{text}");
        }
        if !failed.is_empty() {
            println!("{}", text_of_failures(&text));
        }
        println!("round {round} of {rounds}: {} tests failed", failed.len());
        passed += u32::from(failed.is_empty());
        failed.into_iter().for_each(|name| *failures.entry(name.to_owned()).or_default() += 1);
    }
    drop(load);
    println!("{passed} of {rounds} rounds without a failure");
    failures.iter().for_each(|(name, count)| println!("{count:4}  {name}"));
    if !failures.is_empty() {
        bail!("{} tests failed at least once in {rounds} rounds", failures.len());
    }
    Ok(())
}

/// Rounds and names of tests.
fn parse(args: &[String]) -> Result<(u32, Vec<String>)> {
    let (mut rounds, mut names, mut args) = (ROUNDS, vec![], args.iter());
    while let Some(arg) = args.next() {
        if arg == "--rounds" {
            let value = args.next().context("--rounds needs a number")?;
            rounds = value.parse().with_context(|| format!("--rounds {value}: not a number"))?;
        } else if arg.starts_with('-') {
            bail!("unknown option {arg}\n{USAGE}");
        } else {
            names.push(arg.clone());
        }
    }
    Ok((rounds, names))
}

/// Standard output of `line`, and whether it succeeded.
fn output(line: &str) -> Result<(String, bool)> {
    let mut command = shell::command(line);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot start `{line}`"))?;
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success()))
}

/// Names in the lines `test NAME ... FAILED`.
fn failed_tests(text: &str) -> Vec<&str> {
    let names = text.lines().filter_map(|line| line.strip_prefix("test "));
    names.filter_map(|line| line.strip_suffix(" ... FAILED")).collect()
}

/// What the failed tests wrote.
fn text_of_failures(text: &str) -> &str {
    let from = text.find("\nfailures:\n").map_or(0, |at| at + 1);
    let to = text[from..].rfind("\nfailures:\n").map_or(text.len(), |at| from + at);
    &text[from..to]
}

/// Threads that compute without end, one for each CPU.
struct Load {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start() -> Result<Load> {
        let ends = Arc::new(AtomicBool::new(false));
        let threads = (0..available_parallelism()?.get())
            .map(|_| {
                let ends = Arc::clone(&ends);
                spawn(move || while !ends.load(Ordering::Relaxed) {})
            })
            .collect();
        Ok(Load { ends, threads })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 3 tests
test a::kernel::one ... ok
test a::kernel::two ... FAILED

failures:

---- a::kernel::two stdout ----
it hangs

failures:
    a::kernel::two

test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
";

    #[test]
    fn failures_are_read_from_the_output() {
        assert_eq!(failed_tests(OUTPUT), ["a::kernel::two"]);
        assert!(text_of_failures(OUTPUT).ends_with("it hangs\n"));
    }

    #[test]
    fn arguments_are_rounds_and_names() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (rounds, names) = parse(&words("--rounds 3 epoll ready")).unwrap();
        assert_eq!((rounds, names), (3, words("epoll ready")));
        assert!(parse(&words("--rounds x")).is_err());
        assert!(parse(&words("--other")).is_err());
    }
}
