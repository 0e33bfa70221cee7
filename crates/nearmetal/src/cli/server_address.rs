//! The address of a stand-alone server: `ADDRESS`, `HOST`, and either with `:PORT`.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// A server's address, and its port if it is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    /// Host name or IP address.
    pub host: String,
    /// Port, if it is part of the text.
    pub port: Option<u16>,
}

/// Why a text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("`{0}` has no host; write HOST, ADDRESS, HOST:PORT or [IPV6]:PORT")]
    NoHost(String),
    #[error("`{port}` in `{text}` is not a port from 1 to 65535")]
    Port { text: String, port: String },
    #[error("`{0}` is not an IPv6 address; write [IPV6]:PORT")]
    NotIpv6(String),
    #[error("`{0}` may hold letters, digits, `-`, `_` and `.`, as host names do")]
    Letters(String),
}

impl FromStr for ServerAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<ServerAddress, AddressError> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(ServerAddress { host: address.to_string(), port: None });
        }
        if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) =
                rest.split_once(']').ok_or_else(|| AddressError::NotIpv6(text.to_string()))?;
            if !host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()) {
                return Err(AddressError::NotIpv6(text.to_string()));
            }
            let port = match rest {
                "" => None,
                rest => Some(port(text, rest.strip_prefix(':').unwrap_or(rest))?),
            };
            return Ok(ServerAddress { host: host.to_string(), port });
        }
        let (host, port) = match text.split_once(':') {
            None => (text, None),
            Some((_, rest)) if rest.contains(':') => {
                return Err(AddressError::NotIpv6(text.to_string()));
            }
            Some((host, digits)) => (host, Some(port(text, digits)?)),
        };
        if host.is_empty() {
            return Err(AddressError::NoHost(text.to_string()));
        }
        if !host.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c)) {
            return Err(AddressError::Letters(host.to_string()));
        }
        Ok(ServerAddress { host: host.to_string(), port })
    }
}

fn port(text: &str, digits: &str) -> Result<u16, AddressError> {
    let refused = || AddressError::Port { text: text.to_string(), port: digits.to_string() };
    digits.parse().ok().filter(|port| *port != 0).ok_or_else(refused)
}

/// The host, without the port.
impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.host)
    }
}

impl ServerAddress {
    /// The text that names this host and a port.
    pub fn with_port(&self, port: u16) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{port}", self.host),
            false => format!("{}:{port}", self.host),
        }
    }

    /// The IP addresses of the host, each with `port`, in the order in which they are to be tried.
    ///
    /// # Errors
    /// If the host is unknown.
    pub fn resolve(&self, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok((self.host.as_str(), port).to_socket_addrs()?.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_addresses_are_read_with_and_without_port() {
        for (text, host, port) in [
            ("192.0.2.1", "192.0.2.1", None),
            ("192.0.2.1:4811", "192.0.2.1", Some(4811)),
            ("2001:db8::1", "2001:db8::1", None),
            ("[2001:db8::1]", "2001:db8::1", None),
            ("[2001:db8::1]:80", "2001:db8::1", Some(80)),
            ("host-2.example", "host-2.example", None),
            ("localhost:9", "localhost", Some(9)),
        ] {
            let address: ServerAddress = text.parse().unwrap();
            assert_eq!((address.host.as_str(), address.port), (host, port), "{text}");
            let with_port: ServerAddress = address.with_port(7).parse().unwrap();
            assert_eq!((with_port.host.as_str(), with_port.port), (host, Some(7)), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_with_the_reason() {
        for (text, why) in [
            ("", "has no host"),
            (":80", "has no host"),
            ("host:", "is not a port from 1 to 65535"),
            ("host:0", "`0` in `host:0` is not a port"),
            ("host:70000", "is not a port"),
            ("[::1", "[IPV6]:PORT"),
            ("[::1]80x", "is not a port"),
            ("[host]:80", "is not an IPv6 address"),
            ("1:2:3", "is not an IPv6 address"),
            ("a b", "as host names do"),
        ] {
            let error = text.parse::<ServerAddress>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn an_address_resolves_to_itself() {
        let address: ServerAddress = "127.0.0.1".parse().unwrap();
        assert_eq!(address.resolve(7).unwrap(), ["127.0.0.1:7".parse().unwrap()]);
    }
}
