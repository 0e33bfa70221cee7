//! What is known of a program before it runs under the accelerator: whether the loader will put a
//! library in front of it, and whether the program calls that library at all.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::{geteuid, getgid, getuid};

/// Scripts whose interpreters are scripts: as deep as the kernel follows.
const SCRIPTS_MAX: u32 = 4;

/// Why a program stays on the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// Nothing is loaded at its start.
    Static,
    /// Go's run time makes its own system calls.
    Go,
    /// It gains rights by its file, so the loader trusts nothing from the environment.
    Privileged,
    /// It is loaded by another loader than glibc's.
    OtherLoader,
    /// It is made for another kind of machine than the library.
    OtherMachine,
}

impl Obstacle {
    /// The reason, as a clause that follows the program's name.
    pub fn words(self) -> &'static str {
        match self {
            Obstacle::Static => {
                "is linked statically and makes its system calls past every library"
            }
            Obstacle::Go => "is a Go program, whose sockets are system calls past every library",
            Obstacle::Privileged => {
                "gains rights by its file (setuid or capabilities), for which the loader \
                 preloads nothing"
            }
            Obstacle::OtherLoader => "is not linked against glibc, for which the accelerator is",
            Obstacle::OtherMachine => "is made for another machine than the accelerator's library",
        }
    }
}

/// The file that `name` starts: a path, or found on the search path.
///
/// # Errors
/// `NotFound` or `PermissionDenied`, as execvp(3) has it.
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

fn executable(path: &Path) -> io::Result<PathBuf> {
    let meta = path.metadata()?;
    if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(path.to_path_buf())
}

