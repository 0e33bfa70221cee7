//! Whether the process uses io_uring, by which the kernel uses descriptors without any call of the
//! program.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use nm_ring::ledger::KernelReason;

use crate::policy::RingUse;
use crate::settings::Settings;
use crate::{fallback, inherited, open_files, table};

/// 1 once the process has created an io_uring.
static IO_URING_SEEN: AtomicU32 = AtomicU32::new(0);
/// How often [`is_in_use`] was called.
static IO_URING_CHECKS: AtomicU32 = AtomicU32::new(0);

/// Why new sockets of this process stay on the kernel, if they do.
pub fn kernel_reason() -> Option<KernelReason> {
    (IO_URING_SEEN.load(Ordering::Relaxed) != 0).then_some(KernelReason::IoUring)
}

/// Called before the program creates a ring, whose operations may use any descriptor without a call
/// of the program: every socket returns to the kernel, unless the rings are known to serve files
/// only. False if the ring is refused.
///
/// What a ring is used for cannot be found out safely: its operations are written to memory that
/// the kernel reads, by inlined instructions and possibly without any call; reading and writing
/// have the same numbers for files and sockets; and restrictions on a ring let operations fail,
/// which the program would notice.
pub fn before_ring() -> bool {
    match Settings::get().rings {
        RingUse::Refused => return false,
        RingUse::Files => {}
        RingUse::Sockets => created(),
    }
    true
}

/// Every socket returns to the kernel.
fn created() {
    IO_URING_SEEN.store(1, Ordering::Relaxed);
    inherited::use_all();
    table::for_each_socket(|socket| fallback::move_to_kernel(socket, KernelReason::IoUring));
}

/// Whether the process has an io_uring that was created by inlined instructions (as statically
/// linked liburing does): searches the descriptors at the first, second, fourth … call.
pub fn is_in_use() -> bool {
    if IO_URING_SEEN.load(Ordering::Relaxed) != 0 {
        return true;
    }
    if Settings::get().rings == RingUse::Files {
        return false;
    }
    let check = IO_URING_CHECKS.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    let is_there = || open_files::any_unmanaged(b"anon_inode:[io_uring]", c_int::MAX, |_| true);
    if check.is_power_of_two() && is_there() {
        created();
        return true;
    }
    false
}
