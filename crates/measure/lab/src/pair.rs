//! Two agents that can reach each other, in any environment, and the properties of the network
//! between them.

use std::net::IpAddr;

use nm_host::QEMU_TCG;
use nm_model::environment::Distance;
use nm_model::facts::{Facts, LinkFacts};
use nm_model::stack::Comparability;
use nm_model::{
    Case, Doubt, DoubtKind, Failure, FailureKind, GuestExecution, Side, Stack, StackPair,
};

use nm_sys::process::Signal;

use crate::affinity::one_kernel;
use crate::agent::Handle;
use crate::netlink::link_of;

/// Drivers of links without hardware; their speed depends on the host's CPU.
const VIRTUAL_DRIVERS: &[&str] = &["veth", "bridge", "tun", "virtio_net", "dummy"];

/// What is particular to the figures of guests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GuestConditions {
    /// What executes their code.
    pub execution: GuestExecution,
    /// Why ends that would spin wait by sleeping; absent if the host has cores for them.
    pub shortage: Option<String>,
}

/// Two running agents.
pub struct Pair {
    /// Name of the environment in series.
    pub environment: String,
    /// The end that sends first.
    pub client: Handle,
    /// The end that answers.
    pub server: Handle,
    /// Where the client listens, for probes that need it.
    pub client_address: IpAddr,
    /// Where the server listens.
    pub server_address: IpAddr,
    /// Facts of the client's machine.
    pub client_facts: Facts,
    /// Facts of the server's machine.
    pub server_facts: Facts,
    /// Link speed, firmware and layer.
    between: Comparability,
    /// Whether this process has started both ends on its own host: they share it also where the
    /// facts do not say so, as without /proc.
    is_started_here: bool,
    /// Of agents in guests that this process has started.
    guests: Option<GuestConditions>,
    /// Further pairs of the environment, among which and this one the flows of a stream are
    /// divided.
    beside: Vec<Pair>,
}

impl Pair {
    /// Two agents on virtual links: namespaces, loopback. `layer` names what lies between them.
    ///
    /// # Errors
    /// If an agent does not answer with its facts.
    pub fn on_virtual_links(
        environment: &str,
        (client, server): (Handle, Handle),
        addresses: (IpAddr, IpAddr),
        layer: &str,
    ) -> Result<Pair, Failure> {
        let mut pair = Pair::new(environment, (client, server), addresses)?;
        pair.between = virtual_link(layer.to_string());
        pair.is_started_here = true;
        Ok(pair)
    }

    /// Two agents in guests, with the virtual links between them.
    pub(crate) fn of_guests(
        environment: &str,
        agents: (Handle, Handle),
        addresses: (IpAddr, IpAddr),
        layer: &str,
        guests: GuestConditions,
    ) -> Result<Pair, Failure> {
        let mut pair = Pair::on_virtual_links(environment, agents, addresses, layer)?;
        pair.between.execution = Some(guests.execution);
        pair.guests = Some(guests);
        Ok(pair)
    }

    /// A client on this host and an agent elsewhere, with the `addresses` of both. Link speed and
    /// firmware are those of the client's link.
    ///
    /// # Errors
    /// If an agent does not answer with its facts.
    pub fn over_network(
        environment: &str,
        (client, server): (Handle, Handle),
        addresses: (IpAddr, IpAddr),
    ) -> Result<Pair, Failure> {
        let link = link_of(addresses.0).ok().flatten().unwrap_or_default();
        Pair::of_hosts(environment, (client, server), addresses, &link)
    }

    /// Agents on two hosts, or on one, with the `addresses` of both. Link speed and firmware are
    /// those of `link`, which has the client's address.
    pub(crate) fn of_hosts(
        environment: &str,
        agents: (Handle, Handle),
        addresses: (IpAddr, IpAddr),
        link: &str,
    ) -> Result<Pair, Failure> {
        let mut pair = Pair::new(environment, agents, addresses)?;
        let layer = layer(&pair.client_facts, &pair.server_facts);
        let link = pair.client_facts.links.iter().find(|one| one.name == link);
        pair.between = match link {
            _ if addresses.0.is_loopback() => virtual_link("loopback".to_string()),
            Some(link) => by_link(link, layer),
            None => Comparability { layer: Some(layer), ..Comparability::default() },
        };
        Ok(pair)
    }

