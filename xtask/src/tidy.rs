//! `cargo xtask tidy`: the rules that no compiler checks. Each fault is a line
//! `file:line: what is wrong; what to do [check]`.

mod fault;
mod functions;
mod guarantees;
pub mod house;
mod imports;
mod layers;
mod licences;
mod modules;
mod mutations;
mod roles;
mod sentences;
mod text;
mod tokens;
mod unused;
mod use_tree;
pub mod workspace;

use anyhow::{Context, Result, bail};

use fault::{Check, Fault};
use workspace::Workspace;

const USAGE: &str = "\
usage: cargo xtask tidy [--crate NAME]... [--warn CHECK]...

  --crate NAME  only faults of this crate
  --warn CHECK  print the faults of this check, but do not fail for them

checks:
  text       file heads, line width, trailing white space, forbid(unsafe_code)
  functions  at most 70 lines from `fn` to the closing brace
  imports    no import cycle between the files of a library, program, tests or benches
  layers     dependencies point down; who may depend on openraft, tokio, serde, schemars, toml
  unused     no dependency that no file names
  licences   every licence may be linked
  guarantees  SPECIFICATION.md names an existing test for each, or says that it has none
  mutations  the deliberate faults of mutations/ fit the code, and break a guarantee's own test
  roles      the exchange has test-only modules, no items; its roles name no clock, thread, socket
  sentences  at most 25 words a sentence in documents and module comments";

#[derive(Debug, Default)]
struct Options {
    crates: Vec<String>,
    /// Checks that do not fail the run.
    warned: Vec<Check>,
}

pub fn run(args: &[String]) -> Result<()> {
    let options = parse(args)?;
    let workspace = Workspace::read()?;
    let mut faults = faults_of(&workspace);
    if !options.crates.is_empty() {
        let is_wanted = |name: String| options.crates.contains(&name);
        faults.retain(|fault| fault.crate_name().is_some_and(is_wanted));
    }
    faults.sort();
    for fault in &faults {
        eprintln!("{fault}");
    }
    let mut n_failing = 0;
    for check in Check::ALL {
        let count = faults.iter().filter(|fault| fault.check == check).count();
        let is_warned = options.warned.contains(&check);
        let note = if is_warned { " (warnings)" } else { "" };
        eprintln!("tidy: {count:5} {}{note}", check.name());
        n_failing += if is_warned { 0 } else { count };
    }
    if n_failing > 0 {
        bail!("tidy: {n_failing} faults");
    }
    Ok(())
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options = Options::default();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| USAGE.to_string())?;
        match word.as_str() {
            "--crate" => options.crates.push(value.clone()),
            "--warn" => options.warned.push(Check::parse(value).context(USAGE)?),
            _ => bail!("{USAGE}"),
        }
    }
    Ok(options)
}

fn faults_of(workspace: &Workspace) -> Vec<Fault> {
    let Workspace { files, metadata } = workspace;
    let (sources, mut faults) = tokens::lex_all(files);
    faults.extend(text::check(files));
    faults.extend(functions::check(&sources));
    faults.extend(imports::check(metadata, &sources));
    faults.extend(layers::check(metadata));
    faults.extend(unused::check(metadata, files, &sources));
    faults.extend(licences::check(metadata));
    faults.extend(guarantees::check(files));
    faults.extend(mutations::check(files));
    faults.extend(roles::check(&sources));
    faults.extend(sentences::check(files));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed() {
        let args = ["--crate", "nm-judge", "--warn", "text"].map(str::to_string);
        let options = parse(&args).unwrap();
        assert_eq!(options.crates, ["nm-judge"]);
        assert_eq!(options.warned, [Check::Text]);
        assert!(parse(&args[..1]).is_err());
        assert!(parse(&["--warn".to_string(), "nothing".to_string()]).is_err());
    }
}
