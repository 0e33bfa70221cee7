//! The shared region of one connection: the state of both ends, and a pipe in each direction.

use std::io;
use std::mem::size_of;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use nm_sys::shared_memory::{MapMode, Mapping};

use crate::pipe::{PIPE_BYTES, Pipe};
use crate::role::EndpointRole;
use crate::sync::{AtomicU32, AtomicU64};

/// First word of a region: a magic number that contains the version of the layout.
pub const MARK: u64 = 0x6e6d_636f_6e64_0002;

/// Bytes of a region. Both ends compare it before they map the memory.
pub const CONDUIT_BYTES: usize = size_of::<Conduit>();

/// State bit of an end that sends no more.
pub const WRITE_SHUT: u32 = 2;

/// State bit of an end that receives no more.
pub const READ_SHUT: u32 = 4;

/// State bit of an end whose last descriptor was closed.
pub const CLOSED: u32 = 8;

/// State bit of an end that asks the other one to send again, through the kernel, what it has not
/// received from memory.
pub const RETURN_REQUESTED: u32 = 16;

/// State that one end publishes; the other end only reads it.
#[repr(C, align(128))]
pub struct ConduitEnd {
    /// Bits of [`WRITE_SHUT`], [`READ_SHUT`], [`CLOSED`] and [`RETURN_REQUESTED`].
    pub state: AtomicU32,
    /// CPU on which this end waited last, plus one; zero while it is not known.
    pub cpu: AtomicU32,
    /// Process that used this end last, numbered in its own pid namespace.
    pub pid: AtomicU32,
    /// Why this end must use the kernel for the time being, as the number of a
    /// [`KernelReason`](crate::ledger::KernelReason); zero if it need not.
    pub hold_reason: AtomicU32,
}

impl ConduitEnd {
    /// Adds `bits` to the state, with release ordering.
    pub fn set_flags(&self, bits: u32) {
        self.state.fetch_or(bits, Release);
    }

    /// Whether all of `bits` are set.
    #[inline(always)]
    pub fn has_flags(&self, bits: u32) -> bool {
        self.state.load(Acquire) & bits == bits
    }

    /// Publishes the CPU on which this end waits.
    #[inline(always)]
    pub fn set_cpu(&self, cpu: u32) {
        let noted = cpu.wrapping_add(1);
        // Read first: an unconditional store would take the cache line from the other end each
        // time.
        if self.cpu.load(Relaxed) != noted {
            self.cpu.store(noted, Relaxed);
        }
    }

    /// CPU on which this end waited last.
    #[inline(always)]
    pub fn cpu(&self) -> Option<u32> {
        self.cpu.load(Relaxed).checked_sub(1)
    }
}

/// The region, with pipes of `BYTES` bytes. All zero except the magic number is a valid initial
/// state.
#[repr(C, align(128))]
pub struct Conduit<const BYTES: usize = PIPE_BYTES> {
    mark: AtomicU64,
    /// State of the offer of this region to the second end. Zero in a new region; the user of the
    /// conduit defines the other values.
    pub opened: AtomicU32,
    /// The end that created the region, and the one that opened it.
    pub ends: [ConduitEnd; 2],
    /// `pipes[0]` leads from `ends[0]` to `ends[1]`, `pipes[1]` back.
    pub pipes: [Pipe<BYTES>; 2],
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Conduit, ends) == 128 && size_of::<ConduitEnd>() == 128);
    assert!(offset_of!(Conduit, pipes) == 384);
    assert!(CONDUIT_BYTES == 384 + 2 * size_of::<Pipe>());
};

impl<const BYTES: usize> Conduit<BYTES> {
    /// State of this end.
    #[inline(always)]
    pub fn own(&self, role: EndpointRole) -> &ConduitEnd {
        &self.ends[role as usize]
    }

    /// State of the other end.
    #[inline(always)]
    pub fn peer(&self, role: EndpointRole) -> &ConduitEnd {
        &self.ends[1 - role as usize]
    }

