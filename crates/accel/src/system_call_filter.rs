//! Programs that restrict their own system calls (seccomp). A filter may end the process at any
//! call that the program itself would not make. This library makes calls of its own: it asks for
//! options, looks for the other end, and polls. So before the first filter all sockets go to the
//! kernel for good. From then on the library's functions make the program's own calls only.

use nm_ring::ledger::KernelReason;

use crate::{fallback, inherited, multiplex, process, rendezvous, table};

/// Before the program installs a filter. Whatever becomes of that, nothing is moved to memory any
/// more.
pub fn before_filter() {
    if process::is_restricted() || process::is_borrower() {
        return;
    }
    // No rendezvous begins meanwhile, and no other thread forks.
    rendezvous::before_fork();
    inherited::use_all();
    table::for_each_socket(|socket| {
        fallback::move_to_kernel(socket, KernelReason::SystemCallFilter);
    });
    multiplex::forget_all_sets();
    process::set_restricted();
    table::leave_to_kernel();
    rendezvous::after_fork_in_parent();
}
