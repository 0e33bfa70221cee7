//! How the ends of a connection of the exchange authenticate each other.
//!
//! A network has one [`Secret`], in a file that all of its nodes read. From it a [`Key`] is derived
//! for each [`Right`], so a client can be given the keys of its own sessions and nothing else. A
//! connection begins with a challenge and a response. Each end sends a random [`Nonce`], and proves
//! by HMAC-SHA256 over both that it has the key ([`Key::prove`]). After that nothing is
//! authenticated or encrypted: whoever can change packets on the way can take over a connection.
#![forbid(unsafe_code)]

mod credentials;
mod file;
mod key;

pub use credentials::{Credentials, CredentialsError, SESSIONS_MAX, Secret};
pub use file::{FILE_BYTES_MAX, FileError, create_private, read_private};
pub use key::{End, Key, NONCE_BYTES, Nonce, Nonces, PROOF_BYTES, Proof, RandomError, Right};
