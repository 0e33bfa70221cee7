//! Addresses of a run's nodes: ports, sockets and a private folder for them.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use nm_exchange::link::Address;
use nm_exchange::network::{Network, Node, NodeCounts, Role};
use nm_model::link_transport::LinkTransport;
use nm_model::{Failure, FailureKind};
use nm_sys::private_folder::{PrivateFolder, remove_abandoned};

use crate::hosts::Placement;

/// Lowest port to use.
const PORT_FIRST: u16 = 10_000;

/// First ephemeral port, if the kernel does not report it.
const EPHEMERAL_FIRST: u16 = 32_768;

/// How the name of a folder for sockets begins.
const SOCKETS: &str = "nearmetal-exchange-";

/// A folder for sockets, removed when the value is dropped; those left by killed runs are removed
/// now.
///
/// # Errors
/// If it cannot be created.
pub fn sockets_folder() -> Result<PrivateFolder, Failure> {
    let all = std::env::temp_dir();
    remove_abandoned(&all, SOCKETS);
    PrivateFolder::create(&all, SOCKETS)
        .map_err(|error| Failure::new(FailureKind::System, error.to_string()))
}

/// Ports that are free now, below the ephemeral range: an outgoing connection with an ephemeral
/// port could occupy the port of a node that is being restarted, or connect to itself.
///
/// # Errors
/// If there are not enough.
pub fn free_ports(count: usize) -> Result<Vec<u16>, Failure> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let end = range.split_whitespace().next().and_then(|low| low.parse().ok());
    let end = end.filter(|end| *end > PORT_FIRST + 1000).unwrap_or(EPHEMERAL_FIRST);
    let room = u32::from(end - PORT_FIRST);
    // Concurrent runs start at different ports.
    let start = std::process::id().wrapping_mul(397);
    let mut ports = vec![];
    for _ in 0..room {
        if ports.len() == count {
            break;
        }
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = PORT_FIRST + (start.wrapping_add(step) % room) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            ports.push(port);
        }
    }
    if ports.len() < count {
        let message = format!("there are no {count} free TCP ports from {PORT_FIRST} to {end}");
        return Err(Failure::new(FailureKind::AddressInUse, message));
    }
    Ok(ports)
}

/// A network with these numbers of nodes, placed on hosts or on this machine, with sockets in
/// `sockets`.
///
/// # Errors
/// If there are not enough ports.
pub fn network(
    counts: NodeCounts,
    transport: LinkTransport,
    sockets: &Path,
    placement: &Placement,
) -> Result<Network, Failure> {
    let most = 2 * counts.total() as usize;
    let mut ports = match placement.hosts() {
        [] => free_ports(most)?,
        // Ports of other hosts cannot be probed; one in use shows when its node starts.
        _ => (0..most).map(|at| PORT_FIRST + 5_000 + at as u16).collect(),
    }
    .into_iter();
    let mut port = move || ports.next().unwrap_or(PORT_FIRST);
    let network = Network::new(counts, |role, index| {
        let host = placement.host(role, index);
        let ip = host.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |host| host.address);
        let address = match (transport, host) {
            (LinkTransport::Unix, None) => Address::Unix(sockets.join(format!("{role}-{index}"))),
            (LinkTransport::Shm, None) => Address::Shm(sockets.join(format!("{role}-{index}"))),
            _ => Address::Tcp(SocketAddr::new(ip, port())),
        };
        let replicates = matches!(role, Role::Mediator | Role::Processor);
        // On one host, replication over Unix sockets is cheaper than over TCP.
        let replication = replicates.then(|| match host {
            None => nm_replica::Address::Unix(sockets.join(format!("{role}-{index}-replication"))),
            Some(_) => nm_replica::Address::Tcp(SocketAddr::new(ip, port())),
        });
        Node { address, replication }
    });
    // Random, and not too large for TOML.
    let cluster = RandomState::new().build_hasher().finish() >> 1;
    Ok(Network { cluster, ..network })
}

