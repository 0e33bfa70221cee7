//! Waiting for many links at once, those of the kernel and those in shared memory.
//!
//! A ring is either looked at, because something came through it of late, or left to its bell: its
//! reader has said that it sleeps, and nothing was there when it looked again. Before a sleep all
//! rings are left to their bells; a ring whose bell rang is looked at again. So a node that is busy
//! neither rings nor is rung, and a wake-up is never lost.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nm_sys::poll::{Interest, Poller, Readiness};

use super::ring::Core;
use super::{Link, Stream};

/// Tokens from here on are those of bells, by the ring's place; above them are the caller's again.
const BELLS: u64 = 1 << 63;

/// Rings that can be watched at once.
const RINGS_MAX: u64 = 1 << 32;

/// The ring whose bell a token means.
fn place_of(token: u64) -> Option<usize> {
    token.checked_sub(BELLS).filter(|place| *place < RINGS_MAX).map(|place| place as usize)
}

#[derive(Debug)]
struct Watched {
    token: u64,
    core: Arc<Core>,
    /// Whether its writer waits for room.
    writes: bool,
    is_looked_at: bool,
}

/// Waits for links and other descriptors.
#[derive(Debug)]
pub struct LinkPoller {
    poller: Poller,
    rings: Vec<Option<Watched>>,
    /// Places of the rings that are looked at.
    looked_at: Vec<usize>,
}

impl LinkPoller {
    /// Watches nothing.
    ///
    /// # Errors
    /// What the system says.
    pub fn new() -> io::Result<LinkPoller> {
        Ok(LinkPoller { poller: Poller::new()?, rings: vec![], looked_at: vec![] })
    }

    /// Watches a descriptor that is no link, for reading.
    ///
    /// # Errors
    /// As [`Poller::add`].
    pub fn add(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        self.poller.add(fd, token, Interest::Readable)
    }

    /// Watches a link for reading. A link must be [removed](LinkPoller::remove) before it is dropped.
    ///
    /// # Errors
    /// What the system says.
    pub fn add_link(&mut self, link: &Link, token: u64) -> io::Result<()> {
        self.poller.add(link, token, Interest::Readable)?;
        if let Stream::Shm(ring) = &link.stream {
            let free = self.rings.iter().position(Option::is_none);
            let place = free.unwrap_or(self.rings.len());
            self.poller.add_edge_triggered(&ring.core().bell, BELLS + place as u64)?;
            if place == self.rings.len() {
                self.rings.push(None);
            }
            let core = Arc::clone(ring.core());
            self.rings[place] = Some(Watched { token, core, writes: false, is_looked_at: true });
            self.looked_at.push(place);
        }
        Ok(())
    }

    /// Watches a link for writing too, or no longer.
    ///
    /// # Errors
    /// What the system says.
    pub fn change(&mut self, link: &Link, token: u64, writes: bool) -> io::Result<()> {
        match self.place(link) {
            None => self.poller.modify(link, token, Interest::with_writable(writes)),
            Some(place) => {
                if let Some(ring) = &mut self.rings[place] {
                    ring.writes = writes;
                }
                Ok(())
            }
        }
    }

    /// Watches a link no longer.
    pub fn remove(&mut self, link: &Link) {
        // The descriptors are about to be closed; only a bell is also the peer's, and would stay.
        let _ = self.poller.remove(link);
        if let Some(place) = self.place(link) {
            if let Some(ring) = self.rings[place].take() {
                let _ = self.poller.remove(&ring.core.bell);
            }
            self.looked_at.retain(|looked_at| *looked_at != place);
        }
    }

    /// Where the ring of a link is; none for a link of the kernel.
    fn place(&self, link: &Link) -> Option<usize> {
        let Stream::Shm(ring) = &link.stream else { return None };
        let is_it = |watched: &Option<Watched>| {
            watched.as_ref().is_some_and(|watched| Arc::ptr_eq(&watched.core, ring.core()))
        };
        self.rings.iter().position(is_it)
    }

    /// Sleeps until something is ready, for at most `limit`; `ready` is what was found, nothing if
    /// the wait was interrupted.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait(&mut self, ready: &mut Vec<Readiness>, limit: Option<Duration>) -> io::Result<()> {
        let limit = if self.is_busy() { Some(Duration::ZERO) } else { limit };
        self.poller.wait(ready, limit)?;
        ready.retain(|found| {
            let Some(place) = place_of(found.token) else { return true };
            if let Some(ring) = self.rings.get_mut(place).and_then(Option::as_mut)
                && !ring.is_looked_at
            {
                ring.is_looked_at = true;
                self.looked_at.push(place);
            }
            false
        });
        for place in &self.looked_at {
            let Some(ring) = &self.rings[*place] else { continue };
            let (readable, writable) = (ring.core.is_readable(), ring.writes);
            if readable || writable {
                ready.push(Readiness { token: ring.token, readable, writable });
            }
        }
        Ok(())
    }

    /// Whether a ring has something to read. If none has, all are left to their bells.
    fn is_busy(&mut self) -> bool {
        let LinkPoller { rings, looked_at, .. } = self;
        let is_readable =
            |place: &usize| rings[*place].as_ref().is_some_and(|ring| ring.core.is_readable());
        if looked_at.iter().any(is_readable) {
            return true;
        }
        looked_at.retain(|place| {
            let Some(ring) = &mut rings[*place] else { return false };
            ring.is_looked_at = !ring.core.arm();
            ring.is_looked_at
        });
        !looked_at.is_empty()
    }
}
