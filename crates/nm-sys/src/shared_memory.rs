//! Memory that two processes share: an anonymous file, sealed so that neither can shrink it under
//! the other, and mapped. It has no name anywhere and is gone when its last user is.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::memfd_create;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// What both ends rely on: the size stays as it is, and this stays so.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Memory that is mapped, without the descriptor that it came from.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; who reads and writes through
// `start` answers for the order of it.
unsafe impl Send for Mapping {}

// SAFETY: as above: nothing is read or written through a shared reference here.
unsafe impl Sync for Mapping {}

/// How memory is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapMode {
    /// Readable and writable, each page in place from the start.
    Populated,
    /// Readable and writable, a page takes memory when it is first touched.
    Sparse,
    /// Readable only.
    ReadOnly,
}

impl Mapping {
    /// Fresh memory of `bytes` zero bytes and its descriptor; `name` shows in `/proc/PID/maps`.
    ///
    /// # Errors
    /// What the system says, such as `ENOMEM`.
    pub fn new(name: &str, bytes: usize, mode: MapMode) -> io::Result<(Mapping, OwnedFd)> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok((Mapping::map(&file, bytes, mode)?, file))
    }

    /// The memory behind a descriptor that another process handed over.
    ///
    /// # Errors
    /// `EINVAL` if its size is not `bytes` or could still change; a touch beyond the end of a file
    /// that its owner shrinks would kill this process.
    pub fn open(file: &OwnedFd, bytes: usize, mode: MapMode) -> io::Result<Mapping> {
        let sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS));
        let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
        if !sealed || size != bytes as u64 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Mapping::map(file, bytes, mode)
    }

    fn map(file: &OwnedFd, bytes: usize, mode: MapMode) -> io::Result<Mapping> {
        let access = match mode {
            MapMode::ReadOnly => ProtFlags::READ,
            _ => ProtFlags::READ | ProtFlags::WRITE,
        };
        let flags = match mode {
            MapMode::Populated => MapFlags::SHARED | MapFlags::POPULATE,
            _ => MapFlags::SHARED,
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, flags, file, 0) }?;
        let start =
            NonNull::new(start).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Mapping { start, bytes })
    }

    /// Where the mapping begins: at the border of a page, valid for [`Mapping::bytes`].
    pub fn start(&self) -> NonNull<c_void> {
        self.start
    }

    /// Length of the mapping.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the one that `map` made, and no reference outlives its owner.
        let _ = unsafe { munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// A mapping of shared memory, readable and writable, in place from the start, and its descriptor.
#[derive(Debug)]
pub struct SharedMemory {
    file: OwnedFd,
    mapping: Mapping,
}

impl SharedMemory {
    /// Fresh memory: see [`Mapping::new`].
    ///
    /// # Errors
    /// What the system says, such as `ENOMEM`.
    pub fn new(name: &str, bytes: usize) -> io::Result<SharedMemory> {
        let (mapping, file) = Mapping::new(name, bytes, MapMode::Populated)?;
        Ok(SharedMemory { file, mapping })
    }

    /// The memory behind a descriptor that another process handed over: see [`Mapping::open`].
    ///
    /// # Errors
    /// `EINVAL` if its size is not `bytes` or could still change.
    pub fn open(file: OwnedFd, bytes: usize) -> io::Result<SharedMemory> {
        let mapping = Mapping::open(&file, bytes, MapMode::Populated)?;
        Ok(SharedMemory { file, mapping })
    }

    /// The descriptor to hand to the other process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where the mapping begins: at the border of a page, valid for [`SharedMemory::bytes`].
    pub fn start(&self) -> NonNull<c_void> {
        self.mapping.start()
    }

    /// Length of the mapping.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_show_one_memory() {
        let memory = SharedMemory::new("nearmetal-test", 8192).unwrap();
        let file = memory.descriptor().try_clone_to_owned().unwrap();
        let other = SharedMemory::open(file, 8192).unwrap();
        // SAFETY: both mappings are live and one byte long at least; no reference is made.
        unsafe {
            memory.start().cast::<u8>().write_volatile(7);
            assert_eq!(other.start().cast::<u8>().read_volatile(), 7);
        }
    }

    #[test]
    fn memory_that_could_shrink_or_has_another_size_is_refused() {
        let memory = SharedMemory::new("nearmetal-test", 8192).unwrap();
        assert!(ftruncate(memory.descriptor(), 0).is_err(), "sealed");
        let file = memory.descriptor().try_clone_to_owned().unwrap();
        assert!(SharedMemory::open(file, 4096).is_err());
        let open = memfd_create("nearmetal-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&open, 8192).unwrap();
        assert!(SharedMemory::open(open, 8192).is_err(), "not sealed");
        let (socket, _) = crate::socket::unix_pair().unwrap();
        assert!(SharedMemory::open(socket, 8192).is_err(), "no memory at all");
    }
}
