//! Finds a program and reads its ELF headers before it is started under the accelerator: whether
//! the loader preloads a library for it, and whether the program calls that library at all.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::{geteuid, getgid, getuid};

use crate::exit::{Exit, Stop};

/// Longest chain of scripts whose interpreters are scripts: the kernel's own limit.
const SCRIPTS_MAX: u32 = 4;

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
    /// It is built for another architecture than the library.
    #[error("is built for another machine architecture than the accelerator's library")]
    OtherMachine,
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
    let mut path = path.to_path_buf();
    for _ in 0..SCRIPTS_MAX {
        let file = File::open(&path).ok()?;
        let mut start = [0; 256];
        let length = read_some(&file, &mut start);
        match interpreter(&start[..length]) {
            Some(next) => path = next,
            None => {
                return Elf::read(&file).and_then(|elf| elf.not_accelerated()).or_else(|| {
                    gains_privileges(&path, &file).then_some(NotAccelerated::Privileged)
                });
            }
        }
    }
    None
}

fn read_some(mut file: &File, buffer: &mut [u8]) -> usize {
    let mut length = 0;
    while let Ok(read @ 1..) = file.read(&mut buffer[length..]) {
        length += read;
    }
    length
}

/// The program that a script's first line names; for `env`, the program that `env` searches for.
fn interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let mut parts = line.split_whitespace();
    let program = PathBuf::from(parts.next()?);
    if program.file_name() != Some(OsStr::new("env")) {
        return Some(program);
    }
    let name = parts.find(|part| !part.starts_with('-') && !part.contains('='))?;
    find(OsStr::new(name)).ok()
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

/// Parts of a program's ELF headers. The file is not trusted: invalid values are read as absent.
#[derive(Debug, PartialEq, Eq)]
struct Elf {
    same_machine: bool,
    loader: Option<String>,
    is_go: bool,
}

impl Elf {
    /// Reads the headers; none if it is not an ELF file.
    fn read(file: &File) -> Option<Elf> {
        let mut head = [0; 64];
        file.read_exact_at(&mut head, 0).ok()?;
        if !head.starts_with(b"\x7fELF") {
            return None;
        }
        // The library is built for 64-bit little-endian machines only.
        let machine = match std::env::consts::ARCH {
            "x86_64" => 62,
            "aarch64" => 183,
            "riscv64" => 243,
            _ => 0,
        };
        if head[4..6] != [2, 1] || number(&head, 18, 2) != machine {
            return Some(Elf { same_machine: false, loader: None, is_go: false });
        }
        let programs = table(file, number(&head, 32, 8), &head[54..58]);
        let loader = programs.iter().find(|entry| number(entry, 0, 4) == 3).and_then(|entry| {
            let text = bytes(file, number(entry, 8, 8), number(entry, 32, 8).min(4096))?;
            let text = String::from_utf8_lossy(&text).trim_end_matches('\0').to_string();
            Some(text)
        });
        let sections = table(file, number(&head, 40, 8), &head[58..62]);
        let names = usize::try_from(number(&head, 62, 2)).ok().and_then(|at| sections.get(at));
        let names = names
            .and_then(|entry| bytes(file, number(entry, 24, 8), number(entry, 32, 8).min(1 << 20)));
        let names = names.unwrap_or_default();
        let is_go = sections.iter().any(|entry| {
            let at = usize::try_from(number(entry, 0, 4)).unwrap_or(usize::MAX);
            let name = names.get(at..).and_then(|rest| rest.split(|byte| *byte == 0).next());
            matches!(name, Some(b".go.buildinfo" | b".note.go.buildid"))
        });
        Some(Elf { same_machine: true, loader, is_go })
    }

    fn not_accelerated(&self) -> Option<NotAccelerated> {
        match &self.loader {
            _ if !self.same_machine => Some(NotAccelerated::OtherMachine),
            _ if self.is_go => Some(NotAccelerated::Go),
            None => Some(NotAccelerated::Static),
            Some(loader) if !loader.contains("/ld-linux") => Some(NotAccelerated::OtherLoader),
            Some(_) => None,
        }
    }
}

/// The little-endian number of `length` bytes at offset `at`; 0 beyond the end.
fn number(from: &[u8], at: usize, length: usize) -> u64 {
    let bytes = from.get(at..at + length).unwrap_or_default();
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn bytes(file: &File, at: u64, length: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

/// The entries of a header table; `shape` is the size of an entry and the number of entries.
fn table(file: &File, at: u64, shape: &[u8]) -> Vec<Vec<u8>> {
    let (size, count) = (number(shape, 0, 2), number(shape, 2, 2));
    let entry = |index: u64| bytes(file, at.checked_add(index * size)?, size);
    (0..count).map_while(entry).collect()
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
        let programs = usize::try_from(number(&own, 32, 8)).unwrap();
        let mut without_loader = own.clone();
        for index in 0..usize::try_from(number(&own, 56, 2)).unwrap() {
            let at = programs + index * 56;
            if number(&own, at, 4) == 3 {
                without_loader[at] = 0;
            }
        }
        assert_eq!(not_accelerated(file_of(&without_loader).path()), Some(NotAccelerated::Static));
        let mut of_go = own.clone();
        // The names of the sections are last in the file; one of the same length is overwritten.
        let at = own.windows(15).rposition(|name| name == b".gnu.version_r\0").unwrap();
        of_go[at..at + 15].copy_from_slice(b".go.buildinfo\0\0");
        assert_eq!(not_accelerated(file_of(&of_go).path()), Some(NotAccelerated::Go));
        let mut other = own;
        other[18] ^= 1;
        assert_eq!(not_accelerated(file_of(&other).path()), Some(NotAccelerated::OtherMachine));
    }

    #[test]
    fn musl_loader_is_recognised() {
        let elf = |loader: &str| Elf {
            same_machine: true,
            loader: Some(loader.to_string()),
            is_go: false,
        };
        assert_eq!(
            elf("/lib/ld-musl-x86_64.so.1").not_accelerated(),
            Some(NotAccelerated::OtherLoader)
        );
        for loader in ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"] {
            assert_eq!(elf(loader).not_accelerated(), None);
        }
    }

    #[test]
    fn script_is_judged_by_its_interpreter() {
        let shell = find(OsStr::new("sh")).unwrap();
        assert_eq!(interpreter(b"#!/bin/sh -e\necho"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(interpreter(b"#! /usr/bin/env -S A=b sh -e\n"), Some(shell));
        assert_eq!(interpreter(b"\x7fELF"), None);
        let own = std::env::current_exe().unwrap();
        let script = file_of(format!("#!{}\n", own.display()).as_bytes());
        assert_eq!(not_accelerated(script.path()), not_accelerated(&own));
        assert_eq!(not_accelerated(file_of(b"#!").path()), None, "unknown");
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
