//! The conformance suite: each behaviour of TCP sockets that a program can observe has one body. It
//! runs three times:
//!
//! - without the library (`kernel::`), which validates the expectation;
//! - with it (`accelerated::`);
//! - with it on one CPU (`accelerated_on_one_cpu::`), where a thread that waits must give way to
//!   one that sends.
//!
//! A body runs in a process of its own, see [`harness`].

#[macro_use]
mod bodies;

mod calls;
mod children;
mod costs;
mod harness;
mod model;
mod spaces;
mod support;
mod ways;

#[cfg(target_arch = "x86_64")]
mod any_instruction;
mod atomicity;
mod cancellation;
mod data;
mod descriptors;
mod ends;
mod epoll;
mod foreign;
mod forks;
mod harms;
mod hostile;
mod joining;
mod limits;
mod network;
mod options;
mod passing;
mod past;
mod processes;
mod ready;
mod sets;
mod sharing;
mod signals;
mod soak;
mod system_calls;
mod threads;
mod times;
mod volume;
mod waits;
mod worth;

/// Every body, for the process that runs one of them.
const BODIES: &[&[harness::Body]] = &[
    #[cfg(target_arch = "x86_64")]
    any_instruction::PEERS,
    children::BODIES,
    cancellation::BODIES,
    costs::PEERS,
    data::BODIES,
    descriptors::BODIES,
    ends::BODIES,
    epoll::BODIES,
    foreign::BODIES,
    foreign::PEERS,
    forks::BODIES,
    harms::BODIES,
    hostile::BODIES,
    hostile::PEERS,
    joining::BODIES,
    limits::BODIES,
    limits::PEERS,
    network::BODIES,
    network::PEERS,
    options::BODIES,
    passing::BODIES,
    past::BODIES,
    processes::BODIES,
    processes::PEERS,
    ready::BODIES,
    sets::BODIES,
    sharing::BODIES,
    sharing::PEERS,
    signals::BODIES,
    soak::PEERS,
    system_calls::BODIES,
    threads::BODIES,
    times::BODIES,
    volume::BODIES,
    waits::BODIES,
    worth::PEERS,
    atomicity::BODIES,
];

/// Before `main`: runs a body, if this process was started for one.
extern "C" fn start() {
    harness::start(BODIES);
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
