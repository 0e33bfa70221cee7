//! Creates the links and addresses between the namespaces of running agents.
//!
//! This runs in a helper process, `nearmetal lab-wire ARGUMENTS`, because it enters the agents'
//! namespaces. Only a process with a single thread may enter a user namespace. The helper writes
//! one line of the agent protocol to its standard output: `prepared` with the addresses of client
//! and server in turn, or `failed`.
//!
//! Arguments are `veth USER CLIENT SERVER`, `bridge USER CLIENT SERVER BRIDGE` or, for guests,
//! `taps USER BRIDGE GUESTS`. Each is a process id, and GUESTS the number of guests. USER is the
//! process whose user namespace owns those of the others, or `-`.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use nm_model::{Answer, Failure, FailureKind, GuestId, GuestSpec};
use nm_sys::ethtool::Links;
use nm_sys::namespace::Namespace;
use nm_sys::tap;
use nm_vm::network::tap_name;

use crate::netlink::Routes;

/// One end of an environment of namespaces: its link and its addresses.
pub(crate) struct LinkEnd {
    link: &'static str,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl LinkEnd {
    pub const V4_PREFIX: u8 = 24;
    pub const V6_PREFIX: u8 = 64;
}

/// The addresses of a guest, IPv4 first: those of the end of its side, counted on for each pair.
pub(crate) fn guest_addresses(guest: GuestId) -> [IpAddr; 2] {
    // GuestSpec::PAIRS_MAX keeps it within a byte.
    let number = guest.index() as u8;
    let [a, b, c, d] = CLIENT.v4.octets();
    let mut v6 = CLIENT.v6.octets();
    v6[15] += number;
    [Ipv4Addr::new(a, b, c, d + number).into(), Ipv6Addr::from(v6).into()]
}

/// Most guests of an environment.
const GUESTS_MAX: u32 = 2 * GuestSpec::PAIRS_MAX;

const CLIENT: LinkEnd = LinkEnd {
    link: "nm-client",
    v4: Ipv4Addr::new(10, 77, 0, 1),
    v6: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1),
};

const SERVER: LinkEnd = LinkEnd {
    link: "nm-server",
    v4: Ipv4Addr::new(10, 77, 0, 2),
    v6: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2),
};

/// Bridge of an environment, in a namespace of its own.
const BRIDGE: &str = "nm-bridge";

/// How long links may take to come up, in steps of 10 ms.
const UP_STEPS: u32 = 500;

/// What can fail while links are created.
#[derive(Debug, thiserror::Error)]
enum LinkSetupError {
    #[error(
        "lab-wire takes `veth USER CLIENT SERVER`, `bridge USER CLIENT SERVER BRIDGE` or \
         `taps USER BRIDGE GUESTS`"
    )]
    Usage,
    #[error("lab-wire: `{0}` is not a process id")]
    ProcessId(String),
    #[error("lab-wire: `{0}` is not a number of guests, 1 to {GUESTS_MAX}")]
    Guests(String),
    #[error("cannot {operation}: {source}")]
    System { operation: String, source: io::Error },
    #[error("link {0} does not come up")]
    LinkDown(&'static str),
}

impl LinkSetupError {
    fn system(operation: impl Into<String>) -> impl FnOnce(io::Error) -> LinkSetupError {
        let operation = operation.into();
        |source| LinkSetupError::System { operation, source }
    }
}

impl From<LinkSetupError> for Failure {
    fn from(error: LinkSetupError) -> Failure {
        let message = error.to_string();
        let source = match error {
            LinkSetupError::Usage | LinkSetupError::ProcessId(_) | LinkSetupError::Guests(_) => {
                return Failure::new(FailureKind::BadRequest, message);
            }
            LinkSetupError::LinkDown(_) => return Failure::new(FailureKind::System, message),
            LinkSetupError::System { source, .. } => source,
        };
        let kind = match source.kind() {
            io::ErrorKind::PermissionDenied => FailureKind::Permission,
            io::ErrorKind::Unsupported => FailureKind::NotAvailable,
            _ => FailureKind::System,
        };
        let failure = Failure::new(kind, message);
        match source.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
            Some(rustix::io::Errno::OPNOTSUPP) => {
                failure.hint("load the kernel modules `veth` and `bridge` (modprobe, as root)")
            }
            _ => failure,
        }
    }
}

