//! The user's command for an alert.

use std::process::{Command, Stdio};
use std::time::Duration;

use nm_sys::process::ChildProcess;

/// Longest time of the command.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the command.
///
/// # Errors
/// A sentence if it cannot be started, fails or takes too long.
pub fn call(command: &str, sentence: &str) -> Result<(), String> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).env("NEARMETAL_ALERT", sentence);
    shell.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = ChildProcess::spawn(shell)
        .map_err(|error| format!("the command of --on-alert cannot be started: {error}"))?;
    match child.wait_timeout(LIMIT) {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("the command of --on-alert failed: {status}")),
        None => {
            child.kill();
            Err("the command of --on-alert took a minute and was ended".to_string())
        }
    }
}
