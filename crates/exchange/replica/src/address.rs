//! Where a replica listens for the other replicas.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use nm_sys::unix;

/// Where a replica listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
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
    /// On the simulated network.
    #[cfg(test)]
    Simulated(crate::simulated_network::Listener),
}

impl BoundSocket {
    /// Listens. What a killed predecessor left at a Unix path is replaced.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind(address: &Address) -> io::Result<BoundSocket> {
        #[cfg(test)]
        if let Some(listener) = crate::simulated_network::Listener::bind(&address.to_string()) {
            return Ok(BoundSocket::Simulated(listener));
        }
        match address {
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(BoundSocket::Tcp(listener))
            }
            Address::Unix(path) => unix::listen(path).map(BoundSocket::Unix),
        }
    }
}
