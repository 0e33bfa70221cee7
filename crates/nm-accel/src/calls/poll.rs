//! Stand-in until the new readiness code lands.
use libc::timespec;
/// A time limit, ns, if the kernel accepts it.
pub fn nanoseconds(time: timespec) -> Option<u64> {
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let rest = u64::try_from(time.tv_nsec).ok().filter(|&ns| ns < 1_000_000_000)?;
    Some(seconds.saturating_mul(1_000_000_000).saturating_add(rest))
}
/// `poll`, with every joined socket relying on the kernel.
///
/// # Safety
/// As poll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn poll(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: std::ffi::c_int,
) -> std::ffi::c_int {
    // SAFETY: the program's array.
    let list = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    let sockets: Vec<_> = list.iter().map(|entry| crate::table::get(entry.fd)).collect();
    sockets.iter().flatten().for_each(|socket| socket.rely_on_kernel());
    let mut ready = 0;
    for (entry, socket) in list.iter_mut().zip(&sockets) {
        entry.revents = 0;
        if let Some(socket) = socket
            && socket.is_joined()
            && socket.has_memory_bytes()
            && entry.events & libc::POLLIN != 0
        {
            entry.revents = libc::POLLIN;
            ready += 1;
        }
    }
    if ready == 0 {
        let limit = u64::try_from(timeout).ok().map(|ms| ms * 1_000_000);
        ready = crate::kernel::poll(list, limit);
        crate::socket::incoming::kernel_events_returned();
    }
    sockets.iter().flatten().for_each(|socket| socket.end_reliance());
    ready
}
