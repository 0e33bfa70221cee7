//! A long soak of the accelerator: the test `soak` of `nm-accel` with more connections.

use anyhow::{Context, Result, bail};

use crate::shell;

const USAGE: &str = "\
usage: cargo xtask soak-accel [--connections N] [--seconds N] [--seed N]

  --connections N  connections at least (10000)
  --seconds N      seconds at least (600)
  --seed N         what the programs do (1)";

/// `cargo xtask soak-accel`: programs of every way of waiting exchange bytes over connections that
/// join, go back to the kernel, join again and lose their processes.
pub fn run(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg == "--help") {
        println!("{USAGE}");
        return Ok(());
    }
    let [connections, seconds, seed] = parse(args)?.map(|number| number.to_string());
    let line = "cargo test --locked -p nm-accel --test it -- soak:: --nocapture";
    let variables = [
        ("NEARMETAL_SOAK_CONNECTIONS", connections.as_str()),
        ("NEARMETAL_SOAK_SECONDS", seconds.as_str()),
        ("NEARMETAL_SOAK_SEED", seed.as_str()),
    ];
    shell::run_with(line, &variables)
}

/// Connections, seconds and seed.
fn parse(args: &[String]) -> Result<[u64; 3]> {
    let (names, mut numbers) = (["--connections", "--seconds", "--seed"], [10_000, 600, 1]);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let Some(idx) = names.iter().position(|name| name == arg) else {
            bail!("unknown option {arg}\n{USAGE}");
        };
        let value = args.next().with_context(|| format!("{arg} needs a number"))?;
        numbers[idx] = value.parse().with_context(|| format!("{arg} {value}: not a number"))?;
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_replace_the_numbers() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(parse(&[]).unwrap(), [10_000, 600, 1]);
        assert_eq!(parse(&words("--seed 3 --connections 20")).unwrap(), [20, 600, 3]);
        assert!(parse(&words("--seed")).is_err());
        assert!(parse(&words("--rounds 3")).is_err());
    }
}
