//! Running programs: a command line in words, its output or its failure.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The root of the workspace.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root")
        .to_path_buf()
}

/// The command of `line`, split at white space, to run in the root.
pub fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words).current_dir(root());
    command
}

/// Runs `line` with our own output streams; fails if it fails.
pub fn run(line: &str) -> Result<()> {
    run_with(line, &[])
}

/// [`run`] with these variables in the environment.
pub fn run_with(line: &str, variables: &[(&str, &str)]) -> Result<()> {
    let shown: String =
        variables.iter().map(|(name, value)| format!("{name}='{value}' ")).collect();
    eprintln!("$ {shown}{line}");
    let status = command(line)
        .envs(variables.iter().copied())
        .status()
        .with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` ended with {status}");
    }
    Ok(())
}

/// [`run`] of a program that talks much: its output is shown only if it fails.
pub fn run_quietly(line: &str) -> Result<()> {
    eprintln!("$ {line}");
    match output(line)? {
        (_, true) => Ok(()),
        (text, false) => bail!("`{line}` failed: {text}"),
    }
}

/// Runs `line` and returns what it wrote to stdout, whether it succeeds or not, and whether it did.
pub fn output(line: &str) -> Result<(String, bool)> {
    let output = command(line)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{line}`"))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        text.push_str(&String::from_utf8_lossy(&output.stderr));
    }
    Ok((text, output.status.success()))
}
