//! What the process's descriptors refer to, as the kernel tells: for files that were made without
//! this library.

use std::ffi::{CStr, c_int};

use crate::table;

/// Whether a descriptor below `limit` refers to a file whose name begins with `name`, such as
/// `anon_inode:[io_uring]`, and is one that `look` accepts.
pub fn any(name: &[u8], limit: c_int, look: impl FnMut(c_int) -> bool) -> bool {
    any_of(|_| true, name, limit, look)
}

/// As [`any`], but among descriptors that are no managed sockets: a name costs as much as a short
/// call, and a program may have thousands of connections.
pub fn any_unmanaged(name: &[u8], limit: c_int, look: impl FnMut(c_int) -> bool) -> bool {
    any_of(|fd| !table::is_managed(fd), name, limit, look)
}

/// Reads /proc/self/fd without allocating; the kernel lists descriptors in ascending order.
fn any_of(
    is_meant: impl Fn(c_int) -> bool,
    name: &[u8],
    limit: c_int,
    mut look: impl FnMut(c_int) -> bool,
) -> bool {
    use rustix::fs::{CWD, Mode, OFlags, RawDir, openat, readlinkat_raw};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = openat(CWD, c"/proc/self/fd", flags, Mode::empty()) else { return false };
    let mut space = [std::mem::MaybeUninit::<u8>::uninit(); 2048];
    let mut entries = RawDir::new(&folder, &mut space);
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { return false };
        let Some(fd) = number(entry.file_name()) else { continue };
        if fd >= limit {
            return false;
        }
        if !is_meant(fd) {
            continue;
        }
        let mut target = [std::mem::MaybeUninit::<u8>::uninit(); 32];
        if let Ok((target, _)) = readlinkat_raw(&folder, entry.file_name(), &mut target)
            && target.starts_with(name)
            && look(fd)
        {
            return true;
        }
    }
    false
}

/// The number of a descriptor; none for `.` and `..`.
fn number(name: &CStr) -> Option<c_int> {
    name.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_found_by_name_below_a_limit() {
        // SAFETY: plain numbers.
        let made = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let found = |limit| any(b"anon_inode:[eventpoll]", limit, |fd| fd == made);
        assert!(made >= 0 && found(c_int::MAX) && found(made + 1) && !found(made));
        assert!(!any(b"anon_inode:[none]", c_int::MAX, |_| true));
        // SAFETY: the descriptor is this test's own.
        unsafe { libc::close(made) };
        assert!(!found(c_int::MAX));
    }
}
