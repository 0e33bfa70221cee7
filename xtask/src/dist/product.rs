//! What is packed, and for which processors.

use sha2::{Digest, Sha256};

/// Version of all packages.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// One line that package managers show.
pub(super) const SUMMARY: &str =
    "Qualifies machines for latency-critical work: measure, judge, report";

/// A processor that programs are built for, under its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Processor {
    /// As in targets of Rust, in RPM and in `uname -m`.
    pub(super) name: &'static str,
    /// As in Debian.
    pub(super) debian: &'static str,
    /// As in container images.
    pub(super) image: &'static str,
}

pub(super) const PROCESSORS: [Processor; 2] = [
    Processor { name: "x86_64", debian: "amd64", image: "amd64" },
    Processor { name: "aarch64", debian: "arm64", image: "arm64" },
];

/// SHA-256 in hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
