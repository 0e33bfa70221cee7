//! `cargo xtask fuzz`: builds every fuzz target and runs each for some seconds.
//!
//! Flags and folders are those of `cargo fuzz`, which need not be installed. Without a nightly
//! toolchain, the same functions run over mutations of their seeds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nm_sys::clock::Moment;

use crate::shell;

const USAGE: &str = "\
usage: cargo xtask fuzz [--seconds N] [--only TARGET] [--fast-build] [--stable]

  --seconds N    time for each target, 10 by default
  --only TARGET  one of those in fuzz/src/lib.rs
  --fast-build   without optimisation, for a run so short that the build takes longer
  --stable       without the nightly toolchain: mutations of the seeds, blind to coverage";

/// Flags of `cargo fuzz build`: coverage that libFuzzer reads, and AddressSanitizer.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Zsanitizer=address --cfg fuzzing";

/// Time that one input may take, s, on a machine with other work.
const INPUT_S_MAX: u32 = 60;

/// Memory that one input may take, MiB.
const INPUT_MIB_MAX: u32 = 2048;

#[derive(Debug, PartialEq, Eq)]
struct Options {
    seconds: u32,
    only: Option<String>,
    is_fast_build: bool,
    is_stable: bool,
}

/// What came of one target.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    executions: u64,
    /// Edges of the program that were covered: by the inputs that there were, and at the end.
    coverage: Option<(u64, u64)>,
    new_inputs: u64,
}

pub fn run(args: &[String]) -> Result<()> {
    let options = parse(args)?;
    let fuzz = shell::root().join("fuzz");
    let mut targets = targets(&fuzz)?;
    if let Some(only) = &options.only {
        targets.retain(|target| target == only);
        if targets.is_empty() {
            bail!("`{only}` is no target; those in fuzz/src/lib.rs are");
        }
    }
    let programs = match !options.is_stable && has_nightly() {
        true => build_with_coverage(&fuzz, options.is_fast_build)?,
        false => build_without(&fuzz, options.is_stable)?,
    };
    let mut findings = 0;
    println!(
        "{:20} {:>12} {:>8} {:>16} {:>10}",
        "target", "executions", "s", "edges", "new inputs"
    );
    for target in &targets {
        let begin = Moment::now();
        let (outcome, is_clean) = programs.run(&fuzz, target, options.seconds)?;
        let edges = outcome.coverage.map(|(first, last)| format!("{first} to {last}"));
        println!(
            "{target:20} {:>12} {:>8.1} {:>16} {:>10}{}",
            outcome.executions,
            begin.elapsed().as_secs_f64(),
            edges.unwrap_or_else(|| "not seen".to_string()),
            outcome.new_inputs,
            if is_clean { "" } else { "  FINDING" },
        );
        findings += usize::from(!is_clean);
    }
    if findings > 0 {
        bail!("{findings} of {} targets found something; see fuzz/artifacts", targets.len());
    }
    Ok(())
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options = Options { seconds: 10, only: None, is_fast_build: false, is_stable: false };
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seconds" => {
                let text = words.next().context(USAGE)?;
                options.seconds = text.parse().context(USAGE)?;
            }
            "--only" => options.only = Some(words.next().context(USAGE)?.clone()),
            "--fast-build" => options.is_fast_build = true,
            "--stable" => options.is_stable = true,
            _ => bail!("{USAGE}"),
        }
    }
    Ok(options)
}

/// The names of all targets.
fn targets(fuzz: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(fuzz.join("src/lib.rs")).context("fuzz/src/lib.rs")?;
    let name = |line: &str| {
        let rest = line.trim_start().strip_prefix("Target { name: \"")?;
        Some(rest.split('"').next()?.to_string())
    };
    Ok(text.lines().filter_map(name).collect())
}

/// Whether there is a nightly toolchain, or one can be installed.
fn has_nightly() -> bool {
    let works = |line: &str| shell::output(line).is_ok_and(|(_, is_ok)| is_ok);
    works("rustup run nightly rustc --version")
        || works("rustup toolchain install nightly --profile minimal")
}

