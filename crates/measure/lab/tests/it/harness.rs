//! Runs tests one after the other and reports like the standard harness.

use std::panic::catch_unwind;
use std::process::ExitCode;

/// A test and its name.
pub type Test = (&'static str, fn());

/// Runs the tests that the arguments choose, in order, and reports like the standard harness.
pub fn run(tests: &[Test], words: &[&str]) -> ExitCode {
    let filters: Vec<&&str> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let chosen: Vec<&Test> = tests
        .iter()
        .filter(|(name, _)| filters.is_empty() || filters.iter().any(|part| name.contains(**part)))
        .collect();
    if words.contains(&"--list") {
        for (name, _) in chosen {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    let mut failed = vec![];
    for (name, test) in &chosen {
        match catch_unwind(test) {
            Ok(()) => println!("test {name} ... ok"),
            Err(_) => {
                println!("test {name} ... FAILED");
                failed.push(*name);
            }
        }
    }
    let result = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {result}. {} passed; {} failed",
        chosen.len() - failed.len(),
        failed.len()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
