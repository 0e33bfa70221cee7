//! What is the same for all classes of nodes. It is the event loop, links and their handshakes,
//! limits, and reports to the process that started the node.

pub mod accepted;
mod acceptor;
pub mod authenticator;
pub mod behaviour;
pub mod clocks;
pub mod connector;
pub mod event;
pub mod event_loop;
pub mod event_queue;
#[cfg(feature = "next-format")]
mod greeting;
pub mod groups;
mod heartbeat;
pub mod limits;
pub mod links;
pub mod membership;
pub mod peer;
mod peer_format;
mod sockets;
pub mod turns;
pub mod warnings;
pub mod writes;
