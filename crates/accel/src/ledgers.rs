//! The ledgers whose records this process uses. They are that of its own program, and those of the
//! programs that have started it and whose sockets it has inherited. Also the locks that started
//! programs have on the sockets in a ledger.
//!
//! The kernel keeps such a lock until the last descriptor of the open file description that made it
//! is closed. That counts in a program and in all programs that it starts in turn.

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicPtr, Ordering};

use nm_ring::ledger::{Ledger, RECORDS, Record};

use crate::kernel;

/// Ledgers that a process can use.
pub const LEDGERS_MAX: usize = 4;

struct Known {
    ledger: Ledger,
    file: c_int,
}

/// The program's own ledger is the first.
static KNOWN: [AtomicPtr<Known>; LEDGERS_MAX] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; LEDGERS_MAX];

/// Which of a socket's two bytes in the file of its ledger is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockedByte {
    /// A started program may use the socket at any time, without this library.
    InUse,
    /// A started program has inherited the socket, and asks before it uses it.
    Inherited,
}

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the ledger in this process.
    pub ledger: usize,
    /// Index of the record in the ledger.
    pub record: usize,
}

/// Adds a ledger, for the rest of the process; `file` is its descriptor. Only the constructor calls
/// this. Returns the ledger's index; none if there are too many.
pub fn add(ledger: Ledger, file: c_int) -> Option<usize> {
    let free = KNOWN.iter().position(|entry| entry.load(Ordering::Relaxed).is_null())?;
    KNOWN[free].store(Box::into_raw(Box::new(Known { ledger, file })), Ordering::Release);
    Some(free)
}

fn known(index: usize) -> Option<&'static Known> {
    // SAFETY: null, or stored once and never freed.
    unsafe { KNOWN.get(index)?.load(Ordering::Acquire).as_ref() }
}

/// The ledger of this program.
pub fn own() -> Option<&'static Ledger> {
    known(0).map(|known| &known.ledger)
}

/// The descriptor of a ledger's file; −1 if there is no such ledger.
pub fn file(index: usize) -> c_int {
    known(index).map_or(-1, |known| known.file)
}

/// The ledger, already known, whose file is also that of `other`.
pub fn index_of_file(other: BorrowedFd<'_>) -> Option<usize> {
    (0..LEDGERS_MAX).find(|&index| {
        // SAFETY: the descriptor of a ledger stays open as long as the process.
        known(index).is_some_and(|known| is_same_file(unsafe { borrow(known.file) }, other))
    })
}

/// # Safety
/// The descriptor stays open while the result exists.
unsafe fn borrow<'a>(fd: c_int) -> BorrowedFd<'a> {
    // SAFETY: as this function's.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Whether two descriptors refer to one file.
pub fn is_same_file(one: impl AsFd, other: impl AsFd) -> bool {
    let file = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).ok().map(|it| (it.st_dev, it.st_ino));
    let one = file(one.as_fd());
    one.is_some() && one == file(other.as_fd())
}

/// The record at `place`.
pub fn record_at(place: Place) -> Option<&'static Record> {
    known(place.ledger)?.ledger.record(place.record)
}

/// The place of a record.
pub fn place_of(record: &Record) -> Option<Place> {
    (0..LEDGERS_MAX).find_map(|index| {
        let found = known(index)?.ledger.index_of(record)?;
        Some(Place { ledger: index, record: found })
    })
}

fn lock_on(place: Place, byte: LockedByte, kind: c_int) -> libc::flock {
    let first = if byte == LockedByte::InUse { 0 } else { RECORDS };
    // SAFETY: all zero is a valid structure.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = (first + place.record) as i64;
    lock.l_len = 1;
    lock
}

/// Locks a byte of the socket at `place` for all who hold `locks`, an open file description of the
/// ledger's file. False if that is not possible.
pub fn lock(locks: c_int, place: Place, byte: LockedByte) -> bool {
    set(locks, place, byte, libc::F_RDLCK)
}

/// Unlocks a byte for all who hold `locks`.
pub fn unlock(locks: c_int, place: Place, byte: LockedByte) {
    set(locks, place, byte, libc::F_UNLCK);
}

fn set(locks: c_int, place: Place, byte: LockedByte, kind: c_int) -> bool {
    let mut lock = lock_on(place, byte, kind);
    let lock = (&raw mut lock).addr();
    // SAFETY: the structure is live for the call.
    locks >= 0 && unsafe { kernel::fcntl(locks, libc::F_OFD_SETLK, lock) } == 0
}

/// Whether a started program has locked a byte of the socket at `place`. If that cannot be found
/// out, none is assumed to be free.
pub fn is_locked(place: Place, byte: LockedByte) -> bool {
    let mut lock = lock_on(place, byte, libc::F_WRLCK);
    let file = file(place.ledger);
    // SAFETY: the structure is live for the call.
    let result = unsafe { kernel::fcntl(file, libc::F_OFD_GETLK, (&raw mut lock).addr()) };
    result != 0 || lock.l_type != libc::F_UNLCK as i16
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, IntoRawFd};

    #[test]
    fn locks_of_one_socket_are_two_and_end_with_their_description() {
        let (ledger, file) = Ledger::create(1, "test", "", 1).unwrap();
        ledger.claim(1, 1).unwrap();
        ledger.claim(1, 2).unwrap();
        let raw = file.as_raw_fd();
        let shared = Ledger::open_shared(&file).unwrap();
        assert_eq!(index_of_file(file.as_fd()), None);
        let index = add(ledger, file.into_raw_fd()).unwrap();
        // SAFETY: the descriptor stays open: the ledger is known as long as the process.
        assert_eq!(index_of_file(unsafe { borrow(raw) }), Some(index));
        let place = place_of(record_at(Place { ledger: index, record: 1 }).unwrap()).unwrap();
        assert_eq!(place, Place { ledger: index, record: 1 });
        assert!(place_of(shared.record(1).unwrap()).is_none(), "another mapping");
        assert_eq!(record_at(place).map(Record::generation), Some(1));
        let path = format!("/proc/self/fd/{raw}");
        let locks = std::fs::File::open(path).unwrap();
        let (in_use, inherited) = (LockedByte::InUse, LockedByte::Inherited);
        assert!(!is_locked(place, in_use) && !is_locked(place, inherited));
        assert!(lock(locks.as_raw_fd(), place, in_use));
        assert!(is_locked(place, in_use) && !is_locked(place, inherited));
        assert!(lock(locks.as_raw_fd(), place, inherited));
        unlock(locks.as_raw_fd(), place, in_use);
        assert!(!is_locked(place, in_use) && is_locked(place, inherited));
        assert!(!is_locked(Place { record: 0, ..place }, inherited));
        let copy = locks.try_clone().unwrap();
        drop(locks);
        assert!(is_locked(place, inherited));
        drop(copy);
        assert!(!is_locked(place, inherited));
        assert!(!lock(-1, place, in_use));
    }
}
