//! Builds the program with musl, which needs no library, and the accelerator's library for an old
//! glibc. So both run on every machine of their processor.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::product::{PROCESSORS, Processor};
use crate::shell;

/// The oldest glibc that the accelerator's library runs on.
const GLIBC_OLDEST: &str = "2.17";

/// Links for an old glibc: its symbols come with zig, which PyPI has as a package.
const LINKERS: [&str; 2] = ["cargo-zigbuild==0.24.1", "ziglang==0.17.1"];

/// How much the compiler optimises.
#[derive(Debug, Clone, Copy)]
pub(super) enum Optimisation {
    /// As what users install.
    Full,
    /// As tests: it builds in half of the time.
    None,
}

impl Optimisation {
    /// Cargo's profile, and the folder that it builds into.
    fn profile(self) -> (&'static str, &'static str) {
        match self {
            Optimisation::Full => ("dist", "dist"),
            Optimisation::None => ("dev", "debug"),
        }
    }
}

/// What was built for one processor.
pub(super) struct Built {
    pub(super) processor: Processor,
    pub(super) program: PathBuf,
    pub(super) library: PathBuf,
}

/// Builds for every processor.
pub(super) fn all(optimisation: Optimisation) -> Result<Vec<Built>> {
    for Processor { name, .. } in PROCESSORS {
        shell::run(&format!(
            "rustup target add {name}-unknown-linux-musl {name}-unknown-linux-gnu"
        ))?;
    }
    let tools = linkers()?;
    PROCESSORS
        .into_iter()
        .map(|processor| {
            let program = program(processor, optimisation)?;
            let library = library(processor, optimisation, &tools)?;
            Ok(Built { processor, program, library })
        })
        .collect()
}

/// That of the machine that builds.
pub(super) fn native(built: &[Built]) -> Result<&Built> {
    let name = std::env::consts::ARCH;
    built
        .iter()
        .find(|one| one.processor.name == name)
        .with_context(|| format!("a machine of {name} cannot make man pages and completions"))
}

/// The linkers in a folder of their own.
fn linkers() -> Result<PathBuf> {
    let folder = shell::root().join("target/dist-tools");
    if !folder.join("bin/cargo-zigbuild").is_file() {
        shell::run(&format!("python3 -m venv {}", folder.display()))?;
        let pip = folder.join("bin/pip");
        shell::run(&format!("{} install --quiet {}", pip.display(), LINKERS.join(" ")))?;
    }
    Ok(folder.join("bin"))
}

/// Neither paths of this machine nor symbols belong into what others run. A profile's `strip` is
/// lost on a package with an `opt-level` of its own.
fn flags() -> String {
    let root = shell::root();
    let home = std::env::var("CARGO_HOME")
        .unwrap_or_else(|_| format!("{}/.cargo", std::env::var("HOME").unwrap_or_default()));
    format!(
        "-C strip=symbols --remap-path-prefix={}=/nearmetal --remap-path-prefix={home}=/cargo",
        root.display()
    )
}

fn program(processor: Processor, optimisation: Optimisation) -> Result<PathBuf> {
    let (profile, folder) = optimisation.profile();
    let target = format!("{}-unknown-linux-musl", processor.name);
    // Rust's own linker does for every processor: musl comes with the target.
    let linker = format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"));
    let flags = format!("-C target-feature=+crt-static {}", flags());
    shell::run_with(
        &format!("cargo build --profile {profile} --locked -p nearmetal --target {target}"),
        &[("RUSTFLAGS", &flags), (&linker, "rust-lld")],
    )?;
    Ok(shell::root().join("target").join(target).join(folder).join("nearmetal"))
}

fn library(processor: Processor, optimisation: Optimisation, tools: &Path) -> Result<PathBuf> {
    let (profile, folder) = optimisation.profile();
    let target = format!("{}-unknown-linux-gnu", processor.name);
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default());
    let line = format!(
        "cargo zigbuild --profile {profile} --locked -p nm-accel --target {target}.{GLIBC_OLDEST}"
    );
    shell::run_with(&line, &[("PATH", &path), ("RUSTFLAGS", &flags())])?;
    let built = shell::root().join("target").join(target).join(folder).join("libnm_accel.so");
    if !built.is_file() {
        bail!("`{line}` left no {}", built.display());
    }
    Ok(built)
}
