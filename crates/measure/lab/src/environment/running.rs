//! An environment while it runs.

use std::net::IpAddr;

use nm_model::environment::Distance;
use nm_model::plan::EnvironmentKind;
use nm_model::{Failure, FailureKind, GuestRecord};
use nm_sys::clock::Moment;
use nm_sys::process::{ChildProcess, Signal};
use nm_vm::sriov::Prepared;

use crate::agent::Handle;
use crate::environment::shared_folder::SharedFolder;
use crate::pair::Pair;

/// Addresses of the two ends: pairs of client and server, IPv4 first.
pub type Addresses = Vec<(IpAddr, IpAddr)>;

/// What the host has for guests, and takes back after them.
#[derive(Default)]
pub(super) struct BelowGuests {
    /// Keeps the namespace of their virtual switch open.
    pub namespace_keeper: Option<ChildProcess>,
    /// Functions of network devices that they have.
    pub functions: Option<Prepared>,
}

/// What two guests are and run on.
pub struct Guests {
    record: GuestRecord,
    /// When QEMU was started.
    begun: Moment,
}

impl Guests {
    /// Guests that were started at `begun`.
    pub(super) fn new(record: GuestRecord, begun: Moment) -> Guests {
        Guests { record, begun }
    }

    /// What is known of them.
    pub fn record(&self) -> &GuestRecord {
        &self.record
    }

    /// Notes that their first result was there at `at`, unless they had one before.
    pub fn note_result(&mut self, at: Moment) {
        self.record.first_result_ms.get_or_insert_with(|| milliseconds(self.begun, at));
    }
}

/// From `begin` to `end`, ms.
pub(super) fn milliseconds(begin: Moment, end: Moment) -> u64 {
    u64::try_from(end.since(begin).as_millis()).unwrap_or(u64::MAX)
}

/// Two running agents and what was created for them.
pub struct Environment {
    /// Which kind it is.
    pub kind: EnvironmentKind,
    /// The agents. They reach each other by IPv4 unless [`Environment::use_ipv6`] changes that.
    pub pair: Pair,
    /// Of each pair.
    addresses: Vec<Addresses>,
    /// Keeps a namespace open that contains no agent.
    namespace_keeper: Option<ChildProcess>,
    /// What the guests are and run on, in environments that have some.
    pub guests: Option<Guests>,
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
            addresses: vec![addresses],
            namespace_keeper,
            guests: None,
            functions: None,
            shared_folder: None,
        })
    }

    /// An environment of pairs of guests that have answered, each with its addresses.
    pub(super) fn of_guests(
        kind: EnvironmentKind,
        pairs: Vec<(Pair, Addresses)>,
        below: BelowGuests,
        guests: Guests,
    ) -> Result<Environment, Failure> {
        let BelowGuests { namespace_keeper, functions } = below;
        let (pairs, addresses): (Vec<Pair>, Vec<Addresses>) = pairs.into_iter().unzip();
        let pair = Pair::joined(pairs).ok_or_else(|| {
            Failure::new(FailureKind::System, format!("{kind} was set up without guests"))
        })?;
        Ok(Environment {
            kind,
            pair,
            addresses,
            namespace_keeper,
            guests: Some(guests),
            functions,
            shared_folder: None,
        })
    }

    /// An environment of two hosts, whose agents have answered and reach each other.
    pub(super) fn of_hosts(kind: EnvironmentKind, pair: Pair) -> Environment {
        let addresses = vec![vec![(pair.client_address, pair.server_address)]];
        Environment {
            kind,
            pair,
            addresses,
            namespace_keeper: None,
            guests: None,
            functions: None,
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
            self.pair.signal(signal);
        }
    }

    /// Makes the agents reach each other by IPv6, or by IPv4 again.
    ///
    /// # Errors
    /// If the environment has no such addresses.
    pub fn use_ipv6(&mut self, ipv6: bool) -> Result<(), Failure> {
        if self.kind.distance() == Distance::Hosts && !ipv6 {
            // The addresses of hosts are given, and there is one path.
            return Ok(());
        }
        let missing = || {
            let message = format!("{} has no IPv{} here", self.kind, if ipv6 { 6 } else { 4 });
            Failure::new(FailureKind::NotAvailable, message)
        };
        let of_pair = |all: &Addresses| all.iter().find(|(one, _)| one.is_ipv6() == ipv6).copied();
        let mut wanted = self.addresses.iter().map(of_pair);
        let first = wanted.next().flatten().ok_or_else(missing)?;
        (self.pair.client_address, self.pair.server_address) = first;
        for (pair, addresses) in self.pair.beside().iter_mut().zip(wanted) {
            (pair.client_address, pair.server_address) = addresses.ok_or_else(missing)?;
        }
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
