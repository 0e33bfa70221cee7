//! Two ends in one process and in two: against a model, against a hostile peer, and to the death.

#![cfg(not(loom))]

mod hostile;
mod model;
mod pipe;
mod processes;

use nm_ring::memory::Memory;
use nm_ring::{End, Joint, Which};

/// Both ends of fresh memory, not yet in use.
fn joints() -> (Joint, Joint) {
    let first = Memory::new().unwrap();
    let descriptor = first.descriptor().try_clone_to_owned().unwrap();
    let second = Memory::open(descriptor).unwrap();
    let (a, b) = nm_sys::socket::unix_pair().unwrap();
    (
        Joint { memory: first, lifeline: a, which: Which::First },
        Joint { memory: second, lifeline: b, which: Which::Second },
    )
}

/// Two ends in this process.
fn ends<const A: bool, const B: bool>() -> (End<A>, End<B>) {
    let (first, second) = joints();
    (End::new(first), End::new(second))
}