    /// Agents in guests that others made, or one there and one on this machine, with the `names` of
    /// both ends. Nothing is known of the CPUs that the guests run on. A guest that sees QEMU's
    /// translator is emulated; of any other its execution stays unknown.
    pub(crate) fn of_attached(
        environment: &str,
        agents: (Handle, Handle),
        addresses: (IpAddr, IpAddr),
        link: &str,
        names: &(String, String),
    ) -> Result<Pair, Failure> {
        let mut pair = Pair::of_hosts(environment, agents, addresses, link)?;
        if one_kernel(&pair.client_facts, &pair.server_facts) {
            let message = format!("{} and {} are one machine", names.0, names.1);
            return Err(Failure::new(FailureKind::BadRequest, message)
                .hint("attach guests that have a kernel of their own, each once"));
        }
        if let Some(execution) = execution_seen(&pair.client_facts, &pair.server_facts) {
            pair.between.execution = Some(execution);
            pair.guests = Some(GuestConditions { execution, shortage: None });
        }
        Ok(pair)
    }

    fn new(
        environment: &str,
        (mut client, mut server): (Handle, Handle),
        (client_address, server_address): (IpAddr, IpAddr),
    ) -> Result<Pair, Failure> {
        Ok(Pair {
            environment: environment.to_string(),
            client_facts: client.describe()?,
            server_facts: server.describe()?,
            client,
            server,
            client_address,
            server_address,
            between: Comparability::default(),
            is_started_here: false,
            guests: None,
            beside: vec![],
        })
    }

    /// The first of `pairs`, with the others beside it; none if there is none.
    pub(crate) fn joined(pairs: Vec<Pair>) -> Option<Pair> {
        let mut pairs = pairs.into_iter();
        let first = pairs.next()?;
        Some(Pair { beside: pairs.collect(), ..first })
    }

    /// Takes the pairs beside this one out; [`Pair::joined`] puts them back.
    pub(crate) fn take_beside(&mut self) -> Vec<Pair> {
        std::mem::take(&mut self.beside)
    }

    /// The pairs beside this one.
    pub(crate) fn beside(&mut self) -> &mut Vec<Pair> {
        &mut self.beside
    }

    /// How many pairs a case runs between: all for flows, one for everything else.
    pub(crate) fn count_for(&self, case: &Case) -> u32 {
        match case {
            Case::Flows { .. } => 1 + self.beside.len() as u32,
            _ => 1,
        }
    }

    /// Sends a signal to the guests of this pair and of those beside it.
    pub(crate) fn signal(&mut self, signal: Signal) {
        self.client.signal(signal);
        self.server.signal(signal);
        self.signal_beside(signal);
    }

    /// Sends a signal to the guests of the pairs beside this one.
    pub(crate) fn signal_beside(&mut self, signal: Signal) {
        self.beside.iter_mut().for_each(|pair| pair.signal(signal));
    }

