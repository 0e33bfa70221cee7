//! The fast order book beside the reference book: pinned to one CPU, rounds interleaved, figures of
//! one run. The measuring program is the bench `book` of nm-book; its head has the method.
//!
//! Writes Markdown to stdout and to `docs/results/book.md` or the file of `--out`.

use anyhow::{Context, Result, bail};

use crate::{bench, book_peer, shell};

const USAGE: &str = "\
usage: cargo xtask bench-book [--rounds N] [--commands N] [--cpu CPU] [--out FILE] [--peers]

--peers compares the book with exchange-core's as well; that needs a JDK, Maven and the network.";

pub fn run(args: &[String]) -> Result<()> {
    let (mut rounds, mut commands, mut cpu) = (15usize, 500_000usize, 1usize);
    let mut out = "docs/results/book.md".to_string();
    let with_peers = args.iter().any(|word| word == "--peers");
    let mut words = args.iter().filter(|word| *word != "--peers");
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| USAGE.to_string())?;
        match word.as_str() {
            "--rounds" => rounds = value.parse()?,
            "--commands" => commands = value.parse()?,
            "--cpu" => cpu = value.parse()?,
            "--out" => out.clone_from(value),
            _ => bail!("{USAGE}"),
        }
    }
    let bench = "cargo bench --locked -p nm-book --bench book";
    shell::run(&format!("{bench} --no-run"))?;
    let line = format!("taskset -c {cpu} {bench} -- --rounds {rounds} --commands {commands}");
    let (tables, ok) = shell::output(&line)?;
    if !ok {
        bail!("`{line}` failed: {tables}");
    }
    let peers = match with_peers {
        true => book_peer::compare(rounds, commands, cpu)?,
        false => String::new(),
    };
    let text = format!(
        "# The order book, fast and reference\n\n\
         Made by `cargo xtask bench-book --rounds {rounds} --commands {commands}`: one thread on \
         CPU {cpu}, fast and reference book in turn. How each figure is made: \
         crates/exchange/book/benches/book.rs.\n\
         {}{tables}{peers}",
        bench::environment_lines(&[]),
    );
    print!("{text}");
    std::fs::write(shell::root().join(&out), &text).with_context(|| format!("cannot write {out}"))
}
