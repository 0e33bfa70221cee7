//! Where a node listens.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// Where a node listens: `HOST:PORT` with a numeric host, `unix:PATH`, or `shm:PATH`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
    /// A Unix socket over which shared memory is handed over.
    Shm(PathBuf),
}

/// Why a text is not an [`Address`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddressError {
    /// The path is missing.
    #[error("the address `{0}` has no path")]
    NoPath(String),
    /// It has none of the three forms.
    #[error(
        "`{0}` is not an address: expected one such as `127.0.0.1:5001`, `unix:/run/node` or \
         `shm:/run/node`"
    )]
    UnknownForm(String),
    /// Replicas do not use shared memory.
    #[error(
        "`{0}` is not an address of a replica: expected one such as `127.0.0.1:5001` or \
             `unix:/run/node`"
    )]
    NotOfReplica(String),
}

impl TryFrom<Address> for nm_replica::Address {
    type Error = AddressError;

    fn try_from(address: Address) -> Result<nm_replica::Address, AddressError> {
        match address {
            Address::Tcp(address) => Ok(nm_replica::Address::Tcp(address)),
            Address::Unix(path) => Ok(nm_replica::Address::Unix(path)),
            Address::Shm(_) => Err(AddressError::NotOfReplica(address.to_string())),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let path = |path: &str| match path {
            "" => Err(AddressError::NoPath(text.to_string())),
            path => Ok(PathBuf::from(path)),
        };
        match (text.strip_prefix("unix:"), text.strip_prefix("shm:")) {
            (Some(rest), _) => path(rest).map(Address::Unix),
            (_, Some(rest)) => path(rest).map(Address::Shm),
            _ => match text.parse() {
                Ok(address) => Ok(Address::Tcp(address)),
                Err(_) => Err(AddressError::UnknownForm(text.to_string())),
            },
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Shm(path) => write!(f, "shm:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_parsed_as_it_is_printed() {
        for text in ["127.0.0.1:5001", "[::1]:80", "unix:/tmp/a node", "shm:/tmp/b"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "shm:", "localhost:80", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_replica_listens_at_an_address_of_a_kernel_socket() {
        let of_replica =
            |text: &str| nm_replica::Address::try_from(text.parse::<Address>().unwrap());
        for text in ["127.0.0.1:5001", "[::1]:80", "unix:/tmp/a node"] {
            assert_eq!(of_replica(text).unwrap().to_string(), text);
        }
        let refused = of_replica("shm:/tmp/b").unwrap_err();
        assert_eq!(refused, AddressError::NotOfReplica("shm:/tmp/b".to_string()));
    }
}
