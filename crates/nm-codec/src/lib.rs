//! The ground of all binary formats: reading fields from bytes, checksums and hashes.
//!
//! Every format is little-endian. What a format consists of is known by the crate that owns it;
//! here is only how its fields are read ([`Fields`]), and the one checksum ([`crc32c()`]) and the
//! one hash ([`fnv1a`]) that all of them use.
#![forbid(unsafe_code)]

mod fields;
mod hash;

pub use fields::{Fields, Meaningless};
pub use hash::{FNV1A, crc32c, crc32c_append, fnv1a, fnv1a_on};
