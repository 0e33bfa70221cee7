//! The server of requests: it sends again what somebody has missed, to whoever asks.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nm_sys::clock;

use crate::limits::{ALL_REQUESTS_PER_SECOND, REQUESTS_PER_SECOND};
use crate::mold::Header;
use crate::store::Store;

/// Longest wait for a request before the end is looked for.
const WAIT: Duration = Duration::from_millis(100);

/// ns of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// How many requests each address has had answered in this second.
#[derive(Debug, Default)]
pub struct Quota {
    second: u64,
    all: u32,
    of: HashMap<IpAddr, u32>,
}

impl Quota {
    /// Whether a request of an address is answered.
    pub fn admit(&mut self, address: IpAddr, now_ns: u64) -> bool {
        let second = now_ns / SECOND_NS;
        if second != self.second {
            *self = Quota { second, ..Quota::default() };
        }
        if self.all == ALL_REQUESTS_PER_SECOND {
            return false;
        }
        let own = self.of.entry(address).or_default();
        if *own == REQUESTS_PER_SECOND {
            return false;
        }
        *own += 1;
        self.all += 1;
        true
    }
}

/// Answers requests until `stop`.
///
/// # Errors
/// If the socket cannot be used.
pub fn serve(socket: &UdpSocket, store: &Mutex<Store>, stop: &AtomicBool) -> io::Result<()> {
    socket.set_read_timeout(Some(WAIT))?;
    let (mut quota, mut bytes) = (Quota::default(), [0; 64]);
    while !stop.load(Ordering::Relaxed) {
        let (length, from) = match socket.recv_from(&mut bytes) {
            Ok(received) => received,
            Err(error) if is_passing(&error) => continue,
            Err(error) => return Err(error),
        };
        let Ok(request) = Header::read(&bytes[..length]) else { continue };
        if !quota.admit(from.ip(), clock::monotonic_ns()) {
            continue;
        }
        let answer = store.lock().unwrap_or_else(PoisonError::into_inner).answer(&request);
        if let Some(mut draft) = answer {
            // Whom it does not reach asks again.
            let _ = socket.send_to(draft.bytes(), from);
        }
    }
    Ok(())
}

/// Whether a socket works in spite of an error: nothing came, or nobody listens where something was
/// sent.
pub fn is_passing(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionRefused, Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), ConnectionRefused | Interrupted | TimedOut | WouldBlock)
}

/// Starts the server in a thread.
///
/// # Errors
/// If it cannot be started.
pub fn start(socket: UdpSocket, store: Arc<Mutex<Store>>, stop: Arc<AtomicBool>) -> io::Result<()> {
    let run = move || drop(serve(&socket, &store, &stop));
    std::thread::Builder::new().name("requests".to_string()).spawn(run).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_asks_too_much_leaves_places_to_others() {
        let mut quota = Quota::default();
        let (one, other) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let admitted = (0..REQUESTS_PER_SECOND + 5).filter(|_| quota.admit(one, 7)).count();
        assert_eq!(admitted, REQUESTS_PER_SECOND as usize);
        assert!(quota.admit(other, 8) && quota.admit(one, SECOND_NS));
        let all = (0..=255)
            .flat_map(|last| std::iter::repeat_n(last, 100))
            .filter(|last| quota.admit(IpAddr::from([10, 0, 0, *last]), 2 * SECOND_NS));
        assert_eq!(all.count(), ALL_REQUESTS_PER_SECOND as usize);
    }
}
