//! Two builds of nearmetal in turn: what a change of the code does to its figures.
//!
//! The measurements are those of bench-bypass that nearmetal takes part in, the throughput of
//! bench-peers, the order book, and networks of the exchange. Each round measures every case with
//! both builds, one right after the other, the order changing from round to round; a ratio is that
//! of two figures of one round. Writes Markdown to stdout and, with `--out FILE`, to a file.
//!
//! With `--with WORDS` in place of the other build, networks of the exchange are measured without
//! and with these words of `nearmetal exchange run`, by the same build, in the same way. Each round
//! has the same orders, those of one seed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::bench::{self, Build, CLIENT_CPU, Network, SERVER_CPU, VethPair, median};
use crate::bench_bypass::cases::{self, Measurement};
use crate::bench_bypass::figures::{Case, Figure, Figures};
use crate::exchange_round;
use crate::shell;

const USAGE: &str = "\
usage: cargo xtask bench-builds --before DIR [--rounds N] [--only TEXT] [--out FILE]
       cargo xtask bench-builds --with WORDS [--rounds N] [--only TEXT] [--out FILE]

  --before DIR  folder of the other build: `nearmetal`, the `libnm_accel.so` beside it, and the
                program of the book's bench as `book`, if the book is to be measured
  --with WORDS  words of `nearmetal exchange run`, measured against none, without another build
  --rounds N    rounds [7]
  --only TEXT   only measurements whose names hold TEXT
  --out FILE    write the table there as well";

/// Commands of one run of the book's bench.
const BOOK_COMMANDS: u32 = 200_000;

/// Networks of the exchange, by the words of `nearmetal exchange run`.
const EXCHANGES: [&str; 4] = [
    "--nodes 2-2-2-2 --rate 10000",
    "--nodes 2-2-2-2 --rate 10000 --transport shm",
    "--nodes 2-2-2-2 --rate 10000 --durability disk-quorum",
    "--nodes 1-1-1-1 --rate 50000",
];

/// What is measured in turn.
enum Compared {
    /// The build in this folder, then this one.
    Build(PathBuf),
    /// The exchange without, then with these words.
    Words(String),
}

struct Options {
    compared: Compared,
    rounds: usize,
    only: String,
    out: Option<String>,
}

/// The figures of one build, with what measures them.
struct Side {
    measurements: Vec<Measurement>,
    figures: Figures,
}

impl Side {
    fn new(build: Build, book: Option<PathBuf>, folder: &cases::Folder, only: &str) -> Side {
        let mut measurements = cases::all(folder, build);
        measurements.retain(|one| one.cases[0].name.contains("accel") || is_own(&one.cases[0]));
        measurements.extend(throughput(build));
        measurements.push(book_measurement(book));
        measurements.extend(EXCHANGES.map(|words| exchange_measurement(build, words, "")));
        Side::of(measurements, only)
    }

    /// The exchange with these words.
    fn exchange(build: Build, more: &str, only: &str) -> Side {
        let measurements = EXCHANGES.map(|words| exchange_measurement(build, words, more));
        Side::of(measurements.into(), only)
    }

    fn of(mut measurements: Vec<Measurement>, only: &str) -> Side {
        measurements.retain(|one| one.cases.iter().any(|case| case.name.contains(only)));
        let mut figures = Figures::default();
        figures.set_order(measurements.iter().flat_map(|one| &one.cases));
        Side { measurements, figures }
    }

    fn measure(&mut self, at: usize) {
        let Measurement { cases, run } = &self.measurements[at];
        self.figures.add(cases, run());
    }
}

fn is_own(case: &Case) -> bool {
    case.name.starts_with("nearmetal ")
}

pub fn run(args: &[String]) -> Result<()> {
    let options = parse(args)?;
    bench::build()?;
    match &options.compared {
        Compared::Build(before) => compare_builds(before, &options),
        Compared::Words(words) => {
            let side = |more| Side::exchange(Build::current(), more, &options.only);
            compare([side(""), side(words)], &options)
        }
    }
}

