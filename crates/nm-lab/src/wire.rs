//! Laying the wires of an environment: links and addresses between the namespaces of running
//! agents.
//!
//! This runs in a helper process, `nearmetal lab-wire ARGUMENTS`, because it enters the agents'
//! namespaces, and only a process with a single thread may enter a user namespace. The helper
//! answers on its standard output with one line of the agent protocol: `prepared` with the
//! addresses of client and server in turn, or `failed`.
//!
//! Arguments: `veth USER CLIENT SERVER` or `bridge USER CLIENT SERVER HOLDER`, each a process id;
//! USER is the process whose user namespace owns the others', or `-`.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use nm_model::{Answer, Failure, FailureKind};
use nm_sys::ethtool::Links;
use nm_sys::namespace::Namespace;

use crate::netlink::Routes;

/// One end of an environment of namespaces: its link and its addresses.
struct End {
    link: &'static str,
    v4: Ipv4Addr,
    v6: Ipv6Addr,
}

const CLIENT: End = End {
    link: "nm-client",
    v4: Ipv4Addr::new(10, 77, 0, 1),
    v6: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1),
};

const SERVER: End = End {
    link: "nm-server",
    v4: Ipv4Addr::new(10, 77, 0, 2),
    v6: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2),
};

const V4_PREFIX: u8 = 24;
const V6_PREFIX: u8 = 64;

/// How long links may take to come up, in steps of 10 ms.
const UP_STEPS: u32 = 500;

/// The hidden subcommand `lab-wire`: lays the wires and answers on standard output. Call it before
/// any thread is started.
///
/// # Errors
/// What was answered as failed, for the exit code.
pub fn run(arguments: &[String]) -> Result<(), Failure> {
    let result = lay(arguments);
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

fn lay(arguments: &[String]) -> Result<Vec<IpAddr>, Failure> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["veth", user, client, server] => {
            let spaces = open(user, &[client, server])?;
            veth(&spaces[0], &spaces[1])
        }
        ["bridge", user, client, server, holder] => {
            let spaces = open(user, &[client, server, holder])?;
            bridge(&spaces[0], &spaces[1], &spaces[2])
        }
        _ => Err(Failure::new(
            FailureKind::BadRequest,
            "lab-wire takes `veth USER CLIENT SERVER` or `bridge USER CLIENT SERVER HOLDER`",
        )),
    }
}

/// Opens the network namespaces of `processes`, then enters the user namespace of `user`.
fn open(user: &str, processes: &[&str]) -> Result<Vec<Namespace>, Failure> {
    let pid = |text: &str| {
        text.parse::<u32>().map_err(|_| {
            Failure::new(FailureKind::BadRequest, format!("lab-wire: `{text}` is no process id"))
        })
    };
    let opened = |what: &str, result: io::Result<Namespace>| {
        result.map_err(|error| failure(&format!("open the namespace of process {what}"), &error))
    };
    let spaces = processes
        .iter()
        .map(|text| opened(text, Namespace::network_of(pid(text)?)))
        .collect::<Result<Vec<_>, Failure>>()?;
    if user != "-" {
        opened(user, Namespace::user_of(pid(user)?))?
            .enter()
            .map_err(|error| failure("enter the agents' user namespace", &error))?;
    }
    Ok(spaces)
}

/// Two namespaces back to back.
fn veth(client: &Namespace, server: &Namespace) -> Result<Vec<IpAddr>, Failure> {
    let mut routes = routes_in(client)?;
    routes
        .add_veth(CLIENT.link, SERVER.link, server.as_fd())
        .map_err(|error| failure("make a veth pair", &error))?;
    let ipv6 = bring_up(&mut routes, &CLIENT)?;
    finish(client, server, ipv6)
}

/// Two namespaces over a bridge in a third one.
fn bridge(
    client: &Namespace,
    server: &Namespace,
    holder: &Namespace,
) -> Result<Vec<IpAddr>, Failure> {
    const BRIDGE: &str = "nm-bridge";
    let mut routes = routes_in(holder)?;
    routes.add_bridge(BRIDGE).map_err(|error| failure("make a bridge", &error))?;
    for (port, end, space) in [("nm-port0", CLIENT, client), ("nm-port1", SERVER, server)] {
        routes
            .add_veth(port, end.link, space.as_fd())
            .and_then(|()| routes.attach(port, BRIDGE))
            .and_then(|()| routes.set_up(port))
            .map_err(|error| failure("make a port of the bridge", &error))?;
    }
    routes.set_up(BRIDGE).map_err(|error| failure("take the bridge up", &error))?;
    let ipv6 = bring_up(&mut routes_in(client)?, &CLIENT)?;
    let addresses = finish(client, server, ipv6)?;
    enter(holder)?;
    wait_until_up(BRIDGE)?;
    Ok(addresses)
}

/// Takes the server's end up and waits until both are.
fn finish(client: &Namespace, server: &Namespace, ipv6: bool) -> Result<Vec<IpAddr>, Failure> {
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

fn enter(space: &Namespace) -> Result<(), Failure> {
    space.enter().map_err(|error| failure("enter an agent's network namespace", &error))
}

fn routes_in(space: &Namespace) -> Result<Routes, Failure> {
    enter(space)?;
    Routes::open().map_err(|error| failure("open a netlink socket", &error))
}

/// Takes loopback and the end's link up, with addresses. Tells whether there is IPv6.
fn bring_up(routes: &mut Routes, end: &End) -> Result<bool, Failure> {
    let told = |what: &str| {
        let what = format!("{what} {}", end.link);
        move |error: io::Error| failure(&what, &error)
    };
    routes.set_up("lo").map_err(told("take loopback up beside"))?;
    routes.add_address(end.link, end.v4.into(), V4_PREFIX).map_err(told("give an address to"))?;
    // A kernel without IPv6 refuses; the environment then has none, which its addresses tell.
    let ipv6 = routes.add_address(end.link, end.v6.into(), V6_PREFIX).is_ok();
    routes.set_up(end.link).map_err(told("take up"))?;
    Ok(ipv6)
}

fn wait_until_up(link: &str) -> Result<(), Failure> {
    let links = Links::new().map_err(|error| failure("open a socket", &error))?;
    for _ in 0..UP_STEPS {
        if links.is_up(link) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(Failure::new(FailureKind::System, format!("link {link} does not come up")))
}

fn failure(what: &str, error: &io::Error) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied => FailureKind::Permission,
        io::ErrorKind::Unsupported => FailureKind::NotAvailable,
        _ => FailureKind::System,
    };
    let failure = Failure::new(kind, format!("cannot {what}: {error}"));
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::OPNOTSUPP) => {
            failure.hint("load the kernel modules `veth` and `bridge` (modprobe, as root)")
        }
        _ => failure,
    }
}
