//! A network's file for hosts that it is left running on: which node listens where, and what of
//! that should be otherwise.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use nm_exchange::link::Address;
use nm_exchange::network::{CONTROL, Durability, Network, Node, NodeCounts, NodeId, Role};
use thiserror::Error;

/// What a network is to be.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Numbers of nodes.
    pub counts: NodeCounts,
    /// When requests count as executed.
    pub durability: Durability,
    /// Hosts by their addresses.
    pub hosts: Vec<IpAddr>,
    /// The first port on each host; each address of a node takes the next one.
    pub port: u16,
}

/// Why there is no such network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// No host.
    #[error("a network needs a host")]
    NoHost,
    /// A host twice.
    #[error("{0} is named twice")]
    SameHost(IpAddr),
    /// Ports above the largest one.
    #[error("from port {0} on there are too few ports for the nodes of a host")]
    TooFewPorts(u16),
}

/// A network whose nodes take turns at the hosts: of three hosts or more, each has one replica of
/// a cell at most.
///
/// # Errors
/// If a host is missing or there twice, or the ports do not suffice.
pub fn network(wanted: &Wanted) -> Result<Network, LayoutError> {
    let hosts = &wanted.hosts;
    if hosts.is_empty() {
        return Err(LayoutError::NoHost);
    }
    let mut seen = BTreeSet::new();
    if let Some(again) = hosts.iter().find(|host| !seen.insert(**host)) {
        return Err(LayoutError::SameHost(*again));
    }
    let mut next: Vec<u32> = vec![u32::from(wanted.port); hosts.len()];
    let mut address = |host: usize| {
        let port = next[host];
        next[host] += 1;
        SocketAddr::new(hosts[host], u16::try_from(port).unwrap_or(u16::MAX))
    };
    let network = Network::new(wanted.counts, |node| {
        // A cell has replicas at its mediator, the next one, and its processor.
        let shift = if node.class == Role::Processor { 2 } else { 0 };
        let host = (usize::from(node.index) + shift) % hosts.len();
        let replicates = matches!(node.class, Role::Mediator | Role::Processor);
        let own = Address::Tcp(address(host));
        let replication = replicates.then(|| nm_replica::Address::Tcp(address(host)));
        Node { address: own, replication }
    });
    if next.iter().any(|port| *port > u32::from(u16::MAX) + 1) {
        return Err(LayoutError::TooFewPorts(wanted.port));
    }
    // Random, and not too large for TOML.
    let cluster = RandomState::new().build_hasher().finish() >> 1;
    let is_local = hosts.iter().all(IpAddr::is_loopback);
    Ok(Network {
        cluster,
        durability: wanted.durability,
        data: Some(PathBuf::from("data")),
        secret: (!is_local).then(|| PathBuf::from("secret")),
        ..network
    })
}

/// The nodes on each host, by its address; those with sockets in the file system under none.
pub fn by_host(network: &Network) -> BTreeMap<Option<IpAddr>, Vec<NodeId>> {
    let mut hosts: BTreeMap<Option<IpAddr>, Vec<NodeId>> = BTreeMap::new();
    for (id, _) in network.all() {
        hosts.entry(host_of(network, id)).or_default().push(id);
    }
    hosts
}

fn host_of(network: &Network, node: NodeId) -> Option<IpAddr> {
    match network.node(node)?.address {
        Address::Tcp(address) => Some(address.ip()),
        Address::Unix(_) | Address::Shm(_) => None,
    }
}

/// What the loss of one host would end, a sentence each; none if the network has one host only.
pub fn single_failures(network: &Network) -> Vec<String> {
    let hosts = by_host(network);
    if hosts.len() < 2 {
        return vec![];
    }
    let mut sentences = vec![];
    for (host, nodes) in &hosts {
        let name = host.map_or("the host of the sockets".to_string(), |host| host.to_string());
        for role in [Role::Gateway, Role::Router] {
            let all = network.all().filter(|(id, _)| id.class == role).count();
            if nodes.iter().filter(|node| node.class == role).count() == all {
                sentences.push(format!("without {name} there is no {role}"));
            }
        }
        if network.durability == Durability::None {
            let cells: Vec<String> = nodes
                .iter()
                .filter(|node| node.class == Role::Mediator)
                .map(|node| node.index.to_string())
                .collect();
            if !cells.is_empty() {
                let cells = cells.join(", ");
                sentences.push(format!("with {name} the books of these cells are lost: {cells}"));
            }
            continue;
        }
        for group in network.cells().chain([CONTROL]) {
            let replicas = network.replicas(group);
            let lost = replicas.iter().filter(|replica| nodes.contains(replica)).count();
            if 2 * (replicas.len() - lost) <= replicas.len() {
                let what = match group {
                    CONTROL => "control".to_string(),
                    cell => format!("cell {cell}"),
                };
                sentences.push(format!(
                    "without {name} {what} has no majority: {lost} of its {} replicas are there",
                    replicas.len()
                ));
            }
        }
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(hosts: usize, durability: Durability) -> Wanted {
        let host = |number: usize| IpAddr::from([10, 0, 0, number as u8 + 1]);
        Wanted {
            counts: "3-3-3-3".parse().unwrap(),
            durability,
            hosts: (0..hosts).map(host).collect(),
            port: 7000,
        }
    }

    #[test]
    fn of_three_hosts_none_is_needed() {
        let three = network(&wanted(3, Durability::DiskQuorum)).unwrap();
        assert_eq!(single_failures(&three), Vec::<String>::new());
        let again = Network::parse(&three.to_toml().unwrap()).unwrap();
        assert_eq!(again, three);
        assert!(three.secret.is_some() && three.cluster != 0, "other hosts may reach it");
        assert!(by_host(&three).values().all(|nodes| nodes.len() == 4));
        // Two cannot be enough, and without durability none is.
        let two = single_failures(&network(&wanted(2, Durability::DiskQuorum)).unwrap());
        assert!(
            two.iter().any(|it| it.contains("has no majority: 2 of its 3 replicas")),
            "{two:?}"
        );
        let none = single_failures(&network(&wanted(3, Durability::None)).unwrap());
        assert_eq!(none.len(), 3, "{none:?}");
        assert!(single_failures(&network(&wanted(1, Durability::None)).unwrap()).is_empty());
    }

    #[test]
    fn what_is_no_network_is_refused() {
        let refused = |change: fn(&mut Wanted)| {
            let mut wanted = wanted(3, Durability::None);
            change(&mut wanted);
            network(&wanted).unwrap_err()
        };
        assert_eq!(refused(|it| it.hosts.clear()), LayoutError::NoHost);
        let host = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(refused(|it| it.hosts[2] = it.hosts[0]), LayoutError::SameHost(host));
        assert_eq!(refused(|it| it.port = 65_533), LayoutError::TooFewPorts(65_533));
        let mut least = wanted(3, Durability::None);
        least.port = 65_530;
        assert!(network(&least).is_ok(), "four nodes with six addresses on each host");
        let mut local = wanted(1, Durability::None);
        local.hosts = vec![IpAddr::from([127, 0, 0, 1])];
        assert_eq!(network(&local).unwrap().secret, None);
    }
}