fn compare_builds(folder_before: &Path, options: &Options) -> Result<()> {
    let before = Build::in_folder(folder_before)?;
    let veth_pair = VethPair::create();
    if let Err(error) = &veth_pair {
        eprintln!("no pair of namespaces: {error:#}");
    }
    let folder = cases::Folder::make()?;
    let books = (Some(folder_before.join("book")).filter(|path| path.is_file()), own_book()?);
    let sides = [
        Side::new(before, books.0, &folder, &options.only),
        Side::new(Build::current(), Some(books.1), &folder, &options.only),
    ];
    compare(sides, options)
}

fn compare(mut sides: [Side; 2], options: &Options) -> Result<()> {
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        for at in 0..sides[0].measurements.len() {
            let order = if (round + at) % 2 == 0 { [0, 1] } else { [1, 0] };
            order.into_iter().for_each(|side: usize| sides[side].measure(at));
        }
    }
    let text = report(&sides[0].figures, &sides[1].figures, options);
    bench::write_table(&text, options.out.as_deref())
}

fn parse(args: &[String]) -> Result<Options> {
    let mut compared = None;
    let (mut rounds, mut only, mut out) = (7, String::new(), None);
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| USAGE.to_string())?;
        match word.as_str() {
            "--before" => compared = Some(Compared::Build(shell::root().join(value))),
            "--with" => compared = Some(Compared::Words(value.clone())),
            "--rounds" => rounds = value.parse()?,
            "--only" => only.clone_from(value),
            "--out" => out = Some(value.clone()),
            _ => bail!("{USAGE}"),
        }
    }
    if rounds == 0 {
        bail!("--rounds must be at least 1");
    }
    Ok(Options { compared: compared.with_context(|| USAGE.to_string())?, rounds, only, out })
}

/// Kernel TCP between two namespaces, as bench-peers measures it.
fn throughput(build: Build) -> Vec<Measurement> {
    let of = |write_bytes: u32| {
        let name = format!("nearmetal stream, {} KiB writes, Gb/s", write_bytes >> 10);
        cases::measurement(name, write_bytes, move || {
            let address = Network::Veth.address();
            let words = format!("stream {address} --write {write_bytes} --seconds 1 --omit 100");
            let result = bench::nearmetal(build, Network::Veth, &words)?;
            let total = &result["series"][0]["rounds"][0]["data"]["total_gbps"];
            Ok(Figure::of(total.as_f64().context("nearmetal gave no total")?))
        })
    };
    [64 << 10, 128 << 10].map(of).into()
}

/// Builds the bench of this workspace's book.
fn own_book() -> Result<PathBuf> {
    let line = "cargo bench --locked -p nm-book --bench book --no-run --message-format json";
    let (text, ok) = shell::output(line)?;
    let program = text.lines().filter(|line| line.contains("compiler-artifact")).find_map(|line| {
        let artifact: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_bench = artifact["target"]["name"] == "book";
        is_bench.then(|| artifact["executable"].as_str().map(PathBuf::from)).flatten()
    });
    program.filter(|_| ok).with_context(|| format!("`{line}` made no program: {text}"))
}

/// Time per command of the fast book for both mixes of orders.
fn book_measurement(program: Option<PathBuf>) -> Measurement {
    let cases = ["mostly moves", "mostly adds"]
        .map(|mix| Case::new(format!("book, {mix}, ns per command"), 0));
    let run = move || {
        let program = program.as_deref().context("the other build has no program `book`")?;
        book(program)
    };
    Measurement { cases: cases.to_vec(), run: Box::new(run) }
}

fn book(program: &Path) -> Result<Vec<Figure>> {
    let line = format!(
        "taskset -c {CLIENT_CPU} {} --rounds 3 --commands {BOOK_COMMANDS}",
        program.display()
    );
    let (text, ok) = shell::output(&line)?;
    let values: Vec<f64> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| fast | ")?.split(' ').next()?.parse().ok())
        .collect();
    if !ok || values.len() != 2 {
        bail!("`{line}` gave no figures: {text}");
    }
    Ok(values.into_iter().map(Figure::of).collect())
}

/// The round trip's 99th percentile and the nodes' CPU time of a transaction, in one round of an
/// exchange.
fn exchange_measurement(build: Build, words: &'static str, more: &str) -> Measurement {
    let cases = ["p99, ns", "CPU of a transaction, ns"]
        .map(|what| Case::new(format!("exchange {words}, {what}"), 0));
    let words = format!("{words} {more}");
    Measurement { cases: cases.to_vec(), run: Box::new(move || exchange(build, &words)) }
}

