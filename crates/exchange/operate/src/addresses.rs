//! Addresses on this machine for nodes: ports that are free, and sockets beside those of others.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use nm_exchange::link::Address;
use nm_exchange::network::{Network, Node, Role};
use nm_model::{Failure, FailureKind};

/// Lowest port to use.
pub const PORT_FIRST: u16 = 10_000;

/// First ephemeral port, if the kernel does not report it.
const EPHEMERAL_FIRST: u16 = 32_768;

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

    /// A network whose nodes listen like this.
    fn beside(address: &str) -> Network {
        let address: Address = address.parse().unwrap();
        let replication = match &address {
            Address::Tcp(address) => nm_replica::Address::Tcp(*address),
            Address::Unix(path) | Address::Shm(path) => {
                nm_replica::Address::Unix(path.with_extension("replication"))
            }
        };
        let node = Node { address, replication: Some(replication) };
        Network::new("1-1-1-1".parse().unwrap(), |_| node.clone())
    }

    #[test]
    fn one_more_listens_beside_the_others_at_addresses_of_its_own() {
        let unix = beside("unix:/s/mediator-0");
        let more = one_more(&unix, Role::Mediator).unwrap();
        let replication = more.replication.as_ref().unwrap().to_string();
        assert!(more.address.to_string().starts_with("unix:/s/mediator-"), "{more:?}");
        assert!(
            replication.ends_with("-replication") && more != unix.nodes(Role::Mediator)[0],
            "{more:?}"
        );
        assert_eq!(one_more(&unix, Role::Processor).unwrap().replication, None);
        let shm = beside("shm:/s/mediator-0");
        assert!(one_more(&shm, Role::Mediator).unwrap().address.to_string().starts_with("shm:/s/"));
    }

    #[test]
    fn one_more_is_refused_where_other_hosts_may_reach_the_nodes() {
        let far = beside("192.0.2.2:10001");
        let refused = one_more(&far, Role::Mediator).unwrap_err().message;
        assert!(refused.contains("which other hosts may reach"), "{refused}");
    }
}
