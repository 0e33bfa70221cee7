//! The hosts file, and the host of each node.
//!
//! One host per line:
//!
//! - its ssh destination;
//! - the IP address at which the other hosts reach it;
//! - the classes of node that may run there (`all`, also if none is named);
//! - the path of nearmetal, if it is not on `PATH`.
//!
//! ```text
//! # ssh       address     classes             program
//! alice       192.0.2.1   gateway,router
//! root@bob    192.0.2.2   mediator            /opt/nearmetal
//! carol       192.0.2.3   mediator,processor
//! dave        192.0.2.4   all                 /opt/nearmetal
//! ```
//!
//! The load runs on the machine where the command was started. `remote` starts an [`agent`] on each
//! host, which runs the nodes there.

pub mod agent;
mod archive;
pub(crate) mod protocol;
pub(crate) mod remote;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nm_auth::Secret;
use nm_exchange::link::Address;
use nm_exchange::network::{
    CONTROL, Durability, Network, NetworkError, Node, NodeCounts, NodeId, Role, UnknownRole,
};
use nm_model::hosts::{Destination, DestinationError};
use nm_sys::text_file;
use thiserror::Error;

/// A host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Destination of ssh.
    pub destination: Destination,
    /// Address at which its nodes listen.
    pub address: IpAddr,
    /// Classes of node that may run there.
    pub roles: Vec<Role>,
    /// Path of nearmetal there.
    pub program: String,
}

/// What nodes on other hosts are sent.
#[derive(Debug)]
pub struct HostFiles {
    /// The network's file, which names the secret's file beside it.
    pub network: String,
    /// The secret's file; empty if the network has no secret.
    pub secret: String,
}

/// Name of the secret's file on another host.
const SECRET: &str = "secret";

impl HostFiles {
    /// Those of a network.
    ///
    /// # Errors
    /// If its secret cannot be read.
    pub fn of(network: &Network) -> Result<HostFiles, NetworkError> {
        let secret = network.secret.as_deref().map(Secret::read).transpose()?;
        let name = secret.is_some().then(|| SECRET.into());
        let network = Network { secret: name, ..network.clone() }.to_toml()?;
        Ok(HostFiles { network, secret: secret.map_or(String::new(), |it| it.text()) })
    }
}

