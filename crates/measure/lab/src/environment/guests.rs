//! Pairs of virtual machines. Each machine is a process of QEMU that ends with this one. What they
//! are made of and what lies between them has no names. It is files in memory, sockets, and devices
//! in a network namespace that ends with its processes.

mod parts;
mod unavailable;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use nm_model::guest::GuestPlacement;
use nm_model::plan::EnvironmentKind;
use nm_model::{
    Failure, FailureKind, Finding, GuestExecution, GuestId, GuestRecord, GuestSpec, Side,
};
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
use nm_vm::modules::ModuleTree;
use nm_vm::network;
use nm_vm::preconditions;
use nm_vm::qemu::Qemu;
use nm_vm::sriov::{self, Prepared};
use nm_vm::threads;

use crate::agent::Handle;
use crate::environment::namespaces::Switch;
use crate::environment::running::{Addresses, BelowGuests, Environment, Guests, milliseconds};
use crate::environment::setup::Setup;
use crate::link_setup::{self, LinkEnd};
use crate::pair::{GuestConditions, Pair};
pub use parts::{GuestParts, KERNEL_VARIABLE, named_kernel};
pub use unavailable::GuestsUnavailable;

/// How long a guest may take from the start of QEMU until its agent answers: an emulated processor
/// on a busy machine needs half a minute, a guest on KVM of an emulated processor some minutes.
fn boot_timeout(execution: GuestExecution) -> Duration {
    Duration::from_secs(match execution {
        GuestExecution::NestedKvm => 400,
        _ => 120,
    })
}

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
    let kernel = parts::find_kernel(spec)?;
    let execution = execution::determine(spec.execution)?.execution;
    if let Some(refusal) = spec.refusal(execution) {
        return Err(GuestsUnavailable::Emulated(refusal));
    }
    plan_memory(spec, execution)?;
    if kind != EnvironmentKind::VmSriov {
        return Ok(());
    }
    if spec.nics.is_empty() {
        return Err(GuestsUnavailable::NoDevice);
    }
    if !preconditions::can_pass_through(execution) {
        return Err(GuestsUnavailable::PassThroughNeedsKvm);
    }
    let nics = sriov::check(&sriov::Host::open(Path::new("/"))?, &spec.nics, spec.pairs)?;
    let modules = ModuleTree::read(&kernel.modules);
    let shortage = nics.iter().find_map(|nic| {
        let driver = preconditions::guest_driver(nic, nics.len() == 1)?;
        preconditions::driver_shortage(driver, &kernel.release, |name| Some(modules.has(name)))
    });
    match shortage {
        Some(reason) => Err(GuestsUnavailable::PassThrough(reason)),
        None => Ok(()),
    }
}

/// The memory of each guest, if that of all fits into the host's.
fn plan_memory(
    spec: &GuestSpec,
    execution: GuestExecution,
) -> Result<GuestMemory, GuestsUnavailable> {
    let (guests, files) = (2 * spec.pairs, HostFiles::default());
    let memory = GuestMemory::plan(spec, guests, execution != GuestExecution::Tcg, &files);
    match memory.shortage(guests, &files) {
        Some(shortage) => Err(GuestsUnavailable::Memory(shortage)),
        None => Ok(memory),
    }
}

/// Starts all guests.
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
    let begin = Moment::now();
    let handles = host.launch_all(kind, setup, &mut network)?;
    let boot_ms = milliseconds(begin, Moment::now());
    let placement = host.place(&handles);
    let pairs = host.pairs(kind, handles)?;
    let record = host.record(kind, boot_ms, placement, &network, &pairs);
    let guests = Guests::new(record, begin);
    let keeper = network.switch.map(Switch::into_keeper);
    let below = BelowGuests { namespace_keeper: keeper, functions: network.functions };
    let with_addresses = |(number, pair)| (pair, addresses_of(number));
    let pairs = (0..).zip(pairs).map(with_addresses).collect();
    Environment::of_guests(kind, pairs, below, guests)
}

/// The addresses of the ends of a pair: IPv4, then IPv6.
fn addresses_of(pair: u32) -> Addresses {
    let of = |side| link_setup::guest_addresses(GuestId { pair, side });
    of(Side::Client).into_iter().zip(of(Side::Server)).collect()
}

