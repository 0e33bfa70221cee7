//! Memory that two processes share: an anonymous file, sealed so that neither process can shrink it
//! while the other uses it, and mapped. It has no name in any file system and is freed when its
//! last user closes it.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use crate::memory_file::check_file_limit;

use rustix::fs::memfd_create;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// Guarantees for both ends: the size cannot change, and no seal can be added or removed.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Mapped memory, without its descriptor.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; code that reads and writes through
// `start` is responsible for synchronisation.
unsafe impl Send for Mapping {}

// SAFETY: as above; nothing is read or written through a shared reference here.
unsafe impl Sync for Mapping {}

/// How memory is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapMode {
    /// Readable and writable, all pages allocated at once.
    Populated,
    /// Readable and writable, each page allocated when it is first touched.
    Sparse,
    /// Readable only.
    ReadOnly,
}

impl Mapping {
    /// New memory of `bytes` zero bytes and its descriptor; `/proc/PID/maps` shows `name`.
    ///
    /// # Errors
    /// Those of the system calls, such as `ENOMEM`.
    pub fn new(name: &str, bytes: usize, mode: MapMode) -> io::Result<(Mapping, OwnedFd)> {
        check_file_limit(bytes as u64)?;
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok((Mapping::map(file.as_fd(), bytes, mode)?, file))
    }

    /// The memory of a descriptor that another process sent.
    ///
    /// # Errors
    /// `EINVAL` if its size is not `bytes`, or could still change: an access beyond the end of a
    /// file that its owner has shrunk would kill this process (`SIGBUS`).
    pub fn open(file: impl AsFd, bytes: usize, mode: MapMode) -> io::Result<Mapping> {
        let file = file.as_fd();
        let sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS));
        let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
        if !sealed || size != bytes as u64 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Mapping::map(file, bytes, mode)
    }

    /// A part of the memory of a device: of a file such as `resource2` of a PCI device in sysfs, or
    /// of any file that nobody truncates while it is mapped. `offset` is a multiple of the page
    /// size.
    ///
    /// # Errors
    /// `EINVAL` if the part lies outside the memory.
    pub fn of_device(file: &OwnedFd, offset: u64, bytes: usize) -> io::Result<Mapping> {
        let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
        if offset.checked_add(bytes as u64).is_none_or(|end| end > size) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Mapping::map_part(file.as_fd(), offset, bytes, MapMode::Sparse)
    }

    fn map(file: BorrowedFd<'_>, bytes: usize, mode: MapMode) -> io::Result<Mapping> {
        Mapping::map_part(file, 0, bytes, mode)
    }

    fn map_part(
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        mode: MapMode,
    ) -> io::Result<Mapping> {
        let access = match mode {
            MapMode::ReadOnly => ProtFlags::READ,
            _ => ProtFlags::READ | ProtFlags::WRITE,
        };
        let flags = match mode {
            MapMode::Populated => MapFlags::SHARED | MapFlags::POPULATE,
            _ => MapFlags::SHARED,
        };
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no memory in use.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, flags, file, offset) }?;
        let start =
            NonNull::new(start).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Mapping { start, bytes })
    }

    /// Start of the mapping: page-aligned, valid for [`Mapping::bytes`].
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

/// Returns the pages that lie within `bytes` from `start` on to the system: for all users of the
/// memory they are zero from then on. Without effect where the system does not support it.
///
/// # Safety
/// The range lies in a live mapping, and its users may find zeros there at any time.
pub unsafe fn release_pages(start: *mut u8, bytes: usize) {
    let page_bytes = rustix::param::page_size();
    let before = start.addr().next_multiple_of(page_bytes) - start.addr();
    let length = bytes.saturating_sub(before) / page_bytes * page_bytes;
    if length > 0 {
        let first = start.wrapping_add(before).cast();
        // SAFETY: a part of the range, which the caller guarantees.
        let _ = unsafe { madvise(first, length, Advice::LinuxRemove) };
    }
}