/// Why the program in this file stays on the kernel; none if it can be accelerated, or if the file
/// cannot be read, as then nothing is known. A script is as its interpreter.
pub fn obstacle(path: &Path) -> Option<Obstacle> {
    let mut path = path.to_path_buf();
    for _ in 0..SCRIPTS_MAX {
        let file = File::open(&path).ok()?;
        let mut start = [0; 256];
        let length = read_some(&file, &mut start);
        match interpreter(&start[..length]) {
            Some(next) => path = next,
            None => {
                return Elf::read(&file)
                    .and_then(|elf| elf.obstacle())
                    .or_else(|| gains_rights(&path, &file).then_some(Obstacle::Privileged));
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

/// The program that a script's first line names. `env` is looked through, as it only searches.
fn interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_whitespace();
    let program = PathBuf::from(words.next()?);
    if program.file_name() != Some(OsStr::new("env")) {
        return Some(program);
    }
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    find(OsStr::new(name)).ok()
}

/// Whether the kernel marks the program as one that gains rights (`AT_SECURE`).
fn gains_rights(path: &Path, file: &File) -> bool {
    const SETUID: u32 = 0o4000;
    const SETGID_AND_EXECUTABLE: u32 = 0o2010;
    let Ok(meta) = file.metadata() else { return false };
    let by_user = meta.mode() & SETUID != 0 && meta.uid() != getuid().as_raw();
    let by_group = meta.mode() & SETGID_AND_EXECUTABLE == SETGID_AND_EXECUTABLE
        && meta.gid() != getgid().as_raw();
    // Root has them anyway.
    let by_capability = !geteuid().is_root()
        && rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64]).is_ok();
    by_user || by_group || by_capability
}

/// What is of interest in a program's ELF headers. Anything may stand in the file: what makes no
/// sense is read as absent.
#[derive(Debug, PartialEq, Eq)]
struct Elf {
    same_machine: bool,
    loader: Option<String>,
    is_go: bool,
}

impl Elf {
    /// Reads the headers; none if it is no ELF file.
    fn read(file: &File) -> Option<Elf> {
        let mut head = [0; 64];
        file.read_exact_at(&mut head, 0).ok()?;
        if !head.starts_with(b"\x7fELF") {
            return None;
        }
        // Class 64 bit and little endian, as every machine that the library is built for.
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

    fn obstacle(&self) -> Option<Obstacle> {
        match &self.loader {
            _ if !self.same_machine => Some(Obstacle::OtherMachine),
            _ if self.is_go => Some(Obstacle::Go),
            None => Some(Obstacle::Static),
            Some(loader) if !loader.contains("/ld-linux") => Some(Obstacle::OtherLoader),
            Some(_) => None,
        }
    }
}

/// A little-endian number of `length` bytes at `at`; 0 beyond the end.
fn number(from: &[u8], at: usize, length: usize) -> u64 {
    let bytes = from.get(at..at + length).unwrap_or_default();
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn bytes(file: &File, at: u64, length: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

/// The entries of a header table: `shape` holds the size of one and their number.
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
    fn this_program_can_be_accelerated_unless_it_is_static() {
        let own = std::env::current_exe().unwrap();
        let expected =
            if cfg!(target_feature = "crt-static") { Some(Obstacle::Static) } else { None };
        assert_eq!(obstacle(&own), expected);
    }

    #[test]
    fn a_program_without_a_loader_is_static_and_one_of_go_is_known_by_its_sections() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let programs = usize::try_from(number(&own, 32, 8)).unwrap();
        let mut without = own.clone();
        for index in 0..usize::try_from(number(&own, 56, 2)).unwrap() {
            let at = programs + index * 56;
            if number(&own, at, 4) == 3 {
                without[at] = 0;
            }
        }
        assert_eq!(obstacle(file_of(&without).path()), Some(Obstacle::Static));
        let mut of_go = own.clone();
        // The names of the sections are last in the file; one of the same length is overwritten.
        let at = own.windows(15).rposition(|name| name == b".gnu.version_r\0").unwrap();
        of_go[at..at + 15].copy_from_slice(b".go.buildinfo\0\0");
        assert_eq!(obstacle(file_of(&of_go).path()), Some(Obstacle::Go));
        let mut other = own;
        other[18] ^= 1;
        assert_eq!(obstacle(file_of(&other).path()), Some(Obstacle::OtherMachine));
    }

    #[test]
    fn musl_has_another_loader() {
        let elf = |loader: &str| Elf {
            same_machine: true,
            loader: Some(loader.to_string()),
            is_go: false,
        };
        assert_eq!(elf("/lib/ld-musl-x86_64.so.1").obstacle(), Some(Obstacle::OtherLoader));
        for loader in ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"] {
            assert_eq!(elf(loader).obstacle(), None);
        }
    }

    #[test]
    fn scripts_are_as_their_interpreters() {
        let shell = find(OsStr::new("sh")).unwrap();
        assert_eq!(interpreter(b"#!/bin/sh -e\necho"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(interpreter(b"#! /usr/bin/env -S A=b sh -e\n"), Some(shell));
        assert_eq!(interpreter(b"\x7fELF"), None);
        let own = std::env::current_exe().unwrap();
        let script = file_of(format!("#!{}\n", own.display()).as_bytes());
        assert_eq!(obstacle(script.path()), obstacle(&own));
        assert_eq!(obstacle(file_of(b"#!").path()), None, "nothing is known");
    }

    #[test]
    fn headers_that_make_no_sense_are_read_as_absent() {
        let mut head = vec![0xff; 4096];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[18..20].copy_from_slice(&[62, 0]);
        let _ = obstacle(file_of(&head).path());
        for length in [0, 4, 63, 64] {
            let _ = obstacle(file_of(&head[..length]).path());
        }
    }

    #[test]
    fn what_cannot_be_started_is_said_as_the_shell_does() {
        let kind = |name: &str| find(OsStr::new(name)).unwrap_err().kind();
        assert_eq!(kind("no-program-of-this-name"), io::ErrorKind::NotFound);
        assert_eq!(kind("/etc/passwd"), io::ErrorKind::PermissionDenied);
        assert_eq!(kind("/etc"), io::ErrorKind::PermissionDenied);
    }
}
