//! `nearmetal accel explain`: whether a program would be accelerated, without running it.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nm_lab::accelerator;
use nm_model::explanation::{Bearing, Explanation, Precondition, Prospect};
use nm_report::style::{clean, wrap};
use nm_ring::variables::{AFTER_CALLS_DEFAULT, OFF};
use nm_sys::hostfiles::HostFiles;
use nm_sys::memory_file;
use nm_vm::elf::Elf;
use rustix::process::geteuid;

use super::launcher::{self, Launch};
use super::profiles;
use super::program::{self, FileKind, ProgramFile};
use crate::cli::accel::AccelExplainArgs;
use crate::cli::format::Format;
use crate::exit::{Exit, Stop};
use crate::output;

/// Columns before the explanations.
const INDENT: usize = 24;

/// Longest chain of launchers that is followed.
const LAUNCHERS_MAX: usize = 8;

/// Number of the capability to read other processes' memory and descriptors.
const CAP_SYS_PTRACE: u32 = 19;

pub fn run(args: &AccelExplainArgs) -> Result<Exit> {
    let explanation = explain(&args.program)?;
    match args.format.format {
        Format::Json => output::json(&explanation)?,
        Format::Text => output::text(&to_text(&explanation, output::style().width))?,
    }
    Ok(match explanation.verdict {
        Prospect::Accelerated => Exit::Pass,
        Prospect::Kernel => Exit::Environment,
    })
}

fn explain(words: &[OsString]) -> Result<Explanation> {
    let found = accelerator::library(&std::env::current_exe()?);
    let library = found.as_ref().ok();
    let mut checks = vec![];
    let mut words = words;
    for _ in 0..LAUNCHERS_MAX {
        let Some(Launch { loss, program }) = launcher::launch(words, library.map(PathBuf::as_path))
        else {
            break;
        };
        if let Some(loss) = loss {
            let name = clean(&words[0].to_string_lossy());
            checks.push(kernel("launcher", format!("{name} {loss}"), &loss.remedy()));
        }
        if program.is_empty() {
            break;
        }
        words = program;
    }
    let Some(name) = words.first() else {
        return Err(Stop::usage("name a program; see --help"));
    };
    let path = program::find(name).map_err(|error| program::not_started(name, &error))?;
    let file = program::inspect(&path);
    checks.extend(of_file(&file));
    checks.push(match &found {
        Ok(path) => ok("library", path.display().to_string()),
        Err(error) => kernel("library", error.to_string(), error.remedy()),
    });
    if let (Some(library), FileKind::Program { loader: Some(loader), .. }) = (library, &file.kind) {
        checks.extend(c_library(library, Path::new(loader)));
    }
    checks.extend(of_environment(&HostFiles::default()));
    Ok(Explanation::new(clean(&name.to_string_lossy()), checks, limits()))
}

fn ok(name: &str, found: String) -> Precondition {
    Precondition { name: name.to_string(), bearing: Bearing::Ok, found, remedy: None }
}

fn note(name: &str, found: impl Into<String>) -> Precondition {
    Precondition { bearing: Bearing::Note, ..ok(name, found.into()) }
}

fn kernel(name: &str, found: String, remedy: &str) -> Precondition {
    let remedy = Some(remedy.to_string());
    Precondition { bearing: Bearing::Kernel, remedy, ..ok(name, found) }
}

