//! The environment of a program that is started: without this library in `LD_PRELOAD`, if the
//! program cannot carry it.
//!
//! As in `program_file`, nothing here allocates or changes memory but the stack.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::{kernel, program_file};

/// A list of strings that a null pointer ends.
pub type Strings = *const *const c_char;

/// Longest environment that is changed, variables.
const VARIABLES_MAX: usize = 1024;

/// Longest value that is changed, bytes.
const VALUE_MAX: usize = 4096;

const VARIABLE: &[u8] = b"LD_PRELOAD=";

/// This library's file, as the loader names it.
static OWN_FILE: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

unsafe extern "C" {
    /// The environment of this process.
    static environ: Strings;
}

/// Asks the loader for the name of this library's file.
pub fn prepare() {
    // SAFETY: all zero is a valid description; the loader fills it, and its name lives as long as
    // this library is loaded.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr((prepare as *const ()).cast(), &raw mut found) != 0 {
            OWN_FILE.store(found.dli_fname.cast_mut(), Ordering::Relaxed);
        }
    }
}

/// The environment of this process.
pub fn of_process() -> Strings {
    // SAFETY: libc's own variable; a program that changes it while it starts programs has a race
    // without this library as well.
    unsafe { environ }
}

/// Calls `start` with the environment for a program: `given`, or a copy without this library. The
/// program is named as by execveat(2).
///
/// # Safety
/// `path` is null or a string, `given` null or a list of strings.
#[inline]
pub unsafe fn with<R>(
    (folder, path, flags): (c_int, *const c_char, c_int),
    given: Strings,
    start: impl FnOnce(Strings) -> R,
) -> R {
    let errno = kernel::errno();
    // SAFETY: the caller guarantees both.
    let changed = unsafe {
        let place = place_of_library(given);
        place.filter(|_| program_file::refuses_library(folder, path, flags))
    };
    kernel::set_errno(errno);
    match changed {
        // SAFETY: the place was just found in the list.
        Some(place) => unsafe { with_changed(given, place, start) },
        None => start(given),
    }
}

/// As [`with`] for a program that is searched for in `PATH`, as execvp(3) does.
///
/// # Safety
/// `file` is null or a string, `given` null or a list of strings.
pub unsafe fn with_searched<R>(
    file: *const c_char,
    given: Strings,
    start: impl FnOnce(Strings) -> R,
) -> R {
    let mut path = [0; VALUE_MAX];
    // SAFETY: the caller guarantees both; `getenv` reads the environment.
    unsafe {
        let found = if file.is_null() { None } else { search(CStr::from_ptr(file), &mut path) };
        let path = found.map_or(ptr::null(), CStr::as_ptr);
        with((libc::AT_FDCWD, path, 0), given, start)
    }
}

/// The first executable file of this name in `PATH`, or the name if it is a path.
///
/// # Safety
/// Nobody changes the environment meanwhile.
unsafe fn search<'a>(file: &'a CStr, path: &'a mut [u8; VALUE_MAX]) -> Option<&'a CStr> {
    let name = file.to_bytes_with_nul();
    if name.contains(&b'/') {
        return Some(file);
    }
    // SAFETY: a string, as is the result.
    let folders = unsafe {
        let value = libc::getenv(c"PATH".as_ptr());
        if value.is_null() { c"/bin:/usr/bin" } else { CStr::from_ptr(value) }
    };
    for folder in folders.to_bytes().split(|byte| *byte == b':') {
        let length = folder.len() + 1 + name.len();
        if length > path.len() {
            continue;
        }
        path[..folder.len()].copy_from_slice(folder);
        path[folder.len()] = b'/';
        path[folder.len() + 1..length].copy_from_slice(name);
        // An empty folder is the current one.
        let begin = usize::from(folder.is_empty());
        let at = path[begin..].as_ptr();
        let (place, how) = (libc::AT_FDCWD as isize as usize, libc::X_OK as usize);
        // SAFETY: a string that ends within the buffer.
        let found =
            unsafe { kernel::call(libc::SYS_faccessat, place, at.addr(), how, 0, 0, 0) } == 0;
        if found {
            return CStr::from_bytes_until_nul(&path[begin..]).ok();
        }
    }
    None
}

/// Where the environment names this library: the index of the variable.
///
/// # Safety
/// `list` is null or a list of strings.
unsafe fn place_of_library(list: Strings) -> Option<usize> {
    if list.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees the list, which ends with a null pointer.
    unsafe {
        let mut idx = 0;
        while !(*list.add(idx)).is_null() {
            let text = CStr::from_ptr(*list.add(idx)).to_bytes();
            if let Some(value) = text.strip_prefix(VARIABLE) {
                let is_changeable = text.len() < VALUE_MAX && parts(value).any(is_this_library);
                return is_changeable.then_some(idx);
            }
            idx += 1;
        }
    }
    None
}

