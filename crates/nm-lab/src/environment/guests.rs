//! Two virtual machines. Each is a process of QEMU that ends with this one; what they are made of
//! and what lies between them has no names: files in memory, sockets, and devices in a network
//! namespace that ends with its processes.

mod parts;
mod unavailable;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use nm_model::guest::GuestPlacement;
use nm_model::plan::EnvironmentKind;
use nm_model::{Failure, FailureKind, Finding, GuestExecution, GuestRecord, GuestSpec, Side};
use nm_ring::window::MEMORY_BYTES;
use nm_sys::clock::Moment;
use nm_sys::hostfiles::HostFiles;
use nm_sys::memory_file;
use nm_sys::namespace::isolate;
use nm_vm::boot::{BootSettings, Cidr};
use nm_vm::budget::Budget;
use nm_vm::execution::{self, Determined};
use nm_vm::join::{self, GuestFacts};
use nm_vm::kernel::GuestKernel;
use nm_vm::machine::{GuestNic, MACHINE, Machine};
use nm_vm::memory::GuestMemory;
use nm_vm::network;
use nm_vm::qemu::Qemu;
use nm_vm::sriov::{self, Prepared};
use nm_vm::threads;

use crate::agent::Handle;
use crate::environment::namespaces::Switch;
use crate::environment::running::{Addresses, BelowGuests, Environment};
use crate::environment::setup::Setup;
use crate::link_setup::{self, LinkEnd};
use crate::pair::{GuestConditions, Pair};
pub use parts::{GuestParts, KERNEL_VARIABLE, named_kernel};
pub use unavailable::GuestsUnavailable;

/// How long a guest may take from the start of QEMU until its agent answers: an emulated processor
/// on a busy machine needs half a minute.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);

const SIDES: [Side; 2] = [Side::Client, Side::Server];

/// Why guests of `kind` cannot be started here, whatever their kernel; none if they can.
pub fn unavailable_reason(kind: EnvironmentKind) -> Option<GuestsUnavailable> {
    let qemu = match Qemu::find() {
        Ok(qemu) => qemu,
        Err(error) => return Some(error.into()),
    };
    network::unavailable_reason(kind, &qemu.features).map(GuestsUnavailable::from)
}

/// The kernel of guests as `spec` wants them.
///
/// # Errors
/// If there is none, with what to install.
pub fn guest_kernel(spec: &GuestSpec) -> Result<GuestKernel, GuestsUnavailable> {
    Ok(parts::find_kernel(spec)?)
}

/// Why guests of `kind` as `spec` wants them cannot be started here; none if they can.
pub fn spec_unavailable_reason(
    kind: EnvironmentKind,
    spec: &GuestSpec,
) -> Option<GuestsUnavailable> {
    check_spec(kind, spec).err()
}

fn check_spec(kind: EnvironmentKind, spec: &GuestSpec) -> Result<(), GuestsUnavailable> {
    parts::find_kernel(spec)?;
    let execution = execution::determine(spec.execution)?.execution;
    if let Some(refusal) = spec.refusal(execution) {
        return Err(GuestsUnavailable::Emulated(refusal));
    }
    if kind != EnvironmentKind::VmSriov {
        return Ok(());
    }
    if spec.nics.is_empty() {
        return Err(GuestsUnavailable::NoDevice);
    }
    if execution == GuestExecution::Tcg {
        return Err(GuestsUnavailable::PassThroughNeedsKvm);
    }
    sriov::check(&sriov::Host::open(Path::new("/"))?, &spec.nics)?;
    Ok(())
}

/// Starts both guests.
pub fn start(kind: EnvironmentKind, setup: &Setup) -> Result<Environment, Failure> {
    let not_available = |reason: GuestsUnavailable| {
        Failure::new(FailureKind::NotAvailable, format!("{kind}: {reason}"))
    };
    let spec = &setup.guests;
    if let Some(reason) = unavailable_reason(kind).or_else(|| spec_unavailable_reason(kind, spec)) {
        return Err(not_available(reason));
    }
    let host = Host::new(kind, spec).map_err(not_available)?;
    let mut network = Network::new(kind, setup)?;
    network.functions = prepare_functions(kind, spec).map_err(not_available)?;
    let shared = || memory_file::of_size("nearmetal-guests", MEMORY_BYTES).map_err(system_failure);
    let memory = shared()?;
    let begin = Moment::now();
    let mut launch = |side| {
        let memory = memory.try_clone().map_err(system_failure)?;
        host.launch(kind, setup, side, &mut network, memory)
    };
    let (client, server) = (launch(Side::Client)?, launch(Side::Server)?);
    let client = client.handshake_of_guest(BOOT_TIMEOUT)?;
    let server = server.handshake_of_guest(BOOT_TIMEOUT)?;
    let boot_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
    let placement = host.place([&client, &server]);
    let addresses = network.addresses.clone();
    let conditions =
        GuestConditions { execution: host.determined.execution, shortage: host.budget.shortage() };
    let first = addresses[0];
    let layer = network::layer(kind);
    let pair = Pair::of_guests(kind.name(), (client, server), first, layer, conditions)?;
    let record = host.record(kind, boot_ms, placement, &network, &pair);
    let keeper = network.switch.map(Switch::into_keeper);
    let below = BelowGuests { namespace_keeper: keeper, functions: network.functions };
    Ok(Environment::of_guests(kind, pair, addresses, below, record))
}

