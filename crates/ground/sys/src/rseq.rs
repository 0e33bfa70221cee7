//! Whether the kernel took the CPU from the current thread: a use of restartable sequences (rseq).
//!
//! A thread shares a small structure with the kernel. Its field `rseq_cs` may point to the
//! description of a *critical section*, a range of instructions. The kernel may run something else
//! on the CPU before it lets the thread go on. If the thread is not inside that range then, the
//! kernel sets the field to zero. Here the range is one byte of data, where no thread ever
//! executes, so all that happens is that the field is cleared. That is a flag of preemption that
//! costs one store to arm, one load to read, and no system call. Seldom it is also cleared because
//! the kernel does other work for the thread before it goes on (deferred work, a signal).
//!
//! glibc 2.35 and later register the structure for each thread; otherwise it is registered here
//! (Linux 4.18). References: `man 2 rseq` of librseq, `kernel/rseq.c`.

use std::io;
use std::marker::PhantomData;

/// Bytes of the structure that every kernel accepts.
const AREA_BYTES: u32 = 32;

/// `RSEQ_FLAG_UNREGISTER`
const UNREGISTER: libc::c_int = 1;

/// What glibc registers on this architecture; the kernel kills a thread whose section does not have
/// it before its abort address.
#[cfg(target_arch = "x86_64")]
const SIGNATURE: u32 = 0x5305_3053;
#[cfg(target_arch = "aarch64")]
const SIGNATURE: u32 = 0xd428_bc00;

/// Why preemption cannot be seen.
#[derive(Debug, thiserror::Error)]
pub enum RseqError {
    /// Only x86-64 and AArch64 have the code for it.
    #[error("not available: restartable sequences are used on x86-64 and AArch64 only")]
    Architecture,
    /// The kernel refuses to register the thread.
    #[error("not available: the kernel does not register restartable sequences: {0}")]
    Register(#[source] io::Error),
}

/// `struct rseq` of the kernel, its first 32 bytes.
#[repr(C, align(32))]
#[derive(Default)]
struct Area {
    cpu_id_start: u32,
    cpu_id: u32,
    rseq_cs: u64,
    flags: u32,
    rest: [u32; 3],
}

/// `struct rseq_cs` of the kernel, followed by the signature and by the address to abort to.
#[repr(C, align(32))]
#[derive(Default)]
struct Section {
    version: u32,
    flags: u32,
    start: u64,
    length: u64,
    abort: u64,
    signature: u32,
    abort_here: u32,
}

/// The flag of one thread. It belongs to the thread that made it.
pub struct PreemptionFlag {
    /// Field of the structure that the thread shares with the kernel.
    rseq_cs: *mut u64,
    section: Box<Section>,
    /// The structure, if it was registered here.
    own: Option<Box<Area>>,
    /// Raw pointers are not `Send`; this says so even if they go away.
    _thread: PhantomData<*mut ()>,
}

impl PreemptionFlag {
    /// A flag for the current thread, not armed.
    ///
    /// # Errors
    /// [`RseqError`] where this kernel or processor has no such thing.
    pub fn new() -> Result<PreemptionFlag, RseqError> {
        let signature = signature().ok_or(RseqError::Architecture)?;
        let mut own = None;
        let rseq_cs = match area_of_libc() {
            // SAFETY: the area belongs to the current thread, which this value cannot leave, and
            // has the layout of `Area`.
            Some(area) => unsafe { &raw mut (*area).rseq_cs },
            None => {
                let mut area = Box::<Area>::default();
                register(&raw mut *area, 0, signature).map_err(RseqError::Register)?;
                let field = &raw mut area.rseq_cs;
                own = Some(area);
                field
            }
        };
        let mut section = Box::new(Section { signature, ..Section::default() });
        // One byte of this very structure: data, which is never executed.
        section.start = (&raw const *section).addr() as u64;
        section.length = 1;
        section.abort = (&raw const section.abort_here).addr() as u64;
        Ok(PreemptionFlag { rseq_cs, section, own, _thread: PhantomData })
    }

    /// Whether the structure was registered here, not by the C library.
    pub fn is_own_registration(&self) -> bool {
        self.own.is_some()
    }

    /// Sets the flag, which the kernel will clear.
    #[inline(always)]
    pub fn arm(&mut self) {
        let section = (&raw const *self.section).addr() as u64;
        // SAFETY: the field is that of the current thread and lives as long as the thread, or as
        // `own`; the section lives as long as this value, which disarms when it is dropped.
        unsafe { self.rseq_cs.write_volatile(section) };
    }

