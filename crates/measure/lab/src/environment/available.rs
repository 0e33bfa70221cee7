//! Which kinds of environment can be started on this machine by this version.

use nm_model::plan::EnvironmentKind;

use crate::environment::guests::{self, GuestsUnavailable};
use crate::environment::namespaces;
use crate::launcher;

/// Why an environment cannot be started here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentUnavailable {
    /// Network namespaces cannot be created.
    #[error("{0}")]
    Namespaces(nm_model::Failure),
    /// Virtual machines cannot be started.
    #[error(transparent)]
    Guests(#[from] GuestsUnavailable),
    /// Other hosts cannot be reached.
    #[error("there is no ssh client in PATH, which reaches the hosts; install openssh-client")]
    NoSsh,
}

/// Why an environment cannot be started here; none if it can.
pub fn unavailable_reason(environment: EnvironmentKind) -> Option<EnvironmentUnavailable> {
    match environment {
        // What an attached guest takes depends on where it is.
        EnvironmentKind::Loopback | EnvironmentKind::VmAttached => None,
        EnvironmentKind::Netns | EnvironmentKind::Bridge => {
            namespaces::unavailable_reason().map(EnvironmentUnavailable::Namespaces)
        }
        EnvironmentKind::VmWire | EnvironmentKind::VmSriov => {
            guests::unavailable_reason(environment).map(EnvironmentUnavailable::Guests)
        }
        EnvironmentKind::VmSwitch | EnvironmentKind::VmVhost => {
            let guests = guests::unavailable_reason(environment);
            guests.map(EnvironmentUnavailable::Guests).or_else(|| {
                namespaces::unavailable_reason().map(EnvironmentUnavailable::Namespaces)
            })
        }
        EnvironmentKind::Ssh => {
            launcher::in_path(nm_ssh::SSH).is_none().then_some(EnvironmentUnavailable::NoSsh)
        }
    }
}
