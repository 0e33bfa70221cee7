//! Waiting for a descriptor: `poll`, `select` and `epoll`. Nothing here allocates once it is made.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use libc::{c_int, c_short};

/// `ppoll`—Whether `fd` can be read, or has ended, within `limit`.
#[inline]
pub fn readable(fd: RawFd, limit: Duration) -> io::Result<bool> {
    ready(fd, libc::POLLIN, limit)
}

/// `ppoll`—Whether `fd` can be written, or has failed, within `limit`.
#[inline]
pub fn writable(fd: RawFd, limit: Duration) -> io::Result<bool> {
    ready(fd, libc::POLLOUT, limit)
}

#[inline]
fn ready(fd: RawFd, events: c_short, limit: Duration) -> io::Result<bool> {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    let time = libc::timespec {
        tv_sec: limit.as_secs().min(1 << 30) as libc::time_t,
        tv_nsec: libc::c_long::from(limit.subsec_nanos() as i32),
    };
    // SAFETY: one live entry and its number, a live time-out, and no signal mask.
    let found = unsafe { libc::ppoll(&mut entry, 1, &time, std::ptr::null()) };
    answer(found)
}

/// `select` on one descriptor.
#[derive(Debug, Clone, Copy)]
pub struct Selector {
    fd: RawFd,
}

impl Selector {
    /// A selector of `fd`.
    ///
    /// # Errors
    /// `EINVAL` if the descriptor's number is too high for `select` (1024 and above).
    pub fn new(fd: RawFd) -> io::Result<Selector> {
        if (0..libc::FD_SETSIZE as RawFd).contains(&fd) {
            Ok(Selector { fd })
        } else {
            Err(io::Error::from_raw_os_error(libc::EINVAL))
        }
    }

    /// Whether the descriptor can be read within `limit`.
    #[inline]
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        let mut time = libc::timeval {
            tv_sec: limit.as_secs().min(1 << 30) as libc::time_t,
            tv_usec: libc::suseconds_t::from(limit.subsec_micros()),
        };
        // SAFETY: an all-zero set is empty; the number was checked to lie inside the set; the
        // pointers are live or null where nothing is waited for.
        let found = unsafe {
            let mut set: libc::fd_set = std::mem::zeroed();
            libc::FD_SET(self.fd, &mut set);
            let none = std::ptr::null_mut();
            libc::select(self.fd + 1, &mut set, none, none, &mut time)
        };
        answer(found)
    }
}

/// `epoll` on one descriptor, level-triggered.
#[derive(Debug)]
pub struct Epoll {
    epoll: OwnedFd,
}

impl Epoll {
    /// An epoll instance that watches `fd` for reading.
    pub fn new(fd: RawFd) -> io::Result<Epoll> {
        // SAFETY: a plain number; the result is checked before it is owned.
        let raw = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        answer(raw)?;
        // SAFETY: fresh from the kernel and owned by nobody else.
        let epoll = unsafe { OwnedFd::from_raw_fd(raw) };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: a live event; a wrong descriptor is an error, not undefined.
        answer(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) })?;
        Ok(Epoll { epoll })
    }

    /// Whether the descriptor can be read within `limit`, in whole milliseconds rounded down:
    /// `epoll_wait` knows no finer ones.
    #[inline]
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        let ms = c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX);
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event, as told.
        answer(unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), &mut event, 1, ms) })
    }
}

/// An interrupted wait counts as one in which nothing came; whoever waits looks at its own
/// deadline.
#[inline]
fn answer(found: c_int) -> io::Result<bool> {
    if found >= 0 {
        return Ok(found > 0);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket;

    #[test]
    fn each_way_tells_ready_from_not_ready() {
        let (a, b) = socket::unix_pair().unwrap();
        let fd = a.as_raw_fd();
        let (selector, epoll) = (Selector::new(fd).unwrap(), Epoll::new(fd).unwrap());
        let ways: [&dyn Fn(Duration) -> io::Result<bool>; 3] =
            [&|limit| readable(fd, limit), &|limit| selector.wait(limit), &|limit| {
                epoll.wait(limit)
            }];
        for way in ways {
            assert!(!way(Duration::ZERO).unwrap());
            assert!(!way(Duration::from_millis(2)).unwrap());
        }
        socket::send(b.as_raw_fd(), b"x", 0).unwrap();
        for way in ways {
            assert!(way(Duration::from_secs(5)).unwrap());
        }
        drop(b);
        for way in ways {
            assert!(way(Duration::ZERO).unwrap(), "an ended peer is readable");
        }
    }

    #[test]
    fn select_refuses_what_it_cannot_hold() {
        assert!(Selector::new(1024).is_err());
        assert!(Selector::new(-1).is_err());
    }
}
