//! Guests that others made, of the environment `vm-attached`: how the agent in each is reached, and
//! at which address it measures.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::hosts::{Destination, DestinationError};
use crate::named_enum::text_serde;
use crate::probe::Side;

/// Most bytes of a path; longer ones are those of no socket and no device.
const PATH_BYTES_MAX: usize = 4095;

/// How the agent in a guest is reached: `ssh:user@host:port`, `socket:PATH`, `socket:HOST:PORT` or
/// `serial:DEVICE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuestPlace {
    /// ssh starts it.
    Ssh(Destination),
    /// It runs behind a Unix socket, such as that of a virtual serial port of QEMU.
    Socket(String),
    /// It runs behind a TCP port, host and port.
    Tcp(String),
    /// It runs behind a terminal device of this machine.
    Serial(String),
}

/// Why a text names no place of a guest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The word before the colon is none of the three.
    #[error(
        "`{0}` is no place of a guest; write ssh:USER@HOST[:PORT], socket:PATH, socket:HOST:PORT \
         or serial:DEVICE"
    )]
    Kind(String),
    /// ssh takes no such destination.
    #[error(transparent)]
    Destination(#[from] DestinationError),
    /// A socket is neither a path nor a host with its port.
    #[error("`socket:{0}` has neither a path from / on nor a host and its port, as in vm:4444")]
    Socket(String),
    /// A device has no path.
    #[error("`serial:{0}` has no path from / on, such as /dev/pts/7")]
    Serial(String),
    /// A word of the command line.
    #[error("`{0}` is no IP address; write PLACE or PLACE=ADDRESS")]
    Address(String),
}

impl FromStr for GuestPlace {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<GuestPlace, PlaceError> {
        let shown = |text: &str| text.escape_debug().to_string();
        let is_path = |text: &str| {
            let is_of_any = text.starts_with('/') && text.len() <= PATH_BYTES_MAX;
            is_of_any && !text.chars().any(char::is_control)
        };
        match text.split_once(':') {
            Some(("ssh", place)) => Ok(GuestPlace::Ssh(destination(place)?)),
            Some(("socket", path)) if is_path(path) => Ok(GuestPlace::Socket(path.to_string())),
            Some(("socket", place)) if is_host_and_port(place) => {
                Ok(GuestPlace::Tcp(place.to_string()))
            }
            Some(("socket", place)) => Err(PlaceError::Socket(shown(place))),
            Some(("serial", path)) if is_path(path) => Ok(GuestPlace::Serial(path.to_string())),
            Some(("serial", path)) => Err(PlaceError::Serial(shown(path))),
            _ => Err(PlaceError::Kind(shown(text))),
        }
    }
}

/// A destination, which has its port as ssh wants it.
fn destination(place: &str) -> Result<Destination, DestinationError> {
    let plain: Destination = place.parse()?;
    match place.contains("://") {
        false if has_port(place) => format!("ssh://{place}").parse(),
        _ => Ok(plain),
    }
}

/// Whether a text ends in a port: of a name, an IPv4 address, or an IPv6 address in brackets.
fn has_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_port = port.parse::<u16>().is_ok_and(|port| port > 0) && !port.starts_with('+');
        is_port && !host.is_empty() && (!host.contains(':') || host.ends_with(']'))
    })
}

fn is_host_and_port(text: &str) -> bool {
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && c != '/';
    has_port(text) && text.chars().all(is_plain)
}

impl fmt::Display for GuestPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GuestPlace::Ssh(destination) => write!(f, "ssh:{destination}"),
            GuestPlace::Socket(path) | GuestPlace::Tcp(path) => write!(f, "socket:{path}"),
            GuestPlace::Serial(path) => write!(f, "serial:{path}"),
        }
    }
}

text_serde!(GuestPlace);

/// One guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachedGuest {
    /// Where its agent is reached.
    pub guest: GuestPlace,
    /// Its IP address on the path that is measured. If absent, that at which ssh reached it; the
    /// other places need one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Path of nearmetal there, for ssh; if absent, this program is copied there for the time of
    /// the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
}