/// The programs of the targets.
struct Programs {
    folder: PathBuf,
    has_coverage: bool,
}

fn build_with_coverage(fuzz: &Path, is_fast: bool) -> Result<Programs> {
    let (version, _) = shell::output("rustup run nightly rustc -vV")?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc names no host")?;
    // With a target, programs that only the build runs have none of the flags.
    let line = format!(
        "rustup run nightly cargo build --release --locked --quiet --bins --target {host} \
         --manifest-path fuzz/Cargo.toml"
    );
    let mut variables = vec![("RUSTFLAGS", FLAGS)];
    if is_fast {
        variables.push(("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"));
        variables.push(("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "256"));
    }
    shell::run_with(&line, &variables)?;
    let folder = fuzz.join("target").join(host).join("release");
    let status = quiet(&folder.join("seeds")).arg(fuzz.join("corpus")).status()?;
    if !status.success() {
        bail!("the seeds could not be written: {status}");
    }
    Ok(Programs { folder, has_coverage: true })
}

fn build_without(fuzz: &Path, is_wanted: bool) -> Result<Programs> {
    if !is_wanted {
        println!(
            "no nightly toolchain: the targets run over mutations of their seeds, blind to coverage"
        );
    }
    shell::run(
        "cargo build --release --locked --quiet --no-default-features --bin mutate \
         --manifest-path fuzz/Cargo.toml",
    )?;
    Ok(Programs { folder: fuzz.join("target/release"), has_coverage: false })
}

/// A program of ours, without the toolchain's variables.
fn quiet(program: &Path) -> Command {
    let mut command = Command::new(program);
    // What a target leaks on purpose says nothing; memory errors are reported all the same.
    command.env("ASAN_OPTIONS", "detect_leaks=0").stdin(Stdio::null());
    command
}

impl Programs {
    /// Runs a target; the flag says that it found nothing.
    fn run(&self, fuzz: &Path, target: &str, seconds: u32) -> Result<(Outcome, bool)> {
        let artifacts = fuzz.join("artifacts").join(target);
        fs::create_dir_all(&artifacts)?;
        let mut command = if self.has_coverage {
            let corpus = fuzz.join("corpus").join(target);
            let mut command = quiet(&self.folder.join("cover"));
            command.env("NM_FUZZ_TARGET", target).arg(corpus).args([
                format!("-max_total_time={seconds}"),
                format!("-timeout={INPUT_S_MAX}"),
                format!("-rss_limit_mb={INPUT_MIB_MAX}"),
                format!("-artifact_prefix={}/", artifacts.display()),
                "-print_final_stats=1".to_string(),
                "-detect_leaks=0".to_string(),
            ]);
            command
        } else {
            let mut command = quiet(&self.folder.join("mutate"));
            command.arg(target).arg(seconds.to_string()).arg(&artifacts);
            command
        };
        let output = command.output().with_context(|| format!("cannot start {target}"))?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            eprintln!("{text}");
        }
        Ok((outcome(&text), output.status.success()))
    }
}

/// Reads what libFuzzer, or the program without it, has printed.
fn outcome(text: &str) -> Outcome {
    let number_after = |line: &str, word: &str| -> Option<u64> {
        let rest = line.split_once(word)?.1.trim_start();
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let mut outcome = Outcome::default();
    for line in text.lines() {
        if let Some(edges) = number_after(line, " cov: ") {
            let first = outcome.coverage.filter(|_| !line.contains("INITED"));
            outcome.coverage = Some((first.map_or(edges, |(first, _)| first), edges));
        }
        for word in ["stat::number_of_executed_units:", "executions:"] {
            outcome.executions = number_after(line, word).unwrap_or(outcome.executions);
        }
        let new = number_after(line, "stat::new_units_added:");
        outcome.new_inputs = new.unwrap_or(outcome.new_inputs);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn options_are_parsed() {
        let parsed =
            |line: &str| parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>());
        let options = parsed("--seconds 2 --only plan --fast-build").unwrap();
        let only = Some("plan".to_string());
        assert_eq!(options, Options { seconds: 2, only, is_fast_build: true, is_stable: false });
        assert!(parsed("--stable").unwrap().is_stable);
        for wrong in ["--seconds", "--seconds x", "--only", "plan"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn figures_are_read_from_both_programs() {
        let libfuzzer = "#9\tINITED cov: 120 ft: 300 corp: 8/1Kb exec/s: 0 rss: 40Mb\n\
            #512\tNEW    cov: 125 ft: 310 corp: 9/1Kb lim: 4 exec/s: 0 rss: 40Mb\n\
            #90210\tDONE   cov: 140 ft: 400 corp: 20/2Kb lim: 8 exec/s: 45105 rss: 50Mb\n\
            stat::number_of_executed_units: 90210\nstat::new_units_added:          12\n";
        let expected = Outcome { executions: 90_210, coverage: Some((120, 140)), new_inputs: 12 };
        assert_eq!(outcome(libfuzzer), expected);
        assert_eq!(outcome("executions: 77\n").executions, 77);
    }

    #[test]
    fn all_targets_are_found() {
        let fuzz = shell::root().join("fuzz");
        let targets = targets(&fuzz).unwrap();
        assert!(targets.contains(&"book".to_string()) && targets.is_sorted(), "{targets:?}");
        // A function of bytes that is not among them would never run.
        let text = fs::read_to_string(fuzz.join("src/lib.rs")).unwrap();
        let used = text.lines().filter_map(|line| line.strip_prefix("pub use ")?.split_once("::"));
        let names = used.flat_map(|(_, names)| {
            names.trim_matches(['{', '}', ';']).split(", ").map(str::to_string).collect::<Vec<_>>()
        });
        let own =
            text.lines().filter_map(|line| line.strip_prefix("pub fn ")?.split_once("(bytes"));
        for name in names.chain(own.map(|(name, _)| name.to_string())) {
            assert!(text.contains(&format!("run: {name},")), "{name} is no target: {targets:?}");
        }
    }

    /// Crates whose decoder no target calls, and why.
    const WITHOUT_TARGET: [(&str, &str); 1] =
        [("nm_probe", "it reads a number at a fixed place, and no length")];

    #[test]
    fn each_crate_that_decodes_bytes_of_others_has_a_target() {
        let root = shell::root();
        // The target `codec` calls what is there.
        let mut called =
            fs::read_to_string(root.join("crates/exchange/run/src/testing.rs")).unwrap();
        for entry in fs::read_dir(root.join("fuzz/src")).unwrap().flatten() {
            called += &fs::read_to_string(entry.path()).unwrap_or_default();
        }
        let mut decoding = BTreeSet::new();
        for name in shell::output("git ls-files crates").unwrap().0.lines() {
            let [_, rest @ ..] = &name.split('/').collect::<Vec<_>>()[..] else { continue };
            let Some(at) = rest.iter().position(|part| *part == "src") else { continue };
            if name.ends_with(".rs")
                && fs::read_to_string(root.join(name)).unwrap().lines().any(decodes)
            {
                decoding.insert(format!("nm_{}", rest[at - 1]));
            }
        }
        assert!(decoding.len() >= 9, "{decoding:?}");
        for name in decoding {
            let is_called = called.contains(&format!("{name}::"));
            let has_reason = WITHOUT_TARGET.iter().any(|(known, _)| *known == name);
            assert!(is_called != has_reason, "{name} decodes bytes; add a target in fuzz/src");
        }
    }

    /// Whether a line begins a public function that makes something of any bytes.
    fn decodes(line: &str) -> bool {
        let name = line.trim_start().strip_prefix("pub fn ");
        let is_named =
            |name: &str| ["read", "decode", "parse"].iter().any(|it| name.starts_with(it));
        let makes =
            line.contains("&[u8]") && (line.contains("-> Result<") || line.contains("-> Option<"));
        name.is_some_and(is_named) && makes
    }
}