    /// Whether the kernel has run something else on this CPU since [`PreemptionFlag::arm`].
    #[inline(always)]
    pub fn is_cleared(&self) -> bool {
        // SAFETY: as in `arm`.
        unsafe { self.rseq_cs.read_volatile() == 0 }
    }
}

impl Drop for PreemptionFlag {
    fn drop(&mut self) {
        // SAFETY: as in `arm`. The kernel must not read the section after it is freed.
        unsafe { self.rseq_cs.write_volatile(0) };
        if let (Some(area), Some(signature)) = (&mut self.own, signature()) {
            // After a failure the kernel goes on to write to the memory, so it is not freed.
            if register(&raw mut **area, UNREGISTER, signature).is_err() {
                self.own.take().map(Box::leak);
            }
        }
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn signature() -> Option<u32> {
    Some(SIGNATURE)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn signature() -> Option<u32> {
    None
}

/// `rseq(area, length, flags, signature)`—Registers the current thread, or ends that.
fn register(area: *mut Area, flags: libc::c_int, signature: u32) -> io::Result<()> {
    // SAFETY: the area has the given length; the caller keeps it where it is until it is
    // registered no more.
    let result = unsafe {
        libc::syscall(libc::SYS_rseq, area, AREA_BYTES, flags, signature as libc::c_ulong)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The current thread's structure, if the C library has registered one.
fn area_of_libc() -> Option<*mut Area> {
    let symbol = |name: &std::ffi::CStr| {
        // SAFETY: the name ends with a zero; a missing symbol is a null pointer.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    };
    let (size, offset) = (symbol(c"__rseq_size")?, symbol(c"__rseq_offset")?);
    // SAFETY: glibc documents both symbols with these types; they are constant after start-up.
    let (size, offset) =
        unsafe { (size.cast::<libc::c_uint>().read(), offset.cast::<isize>().read()) };
    // The size counts the fields in use: at least 20 bytes if registered, 0 if not.
    (size >= 20).then(|| (thread_pointer() as *mut u8).wrapping_offset(offset).cast())
}

#[cfg(target_arch = "x86_64")]
fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: on Linux the first word of the thread's block is its own address.
    unsafe {
        std::arch::asm!(
            "mov {}, fs:0",
            out(reg) pointer,
            options(nostack, readonly, preserves_flags)
        );
    }
    pointer
}

#[cfg(target_arch = "aarch64")]
fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reading this register has no effect.
    unsafe { std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem)) };
    pointer
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn thread_pointer() -> usize {
    0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Moment;
    use crate::counters::ThreadCounters;
    use crate::cpu;

    fn on_a_thread(work: impl FnOnce() + Send) {
        std::thread::scope(|scope| scope.spawn(work).join().unwrap());
    }

    #[test]
    fn a_voluntary_switch_clears_the_flag_and_running_on_does_not() {
        on_a_thread(|| {
            let mut flag = PreemptionFlag::new().unwrap();
            assert!(flag.is_cleared(), "a new flag is not armed");
            flag.arm();
            std::thread::sleep(Duration::from_millis(1));
            assert!(flag.is_cleared());
            // Not once in many short stretches without a switch of any kind.
            let mut kept = 0;
            for _ in 0..1_000 {
                flag.arm();
                std::hint::black_box((0..100u64).sum::<u64>());
                kept += u32::from(!flag.is_cleared());
            }
            assert!(kept > 900, "{kept} of 1000");
        });
    }

    #[test]
    fn preemption_by_a_thread_on_the_same_cpu_is_seen() {
        let cpu = *cpu::allowed().last().unwrap();
        let ends = Duration::from_millis(300);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                cpu::pin_current_thread(cpu).unwrap();
                let begun = Moment::now();
                while begun.elapsed() < ends {
                    std::hint::spin_loop();
                }
            });
            scope.spawn(move || {
                cpu::pin_current_thread(cpu).unwrap();
                let mut flag = PreemptionFlag::new().unwrap();
                let begun = Moment::now();
                let before = ThreadCounters::now().involuntary_switches;
                let mut cleared = 0u64;
                while begun.elapsed() < ends {
                    flag.arm();
                    std::hint::black_box((0..10_000u64).sum::<u64>());
                    cleared += u64::from(flag.is_cleared());
                }
                let switches = ThreadCounters::now().involuntary_switches - before;
                assert!(cleared > 0, "{switches} switches");
            });
        });
    }

    #[test]
    fn a_flag_can_be_made_again_on_the_same_thread() {
        on_a_thread(|| {
            for _ in 0..3 {
                let mut flag = PreemptionFlag::new().unwrap();
                flag.arm();
            }
        });
    }

    /// Without the C library's structure: what an older one, or musl, leaves to us.
    #[test]
    fn own_registration_is_ended_when_the_flag_goes() {
        on_a_thread(|| {
            let signature = signature().unwrap();
            if let Some(area) = area_of_libc()
                && register(area, UNREGISTER, signature).is_err()
            {
                return; // registered with the larger structure of a newer C library
            }
            for _ in 0..2 {
                let mut area = Box::<Area>::default();
                register(&raw mut *area, 0, signature).unwrap();
                assert!(register(&raw mut *area, 0, signature).is_err());
                register(&raw mut *area, UNREGISTER, signature).unwrap();
            }
        });
    }
}
