//! Two builds of nearmetal in turn: what a change of the code does to its figures.
//!
//! The measurements are those of bench-bypass that nearmetal takes part in, the throughput of
//! bench-peers, the order book, and networks of the exchange. Each round measures every case with
//! both builds, one right after the other, the order changing from round to round. A ratio is that
//! of two figures of one round. Writes Markdown to stdout and, with `--out FILE`, to a file.
//!
//! With `--commit REV` the other build is that of an earlier commit, made for it. Only the two
//! cheapest benchmarks are run then: the order book and the rings in shared memory.
//!
//! With `--with WORDS` in place of the other build, networks of the exchange are measured without
//! and with these words of `nearmetal exchange run`. The same build measures both, in the same way.
//! Each round has the same orders, those of one seed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::bench::{self, Build, CLIENT_CPU, Network, SERVER_CPU, VethPair, median};
use crate::bench_bypass::cases::{self, Measurement};
use crate::bench_bypass::figures::{Case, Figure, Figures};
use crate::exchange_round;
use crate::shell;
use crate::tidy::house;

const USAGE: &str = "\
usage: cargo xtask bench-builds --before DIR [--rounds N] [--only TEXT] [--out FILE]
       cargo xtask bench-builds --commit REV [--rounds N] [--only TEXT] [--out FILE]
       cargo xtask bench-builds --with WORDS [--rounds N] [--only TEXT] [--out FILE]

  --before DIR  folder of the other build: `nearmetal`, the `libnm_accel.so` beside it, and the
                program of the book's bench as `book`, if the book is to be measured
  --commit REV  an earlier commit; only the order book and the rings in shared memory
  --with WORDS  words of `nearmetal exchange run`, measured against none, without another build
  --rounds N    rounds [7]
  --only TEXT   only measurements whose names hold TEXT
  --out FILE    write the table there as well";

/// Rounds, if no number is given.
const ROUNDS: usize = 7;

/// Where cargo builds this tree, and an earlier commit.
const TARGET: &str = "target";

/// Where an earlier commit is unpacked.
const COMMIT_FOLDER: &str = "target/bench-commit";

/// A bench that takes so much longer in the median is slower, if it did in every round.
const SLOWER_RATIO: f64 = 1.05;

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
    /// The benches of this commit, then those of this tree.
    Commit(String),
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

    /// The two cheapest benchmarks.
    fn benches(benches: Benches, only: &str) -> Side {
        let Benches { book, ring } = benches;
        Side::of(vec![book_measurement(book), ring_measurement(ring)], only)
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
    let figures = match &options.compared {
        Compared::Build(before) => {
            bench::build()?;
            compare_builds(before, &options)?
        }
        Compared::Commit(commit) => {
            let figures = compare_benches(Benches::with_commit(commit)?, &options);
            warn_of_slower_benches(commit, &figures);
            figures
        }
        Compared::Words(words) => {
            bench::build()?;
            let side = |more| Side::exchange(Build::current(), more, &options.only);
            compare([side(""), side(words)], &options)
        }
    };
    bench::write_table(&report(&figures, &options), options.out.as_deref())
}

/// Prints a warning for each bench that is slower in every round than that of an earlier commit.
fn warn_of_slower_benches(commit: &str, figures: &[Figures; 2]) {
    for case in &figures[0].order {
        if let Some(pairs) = Pairs::of(case, figures).filter(Pairs::is_slower) {
            let (low, high) = bench::range(&pairs.ratios());
            println!(
                "WARNING: {} is {:.2} times that of {commit} ({low:.2} to {high:.2})",
                case.name,
                median(&pairs.ratios())
            );
        }
    }
}

fn compare_benches(benches: [Benches; 2], options: &Options) -> [Figures; 2] {
    compare(benches.map(|side| Side::benches(side, &options.only)), options)
}

fn compare_builds(folder_before: &Path, options: &Options) -> Result<[Figures; 2]> {
    let before = Build::in_folder(folder_before)?;
    let veth_pair = VethPair::create();
    if let Err(error) = &veth_pair {
        eprintln!("no pair of namespaces: {error:#}");
    }
    let folder = cases::Folder::make()?;
    let book_before = Some(folder_before.join("book")).filter(|path| path.is_file());
    let own_book = bench_program(&shell::root(), "nm-book", "book")?;
    let sides = [
        Side::new(before, book_before, &folder, &options.only),
        Side::new(Build::current(), Some(own_book), &folder, &options.only),
    ];
    Ok(compare(sides, options))
}

