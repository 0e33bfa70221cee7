//! What bypass gains on this machine: shared memory, AF_XDP, and unmodified programs under
//! `nearmetal accel`. They run against the kernel and against the limit of the hardware, all in one
//! run.
//!
//! Rounds are interleaved: each measures everything, every second one backwards. Both ends are
//! pinned, and a goal is a ratio of two figures of the same round. Writes Markdown to stdout and,
//! with `--out FILE`, to a file. What cannot be measured here is a row that says why.

pub mod cases;
pub mod figures;
mod goals;
mod table;

use anyhow::{Context, Result, bail};

use crate::bench::{self, Build, VethPair};
use figures::Figures;

const USAGE: &str = "\
usage: cargo xtask bench-bypass [--rounds N] [--out FILE] [--only TEXT]

  --rounds N    rounds; the default ends within about a quarter of an hour [7]
  --out FILE    write the table there as well
  --only TEXT   only measurements whose names hold TEXT";

struct Options {
    rounds: usize,
    out: Option<String>,
    only: String,
}

pub fn run(args: &[String]) -> Result<()> {
    let options = parse(args)?;
    bench::build()?;
    let veth_pair = VethPair::create();
    if let Err(error) = &veth_pair {
        eprintln!("no pair of namespaces: {error:#}");
    }
    let folder = cases::Folder::make()?;
    let mut measurements = cases::all(&folder, Build::current());
    measurements.retain(|one| one.cases.iter().any(|case| case.name.contains(&options.only)));
    let mut figures = Figures::default();
    figures.set_order(measurements.iter().flat_map(|one| &one.cases));
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        for measurement in &measurements {
            let first = &measurement.cases[0];
            eprintln!("  {} {}", first.name, first.size());
            figures.add(&measurement.cases, (measurement.run)());
        }
        measurements.reverse();
    }
    let text = table::report(&figures, options.rounds);
    bench::write_table(&text, options.out.as_deref())
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options = Options { rounds: 7, out: None, only: String::new() };
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| USAGE.to_string())?;
        match word.as_str() {
            "--rounds" => options.rounds = value.parse()?,
            "--out" => options.out = Some(value.clone()),
            "--only" => options.only = value.clone(),
            _ => bail!("{USAGE}"),
        }
    }
    if options.rounds == 0 {
        bail!("--rounds must be at least 1");
    }
    Ok(options)
}
