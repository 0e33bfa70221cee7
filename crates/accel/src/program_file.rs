//! What a program's file tells before the program is started: whether its loader can preload this
//! library. One that cannot would not start: musl's loader lacks glibc's functions, and the
//! runtime of AddressSanitizer wants to be the first library.
//!
//! Everything here may run in the child of a vfork: it allocates nothing and changes no memory but
//! the stack. The file is not trusted.

use std::ffi::{CStr, c_char, c_int};

use crate::kernel;

/// Longest chain of scripts whose interpreters are scripts: the kernel's own limit.
const SCRIPTS_MAX: u32 = 4;

/// Most headers of a program that are read.
const HEADERS_MAX: u64 = 64;

/// Most entries of a dynamic section that are read.
const DYNAMIC_MAX: u64 = 512;

/// Part of the name of glibc's loader, on all processors.
const GLIBC_LOADER: &[u8] = b"/ld-linux";

/// Libraries that must be the first, by the beginning of their names.
const FIRST_LIBRARIES: [&[u8]; 2] = [b"libasan.so", b"libclang_rt.asan"];

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// An open file, closed when it is dropped.
struct File(c_int);

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's own.
        unsafe { kernel::close(self.0) };
    }
}

impl File {
    /// Opens the file that execveat(2) would execute. None if that fails, as for a file that may
    /// only be executed.
    ///
    /// # Safety
    /// `path` is a string.
    unsafe fn open(folder: c_int, path: *const c_char, flags: c_int) -> Option<File> {
        // SAFETY: the path is a string, which the caller guarantees.
        let is_folder = flags & libc::AT_EMPTY_PATH != 0 && unsafe { *path } == 0;
        let how = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
        let folder_word = folder as isize as usize;
        // SAFETY: plain numbers, and a string.
        let fd = unsafe {
            if is_folder {
                kernel::fcntl(folder, libc::F_DUPFD_CLOEXEC, 0)
            } else {
                let number = libc::SYS_openat;
                kernel::call(number, folder_word, path.addr(), how as usize, 0, 0, 0) as c_int
            }
        };
        (fd >= 0).then_some(File(fd))
    }

    /// Reads bytes at an offset; returns how many.
    fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        let Ok(offset) = i64::try_from(offset) else { return 0 };
        // SAFETY: the buffer is live and this long.
        let count =
            unsafe { kernel::pread(self.0, buffer.as_mut_ptr().cast(), buffer.len(), offset) };
        usize::try_from(count).unwrap_or(0)
    }

    fn read_exactly<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let mut buffer = [0; N];
        (self.read(&mut buffer, offset) == N).then_some(buffer)
    }
}

/// One header of a program.
struct Header {
    kind: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

/// The little-endian number of `N` bytes at `at`; 0 beyond the end.
fn number<const N: usize>(from: &[u8], at: usize) -> u64 {
    let bytes = from.get(at..at + N).unwrap_or_default();
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Whether the loader of the program cannot preload this library, so that the program would not
/// start with it, or would print that it does not have it. For a script this is a property of its
/// interpreter. The arguments are those of execveat(2).
///
/// # Safety
/// `path` is null or a string.
pub unsafe fn refuses_library(folder: c_int, path: *const c_char, flags: c_int) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: the path is a string, which the caller guarantees.
    let Some(mut file) = (unsafe { File::open(folder, path, flags) }) else { return false };
    for _ in 0..SCRIPTS_MAX {
        let mut start = [0; 256];
        let length = file.read(&mut start, 0);
        let Some(interpreter) = interpreter(&mut start, length) else {
            return refuses(&file, &start[..length]);
        };
        // SAFETY: a string.
        let next = unsafe { File::open(libc::AT_FDCWD, interpreter.as_ptr(), 0) };
        let Some(next) = next else { return false };
        file = next;
    }
    false
}

/// The program that a script's first line names.
fn interpreter(start: &mut [u8; 256], length: usize) -> Option<&CStr> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let line = start[..length].strip_prefix(b"#!")?;
    let begin = 2 + line.iter().position(|byte| !is_blank(byte))?;
    let bytes = start[begin..length].iter().position(|byte| is_blank(byte) || *byte == b'\n')?;
    start[begin + bytes] = 0;
    CStr::from_bytes_until_nul(&start[begin..]).ok()
}