    /// The pipe that this end sends by.
    #[inline(always)]
    pub fn outgoing(&self, role: EndpointRole) -> &Pipe<BYTES> {
        &self.pipes[role as usize]
    }

    /// The pipe that this end receives from.
    #[inline(always)]
    pub fn incoming(&self, role: EndpointRole) -> &Pipe<BYTES> {
        &self.pipes[1 - role as usize]
    }
}

/// A mapped region. It is unmapped on drop.
#[derive(Debug)]
pub struct ConduitMapping<const BYTES: usize = PIPE_BYTES>(Mapping);

impl<const BYTES: usize> ConduitMapping<BYTES> {
    /// Creates a region whose pages are allocated at first use, and returns the descriptor to hand
    /// to the other process.
    ///
    /// # Errors
    /// The system's error, such as `ENOMEM` or `EMFILE`.
    pub fn new() -> io::Result<(ConduitMapping<BYTES>, OwnedFd)> {
        let bytes = size_of::<Conduit<BYTES>>();
        let (mapping, file) = Mapping::new("nearmetal-conduit", bytes, MapMode::Sparse)?;
        let mapped = ConduitMapping(mapping);
        mapped.mark.store(MARK, Release);
        Ok((mapped, file))
    }

    /// Maps a region that another process created.
    ///
    /// # Errors
    /// `EINVAL` if it is not sealed, of another size or another version.
    pub fn open(file: impl AsFd) -> io::Result<ConduitMapping<BYTES>> {
        let bytes = size_of::<Conduit<BYTES>>();
        let mapped = ConduitMapping(Mapping::open(file, bytes, MapMode::Sparse)?);
        if mapped.mark.load(Acquire) != MARK {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        Ok(mapped)
    }
}

impl<const BYTES: usize> Deref for ConduitMapping<BYTES> {
    type Target = Conduit<BYTES>;

    #[inline(always)]
    fn deref(&self) -> &Conduit<BYTES> {
        // SAFETY: the mapping is live as long as `self`, page-aligned and exactly as long as a
        // conduit; it is sealed and cannot shrink. A conduit consists of atomics and of bytes
        // behind `UnsafeCell`, which may change under a shared reference and are valid in any
        // state.
        unsafe { self.0.start().cast::<Conduit<BYTES>>().as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_are_one_conduit() {
        let (first, file) = ConduitMapping::<PIPE_BYTES>::new().unwrap();
        let second = ConduitMapping::<PIPE_BYTES>::open(file).unwrap();
        assert_eq!(first.outgoing(EndpointRole::Creator).push(b"there"), 5);
        assert_eq!(second.outgoing(EndpointRole::Opener).push(b"back"), 4);
        let mut buffer = [0; 8];
        assert_eq!(second.incoming(EndpointRole::Opener).pull(&mut buffer), 5);
        assert_eq!(&buffer[..5], b"there");
        assert_eq!(first.incoming(EndpointRole::Creator).pull(&mut buffer), 4);
        assert_eq!(&buffer[..4], b"back");
        first.own(EndpointRole::Creator).set_flags(READ_SHUT | WRITE_SHUT);
        assert!(second.peer(EndpointRole::Opener).has_flags(WRITE_SHUT));
        assert!(!second.peer(EndpointRole::Opener).has_flags(WRITE_SHUT | CLOSED));
        second.own(EndpointRole::Opener).set_cpu(0);
        assert_eq!(
            (first.peer(EndpointRole::Creator).cpu(), first.own(EndpointRole::Creator).cpu()),
            (Some(0), None)
        );
    }

    #[test]
    fn memory_that_is_no_conduit_is_rejected() {
        let (_mapping, file) = Mapping::new("x", CONDUIT_BYTES, MapMode::Sparse).unwrap();
        assert!(ConduitMapping::<PIPE_BYTES>::open(file).is_err(), "no mark");
        let (_mapping, file) = Mapping::new("x", CONDUIT_BYTES - 128, MapMode::Sparse).unwrap();
        assert!(ConduitMapping::<PIPE_BYTES>::open(file).is_err(), "too short");
    }
}
