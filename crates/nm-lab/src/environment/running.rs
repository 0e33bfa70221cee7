//! An environment while it runs.

use std::net::IpAddr;

use nm_model::plan::EnvironmentKind;
use nm_model::{Failure, FailureKind, GuestRecord};
use nm_sys::process::{ChildProcess, Signal};
use nm_vm::sriov::Prepared;

use crate::agent::Handle;
use crate::environment::shared_folder::SharedFolder;
use crate::pair::Pair;

/// Addresses of the two ends: pairs of client and server, IPv4 first.
pub type Addresses = Vec<(IpAddr, IpAddr)>;

/// What the host has for two guests, and takes back after them.
#[derive(Default)]
pub(super) struct BelowGuests {
    /// Keeps the namespace of their virtual switch open.
    pub namespace_keeper: Option<ChildProcess>,
    /// Functions of network devices that they have.
    pub functions: Option<Prepared>,
}

/// Two running agents and what was created for them.
pub struct Environment {
    /// Which kind it is.
    pub kind: EnvironmentKind,
    /// The agents. They reach each other by IPv4 unless [`Environment::use_ipv6`] changes that.
    pub pair: Pair,
    addresses: Addresses,
    /// Keeps a namespace open that contains no agent.
    namespace_keeper: Option<ChildProcess>,
    /// What the guests are and run on, in environments that have some.
    pub guests: Option<GuestRecord>,
    /// Functions of network devices that the guests have.
    functions: Option<Prepared>,
    /// For the handshakes of accelerated agents.
    pub(super) shared_folder: Option<SharedFolder>,
}

impl Environment {
    /// An environment of two launched agents, with what lies between them as `layer`.
    pub(super) fn new(
        kind: EnvironmentKind,
        (client, server): (Handle, Handle),
        addresses: Addresses,
        layer: &str,
        namespace_keeper: Option<ChildProcess>,
    ) -> Result<Environment, Failure> {
        let agents = (client.handshake()?, server.handshake()?);
        let first = *addresses.first().ok_or_else(|| {
            Failure::new(FailureKind::System, format!("{kind} was set up without addresses"))
        })?;
        let pair = Pair::on_virtual_links(kind.name(), agents, first, layer)?;
        Ok(Environment {
            kind,
            pair,
            addresses,
            namespace_keeper,
            guests: None,
            functions: None,
            shared_folder: None,
        })
    }

    /// An environment of two guests that have answered.
    pub(super) fn of_guests(
        kind: EnvironmentKind,
        pair: Pair,
        addresses: Addresses,
        below: BelowGuests,
        record: GuestRecord,
    ) -> Environment {
        let BelowGuests { namespace_keeper, functions } = below;
        Environment {
            kind,
            pair,
            addresses,
            namespace_keeper,
            guests: Some(record),
            functions,
            shared_folder: None,
        }
    }

    /// Stops the guests until [`Environment::resume`], so that they take no CPU from another
    /// environment's trials. Other agents take none while they wait.
    pub fn pause(&mut self) {
        self.signal_guests(Signal::STOP);
    }

    /// Lets paused guests go on. Their clocks have gone on too.
    pub fn resume(&mut self) {
        self.signal_guests(Signal::CONT);
    }

    fn signal_guests(&mut self, signal: Signal) {
        if self.guests.is_some() {
            self.pair.client.signal(signal);
            self.pair.server.signal(signal);
        }
    }

    /// Makes the agents reach each other by IPv6, or by IPv4 again.
    ///
    /// # Errors
    /// If the environment has no such addresses.
    pub fn use_ipv6(&mut self, ipv6: bool) -> Result<(), Failure> {
        let wanted = self.addresses.iter().find(|(client, _)| client.is_ipv6() == ipv6);
        let (client, server) = wanted.ok_or_else(|| {
            let message = format!("{} has no IPv{} here", self.kind, if ipv6 { 6 } else { 4 });
            Failure::new(FailureKind::NotAvailable, message)
        })?;
        (self.pair.client_address, self.pair.server_address) = (*client, *server);
        Ok(())
    }

    /// Ends both agents and removes all that was created for them. May be called again; dropping
    /// does the same.
    pub fn close(&mut self) {
        self.resume();
        self.pair.close();
        if let Some(mut keeper) = self.namespace_keeper.take() {
            keeper.kill();
        }
        // After QEMU has ended: it has the devices open until then.
        self.functions = None;
        self.shared_folder = None;
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        self.close();
    }
}