fn compare(mut sides: [Side; 2], options: &Options) -> [Figures; 2] {
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        for at in 0..sides[0].measurements.len() {
            let order = if (round + at) % 2 == 0 { [0, 1] } else { [1, 0] };
            order.into_iter().for_each(|side: usize| sides[side].measure(at));
        }
    }
    sides.map(|side| side.figures)
}

fn parse(args: &[String]) -> Result<Options> {
    let mut compared = None;
    let (mut rounds, mut only, mut out) = (ROUNDS, String::new(), None);
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| USAGE.to_string())?;
        match word.as_str() {
            "--before" => compared = Some(Compared::Build(shell::root().join(value))),
            "--commit" => compared = Some(Compared::Commit(value.clone())),
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

/// The programs of the two cheapest benchmarks; none where a tree lacks one.
struct Benches {
    book: Option<PathBuf>,
    ring: Option<PathBuf>,
}

impl Benches {
    /// Those of an earlier commit, and those of this tree.
    fn with_commit(commit: &str) -> Result<[Benches; 2]> {
        let folder = shell::root().join(COMMIT_FOLDER);
        let tree = folder.join("tree");
        let _ = std::fs::remove_dir_all(&tree);
        std::fs::create_dir_all(&tree)?;
        let archive = folder.join("tree.tar");
        let [tar, to] = [&archive, &tree].map(|path| path.display().to_string());
        shell::run(&format!("git archive --output {tar} {commit}"))?;
        shell::run(&format!("tar -xf {tar} -C {to}"))?;
        // One folder for both: their dependencies are the same, and built once.
        Ok([Benches::of(&tree)?, Benches::of(&shell::root())?])
    }

    /// Builds those of the tree in `root`.
    fn of(root: &Path) -> Result<Benches> {
        let build = |package: &str, name: &str| {
            // The other tree may be from the time when all crates lay in `crates/` itself.
            let folders = [house::folder(package), Path::new("crates").join(package)];
            let bench = format!("benches/{name}.rs");
            if !folders.iter().any(|folder| root.join(folder).join(&bench).is_file()) {
                return Ok(None);
            }
            bench_program(root, package, name).map(Some)
        };
        Ok(Benches { book: build("nm-book", "book")?, ring: build("nm-ring", "ring")? })
    }
}

/// Builds a bench, and returns its program.
fn bench_program(root: &Path, package: &str, name: &str) -> Result<PathBuf> {
    let line = format!(
        "cargo bench --locked --manifest-path {}/Cargo.toml --target-dir {TARGET} \
         -p {package} --bench {name} --no-run --message-format json",
        root.display()
    );
    let (text, ok) = shell::output(&line)?;
    let program = text.lines().filter(|line| line.contains("compiler-artifact")).find_map(|line| {
        let artifact: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_bench = artifact["target"]["name"] == name;
        is_bench.then(|| artifact["executable"].as_str().map(PathBuf::from)).flatten()
    });
    program.filter(|_| ok).with_context(|| format!("`{line}` made no program: {text}"))
}

/// Half round trip over the rings.
fn ring_measurement(program: Option<PathBuf>) -> Measurement {
    cases::measurement("rings in shared memory, half round trip, ns", 64, move || {
        let program = program.as_deref().context("the tree has no bench `ring`")?;
        let line = format!("{} --rounds 1 --cpus {CLIENT_CPU},{SERVER_CPU}", program.display());
        let (text, ok) = shell::output(&line)?;
        let value = text.trim().parse().ok().filter(|_| ok);
        Ok(Figure::of(value.with_context(|| format!("`{line}` gave no figure: {text}"))?))
    })
}

/// Time per command of the fast book for both mixes of orders.
fn book_measurement(program: Option<PathBuf>) -> Measurement {
    let cases = ["mostly moves", "mostly adds"]
        .map(|mix| Case::new(format!("book, {mix}, ns per command"), 0));
    let run = move || {
        let program = program.as_deref().context("the build has no program `book`")?;
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

fn report(figures: &[Figures; 2], options: &Options) -> String {
    let rounds = options.rounds;
    let mut text = match &options.compared {
        Compared::Build(_) => format!(
            "# Two builds in turn\n\nMade by `cargo xtask bench-builds --rounds {rounds}`. Client \
             on CPU {CLIENT_CPU}, server on CPU {SERVER_CPU}; every case is measured with both \
             builds one right after the other. Latencies are half round trips in ns, the median \
             of each round's median; rates name their unit. "
        ),
        Compared::Commit(commit) => format!(
            "# The cheapest benchmarks beside those of {commit}\n\nMade by `cargo xtask \
             bench-builds --commit {commit} --rounds {rounds}`. Before is the commit, after is \
             this tree; each is measured one right after the other. "
        ),
        Compared::Words(words) => format!(
            "# The exchange without and with `{words}`\n\nMade by `cargo xtask \
             bench-builds --with '{words}' --rounds {rounds}`. Each network is measured for \
             2 s without (before) and with (after) these words, one right after the other. Both \
             have the orders of the same seed. "
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
    for case in &figures[0].order {
        let _ = writeln!(text, "{}", row(case, figures));
    }
    text
}

/// The figures of the rounds in which both sides have one.
struct Pairs {
    before: Vec<f64>,
    after: Vec<f64>,
    digits: usize,
}

impl Pairs {
    /// Those of a case; none if there is no such round.
    fn of(case: &Case, [before, after]: &[Figures; 2]) -> Option<Pairs> {
        let both = before.of(case).iter().zip(after.of(case));
        let both = both.filter_map(|(before, after)| Some(((*before)?.value, (*after)?.value)));
        let (before, after): (Vec<f64>, Vec<f64>) = both.unzip();
        let has_tenths = ["Gb/s", "book", "rings"].iter().any(|word| case.name.contains(word));
        (!before.is_empty()).then_some(Pairs { before, after, digits: usize::from(has_tenths) })
    }

    fn ratios(&self) -> Vec<f64> {
        self.before.iter().zip(&self.after).map(|(before, after)| after / before).collect()
    }

    /// Whether a time has become longer in every round, and clearly so in the median.
    fn is_slower(&self) -> bool {
        bench::range(&self.ratios()).0 > 1.0 && median(&self.ratios()) > SLOWER_RATIO
    }

    /// Medians of both sides, median and range of the ratio.
    fn cells(&self) -> String {
        let Pairs { before, after, digits } = self;
        let (ratios, digits) = (self.ratios(), *digits);
        let (low, high) = bench::range(&ratios);
        format!(
            "{:.digits$} | {:.digits$} | {:.2} | {low:.2} to {high:.2}",
            median(before),
            median(after),
            median(&ratios)
        )
    }
}

fn row(case: &Case, figures: &[Figures; 2]) -> String {
    let start = format!("| {} | {}", case.name, case.size());
    let Some(pairs) = Pairs::of(case, figures) else {
        let reason = figures.iter().find_map(|side| side.failures.get(case));
        let reason = reason.map_or("not measured", String::as_str);
        return format!("{start} | 0 | - | - | - | not available: {reason} |");
    };
    format!("{start} | {} | {} |", pairs.before.len(), pairs.cells())
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
        let both = [before, after];
        assert_eq!(row(&case, &both), expected);
        let mut none = Figures::default();
        none.add(std::slice::from_ref(&case), Err(anyhow::anyhow!("no program")));
        let [_, after] = both;
        assert!(row(&case, &[none, after]).contains("not available: no program"));
    }

    #[test]
    fn slower_is_what_is_slower_in_every_round_and_clearly_in_the_median() {
        let slower = |after: [f64; 3]| {
            Pairs { before: vec![100.0; 3], after: after.into(), digits: 0 }.is_slower()
        };
        assert!(slower([106.0, 101.0, 120.0]));
        assert!(!slower([106.0, 99.0, 120.0]), "not in every round");
        assert!(!slower([101.0, 102.0, 103.0]), "too little");
    }
}
