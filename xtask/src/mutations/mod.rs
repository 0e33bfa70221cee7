//! Whether the tests of SPECIFICATION.md notice what they are named for. Each mutation is made in a
//! copy of the tree, and its test must fail there.

pub mod list;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nm_sys::clock::Moment;

use crate::shell;
use list::Mutation;

/// Where the copy and what is built of it lie, below the root.
const COPY: &str = "target/mutations/tree";
const BUILD: &str = "target/mutations/build";

/// Longest time of a test, s: a fault may well make it hang.
const TEST_MAX_S: u64 = 300;

/// Trials of a simulation that has to notice a fault.
const TRIALS: &str = "500";

/// The exit code of timeout(1) where the time was up.
const TIMED_OUT: i32 = 124;

const USAGE: &str = "\
usage: cargo xtask mutations [--list] [NUMBER|PREFIX …]

Makes each deliberate fault of mutations/ in a copy of the tree (what git knows, with changes that
are not committed), and runs the test that must notice it. NUMBER: only those of a guarantee, such
as T15; PREFIX: those of guarantees that begin so. --list: prints them. Fails if one survives.";

/// What became of a mutation.
enum Outcome {
    /// Its test failed, as it must.
    Found,
    /// Its test did not end, which is noticed as well.
    Hung,
    /// Its test passed all the same.
    Survived,
}

