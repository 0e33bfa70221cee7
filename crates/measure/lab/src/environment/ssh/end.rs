//! One end of the path while the environment is made.

use std::fmt;
use std::net::IpAddr;

use nm_model::attached::GuestPlace;
use nm_model::hosts::Destination;

use crate::agent::Handle;

/// An end whose agent has answered.
pub struct End {
    pub agent: Handle,
    pub address: IpAddr,
    pub host: HostName,
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
