//! Records of tracepoints on one CPU, by `perf_event_open`.
//!
//! The kernel writes them into memory that it shares with this process. It stops when the
//! descriptors are closed. The kernel closes them when the process ends, also by kill -9.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// `PERF_TYPE_TRACEPOINT`
const TYPE_TRACEPOINT: u32 = 2;

/// `PERF_SAMPLE_TIME | PERF_SAMPLE_RAW`
const SAMPLE: u64 = (1 << 2) | (1 << 10);

/// `disabled | use_clockid`
const FLAGS: u64 = 1 | (1 << 25);

/// `PERF_FLAG_FD_CLOEXEC`
const CLOSE_ON_EXEC: libc::c_ulong = 8;

const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_DISABLE: libc::c_ulong = 0x2401;
const IOC_SET_OUTPUT: libc::c_ulong = 0x2405;

const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;

/// Where the positions of the shared memory are in its first page.
const HEAD_AT: usize = 1024;
const TAIL_AT: usize = 1032;

/// `struct perf_event_attr`, its first 112 bytes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    more: [u64; 4],
    stack_user: u32,
    clock: i32,
    rest: [u64; 2],
}
const _: () = assert!(size_of::<Attributes>() == 112);

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
    /// A tracepoint was passed.
    Event {
        /// When, by `CLOCK_MONOTONIC_RAW`, ns.
        at_ns: u64,
        /// Its fields, as [`tracepoints`](crate::tracepoints) describes them.
        fields: &'a [u8],
    },
    /// So many records found no room.
    Lost(u64),
}

/// The tracepoints of one CPU.
#[derive(Debug)]
pub struct CpuTrace {
    /// The first one has the memory.
    events: Vec<OwnedFd>,
    memory: *mut c_void,
    page: usize,
    /// A power of two.
    size: usize,
    scratch: Vec<u8>,
}

// SAFETY: the memory belongs to this value alone, and no part of it is bound to a thread.
unsafe impl Send for CpuTrace {}

impl CpuTrace {
    /// `perf_event_open`, `mmap`—Opens the tracepoints with these numbers on `cpu`, with memory of
    /// about `bytes` for records. They record nothing before [`CpuTrace::start`].
    ///
    /// # Errors
    /// If the kernel does not allow it (it needs `CAP_PERFMON` or root).
    pub fn open(cpu: u32, ids: &[u16], bytes: usize) -> io::Result<CpuTrace> {
        let events: Vec<OwnedFd> =
            ids.iter().map(|id| open_event(cpu, *id)).collect::<io::Result<_>>()?;
        let Some(first) = events.first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no tracepoint"));
        };
        let page = rustix::param::page_size();
        let size = bytes.max(page).next_power_of_two();
        let flags = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let memory = unsafe { mmap(std::ptr::null_mut(), page + size, flags.0, flags.1, first, 0) };
        // The other events refer to the memory of the first one, which must be there for that.
        let trace = CpuTrace { memory: memory?, page, size, scratch: vec![], events };
        for other in &trace.events[1..] {
            let first = trace.events[0].as_raw_fd() as libc::c_ulong;
            control(other, IOC_SET_OUTPUT, first)?;
        }
        Ok(trace)
    }

    /// Begins to record.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(&self) -> io::Result<()> {
        self.events.iter().try_for_each(|event| control(event, IOC_ENABLE, 0))
    }

    /// Ends it. What was recorded can still be read.
    ///
    /// # Errors
    /// The kernel's.
    pub fn stop(&self) -> io::Result<()> {
        self.events.iter().try_for_each(|event| control(event, IOC_DISABLE, 0))
    }

    fn position(&self, at: usize) -> &AtomicU64 {
        // SAFETY: both places are aligned, inside the first page of the mapping, which lives as
        // long as `self`, and the kernel changes them as a whole.
        unsafe { AtomicU64::from_ptr(self.memory.cast::<u8>().add(at).cast()) }
    }

    /// Calls `each` for what was recorded since the last time.
    pub fn read(&mut self, mut each: impl FnMut(Record<'_>)) {
        let head = self.position(HEAD_AT).load(Ordering::Acquire);
        let tail = self.position(TAIL_AT).load(Ordering::Relaxed);
        let length = (head.wrapping_sub(tail) as usize).min(self.size);
        let from = tail as usize & (self.size - 1);
        let first = length.min(self.size - from);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        // SAFETY: both parts lie in the mapping behind its first page, and the kernel writes there
        // only after the tail was moved.
        unsafe {
            let data = self.memory.cast::<u8>().add(self.page);
            scratch.extend_from_slice(std::slice::from_raw_parts(data.add(from), first));
            scratch.extend_from_slice(std::slice::from_raw_parts(data, length - first));
        }
        self.position(TAIL_AT).store(head, Ordering::Release);
        records(&scratch, &mut each);
        self.scratch = scratch;
    }
}

