//! Waiting for many links at once, those of the kernel and those in shared memory.
//!
//! A shared-memory link is either polled, because it was readable of late, or waited for by its
//! doorbell. In the second case its reader has announced that it sleeps, and found nothing when it
//! looked again. Before a sleep all doorbells are armed; a link whose doorbell was rung is polled
//! again. So a busy node neither rings nor is rung, and a wake-up is never lost.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nm_sys::poll::{Interest, Poller, Readiness};

use super::connection::Link;
use super::shm::ShmRings;
use super::stream::Stream;

/// First token of doorbells, which have one by the slot of their link; those above are the
/// caller's.
const DOORBELLS: u64 = 1 << 63;

/// Shared-memory links that one poller can have.
const SLOTS_MAX: u64 = 1 << 32;

/// The slot whose doorbell a token is.
fn slot_of(token: u64) -> Option<usize> {
    token.checked_sub(DOORBELLS).filter(|slot| *slot < SLOTS_MAX).map(|slot| slot as usize)
}

#[derive(Debug)]
struct ShmEntry {
    token: u64,
    rings: Arc<ShmRings>,
    /// Whether its writer waits for space.
    wants_write: bool,
    /// Whether what it has to read is to wait.
    is_held: bool,
    is_polled: bool,
}

/// Waits for links and other descriptors.
#[derive(Debug)]
pub struct LinkPoller {
    poller: Poller,
    entries: Vec<Option<ShmEntry>>,
    /// Slots of the links that are polled.
    polled: Vec<usize>,
}

impl LinkPoller {
    /// Waits for nothing.
    ///
    /// # Errors
    /// The system's error.
    pub fn new() -> io::Result<LinkPoller> {
        Ok(LinkPoller { poller: Poller::new()?, entries: vec![], polled: vec![] })
    }

    /// Adds a descriptor that is not a link, for reading.
    ///
    /// # Errors
    /// As [`Poller::add`].
    pub fn add(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        self.poller.add(fd, token, Interest::Readable)
    }

    /// Removes a descriptor that is not a link.
    pub fn remove_other(&self, fd: impl AsFd) {
        // One that is not there is not waited for, which is what is wanted.
        let _ = self.poller.remove(fd);
    }

    /// Adds a link for reading. It must be [removed](LinkPoller::remove) before it is dropped.
    ///
    /// # Errors
    /// The system's error.
    pub fn add_link(&mut self, link: &Link, token: u64) -> io::Result<()> {
        self.poller.add(link, token, Interest::Readable)?;
        if let Stream::Shm(stream) = &link.stream {
            let free = self.entries.iter().position(Option::is_none);
            let slot = free.unwrap_or(self.entries.len());
            self.poller.add_edge_triggered(&stream.rings().doorbell, DOORBELLS + slot as u64)?;
            if slot == self.entries.len() {
                self.entries.push(None);
            }
            let rings = Arc::clone(stream.rings());
            let entry =
                ShmEntry { token, rings, wants_write: false, is_held: false, is_polled: true };
            self.entries[slot] = Some(entry);
            self.polled.push(slot);
        }
        Ok(())
    }

    /// Waits for a link to be writable too, or no longer.
    ///
    /// # Errors
    /// The system's error.
    pub fn want_write(&mut self, link: &Link, token: u64, wants_write: bool) -> io::Result<()> {
        self.watch(link, token, (true, wants_write))
    }

    /// Waits for a link to be readable, writable, both or none of these.
    ///
    /// # Errors
    /// The system's error.
    pub fn watch(
        &mut self,
        link: &Link,
        token: u64,
        (readable, writable): (bool, bool),
    ) -> io::Result<()> {
        let Some(slot) = self.slot(link) else {
            return self.poller.modify(link, token, Interest::of(readable, writable));
        };
        if let Some(entry) = &mut self.entries[slot] {
            (entry.is_held, entry.wants_write) = (!readable, writable);
            if !std::mem::replace(&mut entry.is_polled, true) {
                self.polled.push(slot);
            }
        }
        Ok(())
    }

    /// Removes a link.
    pub fn remove(&mut self, link: &Link) {
        // The descriptors are about to be closed; only a doorbell is also the peer's, and would
        // stay.
        let _ = self.poller.remove(link);
        if let Some(slot) = self.slot(link) {
            if let Some(entry) = self.entries[slot].take() {
                let _ = self.poller.remove(&entry.rings.doorbell);
            }
            self.polled.retain(|polled| *polled != slot);
        }
    }

    /// The slot of a shared-memory link.
    fn slot(&self, link: &Link) -> Option<usize> {
        let Stream::Shm(stream) = &link.stream else { return None };
        let is_it = |entry: &Option<ShmEntry>| {
            entry.as_ref().is_some_and(|entry| Arc::ptr_eq(&entry.rings, stream.rings()))
        };
        self.entries.iter().position(is_it)
    }

    /// Sleeps until something is ready, for at most `limit`; `ready` is what was found, nothing if
    /// the wait was interrupted.
    ///
    /// # Errors
    /// The system's error.
    pub fn wait(&mut self, ready: &mut Vec<Readiness>, limit: Option<Duration>) -> io::Result<()> {
        let limit = if self.is_busy() { Some(Duration::ZERO) } else { limit };
        self.poller.wait(ready, limit)?;
        ready.retain(|found| {
            let Some(slot) = slot_of(found.token) else { return true };
            if let Some(entry) = self.entries.get_mut(slot).and_then(Option::as_mut)
                && !entry.is_polled
            {
                entry.is_polled = true;
                self.polled.push(slot);
            }
            false
        });
        for slot in &self.polled {
            let Some(entry) = &self.entries[*slot] else { continue };
            let (readable, writable) =
                (!entry.is_held && entry.rings.is_readable(), entry.wants_write);
            if readable || writable {
                ready.push(Readiness { token: entry.token, readable, writable });
            }
        }
        Ok(())
    }

    /// Whether a polled link has something to read. If none has, all doorbells are armed.
    fn is_busy(&mut self) -> bool {
        let LinkPoller { entries, polled, .. } = self;
        let is_readable = |slot: &usize| {
            let entry = entries[*slot].as_ref().filter(|entry| !entry.is_held);
            entry.is_some_and(|entry| entry.rings.is_readable())
        };
        if polled.iter().any(is_readable) {
            return true;
        }
        polled.retain(|slot| {
            let Some(entry) = &mut entries[*slot] else { return false };
            // What is held has something to read all the time. It is polled again when it goes on.
            let is_armed = entry.is_held || entry.rings.arm_doorbell();
            entry.is_polled = !is_armed;
            entry.is_polled
        });
        !polled.is_empty()
    }
}
