//! Binding an address that a process may still have which is about to be gone. The kernel takes a
//! while to free the memory of a large one that was killed, and closes its sockets after that.

use std::io::{self, ErrorKind};
use std::time::Duration;

use crate::clock::Deadline;

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// Binds, again and again for at most `limit` while the address is in use.
///
/// # Errors
/// Those of `bind`; that the address is in use, if it is for longer.
pub fn patiently<T>(limit: Duration, mut bind: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let deadline = Deadline::after(limit);
    loop {
        match bind() {
            Err(error) if error.kind() == ErrorKind::AddrInUse && !deadline.passed() => {
                std::thread::sleep(PAUSE);
            }
            bound => return bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn an_address_is_bound_when_the_process_before_has_gone() {
        let before = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = before.local_addr().unwrap();
        let short = patiently(Duration::from_millis(50), || TcpListener::bind(address));
        assert_eq!(short.unwrap_err().kind(), ErrorKind::AddrInUse);
        let closing = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(before);
        });
        assert!(patiently(Duration::from_secs(60), || TcpListener::bind(address)).is_ok());
        closing.join().unwrap();
        // What waiting does not change is said at once.
        let mut times = 0;
        let never = patiently(Duration::from_secs(60), || {
            times += 1;
            Err::<(), _>(io::Error::from(ErrorKind::PermissionDenied))
        });
        assert_eq!((never.unwrap_err().kind(), times), (ErrorKind::PermissionDenied, 1));
    }
}