pub fn run(args: &[String]) -> Result<()> {
    let (options, wanted): (Vec<&String>, Vec<&String>) =
        args.iter().partition(|arg| arg.starts_with('-'));
    let is_wanted = |mutation: &Mutation| {
        let is_of = |prefix: &&String| {
            mutation.guarantee == **prefix
                || prefix.chars().all(char::is_alphabetic)
                    && mutation.guarantee.starts_with(prefix.as_str())
        };
        wanted.is_empty() || wanted.iter().any(is_of)
    };
    let mutations: Vec<Mutation> = all()?.into_iter().filter(is_wanted).collect();
    match options[..] {
        [] if mutations.is_empty() => bail!("there is no such mutation\n{USAGE}"),
        [] => run_all(&mutations),
        [option] if option == "--list" => {
            for Mutation { guarantee, fault, test, .. } in &mutations {
                println!("{guarantee:<5} {fault}: {test}");
            }
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}

/// Those of all files, by the files' names.
fn all() -> Result<Vec<Mutation>> {
    let folder = shell::root().join(list::FOLDER);
    let entries = fs::read_dir(&folder).with_context(|| format!("in {}", folder.display()))?;
    let paths: BTreeSet<PathBuf> =
        entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    let is_list = |path: &&PathBuf| path.extension().is_some_and(|end| end == "toml");
    let mut mutations = vec![];
    for path in paths.iter().filter(is_list) {
        mutations.extend(list::parse(path, &fs::read_to_string(path)?)?);
    }
    Ok(mutations)
}

fn run_all(mutations: &[Mutation]) -> Result<()> {
    let copy = shell::root().join(COPY);
    copy_tree(&copy)?;
    check_unchanged(&copy, mutations)?;
    let mut survivors = vec![];
    for mutation in mutations {
        let begin = Moment::now();
        let outcome = try_one(&copy, mutation)?;
        let word = match outcome {
            Outcome::Found => "found",
            Outcome::Hung => "found: the test does not end",
            Outcome::Survived => "SURVIVED",
        };
        let Mutation { guarantee, fault, test, .. } = mutation;
        println!("{guarantee:<5} {fault}: {test}: {word}, {} s", begin.elapsed().as_secs());
        if matches!(outcome, Outcome::Survived) {
            survivors.push(format!("{guarantee} ({fault})"));
        }
    }
    println!("{} mutations, {} survived", mutations.len(), survivors.len());
    match survivors.is_empty() {
        true => Ok(()),
        false => bail!("the tests do not notice: {}", survivors.join("; ")),
    }
}

/// What git knows of this tree, as it is now. Files that are the same keep their time, so that
/// only what a mutation changes is built again.
fn copy_tree(copy: &Path) -> Result<()> {
    let (text, _) = shell::output("git ls-files -z")?;
    let names: BTreeSet<&str> = text.split('\0').filter(|name| !name.is_empty()).collect();
    fs::create_dir_all(copy)?;
    let known = Command::new("find").args([".", "-type", "f"]).current_dir(copy).output()?;
    for name in String::from_utf8_lossy(&known.stdout).lines() {
        if !names.contains(name.trim_start_matches("./")) {
            fs::remove_file(copy.join(name))?;
        }
    }
    for name in names {
        let (from, to) = (shell::root().join(name), copy.join(name));
        let is_same = || fs::read(&to).is_ok_and(|old| fs::read(&from).is_ok_and(|new| old == new));
        if !from.is_file() || is_same() {
            continue;
        }
        fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
        fs::copy(&from, &to).with_context(|| format!("cannot copy {name}"))?;
    }
    Ok(())
}

/// Each test must pass without a fault, else its failure shows nothing.
fn check_unchanged(copy: &Path, mutations: &[Mutation]) -> Result<()> {
    let tests: BTreeSet<&str> = mutations.iter().map(|mutation| mutation.test.as_str()).collect();
    for test in tests {
        let of_test = mutations.iter().find(|mutation| mutation.test == test);
        let (package, name) =
            of_test.and_then(Mutation::package_and_name).context("a test has a crate")?;
        build(copy, package)?;
        match run_test(copy, package, name)? {
            Some(true) => {}
            _ => bail!("{test} does not pass without any fault"),
        }
    }
    Ok(())
}

fn try_one(copy: &Path, mutation: &Mutation) -> Result<Outcome> {
    let path = copy.join(&mutation.file);
    let text = fs::read_to_string(&path).with_context(|| format!("in {}", path.display()))?;
    fs::write(&path, mutation.applied(&text)?)?;
    let (package, name) = mutation.package_and_name().context("a test has a crate")?;
    let outcome = build(copy, package).and_then(|()| run_test(copy, package, name));
    fs::write(&path, text)?;
    Ok(match outcome.with_context(|| format!("with the fault `{}`", mutation.fault))? {
        Some(true) => Outcome::Survived,
        Some(false) => Outcome::Found,
        None => Outcome::Hung,
    })
}

fn in_copy(program: &str, copy: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words).current_dir(copy).stdin(Stdio::null()).stderr(Stdio::null());
    command.env("CARGO_TARGET_DIR", shell::root().join(BUILD));
    command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("NM_TRIALS", TRIALS);
    command
}

/// Builds the tests of a crate. A fault that no compiler takes tests nothing.
fn build(copy: &Path, package: &str) -> Result<()> {
    let words = ["test", "--locked", "--quiet", "--no-run", "-p", package];
    let output = in_copy("cargo", copy, &words).stderr(Stdio::piped()).output()?;
    match output.status.success() {
        true => Ok(()),
        false => bail!("{package} does not build: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// Whether the tests of this name passed; none if they did not end.
fn run_test(copy: &Path, package: &str, name: &str) -> Result<Option<bool>> {
    let limit = TEST_MAX_S.to_string();
    let words = ["--kill-after=5", &limit, "cargo", "test", "--locked", "-p", package, name];
    // A file, because a program that outlives its test would keep a pipe open.
    let log = copy.with_file_name("test.log");
    let status = in_copy("timeout", copy, &words).stdout(fs::File::create(&log)?).status()?;
    if matches!(status.code(), Some(TIMED_OUT) | None) {
        return Ok(None);
    }
    let text = fs::read_to_string(&log)?;
    match text.lines().filter_map(n_tests).sum() {
        0_u64 => bail!("{package} has no test {name}: {text}"),
        _ => Ok(Some(status.success())),
    }
}

/// Tests of a line like `test result: ok. 3 passed; 1 failed; …`.
fn n_tests(line: &str) -> Option<u64> {
    let rest = line.strip_prefix("test result: ")?;
    let number = |word: &str| {
        let at = rest.find(word)?;
        rest[..at].split_whitespace().next_back()?.parse::<u64>().ok()
    };
    Some(number(" passed")? + number(" failed")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_ran_are_counted() {
        assert_eq!(
            n_tests("test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured"),
            Some(4)
        );
        assert_eq!(n_tests("running 3 tests"), None);
    }
}
