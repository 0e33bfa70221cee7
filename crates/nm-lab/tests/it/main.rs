//! Agents and environments as real processes.
//!
//! The agents are this program itself: it has the binary's hidden subcommands, so that the code
//! under test starts `current_exe() agent` as in the binary. Tests run one after the other, because
//! they count the processes and namespaces of the machine. Arguments choose tests by a part of
//! their name, as with the standard harness.

#![allow(clippy::print_stdout, reason = "a test harness prints results")]

mod agents;
mod controller;
mod environments;
mod machine;
mod remote;
mod trials;
mod xdp;
mod xdp_tcp;

use std::panic::catch_unwind;
use std::path::Path;
use std::process::ExitCode;

type Test = (&'static str, fn());

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["agent"] => return exit(nm_lab::agent::serve(std::io::stdin(), std::io::stdout())),
        ["lab-hold", ..] => {
            nm_lab::environment::hold(words.get(1).map(Path::new));
            return ExitCode::SUCCESS;
        }
        ["lab-wire", ..] => {
            return exit(nm_lab::link_setup::run(&arguments[1..]));
        }
        ["controller", kind] => {
            controller::hold_environment(kind);
            return ExitCode::SUCCESS;
        }
        ["ordinary-user", what] => {
            controller::as_ordinary_user(what);
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let tests: Vec<Test> = [
        agents::TESTS,
        environments::TESTS,
        remote::TESTS,
        trials::TESTS,
        xdp::TESTS,
        xdp_tcp::TESTS,
    ]
    .concat();
    run(&tests, &words)
}

fn exit<E>(result: Result<(), E>) -> ExitCode {
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the tests that the arguments choose, in order, and reports like the standard harness.
fn run(tests: &[Test], words: &[&str]) -> ExitCode {
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
