//! Addresses as text.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use nm_model::{Failure, FailureKind};

/// Where a listener can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// TCP or UDP.
    Socket(SocketAddr),
    /// Unix socket by a name that is no file and ends with its owner (Linux's abstract names).
    Abstract(String),
    /// Unix socket by path.
    Path(PathBuf),
    /// Multicast group with the port to the listener, and the port back.
    Group(SocketAddr, u16),
    /// UDP by AF_XDP.
    Xdp(SocketAddr),
    /// Shared memory: a process and its descriptor of the socket that hands it over.
    Descriptor(u32, u32),
}

impl FromStr for Address {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Address, Failure> {
        let wrong = || {
            Failure::new(FailureKind::BadRequest, format!("`{text}` is not an address")).hint(
                "write 127.0.0.1:4000, [::1]:4000, unix:@NAME, unix:/PATH, mcast:GROUP:PORT/PORT \
                 xdp:10.0.0.1:4000 or shm:PID/FD",
            )
        };
        if let Some(name) = text.strip_prefix("unix:@") {
            return match name {
                "" => Err(wrong()),
                _ => Ok(Address::Abstract(name.to_string())),
            };
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err(wrong()),
                _ => Ok(Address::Path(path.into())),
            };
        }
        if let Some(group) = text.strip_prefix("mcast:") {
            let (there, back) = group.split_once('/').ok_or_else(wrong)?;
            let there: SocketAddr = there.parse().map_err(|_| wrong())?;
            let back = back.parse().map_err(|_| wrong())?;
            return match there.ip().is_multicast() {
                true => Ok(Address::Group(there, back)),
                false => Err(wrong()),
            };
        }
        if let Some(address) = text.strip_prefix("xdp:") {
            return address.parse().map(Address::Xdp).map_err(|_| wrong());
        }
        if let Some(place) = text.strip_prefix("shm:") {
            let (process, descriptor) = place.split_once('/').ok_or_else(wrong)?;
            let number = |text: &str| text.parse().map_err(|_| wrong());
            return Ok(Address::Descriptor(number(process)?, number(descriptor)?));
        }
        text.parse().map(Address::Socket).map_err(|_| wrong())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Socket(address) => write!(f, "{address}"),
            Address::Abstract(name) => write!(f, "unix:@{name}"),
            Address::Path(path) => write!(f, "unix:{}", path.display()),
            Address::Group(there, back) => write!(f, "mcast:{there}/{back}"),
            Address::Xdp(address) => write!(f, "xdp:{address}"),
            Address::Descriptor(process, descriptor) => write!(f, "shm:{process}/{descriptor}"),
        }
    }
}

/// Reads an address to listen on: `127.0.0.1`, `127.0.0.1:4000`, `::1`, `[::1]` or `[::1]:4000`.
/// The port is 0, the kernel's choice, where none is given.
///
/// # Errors
/// A sentence for anything else; names are not looked up.
pub fn local(text: &str) -> Result<SocketAddr, Failure> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    text.parse().or_else(|_| bare.parse().map(|ip: IpAddr| SocketAddr::new(ip, 0))).map_err(|_| {
        Failure::new(FailureKind::BadRequest, format!("`{text}` is not an IP address"))
            .hint("write 127.0.0.1, 127.0.0.1:4000, ::1 or [::1]:4000")
    })
}

/// A group that nobody else is likely to use: administratively scoped, or for this machine only
/// where `interface` is its loopback.
pub fn random_group(interface: IpAddr) -> IpAddr {
    let bits = random();
    match interface {
        IpAddr::V4(_) => {
            let [_, _, _, _, _, b, c, d] = bits.to_be_bytes();
            Ipv4Addr::new(239, b, c, d).into()
        }
        IpAddr::V6(interface) => {
            // Scope 1 never leaves the interface, scope 5 never the site; 1 in the flags:
            // transient.
            let first = if interface.is_loopback() { 0xff11 } else { 0xff15 };
            let [a, b, c, d] = [bits >> 48, bits >> 32, bits >> 16, bits].map(|part| part as u16);
            Ipv6Addr::new(first, 0, 0, 0, a, b, c, d).into()
        }
    }
}

/// A name for an abstract Unix socket that cannot be guessed.
pub fn random_name() -> String {
    format!("nearmetal-{}-{:016x}", std::process::id(), random())
}

/// Random bits from the keys that the standard library takes from the system.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_read_back_from_their_text() {
        for text in [
            "127.0.0.1:4000",
            "[::1]:4000",
            "unix:@nearmetal-1-ab",
            "unix:/tmp/x",
            "mcast:239.1.2.3:4000/4001",
            "mcast:[ff15::1]:4000/4001",
            "xdp:10.0.0.1:4000",
            "xdp:[fd00::1]:4000",
            "shm:4000/5",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "localhost",
            "unix:",
            "unix:@",
            "mcast:10.0.0.1:1/2",
            "mcast:239.0.0.1:1",
            "xdp:1",
            "shm:1",
            "shm:1/../2",
        ] {
            let failure = text.parse::<Address>().unwrap_err();
            assert_eq!(failure.kind, FailureKind::BadRequest, "{text}");
        }
    }

    #[test]
    fn a_local_address_may_leave_out_the_port() {
        for (text, address) in [
            ("127.0.0.1", "127.0.0.1:0"),
            ("127.0.0.1:7", "127.0.0.1:7"),
            ("::1", "[::1]:0"),
            ("[::1]", "[::1]:0"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(local(text).unwrap().to_string(), address);
        }
        assert!(local("localhost").is_err());
    }

    #[test]
    fn groups_are_multicast_and_differ() {
        for ip in ["127.0.0.1", "::1", "10.0.0.1", "fe80::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            assert!(random_group(ip).is_multicast());
            assert_ne!(random_group(ip), random_group(ip));
        }
        assert_ne!(random_name(), random_name());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "\\PC{0,40}") {
            let _ = (text.parse::<Address>(), local(&text));
        }
    }
}