/// Why a hosts file is refused.
#[derive(Debug, Error)]
pub enum HostsError {
    /// The file cannot be read.
    #[error("the hosts file {path} cannot be read: {source}")]
    Read {
        /// Its path.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file can be read, but is not a hosts file.
    #[error("{path}, {source}")]
    Content {
        /// Its path.
        path: String,
        /// Why.
        source: Box<HostsError>,
    },
    /// A line is wrong.
    #[error("line {number}, host {host}: {fault}")]
    Line {
        /// Number of the line, from 1 on.
        number: usize,
        /// The host of the line.
        host: String,
        /// What is wrong with it.
        fault: LineFault,
    },
    /// There is no line with a host.
    #[error("it names no host")]
    Empty,
    /// Nodes of a class may not run on any host.
    #[error("no host accepts nodes of class {role}: {hosts}; add it to one of them, or write all")]
    Uncovered {
        /// The class.
        role: Role,
        /// Each host with its classes.
        hosts: String,
    },
}

/// What is wrong with a line of a hosts file.
#[derive(Debug, Error)]
pub enum LineFault {
    /// There is no address.
    #[error("its address is missing; a line is `DESTINATION ADDRESS [CLASS,…|all] [PROGRAM]`")]
    Incomplete,
    /// ssh would read the destination as an option.
    #[error(transparent)]
    Destination(#[from] DestinationError),
    /// The address cannot be parsed.
    #[error("`{0}` is no IP address; write the one at which the other hosts reach it")]
    Address(String),
    /// A class cannot be parsed.
    #[error("{0}, or all")]
    Class(UnknownRole),
    /// There are more words than a line has.
    #[error("`{0}` is one word too many")]
    Surplus(String),
}

/// Bytes of a hosts file.
pub const HOSTS_BYTES_MAX: u64 = 1 << 20;

/// Reads a hosts file.
///
/// # Errors
/// If it cannot be read, or is not a hosts file.
pub fn read(path: &Path) -> Result<Vec<Host>, HostsError> {
    let shown = || path.display().to_string();
    let text = text_file::read(path, HOSTS_BYTES_MAX)
        .map_err(|source| HostsError::Read { path: shown(), source })?;
    parse(&text).map_err(|error| HostsError::Content { path: shown(), source: Box::new(error) })
}

/// Parses the text of a hosts file.
///
/// # Errors
/// The first line that is wrong, or what no line provides.
pub fn parse(text: &str) -> Result<Vec<Host>, HostsError> {
    let mut hosts = vec![];
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        let host = host(&words).map_err(|fault| HostsError::Line {
            number: number + 1,
            host: words[0].to_string(),
            fault,
        })?;
        hosts.push(host);
    }
    if hosts.is_empty() {
        return Err(HostsError::Empty);
    }
    for role in Role::ALL {
        if !hosts.iter().any(|host| host.roles.contains(role)) {
            return Err(HostsError::Uncovered { role: *role, hosts: listed(&hosts) });
        }
    }
    Ok(hosts)
}

/// The hosts with their classes: `alice accepts gateway, router`.
fn listed(hosts: &[Host]) -> String {
    let text = |host: &Host| {
        let names: Vec<&str> = host.roles.iter().map(|role| role.name()).collect();
        format!("{} accepts {}", host.destination, names.join(", "))
    };
    hosts.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// The classes of a list, or all.
fn roles(classes: &str) -> Result<Vec<Role>, LineFault> {
    if classes == "all" {
        return Ok(Role::ALL.to_vec());
    }
    classes.split(',').map(|class| class.parse().map_err(LineFault::Class)).collect()
}

fn host(words: &[&str]) -> Result<Host, LineFault> {
    let [destination, address, rest @ ..] = words else {
        return Err(LineFault::Incomplete);
    };
    let destination = destination.parse()?;
    let address = address.parse().map_err(|_| LineFault::Address(address.to_string()))?;
    let (classes, program) = match rest {
        [] => (None, None),
        [word] if word.contains('/') => (None, Some(*word)),
        [classes] => (Some(*classes), None),
        [classes, program] => (Some(*classes), Some(*program)),
        [_, _, surplus, ..] => return Err(LineFault::Surplus(surplus.to_string())),
    };
    let roles = match classes {
        None => Role::ALL.to_vec(),
        Some(classes) => roles(classes)?,
    };
    Ok(Host { destination, address, roles, program: program.unwrap_or("nearmetal").to_string() })
}

/// Which node runs on which host.
#[derive(Debug, Clone, Default)]
pub struct Placement {
    hosts: Vec<Host>,
    /// Number of the host of each node; empty if all run on this machine.
    of: BTreeMap<NodeId, usize>,
    /// Folder on each host below which its agent makes its own.
    data: PathBuf,
}

impl Placement {
    /// Places the nodes of a network with these numbers of nodes on `hosts`, or on this machine if
    /// there are none.
    ///
    /// Nodes of a group of replicas are put on different hosts where enough hosts accept them, so
    /// that a cell survives the loss of a host; else nodes are put where the fewest of their class
    /// are.
    pub fn new(
        hosts: &[Host],
        counts: NodeCounts,
        durability: Durability,
        data: &Path,
    ) -> Placement {
        let mut placement =
            Placement { hosts: hosts.to_vec(), of: BTreeMap::new(), data: data.to_path_buf() };
        let address = Address::Unix(PathBuf::new());
        let mut network =
            Network::new(counts, |_| Node { address: address.clone(), replication: None });
        network.durability = durability;
        let cells = 0..network.nodes(Role::Mediator).len() as u16;
        let groups: Vec<_> = cells.chain([CONTROL]).map(|group| network.replicas(group)).collect();
        let accepting = |role: Role| {
            let accepts = move |at: &usize| hosts[*at].roles.contains(&role);
            (0..hosts.len()).filter(accepts)
        };
        // Those with the least choice first.
        let mut all: Vec<NodeId> = network.all().map(|(id, _)| id).collect();
        all.sort_by_key(|node| accepting(node.class).count());
        for node in all {
            let cost = |at: &usize| {
                let is_there = |other: &NodeId| placement.of.get(other) == Some(at);
                let of_node = groups.iter().filter(|group| group.contains(&node));
                let shared = of_node.flatten().filter(|other| is_there(other)).count();
                let of_class = placement.of.iter().filter(|(other, _)| other.class == node.class);
                let same_class = of_class.filter(|(_, host)| *host == at).count();
                (shared, same_class, *at)
            };
            let best = accepting(node.class).min_by_key(cost);
            placement.of.extend(best.map(|host| (node, host)));
        }
        placement
    }

    /// The hosts; none if all nodes run on this machine.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Folder on each host for what its nodes write.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Number of the host of a node; none if it runs on this machine.
    pub fn of(&self, node: NodeId) -> Option<usize> {
        self.of.get(&node).copied()
    }

    /// The host of a node.
    pub fn host(&self, node: NodeId) -> Option<&Host> {
        self.hosts.get(self.of(node)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# two\nalice 192.0.2.1 gateway,router\n\nbob 192.0.2.2 # all\n";

    fn placed(text: &str, counts: &str) -> Placement {
        let (hosts, counts) = (parse(text).unwrap(), counts.parse().unwrap());
        Placement::new(&hosts, counts, Durability::DiskQuorum, Path::new("/data"))
    }

    #[test]
    fn a_file_that_is_too_long_or_a_device_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        std::fs::write(&path, GOOD).unwrap();
        assert_eq!(read(&path).unwrap().len(), 2);
        std::fs::File::create(&path).unwrap().set_len(HOSTS_BYTES_MAX + 1).unwrap();
        for path in [&path, Path::new("/dev/zero")] {
            assert!(matches!(read(path), Err(HostsError::Read { .. })));
        }
        let page = include_str!("../../../../docs/limits.md");
        assert!(page.contains(&format!("\n| hosts file | {HOSTS_BYTES_MAX} | ")));
    }

    #[test]
    fn nodes_are_spread_over_the_hosts_that_accept_their_class() {
        let placement = placed(GOOD, "2-1-2-1");
        let at = |role: Role, index| placement.host(role.node(index)).unwrap().destination.as_str();
        assert_eq!([at(Role::Gateway, 0), at(Role::Gateway, 1)], ["alice", "bob"]);
        assert_eq!([at(Role::Mediator, 0), at(Role::Mediator, 1)], ["bob", "bob"]);
        assert_eq!(placement.of(Role::Gateway.node(2)), None);
        let here = Placement::default();
        assert_eq!((here.of(Role::Router.node(0)), here.hosts().len()), (None, 0));
        let all = parse("bob 192.0.2.2 all /opt/nearmetal").unwrap();
        assert_eq!((all[0].roles.len(), all[0].program.as_str()), (4, "/opt/nearmetal"));
        let with_program = parse("bob 192.0.2.2 /opt/it's").unwrap();
        assert_eq!(with_program[0].program, "/opt/it's");
    }

    /// The hosts of each group of replicas.
    fn hosts_of_groups(placement: &Placement, counts: &str) -> Vec<Vec<usize>> {
        let address = Address::Unix(PathBuf::new());
        let counts = counts.parse().unwrap();
        let mut network =
            Network::new(counts, |_| Node { address: address.clone(), replication: None });
        network.durability = Durability::DiskQuorum;
        let groups = (0..network.nodes(Role::Mediator).len() as u16).chain([CONTROL]);
        let hosts = |group| {
            let replicas = network.replicas(group).into_iter();
            replicas.map(|node| placement.of(node).unwrap()).collect()
        };
        groups.map(hosts).collect()
    }

    #[test]
    fn replicas_of_a_group_are_on_different_hosts_where_there_are_enough() {
        let three = "a 192.0.2.1\nb 192.0.2.2\nc 192.0.2.3";
        let no_processors = "a 192.0.2.1\nb 192.0.2.2\nc 192.0.2.3 gateway,router,mediator\n\
                             d 192.0.2.4 processor";
        let only_here = "a 192.0.2.1 processor,mediator\nb 192.0.2.2 gateway,router,mediator\n\
                         c 192.0.2.3 mediator";
        let five = format!("{three}\nd 192.0.2.4\ne 192.0.2.5");
        for (hosts, counts) in [
            (three, "1-1-2-1"),
            (three, "3-3-3-3"),
            (three, "2-2-6-6"),
            (no_processors, "1-1-3-1"),
            (only_here, "1-1-2-1"),
            (&five, "5-5-5-5"),
            (&five, "2-2-7-7"),
        ] {
            for mut group in hosts_of_groups(&placed(hosts, counts), counts) {
                let replicas = group.len();
                group.sort_unstable();
                group.dedup();
                assert_eq!(group.len(), replicas, "{counts} on {hosts}: {group:?}");
            }
        }
        // Two hosts cannot do it, and one majority each is lost with either of them.
        let two = placed("a 192.0.2.1\nb 192.0.2.2", "1-1-2-2");
        let groups = hosts_of_groups(&two, "1-1-2-2");
        assert!(groups.iter().all(|group| group.contains(&0) && group.contains(&1)), "{groups:?}");
    }

    #[test]
    fn a_wrong_line_is_named_in_the_error() {
        let refused = |text: &str, why: &str| {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        };
        refused("", "names no host");
        refused("alice", "line 1, host alice: its address is missing");
        refused("\nalice discarded", "line 2, host alice: `discarded` is no IP address");
        refused("alice 192.0.2.1 gateways", "host alice: `gateways` is not a class");
        refused("alice 192.0.2.1 gateways", "mediator or processor, or all");
        let uncovered = "no host accepts nodes of class router: alice accepts gateway";
        refused("alice 192.0.2.1 gateway", uncovered);
        refused("-oX 192.0.2.1", "no destination");
        refused("a 192.0.2.1 gateway /x y", "one word too many");
        let error = read(Path::new("/no/hosts")).unwrap_err();
        assert!(error.to_string().contains("/no/hosts"), "{error}");
    }
}
