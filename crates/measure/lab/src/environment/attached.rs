//! Guests that others made: their agents run behind a socket or a serial line already, or ssh
//! starts them there.
//!
//! Who runs the guests, and on which CPUs, is not known, and nothing claims it.

use nm_model::attached::{AttachedGuest, GuestPlace};
use nm_model::plan::EnvironmentKind;
use nm_model::{Failure, FailureKind};

use crate::environment::running::Environment;
use crate::environment::setup::Setup;
use crate::environment::ssh::{self, Place, Reach};

/// Attaches to the guests and checks the path between them.
pub fn start(setup: &Setup) -> Result<Environment, Failure> {
    let spec = setup.attached.as_ref().ok_or_else(|| {
        Failure::new(FailureKind::BadRequest, "vm-attached has no guest")
            .hint("write [attached] into the plan, or give --guest")
    })?;
    let here = Place { reach: Reach::Here, address: None };
    let places = [spec.client.as_ref().map_or(here, place), place(&spec.server)];
    ssh::between(EnvironmentKind::VmAttached, setup, places)
}

fn place(guest: &AttachedGuest) -> Place<'_> {
    let reach = match &guest.guest {
        GuestPlace::Ssh(destination) => {
            Reach::Ssh { destination, program: guest.program.as_deref() }
        }
        other => Reach::Running(other),
    };
    Place { reach, address: guest.address }
}
