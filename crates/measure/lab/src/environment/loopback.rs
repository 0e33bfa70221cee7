//! Two processes on this host, over the loopback link.

use std::net::{Ipv4Addr, Ipv6Addr};

use nm_model::plan::EnvironmentKind;
use nm_model::{Failure, Side};

use crate::environment::running::Environment;
use crate::environment::setup::Setup;

/// Starts both agents.
pub fn start(setup: &Setup) -> Result<Environment, Failure> {
    let kind = EnvironmentKind::Loopback;
    let client = setup.launch(kind, Side::Client, setup.agent(Side::Client)?)?;
    let server = setup.launch(kind, Side::Server, setup.agent(Side::Server)?)?;
    let mut addresses = vec![(Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into())];
    // Binding an IPv6 address shows whether this host has IPv6.
    if std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        addresses.push((Ipv6Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()));
    }
    Environment::new(kind, (client, server), addresses, "loopback", None)
}
