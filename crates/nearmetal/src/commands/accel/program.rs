//! Finds a program and reads its file before it is started under the accelerator. Does the loader
//! preload a library for it, and does the program call that library at all?

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nm_vm::elf::Elf;
use rustix::process::{geteuid, getgid, getuid};

use crate::exit::{Exit, Stop};

/// Longest chain of scripts whose interpreters are scripts: the kernel's own limit.
const SCRIPTS_MAX: usize = 4;

/// Sanitizers, and the library that each needs in front of all others.
const SANITIZERS: [(&str, &[&str]); 3] = [
    ("AddressSanitizer", &["libasan.so", "libclang_rt.asan"]),
    ("HWAddressSanitizer", &["libhwasan.so", "libclang_rt.hwasan"]),
    ("MemorySanitizer", &["libmsan.so", "libclang_rt.msan"]),
];

/// Why a program cannot be accelerated, as a clause that follows the program's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAccelerated {
    /// It has no dynamic loader.
    #[error("is linked statically and makes its system calls without a library")]
    Static,
    /// Go's runtime makes its own system calls.
    #[error("is a Go program, which makes its system calls without a library")]
    Go,
    /// The loader ignores the environment of a program that gains privileges from its file.
    #[error(
        "gains privileges from its file (setuid or capabilities), for which the loader preloads \
         nothing"
    )]
    Privileged,
    /// It has another loader than glibc's.
    #[error("is not linked against glibc, which the accelerator's library needs")]
    OtherLoader,
    /// A sanitizer's runtime ends the program if another library is loaded before it.
    #[error("is built with {0}, whose runtime allows no preloaded library")]
    Sanitizer(&'static str),
    /// It is a 32-bit program.
    #[error("is a 32-bit program, and the accelerator's library has 64 bits")]
    Bits32,
    /// It is built for another architecture than the library.
    #[error("is built for another machine architecture than the accelerator's library")]
    OtherMachine,
}

impl NotAccelerated {
    /// Whether the program would not start, or would print an error, with the library preloaded.
    /// In all other cases its child processes may still be accelerated.
    pub fn refuses_library(self) -> bool {
        matches!(self, NotAccelerated::OtherLoader | NotAccelerated::Sanitizer(_))
    }

    /// What to do.
    pub fn remedy(self) -> &'static str {
        match self {
            NotAccelerated::Static => "link it dynamically against glibc (without `-static`)",
            NotAccelerated::Go => "none: no library sees the system calls of Go programs",
            NotAccelerated::Privileged => {
                "start it as the user whose privileges it gains, or let the service manager give \
                 them (`AmbientCapabilities=` of systemd)"
            }
            NotAccelerated::OtherLoader => "build it for glibc, or take a glibc-based image",
            NotAccelerated::Sanitizer(_) => "accelerate a build without the sanitizer",
            NotAccelerated::Bits32 | NotAccelerated::OtherMachine => {
                "take a build for this machine's 64-bit architecture"
            }
        }
    }
}

/// What is known of a program's file.
#[derive(Debug)]
pub struct ProgramFile {
    /// Scripts, each with the next one or the program as its interpreter; the last file is what
    /// the kernel executes.
    pub chain: Vec<PathBuf>,
    /// What the last file is.
    pub kind: FileKind,
}

/// What a file is that the kernel would execute.
#[derive(Debug)]
pub enum FileKind {
    /// An ELF program, with its dynamic loader.
    Program {
        /// Path of the loader; none in a static program.
        loader: Option<String>,
        /// Why it cannot be accelerated.
        unavailable_reason: Option<NotAccelerated>,
    },
    /// Neither a script nor an ELF program.
    Other,
    /// The interpreter that a script names is not there.
    NoInterpreter(String),
    /// More scripts in a chain than the kernel follows.
    TooManyScripts,
    /// This user may not read it.
    CannotRead(io::Error),
}

/// The file of the program `name`: a path, or a name to be found in `PATH`.
///
/// # Errors
/// `NotFound` or `PermissionDenied`, as from execvp(3).
pub fn find(name: &OsStr) -> io::Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return executable(Path::new(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut error = io::Error::from(io::ErrorKind::NotFound);
    for folder in std::env::split_paths(&path) {
        match executable(&folder.join(name)) {
            Ok(found) => return Ok(found),
            Err(other) if other.kind() == io::ErrorKind::PermissionDenied => error = other,
            Err(_) => {}
        }
    }
    Err(error)
}

/// The error of a program that could not be started, with the exit code that a shell gives.
pub fn not_started(name: &OsStr, error: &io::Error) -> anyhow::Error {
    let name = name.to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound => {
            Stop::with(Exit::NOT_FOUND, format!("there is no program `{name}`"))
        }
        _ => Stop::with(Exit::NOT_EXECUTABLE, format!("cannot execute {name}: {error}")),
    }
}

