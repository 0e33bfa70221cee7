//! Where a run's nodes listen: on this machine or on hosts, with a private folder for sockets.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

use nm_exchange::link::Address;
use nm_exchange::network::{Network, Node, NodeCounts, Role};
use nm_model::link_transport::LinkTransport;
use nm_model::{Failure, FailureKind};
use nm_operate::addresses::{PORT_FIRST, free_ports};
use nm_sys::private_folder::{PrivateFolder, remove_abandoned};

use crate::hosts::Placement;

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

/// Whether this machine has an address, so that what listens there runs here.
pub fn is_here(address: &Address) -> bool {
    match address {
        Address::Unix(_) | Address::Shm(_) => true,
        // The kernel binds its own addresses only.
        Address::Tcp(address) => TcpListener::bind((address.ip(), 0)).is_ok(),
    }
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
    let network = Network::new(counts, |node| {
        let (host, name) = (placement.host(node), node.file_name());
        let ip = host.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |host| host.address);
        let address = match (transport, host) {
            (LinkTransport::Unix, None) => Address::Unix(sockets.join(&name)),
            (LinkTransport::Shm, None) => Address::Shm(sockets.join(&name)),
            _ => Address::Tcp(SocketAddr::new(ip, port())),
        };
        let replicates = matches!(node.class, Role::Mediator | Role::Processor);
        // On one host, replication over Unix sockets is cheaper than over TCP.
        let replication = replicates.then(|| match host {
            None => nm_replica::Address::Unix(sockets.join(format!("{name}-replication"))),
            Some(_) => nm_replica::Address::Tcp(SocketAddr::new(ip, port())),
        });
        Node { address, replication }
    });
    // Random, and not too large for TOML.
    let cluster = RandomState::new().build_hasher().finish() >> 1;
    Ok(Network { cluster, ..network })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts;
    use nm_exchange::network::Durability;

    #[test]
    fn nodes_listen_locally_or_on_their_hosts() {
        let counts: NodeCounts = "1-1-2-1".parse().unwrap();
        let here = Placement::default();
        let unix = network(counts, LinkTransport::Unix, Path::new("/s"), &here).unwrap();
        assert_eq!(unix.nodes(Role::Gateway)[0].address.to_string(), "unix:/s/gateway-0");
        let shm = network(counts, LinkTransport::Shm, Path::new("/s"), &here).unwrap();
        assert_eq!(shm.nodes(Role::Router)[0].address.to_string(), "shm:/s/router-0");
        let replication = |node: &Node| node.replication.as_ref().map(ToString::to_string);
        let (processor, mediator) =
            (&shm.nodes(Role::Processor)[0], &unix.nodes(Role::Mediator)[1]);
        assert_eq!(replication(processor).unwrap(), "unix:/s/processor-0-replication");
        assert_eq!(replication(mediator).unwrap(), "unix:/s/mediator-1-replication");
        let hosts = hosts::parse("a 192.0.2.1\nb 192.0.2.2 mediator").unwrap();
        let placement = Placement::new(&hosts, counts, Durability::None, Path::new("/data"));
        let far = network(counts, LinkTransport::Tcp, Path::new("/s"), &placement).unwrap();
        assert!(far.nodes(Role::Mediator)[0].address.to_string().starts_with("192.0.2.2:"));
        assert!(far.nodes(Role::Gateway)[0].address.to_string().starts_with("192.0.2.1:"));
        assert_eq!(far.nodes(Role::Gateway)[0].replication, None);
    }
}
