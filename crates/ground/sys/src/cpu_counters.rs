//! What the kernel counts of each CPU: interrupts by row, softirqs by kind, and stolen time.
//!
//! Counters are read before and after a measurement ([`CpuCounters::now`]) and subtracted. Files
//! that cannot be read leave their part absent.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::hostfiles::HostFiles;

/// Longest name of a row, bytes; longer ones are cut.
const NAME_BYTES_MAX: usize = 48;

/// Counters of one kind by row: `LOC Local timer interrupts` → 1234.
pub type Rows = BTreeMap<String, u64>;

/// The counters of one CPU, since boot or as a difference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuCounters {
    /// Interrupts by row of `/proc/interrupts`.
    pub interrupts: Option<Rows>,
    /// Softirqs by kind, from `/proc/softirqs`.
    pub softirqs: Option<Rows>,
    /// Stolen time, in the kernel's ticks, from `/proc/stat`.
    pub steal_ticks: Option<u64>,
    /// Interrupts by the firmware (system management interrupts), where the processor counts them
    /// and this process may read its registers.
    pub firmware_interrupts: Option<u64>,
}

impl CpuCounters {
    /// The counters of each of `cpus`, read once for all of them.
    pub fn now(cpus: &[u32]) -> Vec<CpuCounters> {
        CpuCounters::read(&HostFiles::default(), cpus)
    }

    fn read(files: &HostFiles, cpus: &[u32]) -> Vec<CpuCounters> {
        let interrupts = files.text("/proc/interrupts");
        let softirqs = files.text("/proc/softirqs");
        let stat = files.text("/proc/stat");
        let of = |&cpu: &u32| CpuCounters {
            interrupts: interrupts.as_deref().and_then(|text| column(text, cpu)),
            softirqs: softirqs.as_deref().and_then(|text| column(text, cpu)),
            steal_ticks: stat.as_deref().and_then(|text| steal_ticks(text, cpu)),
            firmware_interrupts: firmware_interrupts(files, cpu),
        };
        cpus.iter().map(of).collect()
    }

    /// The differences to an earlier reading. Rows without a difference are left out.
    #[must_use]
    pub fn since(&self, before: &CpuCounters) -> CpuCounters {
        let number = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        CpuCounters {
            interrupts: difference(&self.interrupts, &before.interrupts),
            softirqs: difference(&self.softirqs, &before.softirqs),
            steal_ticks: number(self.steal_ticks, before.steal_ticks),
            firmware_interrupts: number(self.firmware_interrupts, before.firmware_interrupts),
        }
    }

    /// All interrupts together.
    pub fn interrupt_count(&self) -> Option<u64> {
        Some(self.interrupts.as_ref()?.values().fold(0, |sum, n| sum.saturating_add(*n)))
    }

    /// Length of a tick of [`CpuCounters::steal_ticks`], ns.
    pub fn tick_ns() -> u64 {
        1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
    }
}

fn difference(now: &Option<Rows>, before: &Option<Rows>) -> Option<Rows> {
    let (now, before) = (now.as_ref()?, before.as_ref()?);
    let rows = now.iter().map(|(name, count)| {
        let before = before.get(name).copied().unwrap_or(0);
        (name.clone(), count.saturating_sub(before))
    });
    Some(rows.filter(|(_, count)| *count > 0).collect())
}

/// The column of `cpu` of a table whose first line names the CPUs that it has.
fn column(text: &str, cpu: u32) -> Option<Rows> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next()?.split_ascii_whitespace().collect();
    let wanted = format!("CPU{cpu}");
    let position = names.iter().position(|name| *name == wanted)?;
    let mut rows = Rows::new();
    for line in lines {
        let mut words = line.split_ascii_whitespace();
        let Some(label) = words.next().and_then(|word| word.strip_suffix(':')) else { continue };
        let words: Vec<&str> = words.collect();
        // Rows that are not counted for each CPU (`ERR`, `MIS`) have one number.
        let Some(counts) = words.get(..names.len()) else { continue };
        let Ok(count) = counts[position].parse() else { continue };
        let more = words[names.len()..].join(" ");
        let name = cut(format!("{label} {more}").trim_end()).to_string();
        rows.insert(name, count);
    }
    Some(rows)
}

fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

/// The eighth number of the line of `cpu`.
fn steal_ticks(text: &str, cpu: u32) -> Option<u64> {
    let name = format!("cpu{cpu}");
    let mut words = text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == name).then_some(words)
    })?;
    words.nth(7)?.parse().ok()
}

/// Register 0x34 (`MSR_SMI_COUNT`) of Intel processors, by the kernel's `msr` device.
fn firmware_interrupts(files: &HostFiles, cpu: u32) -> Option<u64> {
    const SMI_COUNT: u64 = 0x34;
    let mut bytes = [0; 8];
    let device = File::open(files.path(&format!("/dev/cpu/{cpu}/msr"))).ok()?;
    device.read_exact_at(&mut bytes, SMI_COUNT).ok()?;
    // The count has 32 bits.
    Some(u64::from_le_bytes(bytes) & u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INTERRUPTS: &str = "           CPU0       CPU2       \n\
        \x20 9:          1          0   IO-APIC   9-fasteoi   acpi\n\
        \x20LOC:        100        205   Local timer interrupts\n\
        \x20ERR:          3\n\
        \x20MIS:          0\n";

    #[test]
    fn columns_are_found_by_the_cpus_of_the_head() {
        let rows = column(INTERRUPTS, 2).unwrap();
        assert_eq!(rows.get("LOC Local timer interrupts"), Some(&205));
        assert_eq!(rows.len(), 2, "{rows:?}");
        assert_eq!(column(INTERRUPTS, 1), None);
    }

    #[test]
    fn differences_leave_out_what_did_not_change() {
        let at = |text| CpuCounters { interrupts: column(text, 0), ..CpuCounters::default() };
        let (before, now) = (at(INTERRUPTS), at(&INTERRUPTS.replace("100 ", "111 ")));
        let since = now.since(&before);
        assert_eq!(since.interrupt_count(), Some(11));
        assert_eq!(since.interrupts.unwrap().len(), 1);
        assert_eq!(since.softirqs, None);
    }

    #[test]
    fn steal_is_the_eighth_number() {
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 1 2 3\n";
        assert_eq!(steal_ticks(stat, 0), Some(8));
        assert_eq!((steal_ticks(stat, 1), steal_ticks(stat, 2)), (None, None));
    }

    #[test]
    fn this_machine_counts_interrupts() {
        let cpus = crate::cpu::allowed();
        let before = CpuCounters::now(&cpus);
        std::thread::sleep(std::time::Duration::from_millis(50));
        let now = CpuCounters::now(&cpus);
        let counted: u64 = now
            .iter()
            .zip(&before)
            .filter_map(|(now, before)| now.since(before).interrupt_count())
            .sum();
        assert!(counted > 0 && CpuCounters::tick_ns() > 0);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in "(CPU0 CPU1\\n)?[ 0-9A-Zé:\\n]{0,90}") {
            let _ = column(&text, 1);
            let _ = steal_ticks(&text, 0);
        }
    }
}
