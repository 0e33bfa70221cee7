//! Two network namespaces back to back over a veth pair.

use nm_model::Failure;
use nm_model::plan::EnvironmentKind;

use super::spaces::Spaces;
use super::{Environment, Setup};

/// Starts both agents, each in a namespace of its own, and wires them.
pub fn start(setup: &Setup) -> Result<Environment, Failure> {
    let kind = EnvironmentKind::Netns;
    let spaces = Spaces::start(setup, kind)?;
    let addresses = spaces.wire(setup, "veth", &[])?;
    Environment::new(kind, spaces.agents(), addresses, "veth", None)
}
