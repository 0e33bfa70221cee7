//! The kernel's own list of what is registered in an epoll set.

use std::os::fd::IntoRawFd;

use libc::c_int;
use rustix::fs::{Mode, OFlags};

use super::bits::ALWAYS;
use crate::kernel;

/// Bytes of the list that are read at most: some ten thousand registrations.
const LIST_BYTES_MAX: usize = 1 << 20;

/// One registration: `tfd: 5 events: 80000019 data: 5 pos:0 ino:61 sdev:5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// Number of the descriptor in the process that has registered it.
    pub fd: c_int,
    /// The events, without those that are always reported.
    pub events: u32,
    /// The data.
    pub data: u64,
    /// Number of the file in its file system.
    inode: u64,
}

impl Registration {
    /// The registrations of `epoll`; none if it is no epoll descriptor.
    pub fn read_all(epoll: c_int) -> Option<Vec<Registration>> {
        let saved = kernel::errno();
        let list = read_list(epoll);
        kernel::set_errno(saved);
        Some(list?.lines().filter_map(Registration::parse).collect())
    }

    fn parse(line: &str) -> Option<Registration> {
        let mut words = line.strip_prefix("tfd:")?.split_whitespace();
        let fd = words.next()?.parse().ok()?;
        let mut value = |name: &str| {
            let word = words.find_map(|word| word.strip_prefix(name))?;
            if word.is_empty() { words.next() } else { Some(word) }
        };
        let events = u32::from_str_radix(value("events:")?, 16).ok()?;
        let data = u64::from_str_radix(value("data:")?, 16).ok()?;
        let inode = u64::from_str_radix(value("ino:")?, 16).ok()?;
        Some(Registration { fd, events: events & !ALWAYS, data, inode })
    }

    /// Whether this process has the same file under this number.
    pub fn is_ours(&self) -> bool {
        let saved = kernel::errno();
        // SAFETY: the descriptor is borrowed for this call only; a closed one gives an error.
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(self.fd.max(0)) };
        let stat = rustix::fs::fstat(borrowed);
        kernel::set_errno(saved);
        stat.is_ok_and(|stat| stat.st_ino == self.inode)
    }
}

fn read_list(epoll: c_int) -> Option<String> {
    let kind = rustix::fs::readlink(format!("/proc/self/fd/{epoll}"), Vec::new()).ok()?;
    if !kind.to_bytes().ends_with(b"[eventpoll]") {
        return None;
    }
    let path = format!("/proc/self/fdinfo/{epoll}");
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let (mut list, mut part) = (Vec::new(), [0_u8; 4096]);
    while list.len() < LIST_BYTES_MAX {
        match rustix::io::read(&file, &mut part) {
            Ok(0) | Err(_) => break,
            Ok(count) => list.extend_from_slice(&part[..count]),
        }
    }
    // SAFETY: closes the descriptor that was just opened, which nothing else knows.
    unsafe { kernel::close(file.into_raw_fd()) };
    String::from_utf8(list).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = "tfd:       12 events: 80000019 data: ffff00000000000c  pos:0 ino:61 sdev:5";
        let registration =
            Registration { fd: 12, events: 0x8000_0001, data: 0xffff_0000_0000_000c, inode: 0x61 };
        assert_eq!(Registration::parse(line), Some(registration));
        assert_eq!(Registration::parse("pos:\t0"), None);
        assert_eq!(Registration::parse("tfd: x events: 1 data: 1"), None);
    }

    #[test]
    fn registrations_of_a_real_set_are_found() {
        // SAFETY: no pointers but the event, which is live.
        let (epoll, event) = unsafe {
            let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            let event = libc::eventfd(0, libc::EFD_CLOEXEC);
            let mut one = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 77 };
            assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, event, &raw mut one), 0);
            (epoll, event)
        };
        let found = Registration::read_all(epoll).unwrap();
        assert_eq!((found.len(), found[0].fd, found[0].data), (1, event, 77));
        assert_eq!(found[0].events, libc::EPOLLIN as u32);
        assert!(found[0].is_ours() && !Registration { inode: 0, ..found[0] }.is_ours());
        assert_eq!(Registration::read_all(event), None);
        // SAFETY: the descriptors are this test's own.
        unsafe { (libc::close(event), libc::close(epoll)) };
    }
}
