//! Keys, and the proofs that one has them.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;
use thiserror::Error;

/// Bytes of a [`Nonce`].
pub const NONCE_BYTES: usize = 32;

/// Bytes of a [`Proof`].
pub const PROOF_BYTES: usize = 32;

/// Begins every authenticated text: a proof means nothing to another protocol or version.
const CONTEXT: &[u8] = b"nearmetal exchange handshake 1";

/// What the holder of a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// Be a node of the network, or a replica of its groups.
    Node,
    /// Change the network: assign instruments, halt trading (session 0).
    Operator,
    /// Ask for the state of the network.
    Observer,
    /// Trade as this session.
    Session(u32),
}

impl Right {
    /// The right to a session; session 0 is the operator's.
    pub fn of_session(session: u32) -> Right {
        if session == 0 { Right::Operator } else { Right::Session(session) }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Right::Node => f.write_str("node"),
            Right::Operator => f.write_str("operator"),
            Right::Observer => f.write_str("observer"),
            Right::Session(session) => write!(f, "session {session}"),
        }
    }
}

/// The system has no random numbers.
#[derive(Debug, Error)]
#[error("the system gives no random numbers: {0}")]
pub struct RandomError(#[from] std::io::Error);

/// A random number that is used once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nonce(pub [u8; NONCE_BYTES]);

impl Nonce {
    /// A new one, from the system's source of random numbers.
    ///
    /// # Errors
    /// If there are none.
    pub fn random() -> Result<Nonce, RandomError> {
        Ok(Nonce(nm_sys::random::bytes()?))
    }
}

/// Both nonces of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nonces {
    /// That of the end that accepted it, the challenge.
    pub acceptor: Nonce,
    /// That of the end that connected.
    pub connector: Nonce,
}

/// Which end of a connection proves: a proof of one end is none of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The end that connected.
    Connector,
    /// The end that accepted the connection.
    Acceptor,
}

/// A proof that an end has a key.
#[derive(Debug, Clone, Copy)]
pub struct Proof(pub [u8; PROOF_BYTES]);

/// A key, which is never printed.
#[derive(Clone, Copy)]
pub struct Key(pub(crate) [u8; 32]);

impl Key {
    /// The key that belongs to a text under a secret.
    pub(crate) fn derive(secret: &[u8], name: &[u8]) -> Key {
        let mut mac = mac(secret);
        mac.update(name);
        Key(mac.finalize().into_bytes().into())
    }

    /// The proof of an end that claims to be somebody.
    pub fn prove(&self, end: End, nonces: &Nonces, claim: &[u8]) -> Proof {
        Proof(self.mac_of(end, nonces, claim).finalize().into_bytes().into())
    }

    /// Whether the other end has this key, compared in constant time.
    pub fn verify(&self, end: End, nonces: &Nonces, claim: &[u8], proof: &Proof) -> bool {
        self.mac_of(end, nonces, claim).verify_slice(&proof.0).is_ok()
    }

    fn mac_of(&self, end: End, nonces: &Nonces, claim: &[u8]) -> Hmac<Sha256> {
        let mut mac = mac(&self.0);
        mac.update(CONTEXT);
        mac.update(match end {
            End::Connector => b"c",
            End::Acceptor => b"a",
        });
        mac.update(&nonces.acceptor.0);
        mac.update(&nonces.connector.0);
        mac.update(claim);
        mac
    }
}

fn mac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

impl PartialEq for Key {
    /// In constant time.
    fn eq(&self, other: &Key) -> bool {
        self.0.iter().zip(other.0).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }
}

impl Eq for Key {}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nonces_differ() {
        assert_ne!(Nonce::random().unwrap(), Nonce::random().unwrap());
    }

    #[test]
    fn a_key_is_not_printed() {
        assert_eq!(format!("{:?}", Key([0xab; 32])), "Key");
    }

    /// RFC 4231, test case 2.
    #[test]
    fn keys_are_derived_by_hmac_sha256() {
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        let derived = Key::derive(b"Jefe", b"what do ya want for nothing?");
        let hex: String = derived.0.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected);
    }

    proptest! {
        #[test]
        fn a_proof_holds_for_its_key_end_nonces_and_claim_only(
            key: [u8; 32], other: [u8; 32], acceptor: [u8; 32], connector: [u8; 32],
            claim: Vec<u8>, bit in 0_usize..256,
        ) {
            let key = Key(key);
            let nonces = Nonces { acceptor: Nonce(acceptor), connector: Nonce(connector) };
            let proof = key.prove(End::Connector, &nonces, &claim);
            prop_assert!(key.verify(End::Connector, &nonces, &claim, &proof));
            prop_assert!(!key.verify(End::Acceptor, &nonces, &claim, &proof));
            if Key(other) != key {
                prop_assert!(!Key(other).verify(End::Connector, &nonces, &claim, &proof));
            }
            let flipped = |mut bytes: [u8; 32]| {
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes
            };
            let replayed = Nonces { acceptor: Nonce(flipped(acceptor)), ..nonces };
            prop_assert!(!key.verify(End::Connector, &replayed, &claim, &proof));
            let replayed = Nonces { connector: Nonce(flipped(connector)), ..nonces };
            prop_assert!(!key.verify(End::Connector, &replayed, &claim, &proof));
            let forged = Proof(flipped(proof.0));
            prop_assert!(!key.verify(End::Connector, &nonces, &claim, &forged));
            let longer = [&claim[..], b"x"].concat();
            prop_assert!(!key.verify(End::Connector, &nonces, &longer, &proof));
        }
    }
}
