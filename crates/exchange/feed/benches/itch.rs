//! Time to write and to read one message of ITCH: the mean of a round of all common types, and of
//! rounds the median. Run by `cargo bench -p nm-feed`.
#![allow(clippy::print_stdout)]

use std::hint::black_box;

use nm_feed::itch::{Body, MESSAGE_BYTES_MAX, Message};
use nm_sys::clock;

const STOCK: [u8; 8] = *b"ACME    ";

/// Messages of a round.
const ROUND: u64 = 200_000;

/// Rounds.
const ROUNDS: usize = 31;

fn body(at: u64) -> Body {
    let (reference, shares, price) = (at, at as u32, at as u32);
    match at % 8 {
        0..=2 => Body::AddOrder { reference, side: b'B', shares, stock: STOCK, price },
        3 | 4 => Body::Delete { reference },
        5 => Body::Executed { reference, shares, match_number: at },
        6 => Body::Replace { original: at, reference, shares, price },
        _ => Body::Cancel { reference, shares },
    }
}

/// Median of the rounds' means, ns.
fn median_ns(mut round: impl FnMut() -> u64) -> f64 {
    let mut means: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begin_ns = clock::monotonic_ns();
            black_box(round());
            (clock::monotonic_ns() - begin_ns) as f64 / ROUND as f64
        })
        .collect();
    means.sort_unstable_by(f64::total_cmp);
    means[ROUNDS / 2]
}

fn main() {
    let messages: Vec<Message> = (0..ROUND)
        .map(|at| Message { locate: 1, tracking: 0, time_ns: at, body: body(at) })
        .collect();
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let write_ns = median_ns(|| {
        messages.iter().map(|message| black_box(message).write(black_box(&mut bytes)) as u64).sum()
    });
    let encoded: Vec<([u8; MESSAGE_BYTES_MAX], usize)> = messages
        .iter()
        .map(|message| {
            let length = message.write(&mut bytes);
            (bytes, length)
        })
        .collect();
    let read_ns = median_ns(|| {
        let read = encoded.iter().map(|(bytes, length)| Message::read(&bytes[..*length]));
        read.map(|message| message.map_or(0, |message| message.time_ns)).sum()
    });
    println!("write {write_ns:.1} ns, read {read_ns:.1} ns a message, medians of {ROUNDS} rounds");
}