/// `ssh:root@vm`, or `socket:/run/vm.sock=192.0.2.2` with the address of the path.
impl FromStr for AttachedGuest {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<AttachedGuest, PlaceError> {
        let (place, address) = match text.rsplit_once('=') {
            None => (text, None),
            Some((place, address)) => {
                let wrong = |_| PlaceError::Address(address.escape_debug().to_string());
                (place, Some(address.parse().map_err(wrong)?))
            }
        };
        Ok(AttachedGuest { guest: place.parse()?, address, program: None })
    }
}

/// The guests of the environment `vm-attached`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachedSpec {
    /// The end that sends first; this machine if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<AttachedGuest>,
    /// The end that answers.
    pub server: AttachedGuest,
}

/// Why guests cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachedFault {
    /// Nothing says where the guest measures.
    #[error(
        "the guest at {0} needs the address of its link, which nothing but ssh tells; add it, as \
         in {0}=192.0.2.2 or as `address` in the plan"
    )]
    NoAddress(GuestPlace),
    /// No path begins or ends at such an address.
    #[error("the guest at {place} has the address {address}, which is that of no machine")]
    Address {
        /// Where.
        place: GuestPlace,
        /// The address.
        address: IpAddr,
    },
    /// One end has IPv4, the other one IPv6.
    #[error("the guests have the addresses {client} and {server}, of different families")]
    Families {
        /// Of the client.
        client: IpAddr,
        /// Of the server.
        server: IpAddr,
    },
    /// Both ends are at one place.
    #[error("both guests are at {0}; attach two, or one, which is measured against this machine")]
    OnePlace(GuestPlace),
    /// A path names a program where nothing is started, or none.
    #[error("the guest at {place} has the program `{program}`; only ssh starts one, by its path")]
    Program {
        /// Where.
        place: GuestPlace,
        /// The path.
        program: String,
    },
}

impl AttachedSpec {
    /// One or two guests in the order of the command line: the server alone, or client and server.
    pub fn of_guests(guests: &[AttachedGuest]) -> Option<AttachedSpec> {
        let (server, before) = guests.split_last()?;
        Some(AttachedSpec { client: before.first().cloned(), server: server.clone() })
    }

    /// One end; none if it is this machine.
    pub fn guest(&self, side: Side) -> Option<&AttachedGuest> {
        match side {
            Side::Client => self.client.as_ref(),
            Side::Server => Some(&self.server),
        }
    }

    /// Checks what types cannot.
    ///
    /// # Errors
    /// What cannot be meant.
    pub fn check(&self) -> Result<(), AttachedFault> {
        for guest in self.client.iter().chain([&self.server]) {
            guest.check()?;
        }
        let Some(client) = &self.client else { return Ok(()) };
        if client.guest == self.server.guest {
            return Err(AttachedFault::OnePlace(client.guest.clone()));
        }
        match (client.address, self.server.address) {
            (Some(client), Some(server)) if client.is_ipv4() != server.is_ipv4() => {
                Err(AttachedFault::Families { client, server })
            }
            _ => Ok(()),
        }
    }
}

impl AttachedGuest {
    fn check(&self) -> Result<(), AttachedFault> {
        let place = || self.guest.clone();
        let is_ssh = matches!(self.guest, GuestPlace::Ssh(_));
        match self.address {
            None if !is_ssh => return Err(AttachedFault::NoAddress(place())),
            Some(address) if address.is_unspecified() || address.is_multicast() => {
                return Err(AttachedFault::Address { place: place(), address });
            }
            _ => {}
        }
        let is_path = |path: &str| is_ssh && !path.is_empty() && !path.starts_with('-');
        match &self.program {
            Some(program) if !is_path(program) => {
                Err(AttachedFault::Program { place: place(), program: program.clone() })
            }
            _ => Ok(()),
        }
    }
}

