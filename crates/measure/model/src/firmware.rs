//! What a management controller says of the firmware of its host.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The firmware of a host, as its management controller describes it. Nothing here names the host
/// or its owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Firmware {
    /// Maker of the host.
    pub manufacturer: String,
    /// Model of the host.
    pub model: String,
    /// Version of the host's firmware.
    pub bios_version: String,
    /// Model of the controller and version of its own firmware.
    pub controller: String,
    /// Settings in force, by the maker's names.
    pub attributes: BTreeMap<String, String>,
    /// Settings that wait for a restart, and what they will be; absent if the controller has no
    /// list of these.
    pub waiting: Option<BTreeMap<String, String>>,
    /// Whether the host is the machine that asked, by its identifier; absent if that is not known.
    pub is_this_machine: Option<bool>,
}
