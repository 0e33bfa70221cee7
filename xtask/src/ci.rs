//! Everything that must hold before a change lands, in the order in which it fails fastest.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::{shell, tidy};

pub fn run() -> Result<()> {
    // Until the whole workspace keeps these rules.
    let warned = ["functions", "imports", "words", "unused"];
    let args: Vec<String> =
        warned.iter().flat_map(|check| ["--warn".to_string(), (*check).to_string()]).collect();
    tidy::run(&args)?;
    shell::run("cargo fmt --all --check")?;
    shell::run("cargo clippy --workspace --all-targets --locked -- -D warnings")?;
    let (passed, failed) = tests("cargo test --workspace --locked --no-fail-fast")?;
    docs()?;
    rings_under_loom()?;
    main_job()?;
    println!("{passed} passed, {failed} failed");
    if failed > 0 {
        bail!("{failed} tests failed");
    }
    Ok(())
}

/// Runs the tests, showing their output, and adds up what the runners count.
fn tests(line: &str) -> Result<(u64, u64)> {
    eprintln!("$ {line}");
    let mut child =
        shell::command(line).stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let (mut passed, mut failed) = (0, 0);
    for text in BufReader::new(child.stdout.take().expect("piped")).lines() {
        let text = text?;
        println!("{text}");
        if let Some(counts) = text.strip_prefix("test result: ") {
            let count = |word: &str| -> u64 {
                let words: Vec<&str> = counts.split([' ', ';']).filter(|w| !w.is_empty()).collect();
                let at = words.iter().position(|w| *w == word);
                at.and_then(|at| words.get(at - 1)?.parse().ok()).unwrap_or(0)
            };
            passed += count("passed");
            failed += count("failed");
        }
    }
    let status = child.wait()?;
    if !status.success() && failed == 0 {
        bail!("`{line}` ended with {status} before it could count its tests");
    }
    if passed == 0 {
        bail!("`{line}` ran no test");
    }
    Ok((passed, failed))
}

fn docs() -> Result<()> {
    let line = "cargo doc --workspace --no-deps --locked --quiet";
    eprintln!("$ {line} (warnings are errors)");
    let status = shell::command(line).env("RUSTDOCFLAGS", "-D warnings").status()?;
    if !status.success() {
        bail!("`{line}` ended with {status}");
    }
    Ok(())
}

/// The rings' protocol in every order of accesses that the memory model allows.
fn rings_under_loom() -> Result<()> {
    let line = "cargo test -p nm-ring --release --locked --target-dir target/loom loom";
    eprintln!("$ RUSTFLAGS=\"--cfg loom\" {line}");
    let status = shell::command(line).env("RUSTFLAGS", "--cfg loom").status()?;
    if !status.success() {
        bail!("`{line}` ended with {status}");
    }
    Ok(())
}

/// The README's first command: it must end with a verdict and leave a whole result.
fn main_job() -> Result<()> {
    shell::run("cargo build --release --locked")?;
    let out = shell::root().join("target/ci-qualify");
    let _ = std::fs::remove_dir_all(&out);
    let namespaces = || shell::output("ip netns list").map(|(text, _)| text);
    let before = namespaces()?;
    let line = format!("target/release/nearmetal qualify --plan quick --out {}", out.display());
    eprintln!("$ {line}");
    let status = shell::command(&line).status()?;
    match status.code() {
        Some(0 | 1 | 3) => {}
        _ => bail!("`{line}` ended with {status}, which is no verdict"),
    }
    for name in ["result.json", "report.html", "report.md"] {
        let path = out.join(name);
        if !path.is_file() {
            bail!("`{line}` left no {name}");
        }
    }
    if namespaces()? != before {
        bail!("`{line}` changed `ip netns`");
    }
    Ok(())
}