/// The hidden subcommand `lab-wire`: creates the links and writes the answer to standard output.
/// Call it before any thread is started.
///
/// # Errors
/// The failure that was written as the answer, for the exit code.
pub fn run(arguments: &[String]) -> Result<(), Failure> {
    let result = create_links(arguments).map_err(Failure::from);
    let answer = match &result {
        Ok(addresses) => {
            Answer::Prepared { addresses: addresses.iter().map(IpAddr::to_string).collect() }
        }
        Err(failure) => Answer::Failed(failure.clone()),
    };
    let line = serde_json::to_string(&answer)
        .map_err(|error| Failure::new(FailureKind::System, error.to_string()))?;
    writeln!(io::stdout(), "{line}")
        .map_err(|error| Failure::new(FailureKind::System, format!("lab-wire: {error}")))?;
    result.map(|_| ())
}

fn create_links(arguments: &[String]) -> Result<Vec<IpAddr>, LinkSetupError> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["veth", user, client, server] => {
            let namespaces = open_namespaces(user, &[client, server])?;
            create_veth(&namespaces[0], &namespaces[1])
        }
        ["bridge", user, client, server, bridge] => {
            let namespaces = open_namespaces(user, &[client, server, bridge])?;
            create_bridge(&namespaces[0], &namespaces[1], &namespaces[2])
        }
        ["taps", user, bridge, guests] => {
            let count = guests.parse().ok().filter(|count| (1..=GUESTS_MAX).contains(count));
            let count = count.ok_or_else(|| LinkSetupError::Guests(guests.to_string()))?;
            create_taps(&open_namespaces(user, &[bridge])?[0], count)
        }
        _ => Err(LinkSetupError::Usage),
    }
}

/// Opens the network namespaces of `processes`, then enters the user namespace of `user`.
fn open_namespaces(user: &str, processes: &[&str]) -> Result<Vec<Namespace>, LinkSetupError> {
    let pid =
        |text: &str| text.parse::<u32>().map_err(|_| LinkSetupError::ProcessId(text.to_string()));
    let opened = |process: &str, result: io::Result<Namespace>| {
        result.map_err(LinkSetupError::system(format!("open the namespace of process {process}")))
    };
    let namespaces = processes
        .iter()
        .map(|text| opened(text, Namespace::network_of(pid(text)?)))
        .collect::<Result<Vec<_>, LinkSetupError>>()?;
    if user != "-" {
        opened(user, Namespace::user_of(pid(user)?))?
            .enter()
            .map_err(LinkSetupError::system("enter the agents' user namespace"))?;
    }
    Ok(namespaces)
}

/// Two namespaces back to back.
fn create_veth(client: &Namespace, server: &Namespace) -> Result<Vec<IpAddr>, LinkSetupError> {
    let mut routes = routes_in(client)?;
    routes
        .add_veth(CLIENT.link, SERVER.link, server.as_fd())
        .map_err(LinkSetupError::system("create a veth pair"))?;
    let ipv6 = bring_up(&mut routes, &CLIENT)?;
    bring_up_server(client, server, ipv6)
}

/// Two namespaces over a bridge in a third one.
fn create_bridge(
    client: &Namespace,
    server: &Namespace,
    bridge: &Namespace,
) -> Result<Vec<IpAddr>, LinkSetupError> {
    let mut routes = routes_in(bridge)?;
    routes.add_bridge(BRIDGE).map_err(LinkSetupError::system("create a bridge"))?;
    for (port, end, namespace) in [("nm-port0", CLIENT, client), ("nm-port1", SERVER, server)] {
        routes
            .add_veth(port, end.link, namespace.as_fd())
            .and_then(|()| routes.attach(port, BRIDGE))
            .and_then(|()| routes.set_up(port))
            .map_err(LinkSetupError::system("create a port of the bridge"))?;
    }
    routes.set_up(BRIDGE).map_err(LinkSetupError::system("bring the bridge up"))?;
    let ipv6 = bring_up(&mut routes_in(client)?, &CLIENT)?;
    let addresses = bring_up_server(client, server, ipv6)?;
    enter(bridge)?;
    wait_until_up(BRIDGE)?;
    Ok(addresses)
}

