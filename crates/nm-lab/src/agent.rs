//! Agents: the end that works ([`serve`], [`listen`]) and the end that asks ([`Handle`]), over any
//! byte stream.
//!
//! Every request has one answer, except `cancel`: what it cancels answers for itself, as done or as
//! failed, and nothing answers where there was nothing to cancel.

mod guard;
mod handle;
mod lines;
mod listen;
mod serve;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use nm_model::{Failure, FailureKind};

pub use handle::{Event, Handle};
pub use listen::{Notice, listen};
pub use serve::serve;

/// Version of nearmetal, which both ends tell each other.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Starts a thread that ends by itself.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = std::thread::Builder::new().name(name.to_string()).spawn(work);
    started.map(|_| ()).map_err(|error| {
        Failure::new(FailureKind::System, format!("cannot start a thread for {name}: {error}"))
    })
}

/// Raw samples as they travel: little-endian u32 ns in base64.
fn encode(samples: &[u32]) -> String {
    let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}

/// Reads a block of [`encode`]; none if it is not one.
fn decode(block: &str) -> Option<Vec<u32>> {
    let bytes = BASE64_STANDARD.decode(block).ok()?;
    let (words, rest) = bytes.as_chunks::<4>();
    rest.is_empty().then(|| words.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_travel_unchanged() {
        let samples = vec![0, 1, 4_000, u32::MAX];
        assert_eq!(decode(&encode(&samples)), Some(samples));
        assert_eq!(decode("AAAA"), None);
        assert_eq!(decode("no base64!"), None);
    }
}
