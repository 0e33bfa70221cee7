//! POSIX asynchronous i/o: threads of the C library read and write past this library, so the socket
//! returns to the kernel.

use std::ffi::c_int;

use libc::{aiocb, sigevent};
use nm_ring::ledger::KernelReason;

use crate::kernel;
use crate::next::next_functions;
use crate::{fallback, table};

type SubmitFn = unsafe extern "C" fn(*mut aiocb) -> c_int;
type ListFn = unsafe extern "C-unwind" fn(c_int, *const *mut aiocb, c_int, *mut sigevent) -> c_int;

next_functions! {
    AIO_READ: SubmitFn = c"aio_read";
    AIO_WRITE: SubmitFn = c"aio_write";
    LIO_LISTIO: ListFn = c"lio_listio";
}

/// Looks up the C library's functions.
pub fn prepare() {
    prepare_functions();
}

/// Returns the socket that an operation uses, if it is one, to the kernel.
///
/// # Safety
/// `block` is null or points to an operation.
unsafe fn before_operation(block: *const aiocb) {
    // SAFETY: the caller guarantees an operation, or null.
    if let Some(block) = unsafe { block.as_ref() }
        && let Some(socket) = table::get(block.aio_fildes)
    {
        fallback::move_to_kernel(socket, KernelReason::AsynchronousIo);
    }
}

/// Makes the two functions that submit one operation, by both names: on 64-bit processors the
/// structures are the same.
macro_rules! submit {
    ($($name:ident, $second:ident => $real:ident;)*) => {$(
        /// libc's function of this name.
        ///
        /// # Safety
        /// As libc's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(block: *mut aiocb) -> c_int {
            // SAFETY: the program's own operation.
            unsafe { before_operation(block) };
            let Some(real) = $real.get() else { return kernel::fail(libc::ENOSYS) as c_int };
            // SAFETY: the operation is live until it is complete, which the caller guarantees.
            unsafe { real(block) }
        }

        /// The same for programs with 64-bit file offsets.
        ///
        /// # Safety
        /// As libc's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $second(block: *mut aiocb) -> c_int {
            // SAFETY: both names have the same declaration.
            unsafe { $name(block) }
        }
    )*};
}

submit! {
    aio_read, aio_read64 => AIO_READ;
    aio_write, aio_write64 => AIO_WRITE;
}

/// `int lio_listio(int mode, struct aiocb *const list[], int count, struct sigevent *event)`: with
/// `LIO_WAIT` a cancellation point of libc, which unwinds no frame of ours that has to drop
/// anything
///
/// # Safety
/// As lio_listio(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn lio_listio(
    mode: c_int,
    list: *const *mut aiocb,
    count: c_int,
    event: *mut sigevent,
) -> c_int {
    for index in 0..if list.is_null() { 0 } else { usize::try_from(count).unwrap_or(0) } {
        // SAFETY: the program's own list of `count` operations, null or live.
        unsafe { before_operation(*list.add(index)) };
    }
    let Some(real) = LIO_LISTIO.get() else { return kernel::fail(libc::ENOSYS) as c_int };
    // SAFETY: the operations are live until they are complete, which the caller guarantees.
    unsafe { real(mode, list, count, event) }
}
