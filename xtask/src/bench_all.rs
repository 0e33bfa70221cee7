//! All benchmarks beside peers in one go, each with its page in `docs/results`. One page above them
//! has a picture: the ratio of each figure to its peer, so that a regression shows.

mod page;
mod picture;

use std::fmt::Write as _;
use std::fs;

use anyhow::{Result, bail};

use crate::bench_all::page::{Page, Ratio};
use crate::{bench, bench_book, bench_bypass, bench_exchange, bench_peers, bench_programs, shell};

const USAGE: &str = "\
usage: cargo xtask bench [--rounds N] [--only PAGE[,PAGE...]] [--draw]

  --rounds N     rounds of each benchmark [10]
  --only PAGE    only these: peers, bypass, programs, book, exchange-peers, exchange
  --draw         measure nothing: draw the picture of the pages as they are

Writes docs/results/PAGE.md, overview.md and overview.svg. All of it takes about an hour
and three quarters; leave the machine alone meanwhile.";

/// Folder of all pages.
const RESULTS: &str = "docs/results";

/// Runs a benchmark with its arguments.
type Run = fn(&[String]) -> Result<()>;

/// The benchmarks: page, arguments beside rounds and file, and what runs it.
const BENCHMARKS: [(&str, &[&str], Run); 6] = [
    ("peers", &[], bench_peers::run),
    ("bypass", &[], bench_bypass::run),
    ("programs", &[], bench_programs::run),
    ("book", &["--peers"], bench_book::run),
    ("exchange-peers", &["--peers"], bench_exchange::run),
    // Without ratios: its peers are published figures of other machines.
    ("exchange", &[], bench_exchange::run),
];

struct Options {
    rounds: usize,
    only: Vec<String>,
    is_drawn_only: bool,
}

pub fn run(args: &[String]) -> Result<()> {
    let options = parse(args)?;
    let mut failed = vec![];
    if !options.is_drawn_only {
        for (name, more, run) in BENCHMARKS {
            if !options.only.is_empty() && !options.only.iter().any(|only| only == name) {
                continue;
            }
            let file = format!("{RESULTS}/{name}.md");
            let mut words: Vec<String> = more.iter().map(ToString::to_string).collect();
            words.extend(["--rounds".into(), options.rounds.to_string(), "--out".into(), file]);
            if let Err(error) = run(&words) {
                eprintln!("{name}: {error:#}");
                failed.push(name);
            }
        }
    }
    draw()?;
    if !failed.is_empty() {
        bail!("not measured, their pages are of an earlier run: {}", failed.join(", "));
    }
    Ok(())
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options = Options { rounds: 10, only: vec![], is_drawn_only: false };
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match (word.as_str(), words.clone().next()) {
            ("--draw", _) => options.is_drawn_only = true,
            ("--rounds", Some(value)) => options.rounds = value.parse()?,
            ("--only", Some(value)) => options.only = value.split(',').map(Into::into).collect(),
            _ => bail!("{USAGE}"),
        }
        if word != "--draw" {
            words.next();
        }
    }
    let is_known = |name: &String| BENCHMARKS.iter().any(|(known, ..)| known == name);
    if options.rounds == 0 || !options.only.iter().all(is_known) {
        bail!("{USAGE}");
    }
    Ok(options)
}

/// Draws the overview of the pages that exist.
fn draw() -> Result<()> {
    let folder = shell::root().join(RESULTS);
    let mut pages = vec![];
    for (name, ..) in BENCHMARKS {
        if let Ok(text) = fs::read_to_string(folder.join(format!("{name}.md"))) {
            pages.push(Page::read(name, &text));
        }
    }
    pages.retain(|page| !page.ratios.is_empty());
    if pages.is_empty() {
        bail!("no page in {RESULTS} has ratios; run without --draw");
    }
    fs::write(folder.join("overview.svg"), picture::draw(&pages))?;
    bench::write_table(&overview(&pages), Some(&format!("{RESULTS}/overview.md")))
}

/// Counts of each page, and the figures that are not on our side.
fn overview(pages: &[Page]) -> String {
    let mut text = String::from(
        "# Beside the peers, all figures\n\n\
         Made by `cargo xtask bench` from the pages below, which name machine, date, commit and \
         method. A ratio is ours ÷ the peer's (or with ÷ without the accelerator). It is \
         turned round where more is better, so that below 1 is better everywhere. The bar is the \
         range over the rounds of one run. *Better* and *worse* are figures whose whole range \
         lies on that side of 1.\n\n![ratios of all figures](overview.svg)\n\n\
         | page | measured | commit | figures | better | undecided | worse |\n\
         | --- | --- | --- | ---: | ---: | ---: | ---: |\n",
    );
    for Page { name, date, commit, ratios } in pages {
        let n = |is: fn(&Ratio) -> bool| ratios.iter().filter(|one| is(one)).count();
        let (better, worse) = (n(Ratio::is_better), n(Ratio::is_worse));
        let open = ratios.len() - better - worse;
        let n_all = ratios.len();
        let _ = writeln!(
            text,
            "| [{name}]({name}.md) | {date} | {commit} | {n_all} | {better} | {open} | {worse} |"
        );
    }
    text.push_str(
        "\n## Not better\n\n| page | figure | ratio | range |\n| --- | --- | ---: | --- |\n",
    );
    for page in pages {
        for one in page.ratios.iter().filter(|one| !one.is_better()) {
            let Ratio { label, median, low, high } = one;
            let name = &page.name;
            let _ = writeln!(text, "| {name} | {label} | {median:.2} | {low:.2} to {high:.2} |");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_parsed() {
        let of = |line: &str| parse(&line.split(' ').map(Into::into).collect::<Vec<String>>());
        let found = of("--rounds 3 --only book,peers --draw").unwrap();
        assert_eq!((found.rounds, found.only.len(), found.is_drawn_only), (3, 2, true));
        for wrong in ["--rounds", "--rounds 0", "--only moon", "--fast"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_overview_counts_sides_and_lists_what_is_not_better() {
        let ratio = |label: &str, low, high| Ratio { label: label.into(), median: 1.0, low, high };
        let pages = [Page {
            name: "book".into(),
            date: "2026-01-02".into(),
            commit: "abc".into(),
            ratios: vec![ratio("a", 0.5, 0.9), ratio("b", 0.9, 1.1), ratio("c", 1.2, 1.3)],
        }];
        let text = overview(&pages);
        assert!(text.contains("| [book](book.md) | 2026-01-02 | abc | 3 | 1 | 1 | 1 |"), "{text}");
        assert!(!text.contains("| book | a |") && text.contains("| book | c | 1.00 | 1.20 to"));
    }
}
