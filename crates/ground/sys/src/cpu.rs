//! CPUs: which ones may be used, which share a core, and pinning the current thread to one of them.

use std::io;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::hostfiles::parse_list;

/// CPUs that the current thread may use, ascending.
pub fn allowed() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(None) else { return vec![] };
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).map(|cpu| cpu as u32).collect()
}

/// The CPU on which the current thread runs at this moment.
pub fn current() -> u32 {
    sched_getcpu() as u32
}

/// Asks for the cache line at `address`, to write there soon; without effect where the processor
/// has no instruction for it.
#[inline(always)]
pub fn prefetch_for_write(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: `prefetchw` changes no memory and does not fault, whatever the address is; 64-bit
    // processors that lack it do nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// `sched_setaffinity(0, …)`—Pins the current thread to one CPU.
///
/// # Errors
/// `EINVAL` if the process may not use that CPU.
pub fn pin_current_thread(cpu: u32) -> io::Result<()> {
    let index = usize::try_from(cpu).unwrap_or(usize::MAX);
    if index >= CpuSet::MAX_CPU {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut set = CpuSet::new();
    set.set(index);
    Ok(sched_setaffinity(None, &set)?)
}

/// `sched_setaffinity(TID, …)`—Lets a thread of another process run on `cpus` only.
///
/// # Errors
/// `ESRCH` if there is no such thread, `EPERM` if it is another user's, `EINVAL` if it may use none
/// of the CPUs.
pub fn pin_thread(thread: u32, cpus: &[u32]) -> io::Result<()> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let thread = i32::try_from(thread).ok().and_then(Pid::from_raw).ok_or_else(invalid)?;
    let mut set = CpuSet::new();
    for &cpu in cpus {
        let index = usize::try_from(cpu).ok().filter(|index| *index < CpuSet::MAX_CPU);
        set.set(index.ok_or_else(invalid)?);
    }
    Ok(sched_setaffinity(Some(thread), &set)?)
}

/// `prctl(PR_SET_TIMERSLACK, 1)`—Sets the timer slack of the current thread to 1 ns, so that its
/// sleeps end on time. By default they end up to 50 µs late, which saves wake-ups.
pub fn minimize_timer_slack() {
    // SAFETY: this prctl takes a plain number and changes only the calling thread's timers. A
    // failure leaves the default, which costs precision and nothing else.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong, 0, 0, 0) };
}

/// `setpriority(PRIO_PROCESS, 0, 10)`—Lowers the priority of the current thread (nice 10), so that
/// it gets about a tenth of a CPU that another thread wants.
pub fn lower_thread_priority() {
    const NICE: libc::c_int = 10;
    // SAFETY: the call takes plain numbers; on Linux zero is the calling thread alone. A failure
    // leaves the priority as it is.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

/// Groups of two or more CPUs that share one core, ascending.
pub fn siblings() -> Vec<Vec<u32>> {
    let mut groups: Vec<Vec<u32>> = vec![];
    for cpu in read_list("/sys/devices/system/cpu/online") {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let group = read_list(&path);
        if group.len() > 1 && !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

/// CPUs for the hot threads of two ends on one machine: first the client's, then the server's.
/// Empty if the process has no CPU to choose, one CPU if it has only one.
pub fn default_pair() -> Vec<u32> {
    choose_pair(&allowed(), &siblings())
}

/// Two of `allowed` that do not share a core, if possible. The lowest CPU is left free where there
/// are enough, because interrupts and housekeeping threads usually run on it.
pub fn choose_pair(allowed: &[u32], siblings: &[Vec<u32>]) -> Vec<u32> {
    let share_core = |a: u32, b: u32| siblings.iter().any(|g| g.contains(&a) && g.contains(&b));
    let candidates = match allowed {
        [first, rest @ ..] if rest.iter().filter(|&&cpu| !share_core(*first, cpu)).count() >= 2 => {
            rest
        }
        all => all,
    };
    let Some((&last, others)) = candidates.split_last() else { return vec![] };
    // The client gets the highest CPU: on two CPUs it is the server that shares CPU 0 with
    // interrupts.
    let server = others.iter().rev().find(|&&cpu| !share_core(cpu, last)).or(others.last());
    std::iter::once(last).chain(server.copied()).collect()
}

fn read_list(path: &str) -> Vec<u32> {
    std::fs::read_to_string(path).ok().and_then(|text| parse_list(&text)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn thread_stays_pinned_and_a_missing_cpu_is_an_error() {
        std::thread::spawn(|| {
            let cpu = *allowed().last().unwrap();
            pin_current_thread(cpu).unwrap();
            assert_eq!((current(), allowed()), (cpu, vec![cpu]));
            assert!(pin_current_thread(1023).is_err());
            assert!(pin_current_thread(u32::MAX).is_err());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn only_the_priority_of_one_thread_is_lowered() {
        let nice = |thread: &str| {
            let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).unwrap();
            let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
            fields[16].parse::<i32>().unwrap()
        };
        let before = nice("thread-self");
        let lowered = std::thread::spawn(move || {
            lower_thread_priority();
            nice("thread-self")
        });
        assert_eq!(lowered.join().unwrap(), before.max(10));
        assert_eq!(nice("thread-self"), before);
    }

    #[test]
    fn thread_of_another_process_is_pinned() {
        let cpu = *allowed().last().unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        pin_thread(child.id(), &[cpu]).unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        assert_eq!(line.unwrap().trim(), cpu.to_string());
        assert!(pin_thread(0, &[cpu]).is_err() && pin_thread(u32::MAX, &[cpu]).is_err());
        assert!(pin_thread(std::process::id(), &[100_000]).is_err());
    }

    #[test]
    fn pair_avoids_a_shared_core_and_the_first_cpu_if_possible() {
        assert_eq!(choose_pair(&[], &[]), Vec::<u32>::new());
        assert_eq!(choose_pair(&[5], &[]), vec![5]);
        assert_eq!(choose_pair(&[0, 1], &[]), vec![1, 0]);
        assert_eq!(choose_pair(&[0, 1, 2], &[]), vec![2, 1]);
        let smt = [vec![0, 1], vec![2, 3]];
        assert_eq!(choose_pair(&[0, 1], &smt[..1]), vec![1, 0]);
        let pair = choose_pair(&[0, 1, 2, 3], &smt);
        assert!(!smt.iter().any(|g| g.contains(&pair[0]) && g.contains(&pair[1])), "{pair:?}");
    }

    proptest! {
        #[test]
        fn pair_is_distinct_and_allowed(
            mut cpus in proptest::collection::vec(0u32..64, 0..20), width in 1u32..5,
        ) {
            cpus.sort_unstable();
            cpus.dedup();
            let groups: Vec<Vec<u32>> =
                (0..64 / width).map(|core| (core * width..(core + 1) * width).collect()).collect();
            let pair = choose_pair(&cpus, &groups);
            prop_assert_eq!(pair.len(), cpus.len().min(2));
            prop_assert!(pair.iter().all(|cpu| cpus.contains(cpu)));
            prop_assert!(pair.len() < 2 || pair[0] != pair[1]);
        }
    }
}