/// A mapping of shared memory, readable and writable, all pages allocated, with its descriptor.
#[derive(Debug)]
pub struct SharedMemory {
    file: OwnedFd,
    mapping: Mapping,
}

impl SharedMemory {
    /// New memory: see [`Mapping::new`].
    ///
    /// # Errors
    /// Those of the system calls, such as `ENOMEM`.
    pub fn new(name: &str, bytes: usize) -> io::Result<SharedMemory> {
        let (mapping, file) = Mapping::new(name, bytes, MapMode::Populated)?;
        Ok(SharedMemory { file, mapping })
    }

    /// The memory of a descriptor that another process sent: see [`Mapping::open`].
    ///
    /// # Errors
    /// `EINVAL` if its size is not `bytes` or could still change.
    pub fn open(file: OwnedFd, bytes: usize) -> io::Result<SharedMemory> {
        let mapping = Mapping::open(&file, bytes, MapMode::Populated)?;
        Ok(SharedMemory { file, mapping })
    }

    /// A part of the memory of a device: see [`Mapping::of_device`].
    ///
    /// # Errors
    /// `EINVAL` if the part lies outside the memory.
    pub fn of_device(file: OwnedFd, offset: u64, bytes: usize) -> io::Result<SharedMemory> {
        let mapping = Mapping::of_device(&file, offset, bytes)?;
        Ok(SharedMemory { file, mapping })
    }

    /// The descriptor to send to the other process, or that of the device.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Start of the mapping: page-aligned, valid for [`SharedMemory::bytes`].
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
    fn two_mappings_share_memory() {
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
    fn released_pages_are_zero_for_all_users_and_others_stay() {
        let page_bytes = rustix::param::page_size();
        let memory = SharedMemory::new("nearmetal-test", 3 * page_bytes).unwrap();
        let other =
            SharedMemory::open(memory.descriptor().try_clone_to_owned().unwrap(), 3 * page_bytes)
                .unwrap();
        let [start, seen] = [&memory, &other].map(|it| it.start().as_ptr().cast::<u8>());
        // SAFETY: both mappings are live and three pages long; no reference is made.
        unsafe {
            for page in 0..3 {
                start.add(page * page_bytes).write_volatile(7);
            }
            release_pages(start.add(1), 2 * page_bytes);
            let first = [0, 1, 2].map(|page| seen.add(page * page_bytes).read_volatile());
            assert_eq!(first, [7, 0, 7]);
        }
    }

    #[test]
    fn part_of_a_device_lies_within_it() {
        let path = std::env::temp_dir().join(format!("nm-sys-device-{}", std::process::id()));
        let mut bytes = vec![0; 4096];
        bytes.extend_from_slice(&[7; 4096]);
        std::fs::write(&path, bytes).unwrap();
        let open = || {
            let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
            OwnedFd::from(file)
        };
        let part = SharedMemory::of_device(open(), 4096, 4096).unwrap();
        // SAFETY: the mapping is live and 4096 bytes long; no reference is made.
        assert_eq!(unsafe { part.start().cast::<u8>().add(4095).read_volatile() }, 7);
        for (offset, bytes) in [(4096, 4097), (8192, 1), (u64::MAX, 2)] {
            assert!(SharedMemory::of_device(open(), offset, bytes).is_err(), "{offset}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn memory_that_could_shrink_or_has_another_size_is_rejected() {
        let memory = SharedMemory::new("nearmetal-test", 8192).unwrap();
        assert!(ftruncate(memory.descriptor(), 0).is_err(), "sealed");
        let file = memory.descriptor().try_clone_to_owned().unwrap();
        assert!(SharedMemory::open(file, 4096).is_err());
        let open = memfd_create("nearmetal-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&open, 8192).unwrap();
        assert!(SharedMemory::open(open, 8192).is_err(), "not sealed");
        let (socket, _) = crate::socket::unix_pair().unwrap();
        assert!(SharedMemory::open(socket, 8192).is_err(), "not a memory file");
    }
}