fn exchange(build: Build, words: &str) -> Result<Vec<Figure>> {
    let folder = std::env::temp_dir().join(format!("bench-builds-{}", std::process::id()));
    let line = format!(
        "{} exchange run {words} --rounds 1 --seconds 2 --out {}",
        build.binary,
        folder.display()
    );
    // The exit code is the verdict of one round, which is always inconclusive.
    let (text, _) = shell::output(&line)?;
    let measured = exchange_round::measured(&folder);
    let _ = std::fs::remove_dir_all(&folder);
    let measured = measured.with_context(|| format!("`{line}` gave no figures: {text}"))?;
    Ok(vec![Figure::of(measured.p99_ns), Figure::of(measured.cpu_ns)])
}

fn report(before: &Figures, after: &Figures, options: &Options) -> String {
    let rounds = options.rounds;
    let mut text = match &options.compared {
        Compared::Build(_) => format!(
            "# Two builds in turn\n\nMade by `cargo xtask bench-builds --rounds {rounds}`. Client \
             on CPU {CLIENT_CPU}, server on CPU {SERVER_CPU}; every case is measured with both \
             builds one right after the other. Latencies are half round trips in ns, the median \
             of each round's median; rates name their unit. "
        ),
        Compared::Words(words) => format!(
            "# The exchange without and with `{words}`\n\nMade by `cargo xtask \
             bench-builds --with '{words}' --rounds {rounds}`. Each network is measured for \
             2 s without (before) and with (after) these words, one right after the other, with \
             the orders of the same seed. "
        ),
    };
    text.push_str(
        "A ratio is after ÷ before in one round: shown are the median over the rounds and the \
         range. A range that holds 1 shows no difference.\n\n",
    );
    text += &bench::environment_lines(&["sockperf", "iperf3", "nuttcp"]);
    text.push_str(
        "\n| case | size, B | rounds | before | after | ratio | range |\n\
         |---|---:|---:|---:|---:|---:|---|\n",
    );
    for case in &before.order {
        let _ = writeln!(text, "{}", row(case, before, after));
    }
    text
}

fn row(case: &Case, before: &Figures, after: &Figures) -> String {
    let pairs = before.of(case).iter().zip(after.of(case));
    let pairs: Vec<(f64, f64)> =
        pairs.filter_map(|(before, after)| Some(((*before)?.value, (*after)?.value))).collect();
    let start = format!("| {} | {} | {}", case.name, case.size(), pairs.len());
    if pairs.is_empty() {
        let reason = before.failures.get(case).or(after.failures.get(case));
        let reason = reason.map_or("not measured", String::as_str);
        return format!("{start} | - | - | - | not available: {reason} |");
    }
    let values = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).collect::<Vec<f64>>();
    let ratios = values(|(before, after)| after / before);
    let (low, high) = bench::range(&ratios);
    let digits = if case.name.contains("Gb/s") || case.name.contains("book") { 1 } else { 0 };
    format!(
        "{start} | {:.digits$} | {:.digits$} | {:.2} | {low:.2} to {high:.2} |",
        median(&values(|pair| pair.0)),
        median(&values(|pair| pair.1)),
        median(&ratios)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_one_round_and_a_missing_figure_has_its_reason() {
        let case = Case::new("nearmetal shm-spin", 64);
        let (mut before, mut after) = (Figures::default(), Figures::default());
        for (old, new) in [(100.0, 110.0), (200.0, 180.0), (100.0, 100.0)] {
            before.add(std::slice::from_ref(&case), Ok(vec![Figure::of(old)]));
            after.add(std::slice::from_ref(&case), Ok(vec![Figure::of(new)]));
        }
        let expected = "| nearmetal shm-spin | 64 | 3 | 100 | 110 | 1.00 | 0.90 to 1.10 |";
        assert_eq!(row(&case, &before, &after), expected);
        let mut none = Figures::default();
        none.add(std::slice::from_ref(&case), Err(anyhow::anyhow!("no program")));
        assert!(row(&case, &none, &after).contains("not available: no program"));
    }
}
