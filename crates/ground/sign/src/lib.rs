//! Keys and signatures that minisign reads and writes as well.
//!
//! A [`SecretKey`] signs bytes, and its [`PublicKey`] checks them. All are texts of a few lines.
//! Nothing here does I/O: whoever makes a key brings the randomness.

#![forbid(unsafe_code)]

mod key;
mod lines;
mod signature;

pub use key::{KeyError, KeyId, PublicKey, SecretKey};
pub use signature::{SignatureError, TEXT_BYTES_MAX};
