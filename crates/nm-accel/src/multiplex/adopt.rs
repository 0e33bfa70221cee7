//! Epoll sets that this process has not created through the library: they came through an exec, or
//! from another process, or the program makes its system calls itself. The kernel's own list of
//! registrations tells what is in them.

use libc::c_int;

use super::epoll_set::EpollSet;
use super::kernel_list::Registration;
use super::registry;
use super::sets::{release_set, unused_set};
use crate::{open_files, process, table};

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

/// Whether the process has an epoll set that the library does not know. The program may wait for it
/// by system calls of its own, where nobody would see that it relies on the kernel.
pub fn has_unknown_set() -> bool {
    open_files::any(b"anon_inode:[eventpoll]", LOOK_BELOW, |fd| registry::get(fd).is_none())
}
