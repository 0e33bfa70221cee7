//! The path between two hosts: the addresses at its ends, and whether one end reaches the other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::atomic::AtomicBool;

use nm_model::agent::{Task, Token, Work};
use nm_model::probe::PingpongSpec;
use nm_model::{Failure, FailureKind, Mode, ProbeSpec, Protocol, Side, Stack, StackPair};

use crate::environment::ssh::end::{End, HostName};
use crate::pair::Pair;
use crate::trial::{self, Options};

/// A port that is named where no packet is sent.
const ANY_PORT: u16 = 9;

/// What tries the path.
const TASK_STACK: Stack = Stack { launcher: None, protocol: Protocol::Tcp, mode: Mode::Blocking };

/// The address of this machine on the path to `peer`.
pub fn own_address_towards(peer: IpAddr) -> Result<IpAddr, Failure> {
    let any: IpAddr = match peer {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a UDP socket sends nothing and chooses the route.
    let route = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((peer, ANY_PORT))?;
        socket.local_addr()
    });
    route.map(|own| own.ip()).map_err(|error| {
        let message = format!("this machine has no route to {peer}: {error}");
        Failure::new(FailureKind::NotAvailable, message).hint("write `address` of the server")
    })
}

/// The links at both ends. Each agent accepts connections from the other end only from now on.
pub fn links(client: &mut End, server: &mut End) -> Result<[String; 2], Failure> {
    let (a, b) = (client.address, server.address);
    if a.is_ipv4() != b.is_ipv4() {
        let message = format!("the path would have the ends {a} and {b}, of different families");
        return Err(Failure::new(FailureKind::BadRequest, message)
            .hint("write the `address` of both ends into the plan"));
    }
    Ok([link(client, b)?, link(server, a)?])
}

fn link(end: &mut End, peer: IpAddr) -> Result<String, Failure> {
    let (address, host) = (end.address, &end.host);
    end.agent.path(address, peer)?.ok_or_else(|| {
        let message = format!("no link of {host} has the address {address}");
        Failure::new(FailureKind::NotAvailable, message)
            .hint("write one of its own addresses, not that of a gateway before it")
    })
}

/// Checks that the client can connect to the server by TCP at a port that the kernel chooses, as
/// every trial does. `hosts` are the names of client and server.
pub fn check(pair: &mut Pair, hosts: &(HostName, HostName)) -> Result<(), Failure> {
    let task = task();
    let (own, to) = (pair.client_address, pair.server_address);
    let cannot = |what: &str, failure: Failure| {
        let (client, server) = hosts;
        let message = format!("{client} at {own} {what} {server} at {to}: {}", failure.message);
        Failure::new(FailureKind::NotAvailable, message)
            .hint("check the addresses, the routes, and firewalls: any port must be open")
    };
    let listening = pair.server.listen(Side::Server, &task, &to.to_string())?;
    let answering = pair.client.listen(Side::Client, &task, &own.to_string())?;
    pair.server.start_connecting(Side::Server, &task, &answering)?;
    pair.client.start_connecting(Side::Client, &task, &listening)?;
    pair.client.wait_connected().map_err(|failure| cannot("cannot reach", failure))?;
    pair.server.wait_connected().map_err(|failure| cannot("is not reached by", failure))?;
    // Neither end runs the task.
    pair.client.cancel()?;
    pair.server.cancel()
}

/// Runs a short trial. Behind a NAT a connection comes about, and is then refused because it does
/// not come from the peer's own address.
pub fn try_trial(pair: &mut Pair) -> Result<(), Failure> {
    let spec = PingpongSpec { sizes: vec![8], max_ms: 20, ..PingpongSpec::default() };
    let (probe, stacks) = (ProbeSpec::Pingpong(spec), StackPair::same(TASK_STACK));
    let (options, cancel) = (Options::new(1), AtomicBool::new(false));
    let ran = trial::run(pair, &stacks, &probe, 0, &options, &mut |_| {}, &cancel);
    ran.map(drop).map_err(|interrupted| interrupted.failure)
}

fn task() -> Task {
    Task {
        stack: TASK_STACK,
        cpus: vec![],
        work: Work::Pingpong(PingpongSpec::default().of_size(1)),
        seed: 0,
        raw_samples: false,
        // No datagram is sent that would carry it.
        token: Token::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Handle;

    #[test]
    fn an_agent_accepts_only_the_peer_of_its_path() {
        let agents = (Handle::local("client").unwrap(), Handle::local("server").unwrap());
        let (own, other) = ([127, 0, 0, 1].into(), [127, 0, 0, 2].into());
        let mut pair = Pair::of_hosts("ssh", agents, (own, own), "lo").unwrap();
        assert_eq!(pair.server.path(own, other).unwrap().as_deref(), Some("lo"));
        let refused = try_trial(&mut pair).unwrap_err();
        assert_eq!(refused.kind, FailureKind::Peer, "{refused}");
        pair.server.path(own, own).unwrap();
        try_trial(&mut pair).unwrap();
        assert_eq!(pair.server.path([192, 0, 2, 77].into(), own).unwrap(), None);
    }

    #[test]
    fn the_own_address_is_that_of_the_route() {
        let loopback: IpAddr = Ipv4Addr::LOCALHOST.into();
        assert_eq!(own_address_towards(loopback).unwrap(), loopback);
    }
}