/// Makes functions of network devices ready, for the environment that passes some through.
fn prepare_functions(
    kind: EnvironmentKind,
    spec: &GuestSpec,
) -> Result<Option<Prepared>, GuestsUnavailable> {
    let is_wanted = kind == EnvironmentKind::VmSriov;
    Ok(is_wanted.then(|| sriov::prepare(Path::new("/"), &spec.nics, spec.pairs)).transpose()?)
}

/// What only host and guests together show.
fn findings(memory: GuestMemory, pairs: &[Pair]) -> Vec<Finding> {
    let files = HostFiles::default();
    let facts = |guest: GuestId| {
        let pair = &pairs[guest.pair as usize];
        let pid = match guest.side {
            Side::Client => pair.client.pid(),
            Side::Server => pair.server.pid(),
        };
        GuestFacts {
            guest,
            threads: join::read_threads(&files, pid),
            memory: join::read_memory(&files, pid),
            size_kib: u64::from(memory.mib) * 1024,
            pages_of_nodes: join::read_nodes(&files, pid),
            clock_source: pair.facts(guest.side).clock.kernel_source.clone(),
        }
    };
    let guests: Vec<GuestFacts> = GuestId::all(pairs.len() as u32).into_iter().map(facts).collect();
    join::findings(&join::read_host(&files), &guests)
}

fn system_failure(error: std::io::Error) -> Failure {
    Failure::new(FailureKind::System, format!("cannot prepare the guests: {error}"))
}

/// What all guests run on.
struct Host {
    pairs: u32,
    qemu: Qemu,
    parts: GuestParts,
    determined: Determined,
    budget: Budget,
    memory: GuestMemory,
}

impl Host {
    fn new(kind: EnvironmentKind, spec: &GuestSpec) -> Result<Host, GuestsUnavailable> {
        let determined = execution::determine(spec.execution)?;
        let packet_threads = network::packet_threads(kind, 2 * spec.pairs);
        let topology = nm_host::topology::read(&HostFiles::default());
        let topology = topology.within(&nm_sys::cpu::allowed());
        Ok(Host {
            pairs: spec.pairs,
            qemu: Qemu::find()?,
            parts: GuestParts::of(kind, spec)?,
            memory: plan_memory(spec, determined.execution)?,
            budget: Budget::new(spec.pairs, spec.cpus, packet_threads, &topology),
            determined,
        })
    }

    fn is_pinned(&self) -> bool {
        self.budget.placement.iter().all(|one| !one.virtual_cpus.is_empty())
    }

    /// Starts QEMU for all guests, and waits until their agents have answered. They are in the
    /// order of [`GuestId::all`].
    fn launch_all(
        &self,
        kind: EnvironmentKind,
        setup: &Setup,
        network: &mut Network,
    ) -> Result<Vec<Handle>, Failure> {
        let mut launched = vec![];
        for pair in 0..self.pairs {
            let memory = memory_file::of_size("nearmetal-guests", MEMORY_BYTES);
            let memory = memory.map_err(system_failure)?;
            for side in [Side::Client, Side::Server] {
                let memory = memory.try_clone().map_err(system_failure)?;
                launched.push(self.launch(kind, setup, GuestId { pair, side }, network, memory)?);
            }
        }
        let timeout = boot_timeout(self.determined.execution);
        launched.into_iter().map(|guest| guest.handshake_of_guest(timeout)).collect()
    }

    /// The agents as pairs, of which the first has the others beside it.
    fn pairs(&self, kind: EnvironmentKind, handles: Vec<Handle>) -> Result<Vec<Pair>, Failure> {
        let mut handles = handles.into_iter();
        let mut pairs = vec![];
        while let (Some(client), Some(server)) = (handles.next(), handles.next()) {
            let first = addresses_of(pairs.len() as u32)[0];
            let conditions = GuestConditions {
                execution: self.determined.execution,
                shortage: self.budget.shortage(),
            };
            let layer = network::layer(kind);
            pairs.push(Pair::of_guests(kind.name(), (client, server), first, layer, conditions)?);
        }
        Ok(pairs)
    }

