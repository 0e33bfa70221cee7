//! Socket options of the TCP connection between an agent and its controller.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;

/// Sends small messages at once, and detects a dead peer: after about half a minute without a sign
/// of the other machine, reads and writes fail.
///
/// # Errors
/// Those of setsockopt(2).
pub fn configure(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    sockopt::set_tcp_user_timeout(stream, 30_000)?;
    Ok(())
}
