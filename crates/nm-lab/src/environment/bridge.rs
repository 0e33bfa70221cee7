//! Two network namespaces over a Linux bridge in a third one: the shape of vNIC and virtual switch.

use nm_model::Failure;
use nm_model::plan::EnvironmentKind;

use super::spaces::Spaces;
use super::{Environment, Setup};

/// Starts both agents and a holder, each in a namespace of its own, and wires them.
pub fn start(setup: &Setup) -> Result<Environment, Failure> {
    let kind = EnvironmentKind::Bridge;
    let spaces = Spaces::start(setup, kind)?;
    let holder = spaces.holder(setup)?;
    let addresses = spaces.wire(setup, "bridge", &[holder.pid()])?;
    Environment::new(kind, spaces.agents(), addresses, "bridge", Some(holder))
}
