//! Environments: where the two agents of a trial run. Each starts its agents and removes everything
//! again, also when this process is killed. Namespaces and links have no names, so they end with
//! the processes that are in them, and those end with this one.

mod attached;
mod available;
mod bridge;
mod guest_port;
mod guests;
mod loopback;
mod namespaces;
mod netns;
mod running;
mod setup;
mod shared_folder;
mod ssh;

use nm_model::Failure;
use nm_model::plan::EnvironmentKind;

pub use available::{EnvironmentUnavailable, unavailable_reason};
pub use guests::{
    GuestParts, GuestsUnavailable, KERNEL_VARIABLE, guest_kernel, named_kernel,
    spec_unavailable_reason,
};
pub use namespaces::hold;
pub(crate) use namespaces::try_isolation;
pub use running::Environment;
pub use setup::Setup;
use shared_folder::SharedFolder;
pub use ssh::SILENCE_LIMIT;

/// Starts an environment.
///
/// # Errors
/// What is missing or forbidden, and how to get it.
pub fn start(kind: EnvironmentKind, setup: &Setup) -> Result<Environment, Failure> {
    if setup.shared_folder.is_some() || !setup.needs_shared_folder(kind) {
        return start_agents(kind, setup);
    }
    let folder = SharedFolder::new(setup.subcommand(&["lab-hold"])?)?;
    let setup = Setup { shared_folder: Some(folder.path().to_path_buf()), ..setup.clone() };
    let mut environment = start_agents(kind, &setup)?;
    environment.shared_folder = Some(folder);
    Ok(environment)
}

fn start_agents(kind: EnvironmentKind, setup: &Setup) -> Result<Environment, Failure> {
    match kind {
        EnvironmentKind::Loopback => loopback::start(setup),
        EnvironmentKind::Netns => netns::start(setup),
        EnvironmentKind::Bridge => bridge::start(setup),
        EnvironmentKind::VmWire
        | EnvironmentKind::VmSwitch
        | EnvironmentKind::VmVhost
        | EnvironmentKind::VmSriov => guests::start(kind, setup),
        EnvironmentKind::Ssh => ssh::start(setup),
        EnvironmentKind::VmAttached => attached::start(setup),
    }
}
