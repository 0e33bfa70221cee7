//! Waiting for a descriptor: `poll`, `select` and `epoll`. Waiting does not allocate.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use libc::{c_int, c_short};
use rustix::event::EventfdFlags;

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
        tv_sec: limit.as_secs().min(1 << 30) as _,
        tv_nsec: libc::c_long::from(limit.subsec_nanos() as i32),
    };
    // SAFETY: one live entry and its number, a live time-out, and no signal mask.
    let found = unsafe { libc::ppoll(&mut entry, 1, &time, std::ptr::null()) };
    check_ready(found)
}

/// `select` on one descriptor.
#[derive(Debug, Clone, Copy)]
pub struct SelectOne {
    fd: RawFd,
}

impl SelectOne {
    /// Waits on `fd`.
    ///
    /// # Errors
    /// `EINVAL` if the descriptor is too large for `select` (1024 and above).
    pub fn new(fd: RawFd) -> io::Result<SelectOne> {
        if (0..libc::FD_SETSIZE as RawFd).contains(&fd) {
            Ok(SelectOne { fd })
        } else {
            Err(io::Error::from_raw_os_error(libc::EINVAL))
        }
    }

    /// Whether the descriptor can be read within `limit`.
    #[inline]
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        let mut time = libc::timeval {
            tv_sec: limit.as_secs().min(1 << 30) as _,
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
        check_ready(found)
    }
}

/// `epoll` on one descriptor, level-triggered.
#[derive(Debug)]
pub struct EpollOne {
    epoll: OwnedFd,
}

impl EpollOne {
    /// An epoll instance that watches `fd` for reading.
    pub fn new(fd: RawFd) -> io::Result<EpollOne> {
        // SAFETY: the argument is a number; the result is checked before it is owned.
        let raw = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        check_ready(raw)?;
        // SAFETY: a new descriptor that nothing else owns.
        let epoll = unsafe { OwnedFd::from_raw_fd(raw) };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the event is live; an invalid descriptor is an error, not undefined behaviour.
        check_ready(unsafe {
            libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event)
        })?;
        Ok(EpollOne { epoll })
    }

    /// Whether the descriptor can be read within `limit`, rounded down to milliseconds, the
    /// resolution of `epoll_wait`.
    #[inline]
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        let ms = c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX);
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: there is room for one event, and the kernel writes at most one.
        check_ready(unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), &mut event, 1, ms) })
    }
}

/// A descriptor that is ready for reading or writing, as [`Poller::wait`] reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readiness {
    /// What the descriptor was added with.
    pub token: u64,
    /// It can be read, or has ended, or has failed.
    pub readable: bool,
    /// It can be written, or has failed.
    pub writable: bool,
}

/// What a descriptor is watched for by a [`Poller`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Reading only.
    Readable,
    /// Reading and writing.
    ReadableOrWritable,
    /// Writing only.
    Writable,
    /// Nothing: only its end, or a failure, is reported.
    Nothing,
}

impl Interest {
    /// Reading, if `readable`, and writing, if `writable`.
    pub fn of(readable: bool, writable: bool) -> Interest {
        match (readable, writable) {
            (true, false) => Interest::Readable,
            (true, true) => Interest::ReadableOrWritable,
            (false, true) => Interest::Writable,
            (false, false) => Interest::Nothing,
        }
    }

    fn events(self) -> c_int {
        match self {
            Interest::Readable => libc::EPOLLIN,
            Interest::ReadableOrWritable => libc::EPOLLIN | libc::EPOLLOUT,
            Interest::Writable => libc::EPOLLOUT,
            Interest::Nothing => 0,
        }
    }
}

/// `epoll` on many descriptors. It goes through the C library, as socket calls do: an accelerator
/// that moves connections out of the kernel must see who waits for them.
pub struct Poller {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

/// Most descriptors that one wait reports.
const EVENTS: usize = 256;

impl Poller {
    /// A poller that watches nothing.
    pub fn new() -> io::Result<Poller> {
        // SAFETY: the argument is a number; the result is checked before it is owned.
        let raw = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        check_ready(raw)?;
        // SAFETY: a new descriptor that nothing else owns.
        let epoll = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(Poller { epoll, events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS] })
    }

