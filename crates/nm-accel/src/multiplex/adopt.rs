//! Epoll sets that this process has not created through the library: they came through an exec, or
//! from another process. The kernel's own list of registrations tells what is in them.

use std::io::Read;

use libc::c_int;

use super::{EpollSet, process, registered, registry, unused_set};
use crate::table;

/// Bytes of the kernel's list that are read at most: some thousand registrations.
const LIST_BYTES_MAX: u64 = 1 << 20;

/// The set of `epoll`. Called when the registry does not know it.
#[cold]
pub fn adopt_if_unknown(epoll: c_int) -> Option<&'static EpollSet> {
    if process::owner_pid() == 0 || table::get(epoll).is_some() || process::is_borrower() {
        return None;
    }
    let list = read_list(epoll)?;
    let set = unused_set();
    set.begin();
    // Its other users are not known.
    set.pass_on();
    for registration in list.lines().filter_map(Registration::parse) {
        registered::add(registration.fd, set);
        set.adopt(registration.fd, registration.events, registration.data);
    }
    super::release_set(registry::replace(epoll, Some(set)));
    Some(set)
}

/// The kernel's description of `epoll`; none if it is no epoll descriptor.
fn read_list(epoll: c_int) -> Option<String> {
    let path = format!("/proc/self/fd/{epoll}");
    let kind = rustix::fs::readlink(path, Vec::new()).ok()?;
    if !kind.to_bytes().ends_with(b"[eventpoll]") {
        return None;
    }
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let path = format!("/proc/self/fdinfo/{epoll}");
    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()?;
    let mut list = String::new();
    std::fs::File::from(file).take(LIST_BYTES_MAX).read_to_string(&mut list).ok()?;
    Some(list)
}

/// A line of the kernel's list: `tfd: 5 events: 80000019 data: 5 pos:0 ino:61 sdev:5`.
#[derive(Debug, PartialEq, Eq)]
struct Registration {
    fd: c_int,
    events: u32,
    data: u64,
}

impl Registration {
    fn parse(line: &str) -> Option<Registration> {
        let mut words = line.strip_prefix("tfd:")?.split_whitespace();
        let fd = words.next()?.parse().ok()?;
        let mut value = |name: &str| {
            let word = words.next()?;
            match word.strip_prefix(name)? {
                "" => words.next(),
                joined => Some(joined),
            }
        };
        let events = u32::from_str_radix(value("events:")?, 16).ok()?;
        let data = u64::from_str_radix(value("data:")?, 16).ok()?;
        Some(Registration { fd, events, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = "tfd:       12 events: 80000019 data: ffff00000000000c  pos:0 ino:61 sdev:5";
        let registration =
            Registration { fd: 12, events: 0x8000_0019, data: 0xffff_0000_0000_000c };
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
        let list = read_list(epoll).unwrap();
        let found: Vec<Registration> = list.lines().filter_map(Registration::parse).collect();
        assert_eq!((found.len(), found[0].fd, found[0].data), (1, event, 77));
        assert_eq!(read_list(event), None);
        // SAFETY: the descriptors are this test's own.
        unsafe { (libc::close(event), libc::close(epoll)) };
    }
}