fn executable(path: &Path) -> io::Result<PathBuf> {
    let meta = path.metadata()?;
    if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(path.to_path_buf())
}

/// Why the program in this file cannot be accelerated; none if it can, or if the file cannot be
/// read. For a script this is a property of its interpreter.
pub fn not_accelerated(path: &Path) -> Option<NotAccelerated> {
    match inspect(path).kind {
        FileKind::Program { unavailable_reason, .. } => unavailable_reason,
        _ => None,
    }
}

/// Reads a program's file, and for a script the files of its interpreters.
pub fn inspect(path: &Path) -> ProgramFile {
    let mut chain = vec![path.to_path_buf()];
    let kind = loop {
        let last = &chain[chain.len() - 1];
        let file = match File::open(last) {
            Ok(file) => file,
            Err(error) => break FileKind::CannotRead(error),
        };
        let mut start = [0; 256];
        let length = read_some(&file, &mut start);
        match interpreter(&start[..length]) {
            Ok(Some(_)) if chain.len() > SCRIPTS_MAX => break FileKind::TooManyScripts,
            Ok(Some(next)) => chain.push(next),
            Ok(None) => break kind_of(last, &file, &start[..length]),
            Err(name) => break FileKind::NoInterpreter(name),
        }
    };
    ProgramFile { chain, kind }
}

fn read_some(mut file: &File, buffer: &mut [u8]) -> usize {
    let mut length = 0;
    while let Ok(read @ 1..) = file.read(&mut buffer[length..]) {
        length += read;
    }
    length
}

/// The program that a script's first line names; for `env`, the program that `env` searches for.
/// None if it is no script.
///
/// # Errors
/// The name of an interpreter that is not there.
fn interpreter(start: &[u8]) -> Result<Option<PathBuf>, String> {
    let Some(line) = start.strip_prefix(b"#!").and_then(|it| it.split(|b| *b == b'\n').next())
    else {
        return Ok(None);
    };
    let line = String::from_utf8_lossy(line);
    let mut parts = line.split_whitespace();
    let program = PathBuf::from(parts.next().unwrap_or_default());
    if program.file_name() != Some(OsStr::new("env")) {
        let found = executable(&program).map(Some);
        return found.map_err(|_| program.display().to_string());
    }
    let name = parts.find(|part| !part.starts_with('-') && !part.contains('='));
    let name = name.unwrap_or("env");
    find(OsStr::new(name)).map(Some).map_err(|_| name.to_string())
}

/// Whether the kernel sets `AT_SECURE` for the program because it gains privileges from its file.
fn gains_privileges(path: &Path, file: &File) -> bool {
    const SETUID: u32 = 0o4000;
    const SETGID_AND_EXECUTABLE: u32 = 0o2010;
    let Ok(meta) = file.metadata() else { return false };
    let by_user = meta.mode() & SETUID != 0 && meta.uid() != getuid().as_raw();
    let by_group = meta.mode() & SETGID_AND_EXECUTABLE == SETGID_AND_EXECUTABLE
        && meta.gid() != getgid().as_raw();
    // Root has all capabilities already.
    let by_capability = !geteuid().is_root()
        && rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64]).is_ok();
    by_user || by_group || by_capability
}

/// What a file is that is no script and begins with `start`. It is not trusted: invalid headers
/// are read as absent.
fn kind_of(path: &Path, file: &File, start: &[u8]) -> FileKind {
    const BITS_32: u8 = 1;
    if !start.starts_with(b"\x7fELF") {
        return FileKind::Other;
    }
    let elf = match Elf::new(file) {
        Ok(elf) if elf.machine() == own_machine() => elf,
        _ => {
            let is_small = start.get(4) == Some(&BITS_32);
            let unavailable_reason =
                if is_small { NotAccelerated::Bits32 } else { NotAccelerated::OtherMachine };
            return FileKind::Program {
                loader: None,
                unavailable_reason: Some(unavailable_reason),
            };
        }
    };
    let loader = elf.interpreter().ok().flatten();
    let unavailable_reason = match &loader {
        _ if is_go(&elf) => Some(NotAccelerated::Go),
        None => Some(NotAccelerated::Static),
        Some(loader) if !loader.contains("/ld-linux") => Some(NotAccelerated::OtherLoader),
        Some(_) if gains_privileges(path, file) => Some(NotAccelerated::Privileged),
        Some(_) => sanitizer(&elf).map(NotAccelerated::Sanitizer),
    };
    FileKind::Program { loader, unavailable_reason }
}

/// The architecture of this program, and of the library beside it, as ELF has it.
fn own_machine() -> u16 {
    match std::env::consts::ARCH {
        "x86_64" => 62,
        "aarch64" => 183,
        "riscv64" => 243,
        _ => 0,
    }
}