    /// Watches `fd`, level-triggered. [`Poller::wait`] reports it with `token`.
    ///
    /// # Errors
    /// `EPERM` for what is always ready, such as files; `EEXIST` for what is watched.
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd.as_fd(), interest.events(), token)
    }

    /// Watches `fd` for reading, edge-triggered: it is reported once each time that something
    /// arrives, whether or not it is read.
    ///
    /// # Errors
    /// As [`Poller::add`].
    pub fn add_edge_triggered(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        let events = libc::EPOLLIN | libc::EPOLLET;
        self.control(libc::EPOLL_CTL_ADD, fd.as_fd(), events, token)
    }

    /// Changes the interest in a descriptor that is watched.
    pub fn modify(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd.as_fd(), interest.events(), token)
    }

    /// Stops watching `fd`. The kernel does so by itself when a descriptor is closed, unless
    /// another process has it open too.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd.as_fd(), 0, 0)
    }

    fn control(
        &self,
        what: c_int,
        fd: BorrowedFd<'_>,
        events: c_int,
        token: u64,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        let (epoll, fd) = (self.epoll.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: the event is live; an invalid descriptor is an error, not undefined behaviour.
        let done = unsafe { libc::epoll_ctl(epoll, what, fd, &mut event) };
        check_ready(done).map(drop)
    }

    /// Sleeps until a descriptor is ready, for at most `limit`. `ready` gets the descriptors that
    /// are ready, none if the wait was interrupted.
    pub fn wait(&mut self, ready: &mut Vec<Readiness>, limit: Option<Duration>) -> io::Result<()> {
        ready.clear();
        let found = self.wait_raw(limit);
        let found = match found {
            0.. => found as usize,
            _ => {
                check_ready(found)?;
                0
            }
        };
        let failed = libc::EPOLLHUP | libc::EPOLLERR;
        let has = |events: u32, flags: c_int| events & flags as u32 != 0;
        ready.extend(self.events.iter().take(found).map(|event| {
            // Copied out: the structure may be packed.
            let (events, token) = (event.events, event.u64);
            Readiness {
                token,
                readable: has(events, libc::EPOLLIN | failed),
                writable: has(events, libc::EPOLLOUT | failed),
            }
        }));
        Ok(())
    }

    /// `epoll_pwait2`.
    #[cfg(target_env = "gnu")]
    fn wait_raw(&mut self, limit: Option<Duration>) -> c_int {
        let limit = limit.map(|limit| libc::timespec {
            tv_sec: limit.as_secs().min(1 << 30) as _,
            tv_nsec: libc::c_long::from(limit.subsec_nanos() as i32),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let (epoll, events) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr());
        // SAFETY: room for so many events, a live time-out or none, and no signal mask.
        unsafe { libc::epoll_pwait2(epoll, events, EVENTS as c_int, limit, std::ptr::null()) }
    }

    /// `epoll_pwait2` where the C library has no function for it; an accelerator cannot interpose
    /// such a C library anyway.
    #[cfg(not(target_env = "gnu"))]
    fn wait_raw(&mut self, limit: Option<Duration>) -> c_int {
        let limit = limit.map(|limit| libc::timespec {
            tv_sec: limit.as_secs().min(1 << 30) as _,
            tv_nsec: limit.subsec_nanos() as _,
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let (epoll, events) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr());
        let mask: *const libc::sigset_t = std::ptr::null();
        // SAFETY: room for so many events, a live time-out or none, and no signal mask.
        unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                epoll,
                events,
                EVENTS as c_int,
                limit,
                mask,
                0usize,
            ) as c_int
        }
    }
}

