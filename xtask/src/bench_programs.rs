//! Unmodified programs under `nearmetal accel` beside the same programs on the kernel. It shows the
//! speed of each, what part of its bytes was in shared memory, and why the rest was not.
//!
//! Rounds are interleaved: each runs every case plain and accelerated, one right after the other,
//! every second round backwards. Both ends are pinned. Writes Markdown to stdout and, with
//! `--out FILE`, to a file.

mod applications;
mod case;
mod copies;
mod databases;
mod fan_outs;
mod languages;
mod launch;
mod table;
mod web;

use anyhow::{Context, Result, bail};

use crate::bench::{self, Build};
use case::{Case, Row};
use launch::Folder;

const USAGE: &str = "\
usage: cargo xtask bench-programs [--rounds N] [--only TEXT] [--binary FILE] [--out FILE]

  --rounds N     rounds [5]
  --only TEXT    only programs whose names hold TEXT, or one of several: A|B
  --binary FILE  this nearmetal, with its library beside it, instead of a release build
  --out FILE     write the table there as well";

struct Options {
    rounds: usize,
    only: String,
    binary: Option<String>,
    out: Option<String>,
}

pub fn run(args: &[String]) -> Result<()> {
    let options = parse(args)?;
    let build = match &options.binary {
        Some(binary) => Build::of(std::path::Path::new(binary)),
        None => {
            bench::build()?;
            Build::current()
        }
    };
    let folder = Folder::make(build)?;
    let mut rows: Vec<Row> = cases()
        .into_iter()
        .filter(|case| options.only.split('|').any(|text| case.name.contains(text)))
        .map(Row::new)
        .collect();
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        let is_backwards = round % 2 == 1;
        let mut order: Vec<&mut Row> = rows.iter_mut().collect();
        if is_backwards {
            order.reverse();
        }
        for row in order {
            eprintln!("  {}", row.case.name);
            row.measure(&folder, is_backwards);
        }
    }
    bench::write_table(&table::report(&rows, options.rounds), options.out.as_deref())
}

fn cases() -> Vec<Case> {
    let groups = [
        web::cases(),
        applications::cases(),
        databases::cases(),
        languages::cases(),
        copies::cases(),
        fan_outs::cases(),
    ];
    groups.into_iter().flatten().collect()
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options = Options { rounds: 5, only: String::new(), binary: None, out: None };
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| USAGE.to_string())?;
        match word.as_str() {
            "--rounds" => options.rounds = value.parse()?,
            "--only" => options.only.clone_from(value),
            "--binary" => options.binary = Some(value.clone()),
            "--out" => options.out = Some(value.clone()),
            _ => bail!("{USAGE}"),
        }
    }
    if options.rounds == 0 {
        bail!("--rounds must be at least 1");
    }
    Ok(options)
}