/// What the program's file and, for a script, its interpreters say.
fn of_file(file: &ProgramFile) -> Vec<Precondition> {
    let mut checks: Vec<Precondition> = file
        .chain
        .windows(2)
        .map(|pair| {
            let [script, next] = pair else { unreachable!("windows of two") };
            note("script", format!("{} is run by {}", shown(script), shown(next)))
        })
        .collect();
    let Some(last) = file.chain.last().map(|path| shown(path)) else { return checks };
    checks.push(match &file.kind {
        FileKind::Program { unavailable_reason: Some(unavailable_reason), .. } => {
            kernel("program", format!("{last} {unavailable_reason}"), unavailable_reason.remedy())
        }
        FileKind::Program { loader, .. } => {
            let loader = loader.as_deref().unwrap_or_default();
            if Path::new(loader).exists() {
                ok("program", format!("{last} is a 64-bit program with glibc's loader {loader}"))
            } else {
                let found = format!("{last} needs the loader {loader}, which is not there");
                kernel("program", found, "install glibc, without which it cannot start")
            }
        }
        FileKind::Other => {
            let found = format!("{last} is neither an ELF program nor a script with a first line");
            kernel("program", found, "begin a script with a line such as `#!/bin/sh`")
        }
        FileKind::NoInterpreter(name) => {
            let found = format!("{last} names the interpreter {}, which is not there", clean(name));
            kernel("program", found, "install it, or correct the script's first line")
        }
        FileKind::TooManyScripts => {
            let found = format!("{last} is one script too many in a chain of interpreters");
            kernel("program", found, "name a program as the interpreter")
        }
        FileKind::CannotRead(error) => {
            note("program", format!("{last} cannot be read ({error}), so its kind is not known"))
        }
    });
    checks
}

fn shown(path: &Path) -> String {
    clean(&path.display().to_string())
}

/// Whether the program's C library is new enough for the accelerator's library.
fn c_library(library: &Path, loader: &Path) -> Option<Precondition> {
    let needed = newest_version(library)?;
    let c_library = loader.canonicalize().ok()?.with_file_name("libc.so.6");
    let there = newest_version(&c_library)?;
    let (path, [needed_at, there_at]) =
        (c_library.display(), [needed, there].map(|(major, minor)| format!("{major}.{minor}")));
    let found = format!("glibc {there_at} at {path}; the library needs {needed_at}");
    Some(match needed <= there {
        true => ok("C library", found),
        false => kernel(
            "C library",
            found,
            "take the library of nearmetal's package, which needs 2.17 only",
        ),
    })
}

/// The newest version of glibc among a library's names: what it needs, or what it is.
fn newest_version(path: &Path) -> Option<(u32, u32)> {
    let file = File::open(path).ok()?;
    let names = Elf::new(&file).ok()?.section(".dynstr").ok()??;
    let version = |name: &[u8]| {
        let version = std::str::from_utf8(name.strip_prefix(b"GLIBC_")?).ok()?;
        let (major, minor) = version.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    };
    names.split(|byte| *byte == 0).filter_map(version).max()
}

/// What the environment of this command says, in which the program would start.
fn of_environment(files: &HostFiles) -> Vec<Precondition> {
    let mut checks = vec![];
    match memory_file::of_size("nearmetal-explain", 4096) {
        Ok(_) => checks.push(ok("shared memory", "memory files can be made".to_string())),
        Err(error) => checks.push(kernel(
            "shared memory",
            format!("memory files (memfd_create) cannot be made: {error}"),
            "allow memfd_create in the container's system-call filter, or raise its memory limit",
        )),
    }
    checks.extend(variables());
    let status = files.text("/proc/self/status");
    match &status {
        None => checks.push(note(
            "/proc",
            "is not mounted: `accel status` and --stats see nothing, and descriptors that were \
             inherited stay on the kernel",
        )),
        Some(status) => checks.extend(of_status(status, geteuid().is_root())),
    }
    let root = |path: &str| std::fs::metadata(path).ok().map(|meta| inode(&meta));
    if let (Some(own), Some(first)) = (root("/"), root("/proc/1/root/."))
        && own != first
    {
        let text = "this command runs in a chroot: the library must be at its path in there";
        checks.push(note("root", text));
    }
    checks
}

fn inode(meta: &std::fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (meta.dev(), meta.ino())
}

/// What `LD_PRELOAD` and the accelerator's own variables say.
fn variables() -> Vec<Precondition> {
    let mut checks = vec![];
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|value| !value.is_empty()) {
        let text = format!("{} is kept, after the library", clean(&others.to_string_lossy()));
        checks.push(note("LD_PRELOAD", text));
    }
    let off = std::env::var(OFF.name()).unwrap_or_default();
    if !matches!(off.as_str(), "" | "0") {
        let found = format!("{} is {}", OFF.name(), clean(&off));
        checks.push(kernel("settings", found, "unset it, or set it to 0"));
    }
    if let Err(mistake) = profiles::check_environment() {
        checks.push(kernel("settings", mistake.to_string(), "correct it, or unset it"));
    }
    checks
}

