//! Where a replica listens for the other replicas.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where a replica listens: `HOST:PORT` with a numeric host, or `unix:PATH`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err(format!("an address `{text}` has no path")),
            Some(path) => Ok(Address::Unix(path.into())),
            None => text.parse().map(Address::Tcp).map_err(|_| {
                format!("`{text}` is no address: it is like `127.0.0.1:5001` or `unix:/run/node`")
            }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A socket that listens, without blocking.
#[derive(Debug)]
pub enum BoundSocket {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

impl BoundSocket {
    /// Listens. What a killed predecessor left at a Unix path is replaced.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind(address: &Address) -> io::Result<BoundSocket> {
        match address {
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(BoundSocket::Tcp(listener))
            }
            Address::Unix(path) => bind_unix(path).map(BoundSocket::Unix),
        }
    }
}

/// Listens at a path that nobody listens at.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if UnixStream::connect(path).is_err() {
        let _ = std::fs::remove_file(path);
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["127.0.0.1:5001", "[::1]:80", "unix:/tmp/a node"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "shm:/tmp/b", "localhost:80", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
