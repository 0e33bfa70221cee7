//! The two hosts of the environment `ssh`: how each is reached, and which path is measured.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::named_enum::text_serde;
use crate::probe::Side;

/// Most bytes of a destination.
const DESTINATION_BYTES_MAX: usize = 1024;

/// A host in the words of ssh: `host`, `user@host`, `ssh://user@host:port`, or a name of its
/// configuration. It is never one that ssh would read as an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination(String);

/// Why a text is no destination.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no destination for ssh")]
pub struct DestinationError(String);

impl Destination {
    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Destination {
    type Err = DestinationError;

    fn from_str(text: &str) -> Result<Destination, DestinationError> {
        let is_word = !text.is_empty()
            && text.len() <= DESTINATION_BYTES_MAX
            && !text.starts_with('-')
            && !text.chars().any(|c| c.is_whitespace() || c.is_control());
        match is_word {
            true => Ok(Destination(text.to_string())),
            false => Err(DestinationError(text.escape_debug().to_string())),
        }
    }
}

text_serde!(Destination);

/// One host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// Destination of ssh, such as `user@host`, or the name of an agent at the controller; this
    /// machine if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<Destination>,
    /// Its IP address on the path that is measured; the one at which ssh reached it if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Path of nearmetal there; if absent, this program is copied there for the time of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
}

/// The hosts of the environment `ssh`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostsSpec {
    /// The end that sends first; this machine if absent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub client: HostSpec,
    /// The end that answers.
    pub server: HostSpec,
    /// Socket of a controller on this machine. The hosts are then agents that have connected to it,
    /// and ssh is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<PathBuf>,
}

fn is_default(host: &HostSpec) -> bool {
    *host == HostSpec::default()
}

/// Why hosts cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostsFault {
    /// The server is on this machine.
    #[error(
        "the server of [hosts] has no `ssh`; write its destination, such as `ssh = \"user@host\"`"
    )]
    LocalServer,
    /// A program is named for this machine.
    #[error(
        "the client of [hosts] has a `program` and no `ssh`: on this machine this program runs"
    )]
    LocalProgram,
    /// A program is named for an agent that has connected.
    #[error(
        "the {side} of [hosts] has a `program`, but an agent at a controller runs its own; leave \
         it out"
    )]
    ProgramOfAgent {
        /// Which end.
        side: Side,
    },
    /// No path begins or ends at such an address.
    #[error("the {side} of [hosts] has the address {address}, which is that of no host")]
    Address {
        /// Which end.
        side: Side,
        /// The address.
        address: IpAddr,
    },
    /// One end has IPv4, the other one IPv6.
    #[error("the ends of [hosts] have the addresses {client} and {server}, of different families")]
    Families {
        /// Of the client.
        client: IpAddr,
        /// Of the server.
        server: IpAddr,
    },
    /// The path of a program is empty, or could be read as an option.
    #[error("the {side} of [hosts] has the program `{program}`, which is no path")]
    Program {
        /// Which end.
        side: Side,
        /// The path.
        program: String,
    },
    /// A word of the command line.
    #[error("{0}; write DESTINATION or DESTINATION=ADDRESS")]
    Destination(#[from] DestinationError),
    /// A word of the command line.
    #[error("`{0}` is no IP address; write DESTINATION or DESTINATION=ADDRESS")]
    Word(String),
}

/// `user@host`, or `user@host=192.0.2.2` with the address of the path.
impl FromStr for HostSpec {
    type Err = HostsFault;

    fn from_str(text: &str) -> Result<HostSpec, HostsFault> {
        let (destination, address) = match text.rsplit_once('=') {
            None => (text, None),
            Some((destination, address)) => {
                let parsed = address.parse().map_err(|_| HostsFault::Word(address.to_string()))?;
                (destination, Some(parsed))
            }
        };
        Ok(HostSpec { ssh: Some(destination.parse()?), address, program: None })
    }
}

