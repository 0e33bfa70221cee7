//! Addresses of a run's nodes: ports, sockets and a private folder for them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nm_exchange::link::Address;
use nm_exchange::network::{Network, Node, NodeCounts, Role};
use nm_model::link_transport::LinkTransport;
use nm_model::{Failure, FailureKind};

use crate::hosts::{self, Host};

/// Lowest port to use.
const PORT_FIRST: u16 = 10_000;

/// First ephemeral port, if the kernel does not report it.
const EPHEMERAL_FIRST: u16 = 32_768;

/// A folder for sockets, removed when this value is dropped. Its name contains the id of the
/// process, so that a later run can remove the folders of processes that were killed.
#[derive(Debug)]
pub struct PrivateFolder(PathBuf);

const PRIVATE: &str = "nearmetal-exchange-";

impl PrivateFolder {
    /// Creates one, and removes those left by killed runs.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn new() -> Result<PrivateFolder, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let all = std::env::temp_dir();
        remove_stale(&all);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = all.join(format!("{PRIVATE}{}-{count}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(|error| {
            let message = format!("cannot create the folder {}: {error}", path.display());
            Failure::new(FailureKind::System, message)
        })?;
        Ok(PrivateFolder(path))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes the private folders of processes that have ended.
fn remove_stale(all: &Path) {
    for entry in fs::read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PRIVATE)) else {
            continue;
        };
        let pid: Option<u32> = rest.split('-').next().and_then(|pid| pid.parse().ok());
        // Not a symbolic link, and mode 0700: not a folder planted by another user.
        let is_private = fs::symlink_metadata(entry.path())
            .is_ok_and(|meta| meta.is_dir() && meta.permissions().mode() & 0o077 == 0);
        if is_private && pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
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

/// A network with these numbers of nodes on this machine, or on `hosts`, with sockets in `sockets`.
///
/// # Errors
/// If there are not enough ports.
pub fn network(
    counts: NodeCounts,
    transport: LinkTransport,
    sockets: &Path,
    hosts: &[Host],
) -> Result<Network, Failure> {
    let most = 2 * counts.total() as usize;
    let mut ports = match hosts {
        [] => free_ports(most)?,
        // Ports of other hosts cannot be probed; one in use shows when its node starts.
        _ => (0..most).map(|at| PORT_FIRST + 5_000 + at as u16).collect(),
    }
    .into_iter();
    let mut port = move || ports.next().unwrap_or(PORT_FIRST);
    Ok(Network::new(counts, |role, index| {
        let host = hosts::place(hosts, role, index);
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
    }))
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

    #[test]
    fn private_folders_are_removed_on_drop_and_after_their_process_ended() {
        let folder = PrivateFolder::new().unwrap();
        let path = folder.path().to_path_buf();
        fs::write(path.join("socket"), b"").unwrap();
        let all = path.parent().unwrap();
        // Above the largest process id.
        let dead = all.join(format!("{PRIVATE}99999999-0"));
        let _ = fs::DirBuilder::new().mode(0o700).create(&dead);
        remove_stale(all);
        assert!(path.exists() && !dead.exists());
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn nodes_listen_locally_or_on_their_hosts() {
        let counts: NodeCounts = "1-1-2-1".parse().unwrap();
        let unix = network(counts, LinkTransport::Unix, Path::new("/s"), &[]).unwrap();
        assert_eq!(unix.gateway[0].address.to_string(), "unix:/s/gateway-0");
        let shm = network(counts, LinkTransport::Shm, Path::new("/s"), &[]).unwrap();
        assert_eq!(shm.router[0].address.to_string(), "shm:/s/router-0");
        let replication = |node: &Node| node.replication.as_ref().map(ToString::to_string);
        let (processor, mediator) = (&shm.processor[0], &unix.mediator[1]);
        assert_eq!(replication(processor).unwrap(), "unix:/s/processor-0-replication");
        assert_eq!(replication(mediator).unwrap(), "unix:/s/mediator-1-replication");
        let hosts = hosts::parse("a 192.0.2.1\nb 192.0.2.2 mediator").unwrap();
        let far = network(counts, LinkTransport::Tcp, Path::new("/s"), &hosts).unwrap();
        assert!(far.mediator[1].address.to_string().starts_with("192.0.2.2:"));
        assert!(far.gateway[0].address.to_string().starts_with("192.0.2.1:"));
        assert_eq!(far.gateway[0].replication, None);
    }
}
