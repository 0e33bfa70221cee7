//! One end of the path while the environment is made.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use nm_model::attached::GuestPlace;
use nm_model::hosts::Destination;

use crate::agent::Handle;

/// How long ssh and the host's shell may take until the shell answers, and how long the agent may
/// take after that.
pub const START_LIMIT: Duration = Duration::from_secs(30);

/// An end whose agent has answered.
pub struct End {
    pub agent: Handle,
    pub address: IpAddr,
    pub host: HostName,
    /// If a NAT is before the host: the host with its name and both addresses, as a clause.
    pub translated: Option<String>,
}

/// A host in messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostName {
    /// The one that this process runs on.
    ThisMachine,
    /// Another one.
    Other(Destination),
    /// A guest whose agent runs already.
    Guest(GuestPlace),
}

/// `host h1`, `this machine`, or `the guest at socket:/run/vm`.
impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostName::ThisMachine => f.write_str("this machine"),
            HostName::Other(destination) => write!(f, "host {destination}"),
            HostName::Guest(place) => write!(f, "the guest at {place}"),
        }
    }
}
