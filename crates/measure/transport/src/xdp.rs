//! Endpoints over AF_XDP: datagrams (`udp`) and TCP segments (`tcp`) are sent and received as
//! complete Ethernet frames, past the kernel's network stack. `endpoint` is what both use.
//!
//! A kernel socket is bound to the same address and port, so that no other program gets it.

pub(crate) mod endpoint;
pub(crate) mod engine;
pub mod error;
mod neighbour;
pub(crate) mod tcp;
pub(crate) mod udp;
