//! Addresses as text: the wire format of where a listener can be reached.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// Why a text is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It is in none of the forms of [`Address`].
    #[error("`{text}` is not an address: {field} is wrong")]
    Address {
        /// The text.
        text: String,
        /// The part that is wrong.
        field: &'static str,
    },
    /// It is not an IP address, with or without port.
    #[error("`{0}` is not an IP address")]
    Ip(String),
}

/// Where a listener can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// TCP or UDP.
    Socket(SocketAddr),
    /// Unix socket by an abstract name (unix(7)): no file, and gone with its owner.
    Abstract(String),
    /// Unix socket by path.
    Path(PathBuf),
    /// Multicast group with the port of the listener, and the port of the replies.
    Group(SocketAddr, u16),
    /// UDP by AF_XDP.
    Xdp(SocketAddr),
    /// Shared memory: a process and its descriptor of the socket that hands it over.
    Descriptor(u32, u32),
    /// Shared memory of two guests: a part of the memory of the device that both have, and the
    /// token of who listens there.
    Window(u32, u32),
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let wrong = |field| AddressError::Address { text: text.to_string(), field };
        if let Some(name) = text.strip_prefix("unix:@") {
            return match name {
                "" => Err(wrong("the name")),
                _ => Ok(Address::Abstract(name.to_string())),
            };
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err(wrong("the path")),
                _ => Ok(Address::Path(path.into())),
            };
        }
        if let Some(rest) = text.strip_prefix("mcast:") {
            let (group, reply_port) = rest.split_once('/').ok_or(wrong("the reply port"))?;
            let group: SocketAddr = group.parse().map_err(|_| wrong("the group"))?;
            let reply_port = reply_port.parse().map_err(|_| wrong("the reply port"))?;
            return match group.ip().is_multicast() {
                true => Ok(Address::Group(group, reply_port)),
                false => Err(wrong("the group")),
            };
        }
        if let Some(address) = text.strip_prefix("xdp:") {
            return address.parse().map(Address::Xdp).map_err(|_| wrong("the IP address or port"));
        }
        if let Some(rest) = text.strip_prefix("shm:") {
            let (process, descriptor) = rest.split_once('/').ok_or(wrong("the descriptor"))?;
            let process = process.parse().map_err(|_| wrong("the process"))?;
            let descriptor = descriptor.parse().map_err(|_| wrong("the descriptor"))?;
            return Ok(Address::Descriptor(process, descriptor));
        }
        if let Some(rest) = text.strip_prefix("ivshmem:") {
            let (window, token) = rest.split_once('/').ok_or(wrong("the token"))?;
            let window = window.parse().map_err(|_| wrong("the window"))?;
            return Ok(Address::Window(window, token.parse().map_err(|_| wrong("the token"))?));
        }
        text.parse().map(Address::Socket).map_err(|_| wrong("the IP address or port"))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Socket(address) => write!(f, "{address}"),
            Address::Abstract(name) => write!(f, "unix:@{name}"),
            Address::Path(path) => write!(f, "unix:{}", path.display()),
            Address::Group(group, reply_port) => write!(f, "mcast:{group}/{reply_port}"),
            Address::Xdp(address) => write!(f, "xdp:{address}"),
            Address::Descriptor(process, descriptor) => write!(f, "shm:{process}/{descriptor}"),
            Address::Window(window, token) => write!(f, "ivshmem:{window}/{token}"),
        }
    }
}

/// Reads an address to listen on: `127.0.0.1`, `127.0.0.1:4000`, `::1`, `[::1]` or `[::1]:4000`.
/// The port is 0, the kernel's choice, where none is given.
///
/// # Errors
/// [`AddressError::Ip`] for anything else; names are not resolved.
pub fn local(text: &str) -> Result<SocketAddr, AddressError> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    text.parse()
        .or_else(|_| bare.parse().map(|ip: IpAddr| SocketAddr::new(ip, 0)))
        .map_err(|_| AddressError::Ip(text.to_string()))
}

/// A random multicast group: administratively scoped, or for this machine only where `interface` is
/// its loopback.
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
    fn addresses_round_trip_through_their_text() {
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
            let error = text.parse::<Address>().unwrap_err();
            assert!(matches!(error, AddressError::Address { .. }), "{text}");
        }
    }

    #[test]
    fn local_address_may_omit_the_port() {
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
    fn random_groups_are_multicast_and_differ() {
        for ip in ["127.0.0.1", "::1", "10.0.0.1", "fe80::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            assert!(random_group(ip).is_multicast());
            assert_ne!(random_group(ip), random_group(ip));
        }
        assert_ne!(random_name(), random_name());
    }

    fn any_address() -> impl Strategy<Value = Address> {
        let socket =
            (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port));
        let group = (any::<[u8; 3]>(), any::<u16>())
            .prop_map(|([a, b, c], port)| SocketAddr::from(([239, a, b, c], port)));
        prop_oneof![
            socket.clone().prop_map(Address::Socket),
            socket.prop_map(Address::Xdp),
            "[a-z0-9-]{1,20}".prop_map(Address::Abstract),
            "/[a-z0-9/]{0,20}".prop_map(|path| Address::Path(path.into())),
            (group, any::<u16>()).prop_map(|(group, port)| Address::Group(group, port)),
            any::<(u32, u32)>().prop_map(|(process, fd)| Address::Descriptor(process, fd)),
            any::<(u32, u32)>().prop_map(|(window, token)| Address::Window(window, token)),
        ]
    }

    proptest! {
        #[test]
        fn any_address_round_trips(address in any_address()) {
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }

        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "\\PC{0,40}") {
            let _ = (text.parse::<Address>(), local(&text));
        }
    }
}
