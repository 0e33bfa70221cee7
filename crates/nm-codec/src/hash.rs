//! Hashes and checksums, the same on every machine.

pub use crc32c::{crc32c, crc32c_append};

/// 64-bit FNV-1a, the same on every machine.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    fnv1a_on(FNV1A, bytes)
}

/// The hash of nothing.
pub const FNV1A: u64 = 0xcbf2_9ce4_8422_2325;

/// The hash of what `hash` is of, and of these bytes behind it.
pub fn fnv1a_on(hash: u64, bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