impl HostsSpec {
    /// One host.
    pub fn host(&self, side: Side) -> &HostSpec {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// Checks what types cannot.
    ///
    /// # Errors
    /// What cannot be meant.
    pub fn check(&self) -> Result<(), HostsFault> {
        if self.server.ssh.is_none() {
            return Err(HostsFault::LocalServer);
        }
        if self.client.ssh.is_none() && self.client.program.is_some() {
            return Err(HostsFault::LocalProgram);
        }
        for side in [Side::Client, Side::Server] {
            let HostSpec { address, program, .. } = self.host(side);
            let is_of_host = |it: &IpAddr| !it.is_unspecified() && !it.is_multicast();
            if let Some(address) = *address
                && !is_of_host(&address)
            {
                return Err(HostsFault::Address { side, address });
            }
            if program.is_some() && self.controller.is_some() {
                return Err(HostsFault::ProgramOfAgent { side });
            }
            if let Some(program) = program
                && (program.is_empty() || program.starts_with('-'))
            {
                return Err(HostsFault::Program { side, program: program.clone() });
            }
        }
        match (self.client.address, self.server.address) {
            (Some(client), Some(server)) if client.is_ipv4() != server.is_ipv4() => {
                Err(HostsFault::Families { client, server })
            }
            _ => Ok(()),
        }
    }
}

/// `u@a to u@b`, with `this machine` for it.
impl fmt::Display for HostsSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |host: &HostSpec| match &host.ssh {
            Some(destination) => destination.to_string(),
            None => "this machine".to_string(),
        };
        write!(f, "{} to {}", name(&self.client), name(&self.server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let hosts: HostsSpec = toml::from_str(text).unwrap();
        hosts.check().unwrap_err().to_string()
    }

    #[test]
    fn a_destination_is_no_option() {
        for good in ["h", "user@host", "ssh://u@h:2222", "fe80::1%eth0"] {
            assert_eq!(good.parse::<Destination>().unwrap().to_string(), good);
        }
        for bad in ["", "-oProxyCommand=x", "a b", "a\nb", "a\0", &"x".repeat(1025)] {
            assert!(bad.parse::<Destination>().is_err(), "{bad}");
        }
        let error = "-oX".parse::<Destination>().unwrap_err();
        assert_eq!(error.to_string(), "`-oX` is no destination for ssh");
    }

    #[test]
    fn a_word_of_the_command_line_has_a_destination_and_an_address() {
        let host: HostSpec = "u@h=192.0.2.2".parse().unwrap();
        assert_eq!(host.ssh.unwrap().as_str(), "u@h");
        assert_eq!(host.address, Some([192, 0, 2, 2].into()));
        let host: HostSpec = "h=2001:db8::1".parse().unwrap();
        assert!(host.address.unwrap().is_ipv6());
        assert_eq!("h".parse::<HostSpec>().unwrap().address, None);
        for (word, expected) in [
            ("h=x", "`x` is no IP address; write DESTINATION or DESTINATION=ADDRESS"),
            ("-h=192.0.2.2", "`-h` is no destination for ssh; write"),
            ("=192.0.2.2", "`` is no destination for ssh; write"),
        ] {
            let error = word.parse::<HostSpec>().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn hosts_that_cannot_be_meant_are_refused() {
        let good: HostsSpec = toml::from_str("server.ssh='h'").unwrap();
        assert_eq!((good.check(), good.to_string()), (Ok(()), "this machine to h".to_string()));
        assert!(refused("server.address='192.0.2.2'").contains("server of [hosts] has no `ssh`"));
        let program = refused("client.program='/x'\nserver.ssh='h'");
        assert!(program.contains("a `program` and no `ssh`"), "{program}");
        for address in ["0.0.0.0", "::", "239.0.0.1"] {
            let error = refused(&format!("server.ssh='h'\nserver.address='{address}'"));
            assert!(error.contains("that of no host"), "{error}");
        }
        let families =
            refused("client.address='192.0.2.1'\nserver.ssh='h'\nserver.address='2001:db8::1'");
        assert!(families.contains("different families"), "{families}");
        assert!(refused("server.ssh='h'\nserver.program='-x'").contains("is no path"));
        let agent = refused("controller='c.sock'\nserver.ssh='h'\nserver.program='/x'");
        assert!(agent.contains("an agent at a controller runs its own"), "{agent}");
    }
}
