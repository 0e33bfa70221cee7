//! A plug-in whose calls go to the C library that it was linked with.
#![no_std]

#[link(name = "c")]
unsafe extern "C" {
    fn write(fd: i32, bytes: *const u8, count: usize) -> isize;
    fn abort() -> !;
}

/// Writes by the plug-in's own `write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plug_in_write(fd: i32, bytes: *const u8, count: usize) -> isize {
    unsafe { write(fd, bytes, count) }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe { abort() }
}
