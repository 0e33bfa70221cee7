//! Holding the processor in idle states without exit latency.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};

use nm_model::FactorEvidence;
use nm_sys::hostfiles::HostFiles;

/// A latency in µs, as four bytes, is written here. The kernel forgets it with the descriptor.
const DEVICE: &str = "/dev/cpu_dma_latency";

const CPUS: &str = "/sys/devices/system/cpu";

/// Most idle states of a CPU that are read.
const STATES_MAX: u32 = 16;

/// Share of the idle periods that may have begun in a state with exit latency while it is held.
const DEEP_SHARE_MAX: f64 = 0.05;

/// Why idle states cannot be held.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// The kernel has no such device.
    #[error("the kernel has no {DEVICE}")]
    NoDevice,
    /// Only root may write to it.
    #[error("{DEVICE} may only be held by root")]
    Permission,
    /// Any other failure.
    #[error("{DEVICE} cannot be held: {0}")]
    System(io::Error),
}

impl From<io::Error> for HoldError {
    fn from(error: io::Error) -> HoldError {
        match error.kind() {
            ErrorKind::NotFound => HoldError::NoDevice,
            ErrorKind::PermissionDenied => HoldError::Permission,
            _ => HoldError::System(error),
        }
    }
}

/// The hold: as long as it lives, and no longer, the kernel enters no state with exit latency.
pub struct HeldIdleStates {
    device: File,
    files: HostFiles,
    cpus: u64,
    before: Vec<IdleState>,
}

/// An idle state and its use by all CPUs so far.
#[derive(Debug, Clone, PartialEq, Eq)]
struct IdleState {
    name: String,
    exit_us: u64,
    entries: u64,
    time_us: u64,
}

impl HeldIdleStates {
    /// Begins to hold. `files` replaces the root in tests.
    pub fn begin(files: &HostFiles) -> Result<HeldIdleStates, HoldError> {
        let mut device = OpenOptions::new().read(true).write(true).open(files.path(DEVICE))?;
        device.write_all(&0_i32.to_ne_bytes())?;
        let cpus = online(files).len() as u64;
        Ok(HeldIdleStates { device, files: files.clone(), cpus, before: idle_states(files) })
    }

    /// Ends the hold. Whether it was in force is read from the kernel before.
    pub fn finish(self) -> (Option<bool>, Vec<FactorEvidence>) {
        let after = idle_states(&self.files);
        let limit_us = self.limit_us();
        let used: Vec<IdleState> = used(&self.before, &after);
        let mut evidence = vec![];
        if let Some(us) = limit_us {
            evidence.push(FactorEvidence::new(DEVICE, format!("{us} µs while held")));
        }
        evidence.extend(used.iter().map(|state| {
            let source = format!("idle state {} (exit {} µs)", state.name, state.exit_us);
            let ms = state.time_us as f64 / 1e3;
            FactorEvidence::new(source, format!("entered {} times, {ms:.1} ms", state.entries))
        }));
        (is_in_force(limit_us, self.cpus, &used), evidence)
    }

    /// The latency that the kernel keeps to, of all that hold it.
    fn limit_us(&self) -> Option<i32> {
        let mut bytes = [0; 4];
        (&self.device).read_exact(&mut bytes).ok()?;
        Some(i32::from_ne_bytes(bytes))
    }
}

/// By the kernel's limit, and by what the CPUs did where that is counted. The kernel counts an idle
/// period when it ends, so each CPU may have one more that began before the hold.
fn is_in_force(limit_us: Option<i32>, cpus: u64, used: &[IdleState]) -> Option<bool> {
    let is_limited = limit_us? == 0;
    let entries = |is_deep: bool| -> u64 {
        used.iter().filter(|s| (s.exit_us > 0) == is_deep).map(|s| s.entries).sum()
    };
    let (deep, shallow) = (entries(true).saturating_sub(cpus), entries(false));
    let is_shallow = deep as f64 <= DEEP_SHARE_MAX * (deep + shallow) as f64;
    Some(is_limited && is_shallow)
}

fn online(files: &HostFiles) -> Vec<u32> {
    files.list(&format!("{CPUS}/online")).unwrap_or_default()
}

