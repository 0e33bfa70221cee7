//! select and pselect: converted to poll if a joined socket is among the descriptors.

use std::ffi::c_void;

use libc::{c_int, fd_set, pollfd, sigset_t, timespec, timeval};

use super::poll::nanoseconds;
use crate::multiplex::array::{self, SMALL};
use crate::wait::WaitLimit;
use crate::{blocking, kernel};

const WORD_BITS: usize = u64::BITS as usize;

/// Poll events that make a descriptor readable, writable and exceptional for select.
const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND;
const WRITABLE: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND;
const EXCEPTIONAL: i16 = libc::POLLPRI;

/// The three sets of a call, of any length: programs may pass more than `FD_SETSIZE` bits.
#[derive(Clone, Copy)]
struct Sets {
    count: usize,
    words: [*mut u64; 3],
}

impl Sets {
    /// The bits of `fd` in the three sets, as poll events.
    ///
    /// # Safety
    /// Each set that is not null has space for `count` bits.
    unsafe fn events(&self, fd: usize) -> i16 {
        let mut events = 0;
        for (words, bits) in self.words.iter().zip([READABLE, WRITABLE, EXCEPTIONAL]) {
            // SAFETY: `fd` is below `count`, as the caller guarantees.
            if unsafe { word_at(*words, fd / WORD_BITS) } >> (fd % WORD_BITS) & 1 != 0 {
                events |= bits;
            }
        }
        events
    }

    /// Calls `visit` with each descriptor that is in a set and its events, until it returns
    /// `false`.
    ///
    /// # Safety
    /// As [`Sets::events`].
    unsafe fn for_each(&self, mut visit: impl FnMut(usize, i16) -> bool) -> bool {
        for first in (0..self.count).step_by(WORD_BITS) {
            let index = first / WORD_BITS;
            let mut any = 0;
            for words in self.words {
                // SAFETY: `first` is below `count`, as the caller guarantees.
                any |= unsafe { word_at(words, index) };
            }
            while any != 0 {
                let fd = first + any.trailing_zeros() as usize;
                any &= any - 1;
                // SAFETY: the caller guarantees the sets, and `fd` is below `count`.
                if fd < self.count && !visit(fd, unsafe { self.events(fd) }) {
                    return false;
                }
            }
        }
        true
    }

    /// Clears the sets and sets the bits that `entries` report; returns the number of bits.
    ///
    /// # Safety
    /// As [`Sets::events`].
    unsafe fn report(&self, entries: &[pollfd]) -> c_int {
        let ends = libc::POLLHUP | libc::POLLERR;
        let meanings = [READABLE | ends, WRITABLE | libc::POLLERR, EXCEPTIONAL];
        let mut total = 0;
        for ((words, asked), reported) in
            self.words.iter().zip([READABLE, WRITABLE, EXCEPTIONAL]).zip(meanings)
        {
            if words.is_null() {
                continue;
            }
            for word in 0..self.count.div_ceil(WORD_BITS) {
                // SAFETY: within the set; the kernel writes the same words.
                unsafe { words.add(word).write_unaligned(0) };
            }
            for entry in entries {
                if entry.fd < 0 || entry.events & asked == 0 || entry.revents & reported == 0 {
                    continue;
                }
                let fd = entry.fd.cast_unsigned() as usize;
                // SAFETY: within the set: the descriptor came out of these sets.
                unsafe {
                    let word = words.add(fd / WORD_BITS);
                    word.write_unaligned(word.read_unaligned() | 1 << (fd % WORD_BITS));
                }
                total += 1;
            }
        }
        total
    }
}

/// A word of a set; a null set is empty.
///
/// # Safety
/// The set is null or has space for the word.
unsafe fn word_at(words: *const u64, index: usize) -> u64 {
    if words.is_null() {
        return 0;
    }
    // SAFETY: the caller guarantees the word; programs may pass any address.
    unsafe { words.add(index).read_unaligned() }
}

/// Whether an entry reports something that its sets request.
fn has_requested_event(entry: &pollfd) -> bool {
    let ends = libc::POLLHUP | libc::POLLERR;
    entry.events & READABLE != 0 && entry.revents & (READABLE | ends) != 0
        || entry.events & WRITABLE != 0 && entry.revents & (WRITABLE | libc::POLLERR) != 0
        || entry.events & EXCEPTIONAL != 0 && entry.revents & EXCEPTIONAL != 0
}

/// The call with a joined socket among its descriptors.
///
/// # Safety
/// As [`Sets::events`]; `mask` is null or points to a signal set.
unsafe fn wait_for(sets: Sets, limit_ns: Option<u64>, mask: *const c_void) -> c_int {
    let mut small = [pollfd { fd: -1, events: 0, revents: 0 }; SMALL];
    let mut large = Vec::new();
    let mut count = 0;
    let mut add = |fd: usize, events| {
        let entry = pollfd { fd: fd as c_int, events, revents: 0 };
        if count < SMALL {
            small[count] = entry;
        } else {
            if count == SMALL {
                large.extend_from_slice(&small);
            }
            large.push(entry);
        }
        count += 1;
        true
    };
    // SAFETY: the caller guarantees the sets.
    unsafe { sets.for_each(&mut add) };
    let entries = if large.is_empty() { &mut small[..count] } else { &mut large[..] };
    let limit = WaitLimit::new(limit_ns);
    loop {
        // SAFETY: the caller guarantees the mask.
        let found = unsafe { array::wait(entries, limit.left_ns(), mask) };
        if found < 0 {
            return -1;
        }
        if entries.iter().any(|entry| entry.fd >= 0 && entry.revents & libc::POLLNVAL != 0) {
            return kernel::fail(libc::EBADF) as c_int;
        }
        if found == 0 || entries.iter().any(|entry| entry.fd >= 0 && has_requested_event(entry)) {
            // SAFETY: the caller guarantees the sets.
            return unsafe { sets.report(entries) };
        }
        // poll reports ends that select was not asked for: they are no reason to return.
        for entry in entries.iter_mut().filter(|entry| entry.revents != 0) {
            entry.fd = -1;
        }
    }
}

