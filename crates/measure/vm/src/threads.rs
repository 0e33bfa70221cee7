//! The threads of a running guest, and the CPUs of the host on which they run.

use std::fs;
use std::io;

use nm_model::guest::GuestPlacement;
use nm_sys::cpu::pin_thread;

/// What a thread of QEMU does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ThreadKind {
    /// Executes the virtual CPU with this number.
    VirtualCpu(u32),
    /// Anything else.
    Other,
}

/// The threads of process `pid`, which was started with `-name …,debug-threads=on`, and those of
/// the kernel that move its packets.
///
/// # Errors
/// If the process has ended.
pub fn threads(pid: u32) -> io::Result<Vec<(u32, ThreadKind)>> {
    let mut threads = vec![];
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let entry = entry?;
        let Ok(thread) = entry.file_name().to_string_lossy().parse() else { continue };
        // A thread may have ended since.
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let number = virtual_cpu(name.trim());
        threads.push((thread, number.map_or(ThreadKind::Other, ThreadKind::VirtualCpu)));
    }
    threads.extend(packet_threads(pid).into_iter().map(|thread| (thread, ThreadKind::Other)));
    threads.sort_unstable();
    threads.dedup();
    Ok(threads)
}

/// The number of the virtual CPU that a thread with a name such as `CPU 0/KVM` executes.
pub(crate) fn virtual_cpu(name: &str) -> Option<u32> {
    name.strip_prefix("CPU ").and_then(|rest| rest.split('/').next()?.parse().ok())
}

/// Threads of vhost. Since Linux 6.4 they are among the process's own.
fn packet_threads(pid: u32) -> Vec<u32> {
    let wanted = format!("vhost-{pid}");
    let Ok(processes) = fs::read_dir("/proc") else { return vec![] };
    let numbers = processes.flatten().filter_map(|entry| {
        let number = entry.file_name().to_string_lossy().parse::<u32>().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        (name.trim() == wanted).then_some(number)
    });
    numbers.collect()
}

/// Runs the threads of the guest with process `pid` where `placement` says; threads for which it
/// names no CPU are left as they are.
///
/// # Errors
/// If the process has ended, lacks a thread, or may not use a CPU.
pub fn place(pid: u32, placement: &GuestPlacement) -> io::Result<()> {
    for (thread, kind) in threads(pid)? {
        let cpus = match kind {
            ThreadKind::VirtualCpu(number) => {
                let cpu = placement.virtual_cpus.get(number as usize);
                cpu.map(|cpu| vec![*cpu]).unwrap_or_default()
            }
            ThreadKind::Other => placement.other_threads.clone(),
        };
        if !cpus.is_empty() {
            pin_thread(thread, &cpus)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_cpus_are_known_by_name() {
        assert_eq!(virtual_cpu("CPU 0/KVM"), Some(0));
        assert_eq!(virtual_cpu("CPU 12/TCG"), Some(12));
        assert_eq!(virtual_cpu("qemu-system-x86"), None);
        assert_eq!(virtual_cpu("CPU x/TCG"), None);
    }

    #[test]
    fn threads_of_a_process_run_where_they_are_placed() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let cpu = *nm_sys::cpu::allowed().first().unwrap();
        let other_threads = vec![cpu];
        let placement = GuestPlacement { other_threads, ..GuestPlacement::default() };
        assert_eq!(threads(child.id()).unwrap(), [(child.id(), ThreadKind::Other)]);
        place(child.id(), &placement).unwrap();
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(status.contains(&format!("Cpus_allowed_list:\t{cpu}\n")), "{status}");
        assert!(place(u32::MAX, &placement).is_err());
    }
}