/// Addresses on this machine for one more node of a class, in a network whose nodes listen here.
///
/// # Errors
/// If its nodes listen where other hosts can reach them, or there are not enough ports.
pub fn one_more(network: &Network, role: Role) -> Result<Node, Failure> {
    let first = &network.nodes(role)[0];
    let far = |address: &SocketAddr| !address.ip().to_canonical().is_loopback();
    let elsewhere = |address: String| {
        let message = format!(
            "{role} 0 listens at {address}, which other hosts may reach: say where the new one is \
             to listen, by --address, and a mediator for other replicas by --replication"
        );
        Failure::new(FailureKind::BadRequest, message)
    };
    // The number that it will have is not known, and its files must be no other one's.
    let name = format!("{role}-{:x}-{:x}", std::process::id(), nm_sys::clock::monotonic_ns());
    let mut ports = free_ports(2)?.into_iter();
    let mut port = || SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), ports.next().unwrap_or(0));
    let address = match &first.address {
        Address::Tcp(address) if far(address) => return Err(elsewhere(address.to_string())),
        Address::Tcp(_) => Address::Tcp(port()),
        Address::Unix(path) => Address::Unix(path.with_file_name(&name)),
        Address::Shm(path) => Address::Shm(path.with_file_name(&name)),
    };
    let replication = match &first.replication {
        _ if role != Role::Mediator => None,
        None => None,
        Some(nm_replica::Address::Tcp(address)) if far(address) => {
            return Err(elsewhere(address.to_string()));
        }
        Some(nm_replica::Address::Tcp(_)) => Some(nm_replica::Address::Tcp(port())),
        Some(nm_replica::Address::Unix(path)) => {
            Some(nm_replica::Address::Unix(path.with_file_name(format!("{name}-replication"))))
        }
    };
    Ok(Node { address, replication })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts;
    use nm_exchange::network::Durability;

    #[test]
    fn ports_are_free_and_distinct() {
        let (a, b) = (free_ports(20).unwrap(), free_ports(20).unwrap());
        let mut all = [a, b].concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 40);
        assert!(all.iter().all(|port| (PORT_FIRST..EPHEMERAL_FIRST).contains(port)));
        let error = free_ports(60_000).unwrap_err();
        assert_eq!(error.kind, FailureKind::AddressInUse);
    }

    #[test]
    fn nodes_listen_locally_or_on_their_hosts() {
        let counts: NodeCounts = "1-1-2-1".parse().unwrap();
        let here = Placement::default();
        let unix = network(counts, LinkTransport::Unix, Path::new("/s"), &here).unwrap();
        assert_eq!(unix.gateway[0].address.to_string(), "unix:/s/gateway-0");
        let shm = network(counts, LinkTransport::Shm, Path::new("/s"), &here).unwrap();
        assert_eq!(shm.router[0].address.to_string(), "shm:/s/router-0");
        let replication = |node: &Node| node.replication.as_ref().map(ToString::to_string);
        let (processor, mediator) = (&shm.processor[0], &unix.mediator[1]);
        assert_eq!(replication(processor).unwrap(), "unix:/s/processor-0-replication");
        assert_eq!(replication(mediator).unwrap(), "unix:/s/mediator-1-replication");
        // One more listens beside the others, at addresses of its own.
        let more = one_more(&unix, Role::Mediator).unwrap();
        assert!(more.address.to_string().starts_with("unix:/s/mediator-"), "{more:?}");
        assert!(replication(&more).unwrap().ends_with("-replication") && more != unix.mediator[1]);
        assert!(one_more(&shm, Role::Mediator).unwrap().address.to_string().starts_with("shm:/s/"));
        assert_eq!(one_more(&unix, Role::Processor).unwrap().replication, None);
        let hosts = hosts::parse("a 192.0.2.1\nb 192.0.2.2 mediator").unwrap();
        let placement = Placement::new(&hosts, counts, Durability::None, Path::new("/data"));
        let far = network(counts, LinkTransport::Tcp, Path::new("/s"), &placement).unwrap();
        assert!(far.mediator[0].address.to_string().starts_with("192.0.2.2:"));
        assert!(far.gateway[0].address.to_string().starts_with("192.0.2.1:"));
        assert_eq!(far.gateway[0].replication, None);
        let refused = one_more(&far, Role::Mediator).unwrap_err().message;
        assert!(refused.contains("which other hosts may reach"), "{refused}");
    }
}