/// The files of a value of `LD_PRELOAD`.
fn parts(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| matches!(byte, b' ' | b':')).filter(|part| !part.is_empty())
}

/// Whether a file of `LD_PRELOAD` is this library.
fn is_this_library(part: &[u8]) -> bool {
    let own = OWN_FILE.load(Ordering::Relaxed);
    // SAFETY: the loader's string lives as long as this library.
    !own.is_null() && unsafe { CStr::from_ptr(own) }.to_bytes() == part
}

/// Calls `start` with a copy of the list in which the variable at `place` does not name this
/// library, or with the list itself if that is too long.
///
/// # Safety
/// `list` is a list of strings with a variable at `place`.
#[cold]
#[inline(never)]
unsafe fn with_changed<R>(list: Strings, place: usize, start: impl FnOnce(Strings) -> R) -> R {
    let mut text = [0_u8; VALUE_MAX + 1];
    let mut copy = [ptr::null::<c_char>(); VARIABLES_MAX + 1];
    // SAFETY: the caller guarantees the list and the variable.
    let (count, variable) = unsafe {
        let count = (0..).find(|&idx| (*list.add(idx)).is_null()).unwrap_or(0);
        (count, CStr::from_ptr(*list.add(place)).to_bytes())
    };
    if count > VARIABLES_MAX {
        return start(list);
    }
    let length = write_rest(variable, &mut text);
    let mut copied = 0;
    for idx in 0..count {
        // SAFETY: within the list.
        let entry = if idx == place { text.as_ptr().cast() } else { unsafe { *list.add(idx) } };
        if idx != place || length > VARIABLE.len() {
            copy[copied] = entry;
            copied += 1;
        }
    }
    start(copy.as_ptr())
}

/// Writes the variable without this library, and a zero after it; returns its length.
fn write_rest(variable: &[u8], text: &mut [u8; VALUE_MAX + 1]) -> usize {
    text[..VARIABLE.len()].copy_from_slice(VARIABLE);
    let mut length = VARIABLE.len();
    for part in parts(&variable[VARIABLE.len()..]).filter(|part| !is_this_library(part)) {
        if length > VARIABLE.len() {
            text[length] = b':';
            length += 1;
        }
        text[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    }
    text[length] = 0;
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_library_is_taken_out_and_others_stay() {
        OWN_FILE.store(c"/a/own.so".as_ptr().cast_mut(), Ordering::Relaxed);
        for (before, after) in [
            (&b"LD_PRELOAD=/a/own.so"[..], &b"LD_PRELOAD="[..]),
            (b"LD_PRELOAD=/a/own.so:b.so", b"LD_PRELOAD=b.so"),
            (b"LD_PRELOAD=b.so /a/own.so c.so", b"LD_PRELOAD=b.so:c.so"),
        ] {
            let mut text = [1; VALUE_MAX + 1];
            let length = write_rest(before, &mut text);
            assert_eq!((&text[..length], text[length]), (after, 0));
        }
        let list = [c"A=1".as_ptr(), c"LD_PRELOAD=/a/own.so".as_ptr(), ptr::null()];
        // SAFETY: a list of strings.
        unsafe {
            let place = place_of_library(list.as_ptr());
            assert_eq!(place, Some(1));
            with_changed(list.as_ptr(), 1, |changed| {
                assert_eq!(CStr::from_ptr(*changed), c"A=1");
                assert!((*changed.add(1)).is_null());
            });
            let other = [c"LD_PRELOAD=/b/own.so".as_ptr(), ptr::null()];
            assert_eq!(place_of_library(other.as_ptr()), None);
        }
        OWN_FILE.store(ptr::null_mut(), Ordering::Relaxed);
    }

    #[test]
    fn programs_are_searched_for_as_the_c_library_does() {
        let mut path = [0; VALUE_MAX];
        // SAFETY: no other thread changes the environment.
        unsafe {
            let found = search(c"sh", &mut path).unwrap().to_str().unwrap().to_owned();
            assert!(found.starts_with('/') && found.ends_with("/sh"), "{found}");
            assert_eq!(search(c"./x", &mut path), Some(c"./x"));
            assert_eq!(search(c"no-program-of-this-name", &mut path), None);
        }
    }
}
