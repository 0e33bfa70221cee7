//! Half round trip of 64 bytes between two threads over shared memory, both spinning, each pinned.
//!
//! A batch is a number of round trips, timed as one; the figure of a round is the median of its
//! batches. Arguments: `--rounds N`, `--cpus A,B`. One line each round: ns. Run by
//! `cargo xtask bench-builds --commit REV`.
#![allow(clippy::print_stdout)]

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nm_ring::memory::RegionMapping;
use nm_ring::{Endpoint, EndpointParts, EndpointRole, TransferError};
use nm_sys::clock::Clock;
use nm_sys::cpu;

const MESSAGE_BYTES: usize = 64;
const ROUND_TRIPS: u64 = 200;
const BATCHES: usize = 1_000;
const LIMIT: Duration = Duration::from_secs(10);

/// Two ends of one region.
fn endpoints() -> [Endpoint<false>; 2] {
    let memory = RegionMapping::new().expect("there is memory for a region");
    let shared = memory.descriptor().try_clone_to_owned().expect("its descriptor can be copied");
    let other = RegionMapping::open(shared).expect("it can be mapped once more");
    let (one_life, other_life) = UnixStream::pair().expect("there is a pair of sockets");
    let end = |memory, life: UnixStream, role| {
        let lifeline = OwnedFd::from(life).into();
        Endpoint::new(EndpointParts { memory, lifeline, role })
    };
    [end(memory, one_life, EndpointRole::Creator), end(other, other_life, EndpointRole::Opener)]
}

fn receive(end: &mut Endpoint<false>, message: &mut [u8]) -> Result<(), TransferError> {
    let mut received = 0;
    while received < message.len() {
        received += end.receive(&mut message[received..], LIMIT)?;
    }
    Ok(())
}

fn send(end: &mut Endpoint<false>, message: &[u8]) {
    let mut sent = 0;
    while sent < message.len() {
        sent += end.send(&message[sent..], LIMIT).expect("the other end receives");
    }
}

/// Sends each message back until the other end is gone.
fn echo(mut end: Endpoint<false>) {
    let mut message = [0; MESSAGE_BYTES];
    while receive(&mut end, &mut message).is_ok() {
        send(&mut end, &message);
    }
}

/// Median of the batches, ns for half a round trip.
fn round(end: &mut Endpoint<false>) -> f64 {
    let clock = Clock::system();
    let mut message = [7; MESSAGE_BYTES];
    let mut batch = || {
        let begin = clock.now();
        for _ in 0..ROUND_TRIPS {
            send(end, &message);
            receive(end, &mut message).expect("the other end answers");
        }
        clock.ns(clock.now().saturating_sub(begin))
    };
    let mut batches: Vec<u64> = (0..BATCHES).map(|_| batch()).collect();
    batches.sort_unstable();
    batches[BATCHES / 2] as f64 / ROUND_TRIPS as f64 / 2.0
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1).cloned()
    };
    let rounds = value("--rounds").map_or(1, |text| text.parse().expect("a number of rounds"));
    let cpus = value("--cpus").unwrap_or("1,0".to_string());
    let (own, other) = cpus.split_once(',').expect("two CPUs");
    let [own, other] = [own, other].map(|text| text.parse::<u32>().expect("a CPU"));
    let [mut one, two] = endpoints();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            cpu::pin_current_thread(other).expect("the process may use the second CPU");
            echo(two);
        });
        cpu::pin_current_thread(own).expect("the process may use the first CPU");
        (0..rounds).for_each(|_| println!("{:.1}", round(&mut one)));
        drop(one);
    });
}
