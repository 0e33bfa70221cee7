//! The memory behind guests: huge pages where enough of them are free, and locked where it may be.

use nm_model::GuestSpec;
use nm_sys::hostfiles::HostFiles;

/// Ordinary pages, KiB.
const PAGE_KIB: u32 = 4;

/// Huge pages that guests use, KiB.
const HUGE_PAGE_KIB: u32 = 2048;

/// Memory of QEMU itself for a guest, MiB.
const QEMU_MIB: u32 = 64;

/// How the memory of each guest is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestMemory {
    /// Its size, MiB.
    pub mib: u32,
    /// Size of its pages, KiB.
    pub page_kib: u32,
    /// Whether it is locked.
    pub is_locked: bool,
}

impl GuestMemory {
    /// For `guests` guests as `spec` wants them. It is locked only for guests that KVM executes:
    /// under emulation that would only delay the start.
    pub fn plan(spec: &GuestSpec, guests: u32, is_kvm: bool, files: &HostFiles) -> GuestMemory {
        let mib = spec.memory_mib;
        let free = files.value::<u64>("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
        let needed = u64::from(guests) * u64::from(mib.div_ceil(2));
        let is_huge =
            spec.huge_pages && mib.is_multiple_of(2) && free.is_some_and(|free| free >= needed);
        GuestMemory {
            mib,
            page_kib: if is_huge { HUGE_PAGE_KIB } else { PAGE_KIB },
            is_locked: is_kvm && may_lock(mib, files),
        }
    }

    /// Why `guests` guests do not fit into the host's memory, as a clause; none if they do. Pages
    /// that are reserved for them are free by [`GuestMemory::plan`].
    pub fn shortage(&self, guests: u32, files: &HostFiles) -> Option<String> {
        let text = files.text("/proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let available_mib = line.split_whitespace().next()?.parse::<u64>().ok()? / 1024;
        let of_guests = if self.is_huge() { 0 } else { u64::from(self.mib) };
        let needed_mib = u64::from(guests) * (of_guests + u64::from(QEMU_MIB));
        (needed_mib > available_mib).then(|| {
            format!(
                "{guests} guests of {} MiB need {needed_mib} MiB with QEMU's own memory, and the \
                 host has {available_mib} MiB available; use fewer pairs, or smaller guests \
                 (`memory_mib`)",
                self.mib
            )
        })
    }

    /// Whether its pages are huge.
    pub fn is_huge(&self) -> bool {
        self.page_kib > PAGE_KIB
    }
}

/// Whether this process, and so QEMU, may lock the memory of a guest and QEMU's own.
fn may_lock(mib: u32, files: &HostFiles) -> bool {
    /// QEMU's own, MiB.
    const OWN_MIB: u64 = 512;
    let limits = files.text("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    match line.and_then(|line| line.split_whitespace().next()) {
        Some("unlimited") => true,
        Some(bytes) => {
            bytes.parse::<u64>().is_ok_and(|bytes| bytes >= (u64::from(mib) + OWN_MIB) << 20)
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_sys::hostfiles::RecordedFiles;

    fn files(free: &str, locked: &str) -> HostFiles {
        let text = |path: &str, text: String| (path.to_string(), text);
        HostFiles::recorded(RecordedFiles {
            files: [
                text("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", free.to_string()),
                text("/proc/self/limits", format!("Max locked memory  {locked}  {locked}  bytes")),
            ]
            .into(),
            ..RecordedFiles::default()
        })
    }

    #[test]
    fn huge_pages_are_used_only_if_there_are_enough_for_both_guests() {
        let spec = GuestSpec { memory_mib: 512, ..GuestSpec::default() };
        let page = |spec: &GuestSpec, free| {
            GuestMemory::plan(spec, 2, false, &files(free, "unlimited")).page_kib
        };
        assert_eq!(page(&spec, "511"), 4);
        assert_eq!(page(&spec, "512"), 2048);
        assert_eq!(page(&GuestSpec { memory_mib: 513, ..spec.clone() }, "4096"), 4);
        assert_eq!(page(&GuestSpec { huge_pages: false, ..spec }, "512"), 4);
    }

    #[test]
    fn guests_that_do_not_fit_are_refused() {
        let files = |kib: u64| {
            let path = "/proc/meminfo".to_string();
            let text = format!("MemTotal: 99999999 kB\nMemAvailable:   {kib} kB\n");
            HostFiles::recorded(RecordedFiles {
                files: [(path, text)].into(),
                ..RecordedFiles::default()
            })
        };
        let memory = GuestMemory { mib: 512, page_kib: PAGE_KIB, is_locked: false };
        let enough = 8 * (512 + 64) * 1024;
        assert_eq!(memory.shortage(8, &files(enough)), None);
        let why = memory.shortage(8, &files(enough - 1)).unwrap();
        assert!(why.starts_with("8 guests of 512 MiB need 4608 MiB with QEMU's own"), "{why}");
        let huge = GuestMemory { page_kib: HUGE_PAGE_KIB, ..memory };
        assert_eq!(huge.shortage(8, &files(8 * 64 * 1024)), None);
        assert_eq!(memory.shortage(2, &HostFiles::recorded(RecordedFiles::default())), None);
    }

    #[test]
    fn memory_is_locked_under_kvm_within_the_limit() {
        let spec = GuestSpec { memory_mib: 512, ..GuestSpec::default() };
        let locked =
            |is_kvm, limit| GuestMemory::plan(&spec, 2, is_kvm, &files("0", limit)).is_locked;
        assert!(locked(true, "unlimited") && locked(true, "1073741824"));
        assert!(!locked(true, "8388608") && !locked(false, "unlimited"));
    }
}
