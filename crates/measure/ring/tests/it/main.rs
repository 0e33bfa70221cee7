//! Endpoints in one process and in two: compared with a model, with a hostile peer, and with a
//! killed peer.

#![cfg(not(loom))]

mod hostile;
mod model;
mod pipe;
mod processes;

use nm_ring::memory::RegionMapping;
use nm_ring::{Endpoint, EndpointParts, EndpointRole};

/// The parts of both endpoints of a new region.
fn endpoint_parts() -> (EndpointParts, EndpointParts) {
    let first = RegionMapping::new().unwrap();
    let descriptor = first.descriptor().try_clone_to_owned().unwrap();
    let second = RegionMapping::open(descriptor).unwrap();
    let (a, b) = nm_sys::socket::unix_pair().unwrap();
    (
        EndpointParts { memory: first, lifeline: a.into(), role: EndpointRole::Creator },
        EndpointParts { memory: second, lifeline: b.into(), role: EndpointRole::Opener },
    )
}

/// Two endpoints in this process.
fn ends<const A: bool, const B: bool>() -> (Endpoint<A>, Endpoint<B>) {
    let (first, second) = endpoint_parts();
    (Endpoint::new(first), Endpoint::new(second))
}
