//! Mapping of a [`Region`] in shared memory.

use std::io;
use std::mem::size_of;
use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};

use nm_sys::shared_memory::SharedMemory;

use crate::layout::{EndpointState, RecordQueue, Region};
use crate::role::EndpointRole;

/// Bytes of a region. Both ends compare it before they map the memory.
pub const REGION_BYTES: usize = size_of::<Region>();

/// A mapped region that another process may share.
#[derive(Debug)]
pub struct RegionMapping(SharedMemory);

impl RegionMapping {
    /// Creates a region.
    ///
    /// # Errors
    /// The system's error.
    pub fn new() -> io::Result<RegionMapping> {
        SharedMemory::new("nearmetal-ring", REGION_BYTES).map(RegionMapping)
    }

    /// Maps a region that another process created.
    ///
    /// # Errors
    /// `EINVAL` if it is not sealed or of another size.
    pub fn open(descriptor: OwnedFd) -> io::Result<RegionMapping> {
        SharedMemory::open(descriptor, REGION_BYTES).map(RegionMapping)
    }

    /// Maps a region at `offset` in the memory of a device, which must be long enough.
    ///
    /// # Errors
    /// `EINVAL` if it is not.
    pub(crate) fn of_device(device: OwnedFd, offset: u64) -> io::Result<RegionMapping> {
        SharedMemory::of_device(device, offset, REGION_BYTES).map(RegionMapping)
    }

    /// Brings the region into its initial state, before the other end has it.
    pub(crate) fn clear(&self) {
        // SAFETY: the mapping is live and this long. What another end writes at the same time, it
        // writes into memory that is not its own any more; each value of each byte is valid.
        unsafe { self.0.start().cast::<u8>().write_bytes(0, REGION_BYTES) };
    }

    /// The descriptor to hand to the other process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }

    /// State of this end, and of the other end.
    #[inline(always)]
    pub fn endpoints(&self, role: EndpointRole) -> (&EndpointState, &EndpointState) {
        let [creator, opener] = &self.endpoints;
        match role {
            EndpointRole::Creator => (creator, opener),
            EndpointRole::Opener => (opener, creator),
        }
    }

    /// The queue that this end sends by, and the one that it receives from.
    #[inline(always)]
    pub fn queues(&self, role: EndpointRole) -> (&RecordQueue, &RecordQueue) {
        let [from_creator, from_opener] = &self.queues;
        match role {
            EndpointRole::Creator => (from_creator, from_opener),
            EndpointRole::Opener => (from_opener, from_creator),
        }
    }
}

impl Deref for RegionMapping {
    type Target = Region;

    #[inline(always)]
    fn deref(&self) -> &Region {
        // SAFETY: the mapping is live as long as `self`, page-aligned and exactly as long as a
        // region; it is sealed, or a device's memory, and cannot shrink. A region consists of
        // atomics and of bytes behind `UnsafeCell`, which may change under a shared reference and
        // are valid in any state.
        unsafe { self.0.start().cast::<Region>().as_ref() }
    }
}
