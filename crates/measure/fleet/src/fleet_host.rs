//! A host of a fleet, its checks, and why a text is no list of hosts.

use std::collections::BTreeMap;
use std::net::IpAddr;

use nm_model::hosts::Destination;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most hosts of a fleet.
pub const HOSTS_MAX: usize = 1024;

/// Largest list of hosts, bytes.
pub const TEXT_BYTES_MAX: usize = 4 << 20;

/// Longest name, group or label, characters.
const WORD_CHARS_MAX: usize = 255;

/// A host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetHost {
    /// Its name, which no other host of the fleet has.
    pub name: String,
    /// Destination of ssh.
    pub ssh: String,
    /// Its IP address on the path that is measured; the one at which ssh reached it if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Groups, the one that it was listed in first.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Labels by name.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

impl FleetHost {
    /// `DEST` or `DEST=ADDRESS`, as `--client` and `--server` take it.
    pub fn spec(&self) -> String {
        match self.address {
            Some(address) => format!("{}={address}", self.ssh),
            None => self.ssh.clone(),
        }
    }
}

/// Why a text is no list of hosts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostsError {
    /// It is too large.
    #[error("the list of hosts has more than {TEXT_BYTES_MAX} bytes; name fewer hosts")]
    TooLarge,
    /// There are too many hosts.
    #[error("the list has more than {HOSTS_MAX} hosts; split it into several fleets")]
    TooMany,
    /// There are too few.
    #[error("the list has {0}; a fleet has two hosts or more, such as `node[01-16]`")]
    TooFew(String),
    /// A line cannot be read.
    #[error("line {line}: `{word}` {fault}")]
    Line {
        /// Line of the file, or place in the list, from 1 on.
        line: usize,
        /// The word.
        word: String,
        /// What is wrong, and what to do.
        fault: String,
    },
    /// It is no inventory.
    #[error(
        "line {line}: the inventory is not JSON as `ansible-inventory --list` prints it: {fault}"
    )]
    Json {
        /// Line of the text.
        line: usize,
        /// What serde says.
        fault: String,
    },
    /// A part of an inventory cannot be read.
    #[error("the inventory's {place} {fault}")]
    Inventory {
        /// Where.
        place: String,
        /// What is wrong, and what to do.
        fault: String,
    },
}

pub(crate) fn fault(line: usize, word: &str, fault: impl Into<String>) -> HostsError {
    let word: String = word.chars().take(WORD_CHARS_MAX).collect();
    HostsError::Line { line, word: word.escape_debug().to_string(), fault: fault.into() }
}

/// A name of a group or a label, which is shown in a line of text.
pub(crate) fn checked(line: usize, name: &str, what: &str) -> Result<String, HostsError> {
    let is_good = !name.is_empty()
        && name.chars().count() <= WORD_CHARS_MAX
        && !name.chars().any(|c| c.is_control() || c.is_whitespace());
    match is_good {
        true => Ok(name.to_string()),
        false => Err(fault(
            line,
            name,
            format!(
                "is no name of a {what}: write 1 to {WORD_CHARS_MAX} letters, digits and signs"
            ),
        )),
    }
}

/// An address of a host.
pub(crate) fn address_of(line: usize, text: &str) -> Result<IpAddr, HostsError> {
    let address = text.parse::<IpAddr>().ok();
    let is_of_host = |it: &IpAddr| !it.is_unspecified() && !it.is_multicast();
    address
        .filter(is_of_host)
        .ok_or_else(|| fault(line, text, "is no IP address of a host; write NAME or NAME=ADDRESS"))
}

/// A host whose destination and name are checked.
pub(crate) fn host(
    line: usize,
    name: &str,
    ssh: String,
    address: Option<IpAddr>,
) -> Result<FleetHost, HostsError> {
    let destination: Destination = ssh.parse().map_err(|_| {
        fault(line, &ssh, "is no destination of ssh; write a name such as `user@host`")
    })?;
    let name = checked(line, name, "host")?;
    Ok(FleetHost {
        name,
        ssh: destination.to_string(),
        address,
        groups: vec![],
        labels: BTreeMap::new(),
    })
}
