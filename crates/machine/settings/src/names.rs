//! Names that become parts of paths: checked once, when they are made.

use serde::{Deserialize, Serialize};

/// Longest name of a sysctl, bytes.
const SYSCTL_BYTES_MAX: usize = 128;

/// Longest name of a link, bytes (`IFNAMSIZ` without the zero at its end).
const LINK_BYTES_MAX: usize = 15;

/// Longest id of a run, bytes.
const RUN_BYTES_MAX: usize = 64;

/// Sysctls that have a twin: a value in one sets the other to zero, and zero cannot be written.
const TWINS: [&str; 4] =
    ["vm.dirty_bytes", "vm.dirty_ratio", "vm.dirty_background_bytes", "vm.dirty_background_ratio"];

/// A name that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not a sysctl.
    #[error("`{0}` is not the name of a sysctl, such as net.ipv4.tcp_autocorking")]
    Sysctl(String),
    /// One of two sysctls that exclude each other.
    #[error("`{0}` has a twin that it sets to zero; use the dirty limit, which has both")]
    Twin(String),
    /// Not a link.
    #[error("`{0}` is not the name of a network link, such as eth0")]
    Link(String),
    /// Not a run.
    #[error("`{0}` is not the id of a run; `nearmetal tune status` lists them")]
    Run(String),
}

/// The name of a sysctl, with dots.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SysctlName(String);

/// The name of a network link.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LinkName(String);

/// The id of a run of `apply`, which is also the name of its journal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunId(String);

impl TryFrom<String> for SysctlName {
    type Error = NameError;

    fn try_from(text: String) -> Result<SysctlName, NameError> {
        let is_part = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
        };
        if TWINS.contains(&text.as_str()) {
            return Err(NameError::Twin(text));
        }
        match text.len() <= SYSCTL_BYTES_MAX && text.split('.').all(is_part) {
            true => Ok(SysctlName(text)),
            false => Err(NameError::Sysctl(text)),
        }
    }
}

impl TryFrom<String> for LinkName {
    type Error = NameError;

    fn try_from(text: String) -> Result<LinkName, NameError> {
        let is_name = (1..=LINK_BYTES_MAX).contains(&text.len())
            && text != "."
            && text != ".."
            && text.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
        if is_name { Ok(LinkName(text)) } else { Err(NameError::Link(text)) }
    }
}

impl TryFrom<String> for RunId {
    type Error = NameError;

    fn try_from(text: String) -> Result<RunId, NameError> {
        let is_id = (1..=RUN_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if is_id { Ok(RunId(text)) } else { Err(NameError::Run(text)) }
    }
}

macro_rules! text_of {
    ($($name:ident),*) => {$(
        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }
        impl std::str::FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<$name, NameError> {
                $name::try_from(text.to_string())
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

text_of!(SysctlName, LinkName, RunId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_their_folder_are_refused() {
        for name in ["", ".", "..", "a..b", "net/core", "vm.\n", "../etc", &"a".repeat(129)] {
            assert!(name.parse::<SysctlName>().is_err(), "{name:?}");
        }
        assert_eq!(
            "vm.dirty_bytes".parse::<SysctlName>(),
            Err(NameError::Twin("vm.dirty_bytes".to_string()))
        );
        for name in ["", ".", "..", "a/b", "eth 0", "a-name-of-16-byte"] {
            assert!(name.parse::<LinkName>().is_err(), "{name:?}");
        }
        for name in ["", "a/b", "..", "a.jsonl", &"a".repeat(65)] {
            assert!(name.parse::<RunId>().is_err(), "{name:?}");
        }
        assert_eq!("net.core.busy_poll".parse::<SysctlName>().unwrap().as_str().len(), 18);
        assert_eq!("eth0.100".parse::<LinkName>().unwrap().to_string(), "eth0.100");
    }
}