/// The idle states of all online CPUs, added up by their number.
fn idle_states(files: &HostFiles) -> Vec<IdleState> {
    let mut states: Vec<IdleState> = vec![];
    for cpu in online(files) {
        for number in 0..STATES_MAX {
            let folder = format!("{CPUS}/cpu{cpu}/cpuidle/state{number}");
            let Some(name) = files.text(&format!("{folder}/name")) else { break };
            let value = |file| files.value::<u64>(&format!("{folder}/{file}")).unwrap_or(0);
            let (entries, time_us) = (value("usage"), value("time"));
            match states.get_mut(number as usize) {
                Some(state) => {
                    state.entries += entries;
                    state.time_us += time_us;
                }
                None => {
                    let exit_us = value("latency");
                    states.push(IdleState { name, exit_us, entries, time_us });
                }
            }
        }
    }
    states
}

fn used(before: &[IdleState], after: &[IdleState]) -> Vec<IdleState> {
    let since = |(before, after): (&IdleState, &IdleState)| IdleState {
        entries: after.entries.saturating_sub(before.entries),
        time_us: after.time_us.saturating_sub(before.time_us),
        ..after.clone()
    };
    before.iter().zip(after).map(since).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    use nm_sys::private_folder::PrivateFolder;

    /// Two CPUs with two idle states each.
    fn record(root: &Path, deep_entries: u64) {
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sys/devices/system/cpu/online", "0-1\n");
        for cpu in 0..2 {
            for (number, name, exit, entries) in
                [(0, "POLL", 0, 1000), (1, "C6", 133, deep_entries)]
            {
                let folder = format!("sys/devices/system/cpu/cpu{cpu}/cpuidle/state{number}");
                write(&format!("{folder}/name"), name);
                write(&format!("{folder}/latency"), &exit.to_string());
                write(&format!("{folder}/usage"), &entries.to_string());
                write(&format!("{folder}/time"), "5000");
            }
        }
    }

    /// A private temporary folder; removed at the end of the test.
    fn folder() -> PrivateFolder {
        PrivateFolder::create(&std::env::temp_dir(), "nearmetal-factor").unwrap()
    }

    #[test]
    fn use_is_added_up_over_cpus_and_counted_from_the_begin() {
        let folder = folder();
        record(folder.path(), 10);
        let files = HostFiles::new(folder.path());
        let before = idle_states(&files);
        assert_eq!((before.len(), before[1].entries, before[1].time_us), (2, 20, 10_000));
        record(folder.path(), 13);
        let used = used(&before, &idle_states(&files));
        assert_eq!((used[0].entries, used[1].entries, used[1].exit_us), (0, 6, 133));
    }

    #[test]
    fn a_hold_is_in_force_by_limit_and_by_the_states_entered() {
        let state = |exit_us, entries| IdleState { name: "C".into(), exit_us, entries, time_us: 0 };
        assert_eq!(is_in_force(Some(0), 0, &[state(0, 100), state(9, 2)]), Some(true));
        assert_eq!(is_in_force(Some(0), 2, &[state(0, 10), state(9, 20)]), Some(false));
        assert_eq!(is_in_force(Some(0), 2, &[state(0, 3), state(9, 2)]), Some(true), "before");
        assert_eq!(is_in_force(Some(0), 2, &[state(0, 3), state(9, 3)]), Some(false));
        assert_eq!(is_in_force(Some(5), 2, &[]), Some(false));
        assert_eq!(is_in_force(Some(0), 2, &[]), Some(true));
        assert_eq!(is_in_force(None, 2, &[]), None);
    }

    #[test]
    fn a_latency_of_zero_is_written_and_a_missing_device_is_named() {
        let folder = folder();
        let files = HostFiles::new(folder.path());
        let error = HeldIdleStates::begin(&files).err().unwrap().to_string();
        assert_eq!(error, "the kernel has no /dev/cpu_dma_latency");
        fs::create_dir_all(folder.path().join("dev")).unwrap();
        let device = folder.path().join("dev/cpu_dma_latency");
        fs::write(&device, [9, 9, 9, 9, 0, 0, 0, 0]).unwrap();
        let (shown, evidence) = HeldIdleStates::begin(&files).unwrap().finish();
        assert_eq!(fs::read(&device).unwrap()[..4], [0; 4]);
        assert_eq!(shown, Some(true));
        assert_eq!(evidence[0].value, "0 µs while held");
    }
}
