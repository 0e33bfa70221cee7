//! The first frame of the end that accepted a link, where the network has a secret.

use nm_auth::Nonce;

crate::message! {
    /// A random number that whoever connects must answer with its `Hello`, where the network has a
    /// secret.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Challenge;
    head {}
    tail {
        /// The number.
        nonce: Nonce,
    }
}
