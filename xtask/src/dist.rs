//! A static binary with completions and man pages, and the accelerator's library for the programs
//! of machines with glibc, ready to copy to a machine.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::shell;

const MUSL: &str = "x86_64-unknown-linux-musl";
const GLIBC: &str = "x86_64-unknown-linux-gnu";

pub fn run() -> Result<()> {
    let dist = shell::root().join("target/dist-files");
    fs::create_dir_all(&dist).with_context(|| format!("cannot make {}", dist.display()))?;
    // musl links with what the target brings; where the target cannot be had, glibc does it too.
    let has_musl = shell::output(&format!("rustup target add {MUSL}")).is_ok_and(|(_, ok)| ok);
    let target = if has_musl { MUSL } else { GLIBC };
    let line = format!("cargo build --profile dist --locked -p nearmetal --target {target}");
    eprintln!("$ {line}");
    let status =
        shell::command(&line).env("RUSTFLAGS", "-C target-feature=+crt-static").status()?;
    if !status.success() {
        bail!("`{line}` ended with {status}");
    }
    let built = shell::root().join("target").join(target).join("dist/nearmetal");
    fs::copy(&built, dist.join("nearmetal"))
        .with_context(|| format!("cannot copy {}", built.display()))?;
    library(&dist)?;
    let program = dist.join("nearmetal");
    let generated = [
        ("completions bash", "nearmetal.bash"),
        ("completions zsh", "_nearmetal"),
        ("completions fish", "nearmetal.fish"),
    ];
    for (words, file) in generated {
        let (text, ok) = shell::output(&format!("{} {words}", program.display()))?;
        if !ok {
            bail!("`nearmetal {words}` failed: {text}");
        }
        fs::write(dist.join(file), text)?;
    }
    shell::run(&format!("{} man --out {}", program.display(), dist.join("man1").display()))?;
    println!("{}", dist.display());
    Ok(())
}

/// The accelerator's library. It is loaded into other programs, so it is always built for glibc; a
/// static `nearmetal` puts it in front of them all the same, only its own agents cannot have it.
fn library(dist: &Path) -> Result<()> {
    const LIBRARY: &str = "libnm_accel.so";
    // A thread that is cancelled inside the library is unwound; values must be dropped on the way.
    let unwinding = "--config profile.dist.panic=\"unwind\"";
    let line = format!("cargo build --profile dist --locked -p nm-accel --target {GLIBC}");
    shell::run(&format!("{line} {unwinding}"))?;
    let built = shell::root().join("target").join(GLIBC).join("dist").join(LIBRARY);
    fs::copy(&built, dist.join(LIBRARY))
        .with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(())
}
