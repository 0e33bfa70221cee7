//! Every way in which a program can wait for a socket, behind one interface.

use std::ffi::c_int;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, MSG_DONTWAIT, MSG_PEEK, POLLIN, POLLOUT, pollfd};

use crate::calls::*;
use crate::harness::note;
use crate::support::*;

pub(crate) const IN: u32 = libc::EPOLLIN as u32;
pub(crate) const OUT: u32 = libc::EPOLLOUT as u32;
pub(crate) const RDHUP: u32 = libc::EPOLLRDHUP as u32;
pub(crate) const EDGE: u32 = libc::EPOLLET as u32;
pub(crate) const ONCE: u32 = libc::EPOLLONESHOT as u32;
pub(crate) const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// A way of waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// A blocking receive that leaves the bytes; it can wait for data only.
    Peek,
    Poll,
    Ppoll,
    Select,
    Pselect,
    /// `epoll_wait`, level-triggered.
    Level,
    Edge,
    /// Armed again before each wait.
    OneShot,
    Exclusive,
    /// `epoll_pwait2`.
    Pwait2,
    /// `poll` of the descriptor of an epoll set.
    PollOfSet,
    /// `select` of the descriptor of an epoll set.
    SelectOfSet,
    /// An epoll set in an epoll set.
    Nested,
    /// The same socket in two sets, of which the second is waited for.
    TwoSets,
}

/// All ways; the first can wait for data only.
pub(crate) const WAYS: [Way; 14] = [
    Way::Peek,
    Way::Poll,
    Way::Ppoll,
    Way::Select,
    Way::Pselect,
    Way::Level,
    Way::Edge,
    Way::OneShot,
    Way::Exclusive,
    Way::Pwait2,
    Way::PollOfSet,
    Way::SelectOfSet,
    Way::Nested,
    Way::TwoSets,
];

/// The ways that wait for a level-triggered or edge-triggered set.
pub(crate) const SETS: [u32; 4] = [IN, IN | EDGE, IN | ONCE, IN | RDHUP | EDGE];

/// Runs `body` with each way of waiting for data. What fails shows the way.
pub(crate) fn each_way(body: impl Fn(Way)) {
    for way in WAYS {
        note(&format!("waiting by {way:?}"));
        body(way);
    }
}

/// The same without those that wait for data only.
pub(crate) fn each_way_for_space(body: impl Fn(Way)) {
    for way in &WAYS[1..] {
        note(&format!("waiting by {way:?}"));
        body(*way);
    }
}

/// Waits for one socket in one way. Made before the wait: sets are registered from then on.
#[derive(Debug)]
pub(crate) struct Waiter {
    way: Way,
    fd: Fd,
    events: u32,
    set: Fd,
    outer: Fd,
}

impl Waiter {
    pub(crate) fn for_data(way: Way, fd: Fd) -> Waiter {
        Waiter::new(way, fd, IN)
    }

    pub(crate) fn for_space(way: Way, fd: Fd) -> Waiter {
        assert_ne!(way, Way::Peek);
        Waiter::new(way, fd, OUT)
    }

    fn new(way: Way, fd: Fd, events: u32) -> Waiter {
        let mut waiter = Waiter { way, fd, events, set: -1, outer: -1 };
        let kind = match way {
            Way::Peek | Way::Poll | Way::Ppoll | Way::Select | Way::Pselect => return waiter,
            Way::Edge => EDGE,
            Way::OneShot => ONCE,
            Way::Exclusive => EXCLUSIVE,
            _ => 0,
        };
        waiter.set = epoll_create();
        epoll_ctl(waiter.set, EPOLL_CTL_ADD, fd, events | kind, fd as u64).unwrap();
        if way == Way::Nested {
            waiter.outer = epoll_create();
            let inner = waiter.set;
            epoll_ctl(waiter.outer, EPOLL_CTL_ADD, inner, IN, inner as u64).unwrap();
        }
        if way == Way::TwoSets {
            waiter.outer = epoll_create();
            epoll_ctl(waiter.outer, EPOLL_CTL_ADD, fd, events, fd as u64).unwrap();
        }
        waiter
    }

    /// Whether an unread rest of the data is reported again.
    pub(crate) fn is_level(&self) -> bool {
        self.way != Way::Edge
    }

    /// Waits until the socket is reported, which must happen.
    #[track_caller]
    pub(crate) fn wait(&self) {
        assert!(self.shows(SOON_MS), "{:?} reports nothing for {SOON_MS} ms", self.way);
    }

    /// Whether the socket is reported within a time.
    #[track_caller]
    pub(crate) fn shows(&self, ms: c_int) -> bool {
        self.outcome(ms).unwrap_or_else(|error| panic!("{:?}: {error:?}", self.way))
    }