/// Makes functions of network devices ready, for the environment that passes some through.
fn prepare_functions(
    kind: EnvironmentKind,
    spec: &GuestSpec,
) -> Result<Option<Prepared>, GuestsUnavailable> {
    let is_wanted = kind == EnvironmentKind::VmSriov;
    Ok(is_wanted.then(|| sriov::prepare(Path::new("/"), &spec.nics)).transpose()?)
}

/// What only host and guests together show.
fn findings(memory: GuestMemory, pair: &Pair) -> Vec<Finding> {
    let files = HostFiles::default();
    let guests = SIDES.map(|side| {
        let pid = match side {
            Side::Client => pair.client.pid(),
            Side::Server => pair.server.pid(),
        };
        GuestFacts {
            side,
            threads: join::read_threads(&files, pid),
            memory: join::read_memory(&files, pid),
            size_kib: u64::from(memory.mib) * 1024,
            pages_of_nodes: join::read_nodes(&files, pid),
            clock_source: pair.facts(side).clock.kernel_source.clone(),
        }
    });
    join::findings(&join::read_host(&files), &guests)
}

fn system_failure(error: std::io::Error) -> Failure {
    Failure::new(FailureKind::System, format!("cannot prepare the guests: {error}"))
}

/// What both guests run on.
struct Host {
    qemu: Qemu,
    parts: GuestParts,
    determined: Determined,
    budget: Budget,
    memory: GuestMemory,
}

impl Host {
    fn new(kind: EnvironmentKind, spec: &GuestSpec) -> Result<Host, GuestsUnavailable> {
        let determined = execution::determine(spec.execution)?;
        let is_kvm = determined.execution != GuestExecution::Tcg;
        let packet_threads = network::packet_threads(kind);
        let (allowed, siblings) = (nm_sys::cpu::allowed(), nm_sys::cpu::siblings());
        let guests = SIDES.len() as u32;
        Ok(Host {
            qemu: Qemu::find()?,
            parts: GuestParts::of(kind, spec)?,
            determined,
            budget: Budget::new(spec.cpus, packet_threads, &allowed, &siblings),
            memory: GuestMemory::plan(spec, guests, is_kvm, &HostFiles::default()),
        })
    }

    fn is_pinned(&self) -> bool {
        self.budget.placement.iter().all(|one| !one.virtual_cpus.is_empty())
    }

    /// Starts QEMU for one guest, in the namespace of the network.
    fn launch(
        &self,
        kind: EnvironmentKind,
        setup: &Setup,
        side: Side,
        network: &mut Network,
        shared_memory: OwnedFd,
    ) -> Result<Handle, Failure> {
        let end = link_setup::end(side);
        let settings = BootSettings {
            addresses: vec![
                cidr(end.v4.into(), LinkEnd::V4_PREFIX),
                cidr(end.v6.into(), LinkEnd::V6_PREFIX),
            ],
            mac: network.hardware_address(side),
            ..BootSettings::new(side)
        };
        let image = memory_file::with_contents("nearmetal-image", &self.parts.image.bytes);
        let machine = Machine {
            side,
            execution: self.determined.execution,
            cpus: self.budget.cpus,
            is_pinned: self.is_pinned(),
            memory: self.memory,
            kernel: self.parts.kernel.image.clone(),
            image: image.map_err(system_failure)?,
            words: settings.words().join(" "),
            nic: network.nic(side)?,
            shared_memory,
        };
        let mut command = machine.command(&self.qemu);
        if let Some(switch) = &network.switch {
            isolate(&mut command, switch.join()?);
        }
        setup.launch(kind, side, command)
    }

