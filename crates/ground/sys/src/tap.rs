//! Tap devices: virtual network devices whose frames a program reads and writes.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// `linux/if_tun.h`
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
const TUNSETPERSIST: libc::Ioctl = 0x4004_54cb;
const IFF_TAP: libc::c_short = 0x0002;
const IFF_NO_PI: libc::c_short = 0x1000;
const IFF_VNET_HDR: libc::c_short = 0x4000;

/// The device file of all tap devices.
pub const DEVICE: &str = "/dev/net/tun";

/// `struct ifreq` with the flags of TUNSETIFF.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    unused: [u8; 22],
}

/// Makes a tap device in the network namespace of this thread. It stays until its namespace ends;
/// a program opens it by its name.
///
/// # Errors
/// Those of open(2) on the device file and of ioctl(2): permission, or the name is in use.
pub fn create(name: &str) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(DEVICE)?;
    let mut request = Request {
        name: [0; libc::IFNAMSIZ],
        flags: IFF_TAP | IFF_NO_PI | IFF_VNET_HDR,
        unused: [0; 22],
    };
    // One byte is left for the zero at the end.
    if name.is_empty() || name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the kernel reads and writes a `struct ifreq`, which `Request` is as large as.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) })?;
    // SAFETY: this request takes a number.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), TUNSETPERSIST, 1 as libc::c_ulong) })
}

fn checked(result: RawFd) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_as_large_as_the_kernels() {
        assert_eq!(size_of::<Request>(), size_of::<libc::ifreq>());
    }

    #[test]
    fn name_without_room_is_refused() {
        // Without the device or the right to open it, that is the error.
        assert!(create("a-name-of-16-byte").is_err());
        assert!(create("").is_err());
    }
}
