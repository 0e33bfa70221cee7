//! Host name, kernel and operating system.

use nm_model::facts::HostFacts;
use nm_sys::hostfiles::HostFiles;

/// Reads name, kernel and operating system of the host.
pub fn read(files: &HostFiles) -> HostFacts {
    HostFacts {
        name: files.text("/proc/sys/kernel/hostname").unwrap_or_default(),
        kernel: files.text("/proc/sys/kernel/osrelease").unwrap_or_default(),
        // Kernels before 6.1 have no such file; the architecture of this program is the same.
        machine: files
            .text("/proc/sys/kernel/arch")
            .unwrap_or_else(|| std::env::consts::ARCH.to_string()),
        os: ["/etc/os-release", "/usr/lib/os-release"].iter().find_map(|path| {
            let text = files.text(path)?;
            let value = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
            Some(value.trim_matches(|c| c == '"' || c == '\'').to_string())
        }),
        cmdline: files.text("/proc/cmdline"),
        load_1m: files
            .text("/proc/loadavg")
            .and_then(|text| text.split_whitespace().next()?.parse().ok()),
        boot_id: files.text("/proc/sys/kernel/random/boot_id"),
    }
}
