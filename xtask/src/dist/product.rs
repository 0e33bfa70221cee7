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

impl Processor {
    /// What the names of its archive and of the folder in it begin with.
    pub(super) fn stem(self) -> String {
        format!("nearmetal-{VERSION}-{}", self.name)
    }
}

pub(super) const PROCESSORS: [Processor; 2] = [
    Processor { name: "x86_64", debian: "amd64", image: "amd64" },
    Processor { name: "aarch64", debian: "arm64", image: "arm64" },
];

/// SHA-256 in hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field of `[package.metadata.binstall]` with this processor filled in.
    fn binstall(manifest: &str, field: &str, processor: Processor) -> Option<String> {
        let line =
            manifest.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(" = "))?;
        let parts = [("version", VERSION), ("target-arch", processor.name), ("bin", "nearmetal")];
        let filled =
            parts.iter().fold(line.trim_matches('"').to_string(), |text, (name, value)| {
                text.replace(&format!("{{ {name} }}"), value)
            });
        Some(filled)
    }

    #[test]
    fn binstall_finds_the_archives_by_their_names() {
        let manifest = include_str!("../../../crates/nearmetal/Cargo.toml");
        for processor in PROCESSORS {
            let field = |name| binstall(manifest, name, processor).unwrap();
            let stem = processor.stem();
            assert!(field("pkg-url").ends_with(&format!("/v{VERSION}/{stem}.tar.zst")));
            assert_eq!(field("bin-dir"), format!("{stem}/nearmetal"));
            assert_eq!(field("pkg-fmt"), "tzstd");
        }
    }
}
