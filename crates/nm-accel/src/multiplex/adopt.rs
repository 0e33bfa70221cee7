//! Epoll sets that this process has not created through the library: they came through an exec, or
//! from another process. The kernel's own list of registrations tells what is in them.

use libc::c_int;

use super::epoll_set::EpollSet;
use super::kernel_list::Registration;
use super::registry;
use super::sets::{release_set, unused_set};
use crate::process;
use crate::table;

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