fn is_go(elf: &Elf<'_, File>) -> bool {
    let has = |name: &str| elf.section(name).is_ok_and(|section| section.is_some());
    has(".go.buildinfo") || has(".note.go.buildid")
}

/// The sanitizer whose runtime the program loads before all other libraries.
fn sanitizer(elf: &Elf<'_, File>) -> Option<&'static str> {
    let libraries = elf.needed_libraries().unwrap_or_default();
    let needs = |names: &[&str]| libraries.iter().any(|it| names.iter().any(|n| it.starts_with(n)));
    SANITIZERS.iter().find(|(_, names)| needs(names)).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file_of(content: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        file
    }

    #[test]
    fn own_program_is_accelerated_unless_static() {
        let own = std::env::current_exe().unwrap();
        let expected =
            if cfg!(target_feature = "crt-static") { Some(NotAccelerated::Static) } else { None };
        assert_eq!(not_accelerated(&own), expected);
    }

    #[test]
    fn static_go_and_foreign_programs_are_recognised() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let number = |at: usize| u16::from_le_bytes([own[at], own[at + 1]]);
        let mut without_loader = own.clone();
        for index in 0..usize::from(number(56)) {
            let at = usize::from(number(32)) + index * 56;
            if number(at) == 3 {
                without_loader[at] = 0;
            }
        }
        assert_eq!(not_accelerated(file_of(&without_loader).path()), Some(NotAccelerated::Static));
        let mut of_go = own.clone();
        // The names of the sections are last in the file; one of the same length is overwritten.
        let at = own.windows(15).rposition(|name| name == b".gnu.version_r\0").unwrap();
        of_go[at..at + 15].copy_from_slice(b".go.buildinfo\0\0");
        assert_eq!(not_accelerated(file_of(&of_go).path()), Some(NotAccelerated::Go));
        let mut small = own.clone();
        small[4] = 1;
        assert_eq!(not_accelerated(file_of(&small).path()), Some(NotAccelerated::Bits32));
        let mut other = own;
        other[18] ^= 1;
        assert_eq!(not_accelerated(file_of(&other).path()), Some(NotAccelerated::OtherMachine));
    }

    #[test]
    fn other_loaders_and_sanitizers_are_recognised() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let replaced = |old: &[u8], new: &[u8]| {
            let mut bytes = own.clone();
            let at = own.windows(old.len()).position(|it| it == old).unwrap();
            bytes[at..at + old.len()].copy_from_slice(new);
            not_accelerated(file_of(&bytes).path())
        };
        assert_eq!(replaced(b"/ld-linux", b"/ld-musl-"), Some(NotAccelerated::OtherLoader));
        let sanitizer = replaced(b"libgcc_s.so", b"libasan.so\0");
        assert_eq!(sanitizer, Some(NotAccelerated::Sanitizer("AddressSanitizer")));
        assert!(sanitizer.unwrap().refuses_library());
    }

    #[test]
    fn script_is_judged_by_its_interpreter() {
        let shell = find(OsStr::new("sh")).unwrap();
        assert_eq!(interpreter(b"#!/bin/sh -e\necho"), Ok(Some(PathBuf::from("/bin/sh"))));
        assert_eq!(interpreter(b"#! /usr/bin/env -S A=b sh -e\n"), Ok(Some(shell)));
        assert_eq!(interpreter(b"\x7fELF"), Ok(None));
        assert_eq!(interpreter(b"#!/no/shell -e\n"), Err("/no/shell".to_string()));
        let own = std::env::current_exe().unwrap();
        let script = file_of(format!("#!{}\n", own.display()).as_bytes());
        assert_eq!(not_accelerated(script.path()), not_accelerated(&own));
        assert_eq!(not_accelerated(file_of(b"#!").path()), None, "unknown");
        let script = tempfile::tempdir().unwrap();
        let path = script.path().join("loop");
        std::fs::write(&path, format!("#!{}\n", path.display())).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let ProgramFile { chain, kind } = inspect(&path);
        assert!(matches!(kind, FileKind::TooManyScripts) && chain.len() == SCRIPTS_MAX + 1);
    }

    #[test]
    fn invalid_headers_are_read_as_absent() {
        let mut head = vec![0xff; 4096];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[18..20].copy_from_slice(&[62, 0]);
        let _ = not_accelerated(file_of(&head).path());
        for length in [0, 4, 63, 64] {
            let _ = not_accelerated(file_of(&head[..length]).path());
        }
    }

    #[test]
    fn missing_and_non_executable_files_have_distinct_errors() {
        let kind = |name: &str| find(OsStr::new(name)).unwrap_err().kind();
        assert_eq!(kind("no-program-of-this-name"), io::ErrorKind::NotFound);
        assert_eq!(kind("/etc/passwd"), io::ErrorKind::PermissionDenied);
        assert_eq!(kind("/etc"), io::ErrorKind::PermissionDenied);
    }
}
