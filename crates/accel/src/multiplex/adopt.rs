//! Epoll sets that this process has not created through the library. They came through an exec, or
//! from another process, or the program makes its system calls itself. The kernel's own list of
//! registrations tells what is in them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::c_int;

use super::epoll_set::EpollSet;
use super::kernel_list::Registration;
use super::registry;
use super::sets::{release_set, unused_set};
use crate::{open_files, process, table, wait};

/// The set of `epoll`. Called when the registry does not know it.
#[cold]
pub fn adopt_if_unknown(epoll: c_int) -> Option<&'static EpollSet> {
    if process::owner_pid() == 0 || table::get(epoll).is_some() || process::is_borrower() {
        return None;
    }
    let list = Registration::read_all(epoll)?;
    let set = unused_set();
    set.begin();
    // Its other users are not known.
    set.pass_on();
    set.adopt(&list);
    release_set(registry::replace(epoll, Some(set)));
    Some(set)
}

/// An epoll set that the library does not know is looked for among the descriptors below this one:
/// a program makes its sets before it has many descriptors, and a connection must not cost a look
/// at thousands.
const LOOK_BELOW: c_int = 256;

/// Longest time for which the answer that there is none stays valid, ns.
const LOOK_NS: u64 = 1_000_000_000;

/// How often [`has_unknown_set`] has been asked.
static QUESTIONS: AtomicU32 = AtomicU32::new(0);

/// When the descriptors were looked at last, ns.
static LOOKED_AT_NS: AtomicU64 = AtomicU64::new(0);

/// Whether the process has an epoll set that the library does not know. The program may wait for it
/// by system calls of its own, where nobody would see that it relies on the kernel.
///
/// A look costs as much as many calls. So the descriptors are looked at for the first, second,
/// fourth … connection, and for the next one after a second: a program makes its sets before it
/// uses connections.
pub fn has_unknown_set() -> bool {
    let question = QUESTIONS.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    let now_ns = wait::now_ns();
    let passed_ns = now_ns.wrapping_sub(LOOKED_AT_NS.load(Ordering::Relaxed));
    if !question.is_power_of_two() && passed_ns < LOOK_NS {
        return false;
    }
    let is_unknown = |fd| registry::get(fd).is_none();
    let is_there = open_files::any_unmanaged(b"anon_inode:[eventpoll]", LOOK_BELOW, is_unknown);
    // One that is there is looked for again: the program may close it.
    LOOKED_AT_NS.store(if is_there { 0 } else { now_ns }, Ordering::Relaxed);
    is_there
}