    /// Pins the threads of both guests; returns where they are.
    fn place(&self, guests: [&Handle; 2]) -> Vec<GuestPlacement> {
        if !self.is_pinned() {
            return self.budget.placement.clone();
        }
        let placed = self.budget.placement.iter().zip(guests);
        placed
            .map(|(placement, guest)| match threads::place(guest.pid(), placement) {
                Ok(()) => placement.clone(),
                // The record says that they are not pinned.
                Err(_) => GuestPlacement { side: placement.side, ..GuestPlacement::default() },
            })
            .collect()
    }

    fn record(
        &self,
        kind: EnvironmentKind,
        boot_ms: u64,
        placement: Vec<GuestPlacement>,
        network: &Network,
        pair: &Pair,
    ) -> GuestRecord {
        let Determined { execution, evidence } = self.determined.clone();
        let cpu_model = Machine::cpu_model_of(execution, self.is_pinned());
        GuestRecord {
            environment: kind,
            execution,
            evidence,
            qemu_version: self.qemu.version.clone(),
            machine: MACHINE.to_string(),
            cpu_model,
            cpus: self.budget.cpus,
            memory_mib: self.memory.mib,
            page_kib: self.memory.page_kib,
            is_memory_locked: self.memory.is_locked,
            kernel: self.parts.kernel.release.clone(),
            program_sha256: self.parts.image.program_sha256.clone(),
            boot_ms,
            placement,
            notes: self.notes(network),
            findings: findings(self.memory, pair),
        }
    }

    /// Choices that change latency.
    fn notes(&self, network: &Network) -> Vec<String> {
        let mut notes = vec![];
        for sentence in network.functions.iter().flat_map(|functions| &functions.notes) {
            notes.push(format!("{sentence}."));
        }
        let files = HostFiles::default();
        if self.determined.execution != GuestExecution::Tcg
            && let Some(ns) = files.text("/sys/module/kvm/parameters/halt_poll_ns")
        {
            notes.push(format!("KVM polls for up to {ns} ns before an idle virtual CPU sleeps."));
        }
        if let Some(shortage) = self.budget.shortage() {
            notes.push(format!("Ends wait by sleeping where they would spin: {shortage}."));
        }
        if !self.is_pinned() {
            notes
                .push("Threads of the guests are not pinned: there are too few cores.".to_string());
        }
        notes
    }
}

fn cidr(address: IpAddr, prefix_bits: u8) -> Cidr {
    Cidr { address, prefix_bits }
}

/// What lies between the guests.
struct Network {
    addresses: Addresses,
    /// Ends of a wire that no guest has yet: the client's and the server's.
    wire: [Option<OwnedFd>; 2],
    /// A bridge and a tap device for each guest.
    switch: Option<Switch>,
    vhost: bool,
    /// Functions of physical devices, ready to be passed through.
    functions: Option<Prepared>,
}

impl Network {
    fn new(kind: EnvironmentKind, setup: &Setup) -> Result<Network, Failure> {
        let (client, server) = (link_setup::end(Side::Client), link_setup::end(Side::Server));
        let addresses =
            vec![(client.v4.into(), server.v4.into()), (client.v6.into(), server.v6.into())];
        let mut network =
            Network { addresses, wire: [None, None], switch: None, vhost: false, functions: None };
        match kind {
            EnvironmentKind::VmWire => {
                let (client, server) = UnixDatagram::pair().map_err(system_failure)?;
                network.wire = [Some(client.into()), Some(server.into())];
            }
            EnvironmentKind::VmSriov => {}
            _ => {
                network.switch = Some(Switch::start(setup)?);
                network.vhost = kind == EnvironmentKind::VmVhost;
            }
        }
        Ok(network)
    }

    /// The hardware address of a guest's device; absent if it is the device's own and not known.
    fn hardware_address(&self, side: Side) -> Option<[u8; 6]> {
        match &self.functions {
            Some(functions) => functions.macs[usize::from(side == Side::Server)],
            None => Some(network::hardware_address(side)),
        }
    }

    fn nic(&mut self, side: Side) -> Result<GuestNic, Failure> {
        if let Some(functions) = &self.functions {
            let address = functions.addresses[usize::from(side == Side::Server)].to_string();
            return Ok(GuestNic::Passthrough { address });
        }
        if self.switch.is_some() {
            return Ok(GuestNic::Tap { name: network::tap_name(side), vhost: self.vhost });
        }
        let end = &mut self.wire[usize::from(side == Side::Server)];
        let socket = end.take().ok_or_else(|| {
            Failure::new(FailureKind::System, format!("the {side}'s end of the wire is in use"))
        })?;
        Ok(GuestNic::Wire { socket })
    }
}
