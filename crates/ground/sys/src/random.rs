//! Random bytes that nobody can guess.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// `getrandom`—Random bytes from the kernel; `N` is at most 256, which it gives at once.
///
/// # Errors
/// Those of the system call.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256) };
    let mut bytes = [0; N];
    match getrandom(&mut bytes, GetRandomFlags::empty())? {
        filled if filled == N => Ok(bytes),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_differ_each_time() {
        let (one, other): ([u8; 16], [u8; 16]) = (bytes().unwrap(), bytes().unwrap());
        assert_ne!(one, other);
    }
}