/// Tap devices of `count` guests, as ports of a bridge; returns the addresses that the guests have.
fn create_taps(bridge: &Namespace, count: u32) -> Result<Vec<IpAddr>, LinkSetupError> {
    let mut routes = routes_in(bridge)?;
    routes.add_bridge(BRIDGE).map_err(LinkSetupError::system("create a bridge"))?;
    let guests = GuestId::all(count.div_ceil(2));
    for &guest in guests.iter().take(count as usize) {
        let name = &tap_name(guest);
        tap::create(name).map_err(LinkSetupError::system("create a tap device"))?;
        routes
            .attach(name, BRIDGE)
            .and_then(|()| routes.set_up(name))
            .map_err(LinkSetupError::system("create a port of the bridge"))?;
    }
    // It is up once the guests are: until then no program has the tap devices open.
    routes.set_up(BRIDGE).map_err(LinkSetupError::system("bring the bridge up"))?;
    Ok(guests.into_iter().flat_map(guest_addresses).collect())
}

/// Brings the server's link up and waits until both links are up; returns the addresses.
fn bring_up_server(
    client: &Namespace,
    server: &Namespace,
    ipv6: bool,
) -> Result<Vec<IpAddr>, LinkSetupError> {
    let ipv6 = bring_up(&mut routes_in(server)?, &SERVER)? && ipv6;
    wait_until_up(SERVER.link)?;
    enter(client)?;
    wait_until_up(CLIENT.link)?;
    let mut addresses = vec![CLIENT.v4.into(), SERVER.v4.into()];
    if ipv6 {
        addresses.extend([IpAddr::from(CLIENT.v6), IpAddr::from(SERVER.v6)]);
    }
    Ok(addresses)
}

fn enter(namespace: &Namespace) -> Result<(), LinkSetupError> {
    namespace.enter().map_err(LinkSetupError::system("enter an agent's network namespace"))
}

fn routes_in(namespace: &Namespace) -> Result<Routes, LinkSetupError> {
    enter(namespace)?;
    Routes::open().map_err(LinkSetupError::system("open a netlink socket"))
}

/// Brings loopback and the end's link up, with addresses; returns whether the link has IPv6.
fn bring_up(routes: &mut Routes, end: &LinkEnd) -> Result<bool, LinkSetupError> {
    let failed = |operation: &str| LinkSetupError::system(format!("{operation} {}", end.link));
    routes.set_up("lo").map_err(failed("bring up loopback beside"))?;
    routes
        .add_address(end.link, end.v4.into(), LinkEnd::V4_PREFIX)
        .map_err(failed("assign an address to"))?;
    // A kernel without IPv6 refuses this; the environment then has IPv4 addresses only.
    let ipv6 = routes.add_address(end.link, end.v6.into(), LinkEnd::V6_PREFIX).is_ok();
    routes.set_up(end.link).map_err(failed("bring up"))?;
    Ok(ipv6)
}

fn wait_until_up(link: &'static str) -> Result<(), LinkSetupError> {
    let links = Links::new().map_err(LinkSetupError::system("open a socket"))?;
    for _ in 0..UP_STEPS {
        if links.is_up(link) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(LinkSetupError::LinkDown(link))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_of_the_first_pair_have_the_addresses_of_the_two_ends() {
        let all: Vec<[IpAddr; 2]> = GuestId::all(2).into_iter().map(guest_addresses).collect();
        assert_eq!(all[0], [IpAddr::from(CLIENT.v4), CLIENT.v6.into()]);
        assert_eq!(all[1], [IpAddr::from(SERVER.v4), SERVER.v6.into()]);
        assert_eq!(all[3].map(|one| one.to_string()), ["10.77.0.4", "fd77::4"]);
    }

    #[test]
    fn number_of_guests_is_limited() {
        for guests in ["0", "17", "x"] {
            let failure = run(&["taps", "-", "1", guests].map(String::from)).unwrap_err();
            assert!(failure.message.contains("number of guests, 1 to 16"), "{failure}");
        }
    }
}
