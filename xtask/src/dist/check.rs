//! Installs and runs what was packed, in folders that have nothing but it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::product::{PROCESSORS, Processor, VERSION, sha256};
use super::roots::{self, RELEASES, empty};
use crate::shell;

/// Largest static program and largest packed one, bytes.
const SIZE_GOALS: [(&str, u64); 2] = [("program", 25_000_000), (".tar.zst", 15_000_000)];

/// Checks the files in `folder`.
pub(super) fn run(folder: &Path) -> Result<()> {
    shell::run(&format!("sha256sum --quiet --check {}", in_folder(folder)?))?;
    let native = native()?;
    roots::make()?;
    let roots = roots::folder();
    for processor in PROCESSORS {
        check_image(folder, processor, &roots)?;
        check_archive(folder, processor, &roots)?;
    }
    check_rpm(folder, native, &roots)?;
    for release in RELEASES {
        check_debian(folder, native, release, &roots)?;
    }
    check_qualify(folder, native, &roots)
}

/// The list of sums with the paths of this folder, in a file beside it.
fn in_folder(folder: &Path) -> Result<String> {
    let sums = folder.join("SHA256SUMS");
    let text = fs::read_to_string(&sums)
        .with_context(|| format!("cannot read {}; run `cargo xtask dist`", sums.display()))?;
    let here = format!("  {}/", folder.display());
    let path = shell::root().join("target/dist-sums");
    fs::write(&path, text.replace("  ", &here))?;
    Ok(path.display().to_string())
}

fn native() -> Result<Processor> {
    let is_native = |processor: &&Processor| processor.name == std::env::consts::ARCH;
    PROCESSORS.iter().find(is_native).copied().context("this processor has no packages")
}

/// Runs the program in `root` and looks for `words` in its output.
fn expect(root: &Path, processor: Processor, line: &str, words: &str) -> Result<()> {
    let mut emulator = "";
    if processor != native()? {
        emulator = "/qemu ";
        let installed = format!("/usr/bin/qemu-{}-static", processor.name);
        fs::copy(&installed, root.join("qemu"))
            .with_context(|| format!("cannot copy {installed}; run `cargo xtask setup`"))?;
    }
    let line = format!("chroot {} {emulator}{line}", root.display());
    eprintln!("$ {line}");
    let (text, is_ok) = shell::output(&line)?;
    if !is_ok || !text.contains(words) {
        bail!("`{line}` does not print `{words}`: {text}");
    }
    Ok(())
}

fn check_archive(folder: &Path, processor: Processor, roots: &Path) -> Result<()> {
    let stem = processor.stem();
    let archive = folder.join(format!("{stem}.tar.zst"));
    let root = empty(roots, &stem)?;
    let line = format!("tar --zstd -xf {} -C {}", archive.display(), root.display());
    shell::run(&line)?;
    let program = root.join(&stem).join("nearmetal");
    for (path, (what, goal)) in [&program, &archive].into_iter().zip(SIZE_GOALS) {
        let bytes = fs::metadata(path)?.len();
        let word = if bytes <= goal { "met" } else { "MISSED" };
        println!("size of {stem} {what}: {bytes} bytes; goal of an optimised one {goal}: {word}");
    }
    expect(&root, processor, &format!("/{stem}/nearmetal --version"), VERSION)?;
    expect(&root, processor, &format!("/{stem}/nearmetal reference list"), "deftech")
}

fn check_image(folder: &Path, processor: Processor, roots: &Path) -> Result<()> {
    let name = format!("nearmetal-{VERSION}-{}.oci", processor.name);
    let layout = empty(roots, &format!("{name}.layout"))?;
    let archive = folder.join(format!("{name}.tar"));
    shell::run(&format!("tar -xf {} -C {}", archive.display(), layout.display()))?;
    let json = |path: PathBuf| -> Result<serde_json::Value> {
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    };
    let blob = |descriptor: &serde_json::Value| -> Result<PathBuf> {
        let digest = descriptor["digest"].as_str().unwrap_or_default();
        let hex = digest.strip_prefix("sha256:").context("a digest without its kind")?;
        let path = layout.join("blobs/sha256").join(hex);
        let bytes = fs::read(&path).with_context(|| format!("no blob {}", path.display()))?;
        if sha256(&bytes) != hex || descriptor["size"] != bytes.len() {
            bail!("the blob {hex} has other bytes than its digest says");
        }
        Ok(path)
    };
    let manifest = json(blob(&json(layout.join("index.json"))?["manifests"][0])?)?;
    let config = json(blob(&manifest["config"])?)?;
    let root = empty(roots, &name)?;
    let layer = blob(&manifest["layers"][0])?;
    shell::run(&format!("tar -xzf {} -C {}", layer.display(), root.display()))?;
    let entry = config["config"]["Entrypoint"][0].as_str().unwrap_or_default();
    expect(&root, processor, &format!("{entry} --version"), VERSION)
}

fn check_rpm(folder: &Path, processor: Processor, roots: &Path) -> Result<()> {
    let root = empty(roots, "rpm")?;
    let package = folder.join(format!("nearmetal-{VERSION}-{}.rpm", processor.name));
    let rpm = format!("rpm --root {} --dbpath /var/lib/rpm", root.display());
    shell::run(&format!("{rpm} --initdb"))?;
    shell::run(&format!("{rpm} --install {}", package.display()))?;
    shell::run(&format!("{rpm} --verify nearmetal"))?;
    expect(&root, processor, "/usr/bin/nearmetal --version", VERSION)?;
    shell::run(&format!("{rpm} --erase nearmetal"))?;
    match root.join("usr/bin/nearmetal").exists() {
        true => bail!("the package is erased, but its program is still there"),
        false => Ok(()),
    }
}

fn check_debian(folder: &Path, processor: Processor, release: &str, roots: &Path) -> Result<()> {
    let root = roots.join(release);
    let package = format!("nearmetal_{VERSION}_{}.deb", processor.debian);
    fs::copy(folder.join(&package), root.join("tmp").join(&package))?;
    let inside = |line: &str| format!("chroot {} {line}", root.display());
    shell::run(&inside(&format!("dpkg --install /tmp/{package}")))?;
    expect(&root, processor, "/usr/bin/nearmetal --version", VERSION)?;
    // The loader only warns of a library that it cannot preload, and the program runs without it.
    let preloaded = "/usr/bin/env LD_PRELOAD=/usr/lib/nearmetal/libnm_accel.so /bin/true";
    let output = shell::command(&inside(preloaded)).output()?;
    if !output.status.success() || !output.stderr.is_empty() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("Debian's {release} cannot load the accelerator: {text}");
    }
    shell::run(&inside("dpkg --purge nearmetal"))
}

/// README's main job from the static program in a folder that has nothing else: no `/proc`, no
/// library, no device.
fn check_qualify(folder: &Path, processor: Processor, roots: &Path) -> Result<()> {
    let stem = processor.stem();
    let root = empty(roots, "qualify")?;
    let (archive, shown) = (folder.join(format!("{stem}.tar.zst")), root.display());
    shell::run(&format!("tar --zstd -xf {} -C {shown} {stem}/nearmetal", archive.display()))?;
    let line =
        format!("chroot {shown} /{stem}/nearmetal qualify --plan quick --rounds 1 --out /out");
    eprintln!("$ {line}");
    let status = shell::command(&line).status()?;
    match (status.code(), root.join("out/report.html").is_file()) {
        (Some(0 | 1 | 3), true) => Ok(()),
        _ => bail!("`{line}` ended with {status}, or left no report"),
    }
}
