//! The connecting end of a connection.

use std::time::Duration;

use nm_model::capability::stack_obstacle;
use nm_model::stack::Stack;

use crate::carrier::AnyEnd;
use crate::carrier::interface::Destination;
use crate::connection::Connection;
use crate::connection_error::ConnectionError;
use crate::sockets::Options;

/// Connects to a listener's address. `local` is this end's own IP address: multicast leaves by its
/// interface.
///
/// # Errors
/// See [`ConnectionError`], such as that nobody listens there.
pub fn connect(
    stack: Stack,
    address: &str,
    local: &str,
    options: &Options,
    limit: Duration,
) -> Result<Connection, ConnectionError> {
    if let Some(obstacle) = stack_obstacle(&stack) {
        return Err(obstacle.into());
    }
    let end = AnyEnd::connect(&Destination { stack, address, local, options, limit })?;
    Ok(Connection::new(stack, end))
}
