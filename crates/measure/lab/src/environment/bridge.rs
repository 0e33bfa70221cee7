//! Two network namespaces over a Linux bridge in a third one: the shape of vNIC and virtual switch.

use nm_model::Failure;
use nm_model::plan::EnvironmentKind;

use crate::environment::namespaces::IsolatedAgents;
use crate::environment::running::Environment;
use crate::environment::setup::Setup;

/// Starts both agents and a process for the bridge, each in a namespace of its own, and connects
/// them.
pub fn start(setup: &Setup) -> Result<Environment, Failure> {
    let kind = EnvironmentKind::Bridge;
    let agents = IsolatedAgents::start(setup, kind)?;
    let keeper = agents.start_namespace_keeper(setup)?;
    let addresses = agents.connect(setup, "bridge", &[keeper.pid()])?;
    Environment::new(kind, agents.into_handles(), addresses, "bridge", Some(keeper))
}
