//! A long soak of the accelerator: the test `soak` of `nm-accel` with more connections.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::shell;

const USAGE: &str = "\
usage: cargo xtask soak-accel [OPTIONS]

  --connections N  connections at least (10000)
  --seconds N      seconds at least (600)
  --seed N         what the programs do (1)
  --client WAY     only clients that wait this way: Blocking, Poll, Select, EpollLevel, EpollEdge,
                   EpollOneShot, Split (threads that send and threads that receive)
  --server WAY     only the server that waits this way (Split: a process for each connection)
  --freezer DIR    the folder of a cgroup that nobody else uses, where programs are frozen now and
                   then

30 minutes: cargo xtask soak-accel --connections 0 --seconds 1800";

/// The names of `Waiting` in the soak (`nm-accel`, tests/it/soak/plan.rs).
const WAYS: [&str; 7] =
    ["Blocking", "Poll", "Select", "EpollLevel", "EpollEdge", "EpollOneShot", "Split"];

/// What each option sets for the test, with its default.
const OPTIONS: [(&str, &str, &str); 6] = [
    ("--connections", "NEARMETAL_SOAK_CONNECTIONS", "10000"),
    ("--seconds", "NEARMETAL_SOAK_SECONDS", "600"),
    ("--seed", "NEARMETAL_SOAK_SEED", "1"),
    ("--client", "NEARMETAL_SOAK_CLIENT", ""),
    ("--server", "NEARMETAL_SOAK_SERVER", ""),
    ("--freezer", "NEARMETAL_SOAK_FREEZER", ""),
];

/// `cargo xtask soak-accel`: programs of every way of waiting exchange bytes over connections that
/// join, go back to the kernel, join again and lose their processes.
pub fn run(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg == "--help") {
        println!("{USAGE}");
        return Ok(());
    }
    let values = parse(args)?;
    let variables: Vec<(&str, &str)> =
        OPTIONS.iter().zip(&values).map(|(option, value)| (option.1, value.as_str())).collect();
    shell::run_with("cargo test --locked -p nm-accel --test it -- soak:: --nocapture", &variables)
}

/// The value of each option.
fn parse(args: &[String]) -> Result<Vec<String>> {
    let mut values = OPTIONS.map(|option| option.2.to_owned()).to_vec();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let Some(idx) = OPTIONS.iter().position(|option| option.0 == arg) else {
            bail!("unknown option {arg}\n{USAGE}");
        };
        let kind = match OPTIONS[idx].0 {
            "--client" | "--server" => "a way of waiting",
            "--freezer" => "the folder of a cgroup",
            _ => "a number",
        };
        let value = args.next().with_context(|| format!("{arg} needs {kind}"))?;
        let is_valid = match OPTIONS[idx].0 {
            "--client" | "--server" => WAYS.contains(&value.as_str()),
            "--freezer" => Path::new(value).join("cgroup.procs").exists(),
            _ => value.parse::<u64>().is_ok(),
        };
        ensure!(is_valid, "{arg} {value}: not {kind}\n{USAGE}");
        values[idx].clone_from(value);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_replace_the_numbers() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(parse(&[]).unwrap(), ["10000", "600", "1", "", "", ""]);
        let values = parse(&words("--seed 3 --server EpollOneShot --connections 20")).unwrap();
        assert_eq!(values, ["20", "600", "3", "", "EpollOneShot", ""]);
        for line in ["--seed", "--seed x", "--client", "--client Kqueue", "--freezer /proc"] {
            assert!(parse(&words(line)).is_err(), "{line}");
        }
        assert!(parse(&words("--rounds 3")).is_err());
    }
}
