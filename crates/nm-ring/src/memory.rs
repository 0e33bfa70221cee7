//! The region in shared memory.

use std::io;
use std::mem::size_of;
use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};

use nm_sys::shared_memory::SharedMemory;

use crate::layout::{Lane, Region, Side};

/// Bytes of a region: what both ends must agree on before anything else.
pub const REGION_BYTES: usize = size_of::<Region>();

/// Which of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The end that made the memory.
    First = 0,
    /// The end that it was handed to.
    Second = 1,
}

/// A region in memory that another process may share.
#[derive(Debug)]
pub struct Memory(SharedMemory);

impl Memory {
    /// Fresh memory.
    ///
    /// # Errors
    /// What the system says.
    pub fn new() -> io::Result<Memory> {
        SharedMemory::new("nearmetal-ring", REGION_BYTES).map(Memory)
    }

    /// Memory that another process made.
    ///
    /// # Errors
    /// `EINVAL` if it is not sealed or of another size.
    pub fn open(descriptor: OwnedFd) -> io::Result<Memory> {
        SharedMemory::open(descriptor, REGION_BYTES).map(Memory)
    }

    /// The descriptor to hand to the other process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }

    /// This end's words and the other's.
    #[inline(always)]
    pub fn sides(&self, which: Which) -> (&Side, &Side) {
        let [first, second] = &self.sides;
        match which {
            Which::First => (first, second),
            Which::Second => (second, first),
        }
    }

    /// The lane that leads away from this end, and the one that leads to it.
    #[inline(always)]
    pub fn lanes(&self, which: Which) -> (&Lane, &Lane) {
        let [there, back] = &self.lanes;
        match which {
            Which::First => (there, back),
            Which::Second => (back, there),
        }
    }
}

impl Deref for Memory {
    type Target = Region;

    #[inline(always)]
    fn deref(&self) -> &Region {
        // SAFETY: the mapping is live as long as `self`, at the border of a page and exactly as
        // long as a region; it cannot shrink. A region consists of atomics and of bytes behind
        // `UnsafeCell`, which may change under a shared reference and are valid in any state.
        unsafe { self.0.start().cast::<Region>().as_ref() }
    }
}