    /// The agent of one end.
    pub fn agent(&mut self, side: Side) -> &mut Handle {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    /// Facts of one end.
    pub fn facts(&self, side: Side) -> &Facts {
        match side {
            Side::Client => &self.client_facts,
            Side::Server => &self.server_facts,
        }
    }

    /// Whether both ends have the memory of one host; guests of one host share memory too.
    pub(crate) fn is_on_one_host(&self) -> bool {
        self.is_started_here || one_kernel(&self.client_facts, &self.server_facts)
    }

    /// The stacks that the ends use for `stacks`: in guests of a host with too few cores, they
    /// sleep where they would spin, because a spinning virtual CPU keeps the core from the one it
    /// waits for. Memory that guests share can only be polled.
    pub(crate) fn stacks_in_use(&self, stacks: &StackPair) -> StackPair {
        let is_short = self.guests.as_ref().is_some_and(|guests| guests.shortage.is_some());
        let in_use = |stack: Stack| {
            let mode = stack.mode.sleeping();
            let can_sleep = stack.protocol.modes(Distance::Guests).contains(&mode);
            if is_short && can_sleep { Stack { mode, ..stack } } else { stack }
        };
        StackPair { client: in_use(stacks.client), server: in_use(stacks.server) }
    }

    /// Doubts about every figure of guests over `stacks`.
    pub(crate) fn guest_doubts(&self, stacks: &StackPair, uses_network: bool) -> Vec<Doubt> {
        let Some(guests) = &self.guests else { return vec![] };
        let mut doubts = vec![];
        if guests.execution.is_emulated() {
            let detail = format!("the guests were executed by {}", guests.execution);
            doubts.push(Doubt::new(DoubtKind::Emulated, detail));
        }
        let would_spin = stacks.client.mode.spins() || stacks.server.mode.spins();
        if let (Some(shortage), true) = (&guests.shortage, would_spin && uses_network) {
            let in_use = self.stacks_in_use(stacks);
            let how = match in_use == *stacks {
                true => "the ends took turns on a core".to_string(),
                false => format!("the ends waited as with {in_use}"),
            };
            doubts.push(Doubt::new(DoubtKind::CoreBudget, format!("{shortage}; {how}")));
        }
        doubts
    }

    /// Link speed, firmware, layer and execution of guests; other fields are empty.
    pub fn between(&self) -> Comparability {
        self.between.clone()
    }

    /// Ends the agents of all pairs. May be called again; dropping does the same.
    pub fn close(&mut self) {
        self.client.close();
        self.server.close();
        self.beside.iter_mut().for_each(Pair::close);
    }
}

fn virtual_link(layer: String) -> Comparability {
    Comparability {
        link: Some("virtual".to_string()),
        firmware: Some("none".to_string()),
        layer: Some(layer),
        ..Comparability::default()
    }
}

fn by_link(link: &LinkFacts, layer: String) -> Comparability {
    let driver = link.driver.as_deref();
    if link.name == "lo" || driver.is_some_and(|driver| VIRTUAL_DRIVERS.contains(&driver)) {
        return virtual_link(layer);
    }
    Comparability {
        link: link.speed_mbps.map(|mbps| format!("{} Gb/s", f64::from(mbps) / 1e3)),
        firmware: link.firmware.clone(),
        layer: Some(layer),
        ..Comparability::default()
    }
}

/// The virtualization layer of a machine, as far as the facts show it.
pub(crate) fn layer_of(facts: &Facts) -> String {
    match &facts.virtualization.hypervisor {
        Some(name) => format!("{name} guest"),
        None => "bare metal".to_string(),
    }
}

/// What executes one of two ends, as far as the ends themselves can see: QEMU's translator says who
/// it is, and KVM does not say what it runs on.
fn execution_seen(client: &Facts, server: &Facts) -> Option<GuestExecution> {
    let sees_translator =
        |facts: &Facts| facts.virtualization.hypervisor.as_deref() == Some(QEMU_TCG);
    [client, server].into_iter().any(sees_translator).then_some(GuestExecution::Tcg)
}

/// The virtualization layers between two hosts, as far as the facts show them.
fn layer(client: &Facts, server: &Facts) -> String {
    let (a, b) = (layer_of(client), layer_of(server));
    match (one_kernel(client, server), a == b) {
        (true, _) => format!("one host, {a}"),
        (false, true) => a,
        (false, false) => format!("{a} to {b}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hardware_links_have_a_speed() {
        let card = LinkFacts {
            name: "eth0".into(),
            driver: Some("sfc".into()),
            speed_mbps: Some(10_000),
            firmware: Some("8.0".into()),
            ..LinkFacts::default()
        };
        let between = by_link(&card, "bare metal".into());
        assert_eq!(between.link.as_deref(), Some("10 Gb/s"));
        assert_eq!(between.firmware.as_deref(), Some("8.0"));
        let slow = LinkFacts { speed_mbps: Some(2_500), firmware: None, ..card.clone() };
        let between = by_link(&slow, String::new());
        assert_eq!((between.link.as_deref(), between.firmware), (Some("2.5 Gb/s"), None));
        let veth = LinkFacts { driver: Some("veth".into()), ..card };
        assert_eq!(by_link(&veth, String::new()).link.as_deref(), Some("virtual"));
    }

    #[test]
    fn an_end_that_sees_the_translator_is_emulated() {
        let sees = |name: &str| {
            let mut facts = Facts::default();
            facts.virtualization.hypervisor = Some(name.to_string());
            facts
        };
        assert_eq!(execution_seen(&Facts::default(), &sees("KVM")), None);
        for (client, server) in [("KVM", QEMU_TCG), (QEMU_TCG, "KVM")] {
            let execution = execution_seen(&sees(client), &sees(server));
            assert_eq!(execution, Some(GuestExecution::Tcg));
        }
    }

    #[test]
    fn layer_names_both_ends() {
        let mut guest = Facts::default();
        guest.virtualization.hypervisor = Some("KVM".into());
        assert_eq!(layer(&guest, &guest), "KVM guest");
        assert_eq!(layer(&Facts::default(), &guest), "bare metal to KVM guest");
    }
}