impl Drop for CpuTrace {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own; no reference to it is left.
        let _ = unsafe { munmap(self.memory, self.page + self.size) };
    }
}

/// Passes on each record in `bytes`.
fn records(mut bytes: &[u8], each: &mut impl FnMut(Record<'_>)) {
    let u32_at = |bytes: &[u8], at: usize| -> Option<u32> {
        Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
    };
    let u64_at = |bytes: &[u8], at: usize| -> Option<u64> {
        Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
    };
    while let (Some(kind), Some(more)) = (u32_at(bytes, 0), u32_at(bytes, 4)) {
        let size = (more >> 16) as usize;
        let Some(record) = bytes.get(..size).filter(|_| size >= 8) else { return };
        match kind {
            RECORD_SAMPLE => {
                let length = u32_at(record, 16).unwrap_or(0) as usize;
                if let (Some(at_ns), Some(fields)) =
                    (u64_at(record, 8), record.get(20..20 + length))
                {
                    each(Record::Event { at_ns, fields });
                }
            }
            RECORD_LOST => each(Record::Lost(u64_at(record, 16).unwrap_or(1))),
            _ => {}
        }
        bytes = &bytes[size..];
    }
}

fn open_event(cpu: u32, id: u16) -> io::Result<OwnedFd> {
    let attributes = Attributes {
        kind: TYPE_TRACEPOINT,
        size: size_of::<Attributes>() as u32,
        config: u64::from(id),
        period: 1,
        sample: SAMPLE,
        flags: FLAGS,
        clock: libc::CLOCK_MONOTONIC_RAW,
        ..Attributes::default()
    };
    let cpu = i32::try_from(cpu).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel reads as many bytes of the live structure as it says it has.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &attributes, -1, cpu, -1, CLOSE_ON_EXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn control(event: &OwnedFd, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<()> {
    // SAFETY: none of the three requests takes a pointer.
    match unsafe { libc::ioctl(event.as_raw_fd(), request as _, argument) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(at_ns: u64, fields: &[u8]) -> Vec<u8> {
        let size = (20 + fields.len()).next_multiple_of(8) as u32;
        let mut bytes = [RECORD_SAMPLE.to_le_bytes(), (size << 16).to_le_bytes()].concat();
        bytes.extend(at_ns.to_le_bytes());
        bytes.extend((fields.len() as u32).to_le_bytes());
        bytes.extend(fields);
        bytes.resize(size as usize, 0);
        bytes
    }

    #[test]
    fn samples_and_losses_are_told_apart() {
        let mut bytes = sample(7, b"abcd");
        bytes.extend([RECORD_LOST.to_le_bytes(), (24_u32 << 16).to_le_bytes()].concat());
        bytes.extend([0_u64.to_le_bytes(), 3_u64.to_le_bytes()].concat());
        bytes.extend(sample(9, b""));
        bytes.extend([1, 2, 3]);
        let mut seen = vec![];
        records(&bytes, &mut |record| seen.push(format!("{record:?}")));
        let event = "Event { at_ns: 7, fields: [97, 98, 99, 100] }";
        assert_eq!(seen, [event, "Lost(3)", "Event { at_ns: 9, fields: [] }"]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            bytes in prop::collection::vec(prop_oneof![Just(9_u8), Just(0), any::<u8>()], 0..80),
        ) {
            records(&bytes, &mut |_| {});
        }
    }
}
