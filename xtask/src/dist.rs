//! What users install. For each processor it is a static program and the accelerator's library for
//! programs of machines with glibc. Both are packed as archive, Debian and RPM package and
//! container image.
//!
//! The same commit can give the same bytes. For that, paths of this machine are replaced, times are
//! those of the commit, and files are packed in a fixed order.

mod build;
mod check;
mod contents;
mod deb;
mod oci;
mod product;
mod roots;
mod rpm_package;
mod sbom;
mod tarball;
mod twice;

use std::fs;
use std::path::Path;

use crate::shell;
use anyhow::{Context, Result, bail};
use build::Optimisation;
use contents::Contents;
use product::{Processor, VERSION, sha256};

/// Where the files for users lie, below the root.
const FOLDER: &str = "target/dist-files";

const USAGE: &str = "\
usage: cargo xtask dist [--fast-build | roots | check | twice]

Without words: builds everything into target/dist-files, for x86-64 and AArch64.
--fast-build: the same without optimisation, to see that it can be packed, installed and run.
roots: makes roots of Debian 11, 12 and 13 in target/dist-roots, unless they are there (root).
check: installs and runs what was built (root, Debian): the packages in those roots and in an empty
one, the image and the static program in an empty folder, the AArch64 one under qemu-user.
twice: builds everything here and in a clone elsewhere, and fails unless all bytes are equal.";

pub fn run(args: &[String]) -> Result<()> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        [] => make(Optimisation::Full),
        ["--fast-build"] => make(Optimisation::None),
        ["roots"] => roots::make(),
        ["check"] => check::run(&shell::root().join(FOLDER)),
        ["twice"] => twice::run(FOLDER),
        _ => bail!("{USAGE}"),
    }
}

/// Builds and packs everything.
fn make(optimisation: Optimisation) -> Result<()> {
    let folder = shell::root().join(FOLDER);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let built = build::all(optimisation)?;
    let texts = contents::texts(&build::native(&built)?.program)?;
    let time_s = commit_time_s()?;
    for one in &built {
        let contents = Contents::new(one, &texts)?;
        pack(&folder, one.processor, &contents, time_s)?;
    }
    write_sums(&folder)?;
    println!("{}", folder.display());
    Ok(())
}

/// Writes every form of one processor's program.
fn pack(folder: &Path, processor: Processor, contents: &Contents, time_s: u64) -> Result<()> {
    let stem = processor.stem();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    let plain = contents.archive(&stem);
    write(&format!("{stem}.tar.zst"), &tarball::zstd(&tarball::tar(&plain, time_s)?)?)?;
    let debian = deb::package(&contents.installed(contents::DEBIAN), processor, time_s)?;
    write(&format!("nearmetal_{VERSION}_{}.deb", processor.debian), &debian)?;
    let rpm = rpm_package::package(&contents.installed(contents::RPM), processor, time_s)?;
    write(&format!("{stem}.rpm"), &rpm)?;
    write(&format!("{stem}.oci.tar"), &oci::image(&contents.image(), processor, time_s)?)?;
    write(&format!("{stem}.cdx.json"), &sbom::document(processor, time_s)?)
}

/// The time of the commit, s since 1970, or that of `SOURCE_DATE_EPOCH`: the time of all files.
fn commit_time_s() -> Result<u64> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => shell::output("git log -1 --format=%ct")?.0,
    };
    text.trim().parse().with_context(|| format!("`{}` is no time in seconds", text.trim()))
}

/// `SHA256SUMS`, as `sha256sum --check` reads it.
fn write_sums(folder: &Path) -> Result<()> {
    let mut names: Vec<String> = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    names.sort();
    let mut sums = String::new();
    for name in names {
        sums += &format!("{}  {name}\n", sha256(&fs::read(folder.join(&name))?));
    }
    fs::write(folder.join("SHA256SUMS"), sums).context("cannot write SHA256SUMS")
}