/// What the kernel says of this process, which its programs inherit.
fn of_status(status: &str, is_root: bool) -> Vec<Precondition> {
    let field = |name: &str| {
        status.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    };
    let mut checks = vec![];
    if field("Seccomp") == Some("2") {
        let text = "a filter of system calls (seccomp) is in force: if it forbids a call of the \
                    library, that connection stays on the kernel";
        checks.push(note("system calls", text));
    }
    let capabilities = field("CapEff").and_then(|text| u64::from_str_radix(text, 16).ok());
    if is_root && capabilities.is_some_and(|set| set & 1 << CAP_SYS_PTRACE == 0) {
        let text = "root without CAP_SYS_PTRACE: `accel status` and --stats see only programs \
                    with no more capabilities than this";
        checks.push(note("capabilities", text));
    }
    checks
}

/// What holds for every program.
fn limits() -> Vec<String> {
    vec![
        "UDP, Unix sockets and pipes stay on the kernel: the accelerator carries TCP only.".into(),
        "The other end must run on this host under `nearmetal accel` too, as the same user (or \
         --group), in the same network namespace (or --share)."
            .into(),
        format!(
            "A connection of fewer than {AFTER_CALLS_DEFAULT} data calls ends before its ends look \
             for each other."
        ),
        "What the program does later is not known: io_uring for sockets, a filter of system calls \
         or system calls without libc return its sockets to the kernel; `accel status` says so."
            .into(),
    ]
}

fn to_text(explanation: &Explanation, width: usize) -> String {
    let width = width.saturating_sub(INDENT).max(20);
    let mut text = format!("{} {}\n", explanation.program, explanation.verdict.text());
    for check in &explanation.checks {
        let remedy = check.remedy.as_ref().map(|remedy| format!("what to do: {remedy}"));
        let mut head = format!("  {:<7} {:<14}", check.bearing.text(), check.name);
        for part in [Some(check.found.clone()), remedy].into_iter().flatten() {
            for line in wrap(&part, width) {
                text += format!("{head:<INDENT$}{line}").trim_end();
                text.push('\n');
                head.clear();
            }
        }
    }
    text += "for every program:\n";
    for limit in &explanation.limits {
        for (idx, line) in wrap(limit, width + INDENT - 4).iter().enumerate() {
            text += &format!("{}{line}\n", if idx == 0 { "  - " } else { "    " });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_a_restricted_root_is_noted() {
        let names = |status: &str, is_root| {
            let checks = of_status(status, is_root);
            assert!(checks.iter().all(|check| check.bearing == Bearing::Note));
            checks.into_iter().map(|check| check.name).collect::<Vec<_>>()
        };
        let all = "Seccomp:\t0\nCapEff:\t000001ffffffffff\n";
        assert!(names(all, true).is_empty());
        let few = "Seccomp:\t2\nCapEff:\t00000000a80425fb\n";
        assert_eq!(names(few, true), ["system calls", "capabilities"]);
        assert_eq!(names(few, false), ["system calls"]);
        assert!(names("CapEff:\tx\n", true).is_empty());
    }

    #[test]
    fn versions_of_glibc_are_compared_as_numbers() {
        let own = std::env::current_exe().unwrap();
        let Some(needed) = newest_version(&own) else { return };
        assert!(needed > (2, 2) && needed < (3, 0), "{needed:?}");
        assert_eq!(newest_version(Path::new("/etc/passwd")), None);
    }

    #[test]
    fn text_wraps_below_its_column() {
        let checks = vec![kernel("program", "word ".repeat(30), "rebuild it")];
        let text = to_text(&Explanation::new("redis".into(), checks, limits()), 60);
        assert!(text.starts_with("redis would stay on the kernel\n  kernel  program       word"));
        assert!(text.contains("\n                        what to do: rebuild it\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert!(text.contains("\n  - UDP, "), "{text}");
    }
}
