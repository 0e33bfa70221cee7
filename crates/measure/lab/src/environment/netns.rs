//! Two network namespaces back to back over a veth pair.

use nm_model::Failure;
use nm_model::plan::EnvironmentKind;

use crate::environment::namespaces::IsolatedAgents;
use crate::environment::running::Environment;
use crate::environment::setup::Setup;

/// Starts both agents, each in a namespace of its own, and connects them.
pub fn start(setup: &Setup) -> Result<Environment, Failure> {
    let kind = EnvironmentKind::Netns;
    let agents = IsolatedAgents::start(setup, kind)?;
    let addresses = agents.connect(setup, "veth", &[])?;
    Environment::new(kind, agents.into_handles(), addresses, "veth", None)
}