/// The same of a file that begins with `start`.
fn refuses(file: &File, start: &[u8]) -> bool {
    if !start.starts_with(b"\x7fELF") {
        return false;
    }
    let machine = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    if number::<1>(start, 4) != 2 || number::<2>(start, 18) != machine {
        return true;
    }
    let (at, size, count) =
        (number::<8>(start, 32), number::<2>(start, 54), number::<2>(start, 56));
    let headers = || {
        (0..count.min(HEADERS_MAX)).map_while(move |idx| {
            let entry: [u8; 56] = file.read_exactly(at.checked_add(idx * size)?)?;
            Some(Header {
                kind: number::<4>(&entry, 0) as u32,
                offset: number::<8>(&entry, 8),
                address: number::<8>(&entry, 16),
                bytes: number::<8>(&entry, 32),
            })
        })
    };
    // A static program ignores the variable, and those that it starts may use it.
    let Some(loader) = headers().find(|it| it.kind == PT_INTERP) else { return false };
    let mut name = [0; 256];
    let length = file.read(&mut name, loader.offset).min(loader.bytes as usize);
    let is_glibc = name[..length].windows(GLIBC_LOADER.len()).any(|it| it == GLIBC_LOADER);
    !is_glibc || needs_first_place(file, headers)
}

/// Whether the program needs a library that must be loaded before all others.
fn needs_first_place<I: Iterator<Item = Header>>(file: &File, headers: impl Fn() -> I) -> bool {
    let Some(dynamic) = headers().find(|it| it.kind == PT_DYNAMIC) else { return false };
    let entries = || {
        (0..DYNAMIC_MAX.min(dynamic.bytes / 16)).map_while(|idx| {
            let entry: [u8; 16] = file.read_exactly(dynamic.offset.checked_add(16 * idx)?)?;
            let tag = number::<8>(&entry, 0);
            (tag != 0).then(|| (tag, number::<8>(&entry, 8)))
        })
    };
    let Some((_, names)) = entries().find(|(tag, _)| *tag == DT_STRTAB) else { return false };
    let is_there = |it: &Header| it.kind == PT_LOAD && names.wrapping_sub(it.address) < it.bytes;
    let Some(segment) = headers().find(is_there) else { return false };
    let start = segment.offset.saturating_add(names - segment.address);
    // The compilers put the runtime before all other libraries.
    entries().filter(|(tag, _)| *tag == DT_NEEDED).take(4).any(|(_, name)| {
        let mut text = [0; 24];
        let length = file.read(&mut text, start.saturating_add(name));
        FIRST_LIBRARIES.iter().any(|first| text[..length].starts_with(first))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::io::Write as _;
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;

    fn refuses_path(path: &Path) -> bool {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a string.
        unsafe { refuses_library(libc::AT_FDCWD, path.as_ptr(), 0) }
    }

    fn file_of(content: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        file
    }

    fn replaced(from: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
        assert_eq!(old.len(), new.len());
        let at = from.windows(old.len()).position(|it| it == old).expect("the bytes are there");
        let mut to = from.to_vec();
        to[at..at + old.len()].copy_from_slice(new);
        to
    }

    #[test]
    fn programs_of_other_loaders_and_machines_refuse_the_library() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(!refuses_path(file_of(&own).path()));
        let of_musl = replaced(&own, b"/ld-linux", b"/ld-musl-");
        assert!(refuses_path(file_of(&of_musl).path()));
        let mut other_machine = own.clone();
        other_machine[18] ^= 1;
        assert!(refuses_path(file_of(&other_machine).path()));
        let sanitized = replaced(&own, b"libgcc_s.so", b"libasan.so\0");
        assert!(refuses_path(file_of(&sanitized).path()));
    }

    #[test]
    fn scripts_are_judged_by_their_interpreters() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let of_musl = file_of(&replaced(&own, b"/ld-linux", b"/ld-musl-"));
        let script = file_of(format!("#! {} -x\n", of_musl.path().display()).as_bytes());
        assert!(refuses_path(script.path()));
        assert!(!refuses_path(file_of(b"#!/bin/sh\n").path()));
        let loop_of_scripts = file_of(b"");
        let line = format!("#!{}\n", loop_of_scripts.path().display());
        std::fs::write(loop_of_scripts.path(), line).unwrap();
        assert!(!refuses_path(loop_of_scripts.path()));
    }

    #[test]
    fn invalid_files_refuse_nothing() {
        assert!(!refuses_path(Path::new("/no-such-file")));
        let mut head = vec![0xff; 4096];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[18..20].copy_from_slice(&[if cfg!(target_arch = "aarch64") { 183 } else { 62 }, 0]);
        for length in [0, 4, 63, 64, 4096] {
            assert!(!refuses_path(file_of(&head[..length]).path()) || length < 64);
        }
    }
}
