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

/// A mapping of shared memory, readable and writable, in place from the start.
#[derive(Debug)]
pub struct SharedMemory {
    file: OwnedFd,
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; who reads and writes through
// `start` answers for the order of it.
unsafe impl Send for SharedMemory {}

// SAFETY: as above: nothing is read or written through a shared reference here.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Fresh memory of `bytes` zero bytes; `name` shows in `/proc/PID/maps` and nowhere else.
    ///
    /// # Errors
    /// What the system says, such as `ENOMEM`.
    pub fn new(name: &str, bytes: usize) -> io::Result<SharedMemory> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        SharedMemory::map(file, bytes)
    }

    /// The memory behind a descriptor that another process handed over.
    ///
    /// # Errors
    /// `EINVAL` if its size is not `bytes` or could still change; a touch beyond the end of a file
    /// that its owner shrinks would kill this process.
    pub fn open(file: OwnedFd, bytes: usize) -> io::Result<SharedMemory> {
        let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS));
        let size = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
        if !sealed || size != bytes as u64 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        SharedMemory::map(file, bytes)
    }

    fn map(file: OwnedFd, bytes: usize) -> io::Result<SharedMemory> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, flags, &file, 0) }?;
        let start =
            NonNull::new(start).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(SharedMemory { file, start, bytes })
    }

    /// The descriptor to hand to the other process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where the mapping begins: at the border of a page, valid for [`SharedMemory::bytes`].
    pub fn start(&self) -> NonNull<c_void> {
        self.start
    }

    /// Length of the mapping.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the range is the one that `map` made, and no reference outlives its owner.
        let _ = unsafe { munmap(self.start.as_ptr(), self.bytes) };
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