/// Both calls, with their times decoded. `None`: the kernel alone reports the readiness.
///
/// # Safety
/// As [`wait_for`].
unsafe fn wait_if_accelerated(
    sets: Sets,
    limit_ns: Option<u64>,
    mask: *const c_void,
) -> Option<c_int> {
    // SAFETY: the caller guarantees the sets.
    let plain = unsafe { sets.for_each(|fd, _| array::is_kernel_only(fd as c_int)) };
    // SAFETY: the caller guarantees the sets and the mask.
    (!plain).then(|| unsafe { wait_for(sets, limit_ns, mask) })
}

/// `select(2)`. What is left of the time is written back, as Linux does.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    exceptional: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: null, or the caller's time.
    let given = unsafe { timeout.as_ref() }.copied();
    let limit_ns = match given.map(microseconds) {
        Some(None) => return kernel::fail(libc::EINVAL) as c_int,
        Some(Some(us)) => Some(us.saturating_mul(1_000)),
        None => None,
    };
    let words = [readable.cast(), writable.cast(), exceptional.cast()];
    let sets = Sets { count: usize::try_from(count).unwrap_or(0), words };
    let limit = WaitLimit::new(limit_ns);
    // SAFETY: the program's own sets.
    let Some(result) = (unsafe { wait_if_accelerated(sets, limit_ns, std::ptr::null()) }) else {
        // SAFETY: the program's own sets and time.
        return unsafe { blocking::select(count, readable, writable, exceptional, timeout) };
    };
    if let Some(left_ns) = limit.left_ns() {
        let (seconds, rest_us) = (left_ns / 1_000_000_000, left_ns % 1_000_000_000 / 1_000);
        let left = timeval { tv_sec: seconds.cast_signed(), tv_usec: rest_us.cast_signed() };
        // SAFETY: the program's own time, which was not null.
        unsafe { timeout.write(left) };
    }
    result
}

/// A time limit, µs, if it is valid; more than a second of microseconds is allowed.
fn microseconds(time: timeval) -> Option<u64> {
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let rest = u64::try_from(time.tv_usec).ok()?;
    Some(seconds.saturating_mul(1_000_000).saturating_add(rest))
}

/// `pselect(2)`. The program's time is not changed, as with libc.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    exceptional: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null, or the caller's time.
    let given = unsafe { timeout.as_ref() }.copied();
    let limit_ns = match given.map(nanoseconds) {
        Some(None) => return kernel::fail(libc::EINVAL) as c_int,
        Some(Some(ns)) => Some(ns),
        None => None,
    };
    let words = [readable.cast(), writable.cast(), exceptional.cast()];
    let sets = Sets { count: usize::try_from(count).unwrap_or(0), words };
    // SAFETY: the program's own sets and mask.
    if let Some(result) = unsafe { wait_if_accelerated(sets, limit_ns, mask.cast()) } {
        return result;
    }
    // SAFETY: the program's own sets, time and mask.
    unsafe { blocking::pselect(count, readable, writable, exceptional, timeout, mask) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(words: &mut [[u64; 2]; 3], count: usize) -> Sets {
        Sets { count, words: words.each_mut().map(|words| words.as_mut_ptr()) }
    }

    #[test]
    fn sets_convert_to_poll_events_and_back() {
        let mut words = [[0_u64; 2]; 3];
        words[0][0] = 1 << 3 | 1 << 63;
        words[1][0] = 1 << 3;
        words[2][1] = 1 << 6 | 1 << 7;
        let sets = sets(&mut words, 64 + 7);
        let mut found = Vec::new();
        // SAFETY: the sets have room for 128 bits.
        let all = unsafe {
            sets.for_each(|fd, events| {
                found.push((fd, events));
                true
            })
        };
        assert!(all);
        assert_eq!(found, [(3, READABLE | WRITABLE), (63, READABLE), (70, EXCEPTIONAL)]);
        let entry = |fd, events, revents| pollfd { fd, events, revents };
        let reported = [
            entry(3, READABLE | WRITABLE, libc::POLLERR),
            entry(63, READABLE, libc::POLLOUT),
            entry(70, EXCEPTIONAL, libc::POLLHUP),
        ];
        assert_eq!(
            reported.iter().map(has_requested_event).collect::<Vec<_>>(),
            [true, false, false]
        );
        // SAFETY: the sets have room for 128 bits.
        assert_eq!(unsafe { sets.report(&reported) }, 2);
        assert_eq!(words, [[1 << 3, 0], [1 << 3, 0], [0, 0]]);
    }

    #[test]
    fn negative_times_are_rejected_and_large_microseconds_accepted() {
        assert_eq!(microseconds(timeval { tv_sec: 1, tv_usec: 2_000_000 }), Some(3_000_000));
        assert_eq!(microseconds(timeval { tv_sec: -1, tv_usec: 0 }), None);
        assert_eq!(microseconds(timeval { tv_sec: 0, tv_usec: -1 }), None);
    }
}