/// `eventfd`—Wakes a [`Poller`] from another thread.
#[derive(Debug, Clone)]
pub struct Waker {
    fd: Arc<OwnedFd>,
}

impl Waker {
    /// A waker in the state after [`Waker::drain`].
    pub fn new() -> io::Result<Waker> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waker { fd: Arc::new(fd) })
    }

    /// Makes the descriptor readable until [`Waker::drain`].
    pub fn wake(&self) {
        // It fails only after 2^64 - 2 wake-ups, and the descriptor is readable then anyway.
        let _ = rustix::io::write(&*self.fd, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable. To be called before looking for new work, not after, or a wake-up is
    /// lost.
    pub fn drain(&self) {
        let _ = rustix::io::read(&*self.fd, &mut [0; 8]);
    }
}

/// Takes over an eventfd that another process created.
impl From<OwnedFd> for Waker {
    fn from(fd: OwnedFd) -> Waker {
        Waker { fd: Arc::new(fd) }
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The result of a wait. An interrupted wait counts as one in which nothing became ready; the
/// caller checks its own deadline.
#[inline]
fn check_ready(found: c_int) -> io::Result<bool> {
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
    fn each_call_reports_readiness() {
        let (a, b) = socket::unix_pair().unwrap();
        let fd = a.as_raw_fd();
        let (selector, epoll) = (SelectOne::new(fd).unwrap(), EpollOne::new(fd).unwrap());
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
        assert_eq!(socket::receive(fd, &mut [0; 2], 0).unwrap(), 1);
        drop(b);
        // Another test may start a process at this moment, which has a copy of `b` until it
        // executes its program.
        for way in ways {
            assert!(way(Duration::from_secs(60)).unwrap(), "the end makes the socket readable");
        }
    }

    #[test]
    fn poller_reports_which_descriptor_is_ready_for_what() {
        let mut poller = Poller::new().unwrap();
        let (waker, mut ready) = (Waker::new().unwrap(), vec![]);
        let (a, b) = socket::unix_pair().unwrap();
        poller.add(&waker, 1, Interest::Readable).unwrap();
        poller.add(&a, 2, Interest::Readable).unwrap();
        poller.wait(&mut ready, Some(Duration::from_micros(50))).unwrap();
        assert_eq!(ready, []);
        let other = waker.clone();
        std::thread::spawn(move || other.wake()).join().unwrap();
        poller.modify(&a, 2, Interest::ReadableOrWritable).unwrap();
        poller.wait(&mut ready, None).unwrap();
        ready.sort_by_key(|ready| ready.token);
        let of = |token, readable, writable| Readiness { token, readable, writable };
        assert_eq!(ready, [of(1, true, false), of(2, false, true)]);
        waker.drain();
        // Not closed but shut down: a process that another test starts has a copy of `b` until it
        // executes its program.
        socket::shutdown_write(b.as_raw_fd()).unwrap();
        poller.wait(&mut ready, Some(Duration::from_secs(5))).unwrap();
        assert_eq!(ready, [of(2, true, true)]);
        poller.remove(&a).unwrap();
        poller.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert_eq!(ready, []);
    }

    #[test]
    fn edge_is_reported_once_for_each_wake_drained_or_not() {
        let mut poller = Poller::new().unwrap();
        let (waker, mut ready) = (Waker::new().unwrap(), vec![]);
        poller.add_edge_triggered(&waker, 7).unwrap();
        for _ in 0..3 {
            waker.wake();
            waker.wake();
            poller.wait(&mut ready, Some(Duration::from_secs(5))).unwrap();
            assert_eq!(ready, [Readiness { token: 7, readable: true, writable: false }]);
            poller.wait(&mut ready, Some(Duration::ZERO)).unwrap();
            assert_eq!(ready, []);
        }
    }

    #[test]
    fn select_rejects_too_large_descriptors() {
        assert!(SelectOne::new(1024).is_err());
        assert!(SelectOne::new(-1).is_err());
    }
}
