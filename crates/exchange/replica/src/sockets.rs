//! Connections of this machine's network, and what stands for them in a simulation.

use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::time::Duration;

use nm_sys::{bind, unix};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::address::Address;

/// How long an address is waited for: a large process that was killed has it for a while.
const BIND_LIMIT: Duration = Duration::from_secs(3);

/// A TCP peer that has been silent for so long is probed; one that acknowledges nothing for twice
/// as long is taken for dead.
const SILENCE: Duration = Duration::from_secs(2);

/// What carries a connection.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> ByteStream for T {}

/// What comes of an operation of the network later.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// Accepts the connections of other replicas.
pub trait Listener: Send + Sync {
    /// The next connection.
    ///
    /// # Errors
    /// The system's error.
    fn accept(&self) -> Pending<'_, Box<dyn ByteStream>>;
}

/// Connects to an address of this machine's network.
pub fn connect(address: &Address) -> Pending<'_, Box<dyn ByteStream>> {
    Box::pin(async move {
        Ok(match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                configure(&stream)?;
                Box::new(stream) as Box<dyn ByteStream>
            }
            Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
        })
    })
}

/// Listens on this machine's network. What a killed predecessor left at a Unix path is replaced,
/// and one that is about to be gone is waited for.
///
/// # Errors
/// What the system says.
pub fn listen(address: &Address) -> io::Result<Box<dyn Listener>> {
    match address {
        Address::Tcp(address) => {
            let bind = || std::net::TcpListener::bind(address);
            let listener = bind::patiently(BIND_LIMIT, bind)?;
            listener.set_nonblocking(true)?;
            Ok(Box::new(TcpListener::from_std(listener)?))
        }
        Address::Unix(path) => {
            Ok(Box::new(UnixListener::from_std(bind::patiently(BIND_LIMIT, || {
                unix::listen(path)
            })?)?))
        }
    }
}

impl Listener for TcpListener {
    fn accept(&self) -> Pending<'_, Box<dyn ByteStream>> {
        Box::pin(async {
            let (stream, _) = TcpListener::accept(self).await?;
            configure(&stream)?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}

impl Listener for UnixListener {
    fn accept(&self) -> Pending<'_, Box<dyn ByteStream>> {
        Box::pin(async {
            let (stream, _) = UnixListener::accept(self).await?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}

/// Small messages at once; and a host that has vanished is noticed.
fn configure(stream: &TcpStream) -> io::Result<()> {
    nm_sys::socket::set_peer_timeout(stream.as_fd(), SILENCE)?;
    stream.set_nodelay(true)
}
