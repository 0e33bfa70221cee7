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
mod guests;
mod harness;
mod machine;
mod remote;
mod trials;
mod xdp;
mod xdp_tcp;

use std::path::Path;
use std::process::ExitCode;

use harness::Test;

fn main() -> ExitCode {
    if nm_lab::guest::is_init() {
        return guests::init();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["agent"] => return exit(nm_lab::agent::serve(std::io::stdin(), std::io::stdout())),
        ["lab-hold", ..] => {
            return exit(nm_lab::environment::hold(words.get(1).map(Path::new)));
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
        guests::TESTS,
        remote::TESTS,
        trials::TESTS,
        xdp::TESTS,
        xdp_tcp::TESTS,
    ]
    .concat();
    harness::run(&tests, &words)
}

fn exit<E>(result: Result<(), E>) -> ExitCode {
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
