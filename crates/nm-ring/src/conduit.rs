//! The region of one connection: two ends, and a pipe in each direction.

use std::io;
use std::mem::size_of;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use nm_sys::shared_memory::{MapMode, Mapping};

use crate::pipe::{PIPE_BYTES, Pipe};
use crate::role::EndpointRole;
use crate::sync::{AtomicU32, AtomicU64};

/// First word of a region: a mark, and the version of the layout.
pub const MARK: u64 = 0x6e6d_636f_6e64_0001;

/// Bytes of a region: what both ends must agree on before anything else.
pub const CONDUIT_BYTES: usize = size_of::<Conduit>();

/// State of an end all of whose waits look at its bell.
pub const WATCHES_DOORBELL: u32 = 1;

/// State of an end that sends no more.
pub const WRITE_SHUT: u32 = 2;

/// State of an end that receives no more.
pub const READ_SHUT: u32 = 4;

/// State of an end whose last descriptor was closed.
pub const CLOSED: u32 = 8;

/// State of an end that was closed with bytes unread: the other end's connection is reset.
pub const RESET: u32 = 16;

/// One end's words; the other end only reads them.
#[repr(C, align(128))]
pub struct ConduitEnd {
    /// Bits of [`WATCHES_DOORBELL`], [`WRITE_SHUT`], [`READ_SHUT`], [`CLOSED`] and [`RESET`].
    pub state: AtomicU32,
    /// CPU on role this end waited last, plus one; zero while it is not known.
    pub cpu: AtomicU32,
    /// Process that used this end last, in its own pid namespace.
    pub pid: AtomicU32,
}

impl ConduitEnd {
    /// Adds `bits` to the state. What was done before is seen by who sees them.
    pub fn set_flags(&self, bits: u32) {
        self.state.fetch_or(bits, Release);
    }

    /// Whether all of `bits` are in the state.
    #[inline(always)]
    pub fn has_flags(&self, bits: u32) -> bool {
        self.state.load(Acquire) & bits == bits
    }

    /// Notes the CPU on role this end waits.
    #[inline(always)]
    pub fn set_cpu(&self, cpu: u32) {
        let noted = cpu.wrapping_add(1);
        // Read first: a store would take the line from the other end each time.
        if self.cpu.load(Relaxed) != noted {
            self.cpu.store(noted, Relaxed);
        }
    }

    /// CPU on role this end waited last.
    #[inline(always)]
    pub fn cpu(&self) -> Option<u32> {
        self.cpu.load(Relaxed).checked_sub(1)
    }
}

/// All of it, with pipes of `BYTES` bytes. Zero but for the mark is a valid beginning.
#[repr(C, align(128))]
pub struct Conduit<const BYTES: usize = PIPE_BYTES> {
    mark: AtomicU64,
    /// Not zero once the second end has mapped it.
    pub opened: AtomicU32,
    /// The end that made the region, and the one that it was handed to.
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
    /// This end's words.
    #[inline(always)]
    pub fn own(&self, role: EndpointRole) -> &ConduitEnd {
        &self.ends[role as usize]
    }

    /// The other end's words.
    #[inline(always)]
    pub fn peer(&self, role: EndpointRole) -> &ConduitEnd {
        &self.ends[1 - role as usize]
    }

    /// The pipe that leads away from this end.
    #[inline(always)]
    pub fn outgoing(&self, role: EndpointRole) -> &Pipe<BYTES> {
        &self.pipes[role as usize]
    }

    /// The pipe that leads to this end.
    #[inline(always)]
    pub fn incoming(&self, role: EndpointRole) -> &Pipe<BYTES> {
        &self.pipes[1 - role as usize]
    }
}

/// A region that is mapped. It is unmapped on drop; who leaks it keeps it.
#[derive(Debug)]
pub struct ConduitMapping<const BYTES: usize = PIPE_BYTES>(Mapping);

