//! How fast /dev/kvm executes guest code. Its presence says little: some hypervisors offer a KVM
//! that interprets a guest's instructions one by one, thousands of times slower than the processor.
//!
//! The test is a guest without devices: a counting loop, and a loop that leaves the guest by a
//! port. It takes about 15 ioctls.

use std::time::Duration;

/// Times of a loop in a guest and on the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvmTiming {
    /// One pass of the counting loop in the guest, ns.
    pub guest_loop_ns: f64,
    /// One pass of the same loop on the host, ns.
    pub host_loop_ns: f64,
    /// Leaving the guest for the host and entering it again, ns.
    pub exit_ns: f64,
}

/// Why KVM could not be timed.
#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    /// A device file or a call is missing or forbidden.
    #[error("{operation}: {source}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The guest stopped for another reason than its program's.
    #[error("its test guest stopped for reason {0}")]
    Exit(u32),
    /// The test has not ended.
    #[error("its test guest did not end within {} ms", .0.as_millis())]
    Late(Duration),
    /// Only x86-64 is known.
    #[error("this version times KVM on x86-64 only")]
    Processor,
}

/// Times KVM, for at most `limit`.
///
/// # Errors
/// If there is no KVM, it may not be used, or its guest does not end in time.
pub fn timing(limit: Duration) -> Result<KvmTiming, KvmError> {
    #[cfg(target_arch = "x86_64")]
    {
        // A thread that hangs in the kernel is left there; it ends with the process at the latest.
        let (sender, result) = std::sync::mpsc::channel();
        let start = std::thread::Builder::new().name("kvm-test".into()).spawn(move || {
            let _ = sender.send(x86::timing());
        });
        start.map_err(|source| KvmError::System { operation: "cannot start a thread", source })?;
        result.recv_timeout(limit).map_err(|_| KvmError::Late(limit))?
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = limit;
        Err(KvmError::Processor)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::io;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
    use std::ptr::{self, NonNull};

    use super::{KvmError, KvmTiming};
    use crate::clock::Moment;

    /// `linux/kvm.h`. The type of an ioctl's request differs between C libraries, so that of the
    /// kernel's header is kept until the call.
    const KVM_CREATE_VM: u32 = 0xae01;
    const KVM_GET_VCPU_MMAP_SIZE: u32 = 0xae04;
    const KVM_CREATE_VCPU: u32 = 0xae41;
    const KVM_RUN: u32 = 0xae80;
    const KVM_SET_USER_MEMORY_REGION: u32 = 0x4020_ae46;
    const KVM_SET_REGS: u32 = 0x4090_ae82;
    const KVM_GET_SREGS: u32 = 0x8138_ae83;
    const KVM_SET_SREGS: u32 = 0x4138_ae84;
    const EXIT_IO: u32 = 2;
    const EXIT_HLT: u32 = 5;

    /// The guest's memory: page tables, and both programs.
    const MEMORY_BYTES: usize = 1 << 16;
    const PML4: usize = 0x1000;
    const PDPT: usize = 0x2000;
    const DIRECTORY: usize = 0x3000;
    const COUNT: usize = 0x8000;
    const LEAVE: usize = 0x9000;
    /// `dec rcx; jnz -5; hlt`
    const COUNT_CODE: [u8; 6] = [0x48, 0xff, 0xc9, 0x75, 0xfb, 0xf4];
    /// `out 0x10, al; jmp -4`
    const LEAVE_CODE: [u8; 4] = [0xe6, 0x10, 0xeb, 0xfc];

    /// A loop is long enough once it takes this time.
    const LOOP_NS_MIN: f64 = 4e6;
    const PASSES_MIN: u64 = 5_000;
    const PASSES_MAX: u64 = 5_000_000;
    const EXITS: u32 = 300;
    /// Runs of which the fastest counts: a machine with other work may stop one halfway.
    const RUNS: u32 = 3;

    /// `struct kvm_userspace_memory_region`
    #[repr(C)]
    struct MemoryRegion {
        slot: u32,
        flags: u32,
        guest_address: u64,
        bytes: u64,
        host_address: u64,
    }

    /// Anonymous or shared memory that is unmapped on drop.
    struct Mapped {
        start: NonNull<u8>,
        bytes: usize,
    }

    impl Mapped {
        fn new(bytes: usize, file: Option<RawFd>) -> io::Result<Mapped> {
            let anonymous = if file.is_none() { libc::MAP_ANONYMOUS } else { 0 };
            let (access, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | anonymous);
            // SAFETY: a new mapping at an address that the kernel chooses overlaps no memory.
            let start =
                unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, file.unwrap_or(-1), 0) };
            if start == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            NonNull::new(start.cast())
                .map(|start| Mapped { start, bytes })
                .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
        }

        fn write(&mut self, at: usize, bytes: &[u8]) {
            assert!(at + bytes.len() <= self.bytes, "within the mapping");
            // SAFETY: the range lies in the mapping, which only this value and, while it runs, the
            // guest access.
            unsafe {
                ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len());
            }
        }
    }

    impl Drop for Mapped {
        fn drop(&mut self) {
            // SAFETY: the range is the one of `new`, and no reference to it is left.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }

    /// A machine with one processor. The fields are dropped in this order.
    struct Machine {
        shared: Mapped,
        cpu: OwnedFd,
        _machine: OwnedFd,
        _memory: Mapped,
        _kvm: OwnedFd,
    }

    fn checked(operation: &'static str, result: libc::c_int) -> Result<RawFd, KvmError> {
        match result {
            0.. => Ok(result),
            _ => Err(KvmError::System { operation, source: io::Error::last_os_error() }),
        }
    }

    /// `int ioctl(int fd, unsigned long request, long number)`
    fn number_call(
        operation: &'static str,
        file: &OwnedFd,
        request: u32,
        number: libc::c_ulong,
    ) -> Result<RawFd, KvmError> {
        // SAFETY: the requests that are passed here take a number, no address.
        checked(operation, unsafe { libc::ioctl(file.as_raw_fd(), request as libc::Ioctl, number) })
    }

    /// The same with the address of a structure of the request's size.
    fn structure_call<T>(
        operation: &'static str,
        file: &OwnedFd,
        request: u32,
        structure: &mut T,
    ) -> Result<(), KvmError> {
        // Bits 16 to 29 of a request are the size of its structure: ioctl(2), `_IOC_SIZE`.
        assert_eq!((request >> 16) as usize & 0x3fff, size_of::<T>(), "{operation}");
        // SAFETY: the kernel reads or writes as many bytes as `T` has, which was just checked; all
        // bit patterns are values of the structures here, which consist of integers.
        let result = unsafe {
            libc::ioctl(file.as_raw_fd(), request as libc::Ioctl, ptr::from_mut(structure))
        };
        checked(operation, result).map(drop)
    }

    /// A file descriptor that an ioctl has just returned.
    fn owned(number: RawFd) -> OwnedFd {
        // SAFETY: the kernel has made this descriptor for us, and nothing else owns it.
        unsafe { OwnedFd::from_raw_fd(number) }
    }

    impl Machine {
        fn new() -> Result<Machine, KvmError> {
            let failed =
                |operation| move |source: io::Error| KvmError::System { operation, source };
            let kvm: OwnedFd = std::fs::File::options()
                .read(true)
                .write(true)
                .open("/dev/kvm")
                .map_err(failed("/dev/kvm"))?
                .into();
            let machine = number_call("KVM_CREATE_VM", &kvm, KVM_CREATE_VM, 0).map(owned)?;
            let mut memory = Mapped::new(MEMORY_BYTES, None).map_err(failed("memory"))?;
            // The first 2 MiB at their own addresses.
            memory.write(PML4, &(PDPT as u64 | 3).to_le_bytes());
            memory.write(PDPT, &(DIRECTORY as u64 | 3).to_le_bytes());
            memory.write(DIRECTORY, &0x83u64.to_le_bytes());
            memory.write(COUNT, &COUNT_CODE);
            memory.write(LEAVE, &LEAVE_CODE);
            let mut region = MemoryRegion {
                slot: 0,
                flags: 0,
                guest_address: 0,
                bytes: MEMORY_BYTES as u64,
                host_address: memory.start.as_ptr() as u64,
            };
            let name = "KVM_SET_USER_MEMORY_REGION";
            structure_call(name, &machine, KVM_SET_USER_MEMORY_REGION, &mut region)?;
            let cpu = number_call("KVM_CREATE_VCPU", &machine, KVM_CREATE_VCPU, 0).map(owned)?;
            let size = "KVM_GET_VCPU_MMAP_SIZE";
            let bytes = number_call(size, &kvm, KVM_GET_VCPU_MMAP_SIZE, 0)?;
            let shared = Mapped::new(bytes as usize, Some(cpu.as_raw_fd()))
                .map_err(failed("the processor's memory"))?;
            let mut machine =
                Machine { shared, cpu, _machine: machine, _memory: memory, _kvm: kvm };
            machine.enter_long_mode()?;
            Ok(machine)
        }

        /// 64-bit mode with flat segments and paging.
        fn enter_long_mode(&mut self) -> Result<(), KvmError> {
            /// `struct kvm_segment`, 24 bytes; of eight, those of data and code are set.
            const SEGMENT_WORDS: usize = 3;
            const CR0: usize = 28;
            let mut registers = [0u64; 39];
            structure_call("KVM_GET_SREGS", &self.cpu, KVM_GET_SREGS, &mut registers)?;
            for segment in 0..6 {
                let is_code = segment == 0;
                let at = segment * SEGMENT_WORDS;
                let (selector, kind) = if is_code { (8u64, 11u64) } else { (16, 3) };
                // base; limit, selector, type, present; dpl, db, s, l, g, avl, unusable, padding.
                registers[at] = 0;
                registers[at + 1] = 0xffff_ffff | selector << 32 | kind << 48 | 1 << 56;
                registers[at + 2] = match is_code {
                    true => 1 << 16 | 1 << 24 | 1 << 32,
                    false => 1 << 8 | 1 << 16 | 1 << 32,
                };
            }
            registers[CR0] = 0x8000_0033;
            registers[CR0 + 2] = PML4 as u64;
            // CR4: physical address extension. EFER: long mode enabled and active.
            registers[CR0 + 3] = 0x20;
            registers[CR0 + 5] = 0x500;
            structure_call("KVM_SET_SREGS", &self.cpu, KVM_SET_SREGS, &mut registers)
        }

        /// Sets the next instruction and the loop's counter.
        fn start_at(&mut self, address: usize, count: u64) -> Result<(), KvmError> {
            let mut registers = [0u64; 18];
            registers[2] = count;
            registers[16] = address as u64;
            // Bit 1 of the flags is always set.
            registers[17] = 2;
            structure_call("KVM_SET_REGS", &self.cpu, KVM_SET_REGS, &mut registers)
        }

        /// Runs the guest until it stops for the reason `wanted`.
        fn run(&mut self, wanted: u32) -> Result<(), KvmError> {
            const INTERRUPTIONS_MAX: u32 = 1000;
            const EXIT_INTERRUPTED: u32 = 10;
            let mut reason = 0;
            for _ in 0..INTERRUPTIONS_MAX {
                match number_call("KVM_RUN", &self.cpu, KVM_RUN, 0) {
                    Err(KvmError::System { source, .. })
                        if source.kind() == io::ErrorKind::Interrupted =>
                    {
                        continue;
                    }
                    other => other?,
                };
                // SAFETY: `exit_reason` of `struct kvm_run` is a u32 at offset 8, within the
                // mapping; the kernel does not write while no KVM_RUN is in progress.
                reason = unsafe { self.shared.start.as_ptr().add(8).cast::<u32>().read_volatile() };
                if reason != EXIT_INTERRUPTED {
                    break;
                }
            }
            if reason == wanted { Ok(()) } else { Err(KvmError::Exit(reason)) }
        }

        fn count_ns(&mut self, passes: u64) -> Result<f64, KvmError> {
            self.start_at(COUNT, passes)?;
            let begin = Moment::now();
            self.run(EXIT_HLT)?;
            Ok(begin.elapsed().as_nanos() as f64)
        }
    }

    fn host_count_ns(passes: u64) -> f64 {
        let begin = Moment::now();
        // SAFETY: the loop changes its own register and flags only.
        unsafe {
            std::arch::asm!(
                "2:", "dec {count}", "jnz 2b", count = inout(reg) passes => _,
                options(nomem, nostack)
            );
        }
        begin.elapsed().as_nanos() as f64
    }

    pub fn timing() -> Result<KvmTiming, KvmError> {
        let mut machine = Machine::new()?;
        machine.count_ns(1)?;
        let mut passes = PASSES_MIN;
        let mut guest_ns = machine.count_ns(passes)?;
        while guest_ns < LOOP_NS_MIN && passes < PASSES_MAX {
            passes *= 10;
            guest_ns = machine.count_ns(passes)?;
        }
        for _ in 1..RUNS {
            guest_ns = guest_ns.min(machine.count_ns(passes)?);
        }
        let host_ns = (0..RUNS).map(|_| host_count_ns(PASSES_MAX)).fold(f64::MAX, f64::min);
        machine.start_at(LEAVE, 0)?;
        let begin = Moment::now();
        for _ in 0..EXITS {
            machine.run(EXIT_IO)?;
        }
        Ok(KvmTiming {
            guest_loop_ns: guest_ns / passes as f64,
            host_loop_ns: host_ns / PASSES_MAX as f64,
            exit_ns: begin.elapsed().as_nanos() as f64 / f64::from(EXITS),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_is_timed_or_its_absence_is_explained() {
        match timing(Duration::from_secs(100)) {
            Ok(timing) => {
                assert!(timing.guest_loop_ns > 0.0 && timing.host_loop_ns > 0.0, "{timing:?}");
                assert!(timing.exit_ns > 0.0, "{timing:?}");
            }
            Err(KvmError::System { operation, source }) => {
                let is_there = std::path::Path::new("/dev/kvm").exists();
                assert!(is_there || operation == "/dev/kvm", "{operation}: {source}");
            }
            Err(KvmError::Processor) => {}
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn late_test_is_given_up() {
        match timing(Duration::ZERO) {
            Err(KvmError::Late(_) | KvmError::Processor) => {}
            other => panic!("{other:?}"),
        }
    }
}