    /// The result of one call that waits: whether the socket is reported, or the call's error.
    #[track_caller]
    pub(crate) fn outcome(&self, ms: c_int) -> Outcome<bool> {
        let ns = (ms >= 0).then_some(i64::from(ms) * 1_000_000);
        match self.way {
            Way::Peek => self.peek(ms),
            Way::Poll => poll(&mut [self.entry()], ms).map(|count| count > 0),
            Way::Ppoll => ppoll(&mut [self.entry()], ns, None).map(|count| count > 0),
            Way::Select => self.select(ms),
            Way::Pselect if self.events == OUT => self.select(ms),
            Way::Pselect => pselect(&mut Set::of(&[self.fd]), ns, None).map(|count| count > 0),
            Way::OneShot => {
                let events = self.events | ONCE;
                epoll_ctl(self.set, EPOLL_CTL_MOD, self.fd, events, self.fd as u64).unwrap();
                self.in_set(self.set, self.fd, ms)
            }
            Way::Level | Way::Edge | Way::Exclusive => self.in_set(self.set, self.fd, ms),
            Way::Pwait2 => epoll_wait_ns(self.set, ns).map(|found| !found.is_empty()),
            Way::PollOfSet => {
                let mut list = [pollfd { fd: self.set, events: POLLIN, revents: 0 }];
                self.through_set(poll(&mut list, ms)? > 0)
            }
            Way::SelectOfSet => {
                let (mut sets, mut time_us) = (Set::of(&[self.set]), i64::from(ms) * 1000);
                let time_us = (ms >= 0).then_some(&mut time_us);
                self.through_set(select(Some(&mut sets), None, None, time_us)? > 0)
            }
            Way::Nested => {
                let shown = self.in_set(self.outer, self.set, ms)?;
                self.through_set(shown)
            }
            Way::TwoSets => {
                let shown = self.in_set(self.outer, self.fd, ms)?;
                self.through_set(shown)
            }
        }
    }

    fn entry(&self) -> pollfd {
        let events = if self.events == OUT { POLLOUT } else { POLLIN };
        pollfd { fd: self.fd, events, revents: 0 }
    }

    #[track_caller]
    fn peek(&self, ms: c_int) -> Outcome<bool> {
        let flags = if ms == 0 { MSG_PEEK | MSG_DONTWAIT } else { MSG_PEEK };
        let has_limit = 0 < ms && ms < SOON_MS;
        if has_limit {
            set_limit(self.fd, libc::SO_RCVTIMEO, i64::from(ms));
        }
        let outcome = match recv(self.fd, &mut [0], flags) {
            Err(AGAIN) => Ok(false),
            // A reset is a report, as it is for the other ways.
            Ok(_) | Err(RESET) => Ok(true),
            Err(error) => Err(error),
        };
        if has_limit {
            set_limit(self.fd, libc::SO_RCVTIMEO, 0);
        }
        outcome
    }

    #[track_caller]
    fn select(&self, ms: c_int) -> Outcome<bool> {
        let (mut set, mut time_us) = (Set::of(&[self.fd]), i64::from(ms) * 1000);
        let time_us = (ms >= 0).then_some(&mut time_us);
        let found = if self.events == OUT {
            select(None, Some(&mut set), None, time_us)
        } else {
            select(Some(&mut set), None, None, time_us)
        };
        found.map(|count| count > 0)
    }

    /// Waits for a set, whose only member is `member`.
    #[track_caller]
    fn in_set(&self, set: Fd, member: Fd, ms: c_int) -> Outcome<bool> {
        let found = epoll_wait(set, 4, ms)?;
        for (_, data) in &found {
            assert_eq!(*data, member as u64, "{:?} reports another socket's data", self.way);
        }
        Ok(!found.is_empty())
    }

    /// If the outer descriptor was reported, the set must report the socket. Not at once: another
    /// process may have received meanwhile, or bytes may be on their way from memory to the
    /// kernel.
    #[track_caller]
    fn through_set(&self, is_shown: bool) -> Outcome<bool> {
        if is_shown {
            assert!(
                self.in_set(self.set, self.fd, SOON_MS)?,
                "{:?}: the set has no event",
                self.way
            );
        }
        Ok(is_shown)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        for set in [self.set, self.outer].into_iter().filter(|set| *set >= 0) {
            close(set).unwrap();
        }
    }
}

/// The client sends `rounds` messages, each of which the waiter of the server must report, and
/// nothing else.
#[track_caller]
pub(crate) fn check_reports(pair: Pair, waiter: &Waiter, rounds: u64) {
    for round in 0..rounds {
        let message = pattern(round, round as usize % 90 + 1);
        send_all(pair.client, &message);
        waiter.wait();
        assert_bytes(&recv_now(pair.server), &message);
        assert!(!waiter.shows(0), "round {round}: reported without data");
    }
}

/// Receives a message of at most 100 bytes that is there.
#[track_caller]
pub(crate) fn recv_now(fd: Fd) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    let count = recv(fd, &mut bytes, MSG_DONTWAIT).expect("what is reported can be received");
    bytes.truncate(count);
    bytes
}
