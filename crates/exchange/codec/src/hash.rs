//! Checksums and hashes, the same on every machine.

pub use crc32c::{crc32c, crc32c_append};

/// The FNV-1a hash of no bytes.
pub const FNV1A: u64 = 0xcbf2_9ce4_8422_2325;

/// 64-bit FNV-1a hash.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    fnv1a_on(FNV1A, bytes)
}

/// The hash of the bytes that `hash` is of, followed by these.
pub fn fnv1a_on(hash: u64, bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