    /// Starts QEMU for one guest, in the namespace of the network.
    fn launch(
        &self,
        kind: EnvironmentKind,
        setup: &Setup,
        guest: GuestId,
        network: &mut Network,
        shared_memory: OwnedFd,
    ) -> Result<Handle, Failure> {
        let [v4, v6] = link_setup::guest_addresses(guest);
        let settings = BootSettings {
            addresses: vec![cidr(v4, LinkEnd::V4_PREFIX), cidr(v6, LinkEnd::V6_PREFIX)],
            mac: network.hardware_address(guest),
            ..BootSettings::new(guest.side)
        };
        let image = memory_file::with_contents("nearmetal-image", &self.parts.image.bytes);
        let machine = Machine {
            guest,
            execution: self.determined.execution,
            cpus: self.budget.cpus,
            is_pinned: self.is_pinned(),
            memory: self.memory,
            kernel: self.parts.kernel.image.clone(),
            image: image.map_err(system_failure)?,
            words: settings.words().join(" "),
            nic: network.nic(guest)?,
            shared_memory,
        };
        let mut command = machine.command(&self.qemu);
        if let Some(switch) = &network.switch {
            isolate(&mut command, switch.join()?);
        }
        setup.launch(kind, guest, command)
    }

    /// Pins the threads of all guests; returns where they are.
    fn place(&self, guests: &[Handle]) -> Vec<GuestPlacement> {
        if !self.is_pinned() {
            return self.budget.placement.clone();
        }
        let placed = self.budget.placement.iter().zip(guests);
        placed
            .map(|(placement, guest)| match threads::place(guest.pid(), placement) {
                Ok(()) => placement.clone(),
                // The record says that they are not pinned.
                Err(_) => GuestPlacement {
                    side: placement.side,
                    pair: placement.pair,
                    ..GuestPlacement::default()
                },
            })
            .collect()
    }

    fn record(
        &self,
        kind: EnvironmentKind,
        boot_ms: u64,
        placement: Vec<GuestPlacement>,
        network: &Network,
        pairs: &[Pair],
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
            pairs: self.pairs,
            cpus: self.budget.cpus,
            memory_mib: self.memory.mib,
            page_kib: self.memory.page_kib,
            is_memory_locked: self.memory.is_locked,
            kernel: self.parts.kernel.release.clone(),
            program_sha256: self.parts.image.program_sha256.clone(),
            boot_ms,
            first_result_ms: None,
            placement,
            notes: self.notes(network),
            findings: findings(self.memory, pairs),
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
        if self.pairs > 1 {
            let what = "The flows of a stream are divided among all pairs, which run at the same \
                        time; other probes measure the first pair while the others are stopped.";
            notes.push(what.to_string());
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
    /// Ends of wires that no guest has yet, in the order of [`GuestId::all`].
    wires: Vec<Option<OwnedFd>>,
    /// A bridge and a tap device for each guest.
    switch: Option<Switch>,
    vhost: bool,
    /// Functions of physical devices, ready to be passed through.
    functions: Option<Prepared>,
}

impl Network {
    fn new(kind: EnvironmentKind, setup: &Setup) -> Result<Network, Failure> {
        let pairs = setup.guests.pairs;
        let mut network = Network { wires: vec![], switch: None, vhost: false, functions: None };
        match kind {
            EnvironmentKind::VmWire => {
                for _ in 0..pairs {
                    let (client, server) = UnixDatagram::pair().map_err(system_failure)?;
                    network.wires.extend([Some(client.into()), Some(server.into())]);
                }
            }
            EnvironmentKind::VmSriov => {}
            _ => {
                network.switch = Some(Switch::start(setup, 2 * pairs)?);
                network.vhost = kind == EnvironmentKind::VmVhost;
            }
        }
        Ok(network)
    }

    /// The hardware address of a guest's device; absent if it is the device's own and not known.
    fn hardware_address(&self, guest: GuestId) -> Option<[u8; 6]> {
        match &self.functions {
            Some(functions) => functions.macs.get(guest.index()).copied().flatten(),
            None => Some(network::hardware_address(guest)),
        }
    }

    fn nic(&mut self, guest: GuestId) -> Result<GuestNic, Failure> {
        let missing = |what: &str| {
            Failure::new(FailureKind::System, format!("there is no {what} for the guest {guest}"))
        };
        if let Some(functions) = &self.functions {
            let address = functions.addresses.get(guest.index());
            let address = address.ok_or_else(|| missing("function"))?.to_string();
            return Ok(GuestNic::Passthrough { address });
        }
        if self.switch.is_some() {
            return Ok(GuestNic::Tap { name: network::tap_name(guest), vhost: self.vhost });
        }
        let end = self.wires.get_mut(guest.index()).and_then(Option::take);
        Ok(GuestNic::Wire { socket: end.ok_or_else(|| missing("end of a wire"))? })
    }
}
