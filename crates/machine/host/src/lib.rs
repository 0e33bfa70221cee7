//! Facts of the machine: everything that helps to explain a latency and that an ordinary process
//! may read.
//!
//! [`read`] reads files below a root, which tests replace by fixtures, or those of a [`snapshot`].
//! [`facts`] adds what is only available by calls on the running machine: the hypervisor's
//! signature, network links, the clock and environment variables. What cannot be read is absent,
//! never guessed.

#![forbid(unsafe_code)]

pub mod active;
mod calls;
mod cgroup;
mod cpu;
mod host;
mod identity;
mod interrupt_time;
mod links;
pub mod machine_use;
mod patterns;
pub mod record;
mod settings;
pub mod snapshot;
pub mod topology;
mod virtualization;
mod walk;

use std::path::Path;

use nm_model::Facts;
use nm_model::facts::{ClockFacts, MemoryFacts};
use nm_sys::clock::{Clock, ClockInfo};
use nm_sys::hostfiles::HostFiles;

pub use cgroup::quota as cpu_quota;
pub use interrupt_time::accounts_interrupt_time;
pub use virtualization::{QEMU_TCG, is_metal, is_pod};

/// Facts of this machine, as seen from this process and its namespaces.
pub fn facts() -> Facts {
    let files = HostFiles::default();
    let mut facts = read_from(&files);
    facts.clock =
        ClockFacts { kernel_source: facts.clock.kernel_source, ..clock_facts(Clock::info()) };
    if let Some(hypervisor) = virtualization::signature() {
        facts.virtualization.hypervisor = Some(hypervisor);
    }
    facts.links = links::read(&files);
    facts.variables = settings::variables(
        std::env::vars_os()
            .map(|(name, value)| [name, value].map(|text| text.to_string_lossy().into_owned())),
    );
    facts
}

/// Whether a hypervisor is below this system; absent where nothing would tell if one were.
pub fn is_guest() -> Option<bool> {
    let name = hypervisor();
    // Every hypervisor for x86-64 sets the processor's flag; elsewhere there is no such sign.
    (name.is_some() || cfg!(target_arch = "x86_64")).then_some(name.is_some())
}

/// The hypervisor below this system, by the processor's signature or by files; none if there is no
/// sign of one.
pub fn hypervisor() -> Option<String> {
    virtualization::signature().or_else(|| virtualization::read(&HostFiles::default()).hypervisor)
}

/// The facts that are read from files, below `root` in place of `/`.
pub fn read(root: &Path) -> Facts {
    read_from(&HostFiles::new(root))
}

/// The facts that are read from files: those of a machine, below a root, or of a snapshot.
pub fn read_from(files: &HostFiles) -> Facts {
    Facts {
        host: host::read(files),
        cpu: cpu::read(files),
        clock: ClockFacts {
            kernel_source: files
                .text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            ..ClockFacts::default()
        },
        memory: memory(files),
        virtualization: virtualization::read(files),
        settings: settings::read(files),
        nearmetal_version: env!("CARGO_PKG_VERSION").to_string(),
        ..Facts::default()
    }
}

fn clock_facts(info: &ClockInfo) -> ClockFacts {
    ClockFacts {
        source: info.source.to_string(),
        tsc_hz: info.counter_hz,
        calibration_error_ppm: info.calibration_error_ppm,
        pair_cost_ns: info.pair_cost_ns,
        kernel_source: info.kernel_source.clone(),
        fallback_reason: info.counter_error.as_ref().map(ToString::to_string),
    }
}

fn memory(files: &HostFiles) -> MemoryFacts {
    let word = |path: &str, label: &str, index: usize| {
        let text = files.text(path)?;
        let line = text.lines().find_map(|line| line.strip_prefix(label))?;
        line.split_whitespace().nth(index).map(str::to_string)
    };
    let total_kib: Option<u64> =
        word("/proc/meminfo", "MemTotal:", 0).and_then(|text| text.parse().ok());
    MemoryFacts {
        total_bytes: total_kib.unwrap_or(0).saturating_mul(1024),
        // `unlimited` is not a number and hence absent.
        lock_limit_bytes: word("/proc/self/limits", "Max locked memory", 0)
            .and_then(|text| text.parse().ok()),
    }
}
