//! What all binary formats are made of; each format itself is declared by the crate that owns it.
//!
//! Every format is little-endian. A body is a sequence of fields: [`Put`] appends them and
//! [`Reader`] reads them, with a [`DecodeError`] that says which field is wrong. A header has its
//! fields at fixed places, each declared once as a [`Field`]. The codes of an enum are declared
//! with [`codes!`]. There is one checksum, [`crc32c()`], and one hash, [`fnv1a`]. [`Random`] makes
//! examples of what a format has. [`hex`] is for formats that are text.
#![forbid(unsafe_code)]

mod codes;
mod error;
mod field;
mod hash;
pub mod hex;
mod put;
mod random;
mod reader;

pub use error::{DecodeError, DecodeFault};
pub use field::{Field, Number};
pub use hash::{FNV1A, crc32c, crc32c_append, fnv1a, fnv1a_on};
pub use put::Put;
pub use random::Random;
pub use reader::Reader;