impl ConduitMapping {
    /// A fresh region of a socket, all of it in place, and the descriptor to hand to the other
    /// process.
    ///
    /// # Errors
    /// What the system says, such as `ENOMEM` or `EMFILE`.
    pub fn new() -> io::Result<(ConduitMapping, OwnedFd)> {
        ConduitMapping::create(MapMode::Populated)
    }

    /// A region of a socket that another process made. The descriptor is closed.
    ///
    /// # Errors
    /// `EINVAL` if it is not sealed, of another size or another version.
    pub fn open(file: OwnedFd) -> io::Result<ConduitMapping> {
        ConduitMapping::map(file, MapMode::Populated)
    }
}

impl<const BYTES: usize> ConduitMapping<BYTES> {
    /// A fresh region, of role a page takes memory when it is first used, and the descriptor to
    /// hand to the other process.
    ///
    /// # Errors
    /// What the system says, such as `ENOMEM` or `EMFILE`.
    pub fn sparse() -> io::Result<(ConduitMapping<BYTES>, OwnedFd)> {
        ConduitMapping::create(MapMode::Sparse)
    }

    /// A region that another process made by [`ConduitMapping::sparse`]. The descriptor is closed.
    ///
    /// # Errors
    /// `EINVAL` if it is not sealed, of another size or another version.
    pub fn open_sparse(file: OwnedFd) -> io::Result<ConduitMapping<BYTES>> {
        ConduitMapping::map(file, MapMode::Sparse)
    }

    fn create(mode: MapMode) -> io::Result<(ConduitMapping<BYTES>, OwnedFd)> {
        let bytes = size_of::<Conduit<BYTES>>();
        let (mapping, file) = Mapping::new("nearmetal-conduit", bytes, mode)?;
        let mapped = ConduitMapping(mapping);
        mapped.mark.store(MARK, Release);
        Ok((mapped, file))
    }

    fn map(file: OwnedFd, mode: MapMode) -> io::Result<ConduitMapping<BYTES>> {
        let mapped = ConduitMapping(Mapping::open(&file, size_of::<Conduit<BYTES>>(), mode)?);
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
        // SAFETY: the mapping is live as long as `self`, at the border of a page and exactly as
        // long as a conduit; it cannot shrink. A conduit consists of atomics and of bytes behind
        // `UnsafeCell`, role may change under a shared reference and are valid in any state.
        unsafe { self.0.start().cast::<Conduit<BYTES>>().as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_are_one_conduit() {
        let (first, file) = ConduitMapping::new().unwrap();
        let second = ConduitMapping::open(file).unwrap();
        assert_eq!(first.outgoing(EndpointRole::Creator).push(b"there"), 5);
        assert_eq!(second.outgoing(EndpointRole::Opener).push(b"back"), 4);
        let mut buffer = [0; 8];
        assert_eq!(second.incoming(EndpointRole::Opener).pull(&mut buffer), 5);
        assert_eq!(&buffer[..5], b"there");
        assert_eq!(first.incoming(EndpointRole::Creator).pull(&mut buffer), 4);
        assert_eq!(&buffer[..4], b"back");
        first.own(EndpointRole::Creator).set_flags(WATCHES_DOORBELL | WRITE_SHUT);
        assert!(second.peer(EndpointRole::Opener).has_flags(WRITE_SHUT));
        assert!(!second.peer(EndpointRole::Opener).has_flags(WRITE_SHUT | RESET));
        second.own(EndpointRole::Opener).set_cpu(0);
        assert_eq!(
            (first.peer(EndpointRole::Creator).cpu(), first.own(EndpointRole::Creator).cpu()),
            (Some(0), None)
        );
    }

    #[test]
    fn memory_that_is_no_conduit_is_refused() {
        let (_mapping, file) = Mapping::new("x", CONDUIT_BYTES, MapMode::Sparse).unwrap();
        assert!(ConduitMapping::open(file).is_err(), "no mark");
        let (_mapping, file) = Mapping::new("x", CONDUIT_BYTES - 128, MapMode::Sparse).unwrap();
        assert!(ConduitMapping::open(file).is_err(), "too short");
    }
}