/// `socket:/run/a to ssh:b`, with `this machine` for it.
impl fmt::Display for AttachedSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.client {
            Some(client) => write!(f, "{} to {}", client.guest, self.server.guest),
            None => write!(f, "this machine to {}", self.server.guest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_of_a_guest_is_read_as_it_was_written() {
        for text in [
            "ssh:vm",
            "ssh:root@vm",
            "ssh:fe80::1%eth0",
            "socket:/run/vm=1.sock",
            "socket:vm:4444",
            "socket:[fd00::1]:4444",
            "serial:/dev/pts/7",
        ] {
            assert_eq!(text.parse::<GuestPlace>().unwrap().to_string(), text);
        }
        for (text, destination) in [
            ("ssh:root@10.0.0.1:2222", "ssh://root@10.0.0.1:2222"),
            ("ssh:[fd00::1]:22", "ssh://[fd00::1]:22"),
            ("ssh:ssh://u@h:22", "ssh://u@h:22"),
        ] {
            let GuestPlace::Ssh(read) = text.parse().unwrap() else { panic!("{text}") };
            assert_eq!(read.as_str(), destination);
        }
    }

    #[test]
    fn what_names_no_place_is_refused_with_what_to_write() {
        let long = format!("serial:/{}", "x".repeat(PATH_BYTES_MAX));
        for (text, words) in [
            ("", "`` is no place of a guest; write ssh:USER@HOST[:PORT], socket:PATH"),
            ("vm", "`vm` is no place of a guest"),
            ("usb:/dev/x", "is no place of a guest"),
            ("ssh:-oProxyCommand=x", "`-oProxyCommand=x` is no destination for ssh"),
            ("ssh:", "`` is no destination for ssh"),
            ("ssh:-x:22", "no destination for ssh"),
            ("socket:vm", "neither a path from / on nor a host and its port"),
            ("socket:vm:0", "neither a path"),
            ("socket:vm:+1", "neither a path"),
            ("socket:vm:65536", "neither a path"),
            ("socket:a b:1", "neither a path"),
            ("socket:", "neither a path"),
            ("serial:pts", "`serial:pts` has no path from / on"),
            ("serial:/dev/\n", "has no path from / on"),
            (long.as_str(), "has no path from / on"),
        ] {
            let error = text.parse::<GuestPlace>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        let error = "ssh:vm=x".parse::<AttachedGuest>().unwrap_err().to_string();
        assert_eq!(error, "`x` is no IP address; write PLACE or PLACE=ADDRESS");
    }

    fn refused(guests: &[&str]) -> String {
        let guests: Vec<AttachedGuest> = guests.iter().map(|text| text.parse().unwrap()).collect();
        AttachedSpec::of_guests(&guests).unwrap().check().unwrap_err().to_string()
    }

    #[test]
    fn guests_that_cannot_be_meant_are_refused() {
        let good: Vec<AttachedGuest> =
            vec!["socket:/a=192.0.2.1".parse().unwrap(), "ssh:b".parse().unwrap()];
        let spec = AttachedSpec::of_guests(&good).unwrap();
        assert_eq!((spec.check(), spec.to_string()), (Ok(()), "socket:/a to ssh:b".to_string()));
        let alone = AttachedSpec::of_guests(&good[1..]).unwrap();
        assert_eq!(alone.to_string(), "this machine to ssh:b");
        assert_eq!(AttachedSpec::of_guests(&[]), None);
        let text = refused(&["serial:/dev/pts/1"]);
        assert!(text.contains("as in serial:/dev/pts/1=192.0.2.2"), "{text}");
        assert!(refused(&["ssh:a=0.0.0.0"]).contains("0.0.0.0, which is that of no machine"));
        assert!(refused(&["ssh:a=239.0.0.1"]).contains("that of no machine"));
        assert!(refused(&["ssh:a=192.0.2.1", "ssh:b=2001:db8::1"]).contains("different families"));
        assert!(refused(&["ssh:a", "ssh:a"]).starts_with("both guests are at ssh:a; attach two"));
        let program: AttachedSpec = toml::from_str(
            "server.guest='socket:/a'\nserver.address='192.0.2.1'\nserver.program='/x'",
        )
        .unwrap();
        assert!(program.check().unwrap_err().to_string().contains("only ssh starts one"));
        assert!(toml::from_str::<AttachedSpec>("server.guest='x:/a'").is_err());
    }
}
