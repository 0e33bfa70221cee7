//! The two keys of a signer.

use std::fmt;

use blake2::digest::consts::U32;
use blake2::{Blake2b, Digest};
use ed25519_dalek::{Signer, SigningKey, VerifyingKey};

use crate::lines::{UNTRUSTED, bytes, part, text};

/// Ed25519, as keys name it.
const ALGORITHM: [u8; 2] = *b"Ed";

/// The checksum of a secret key: BLAKE2b.
const CHECKSUM: [u8; 2] = *b"B2";

/// The key is not protected by a password.
const NO_PASSWORD: [u8; 2] = [0, 0];

/// Bytes of a public key: algorithm, id, key.
const PUBLIC_BYTES: usize = 2 + 8 + 32;

/// Bytes of a secret key: three algorithms, salt and limits of the password, id, key, checksum.
const SECRET_BYTES: usize = 6 + 32 + 8 + 8 + 8 + 64 + 32;

/// Where the id of a secret key begins.
const ID_AT: usize = 6 + 32 + 8 + 8;

/// Why a text is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Another text.
    #[error("it is no public key of minisign")]
    NotPublic,
    /// Another text.
    #[error("it is no secret key of minisign")]
    NotSecret,
    /// The other key of the pair.
    #[error("it is a public key, but only the secret key can sign")]
    Public,
    /// The other key of the pair, which nobody should hand on.
    #[error("it is a secret key; keep it, and use the public one")]
    Secret,
    /// A password is needed.
    #[error("a password protects it; use a key without one: `minisign -G -W`")]
    Password,
    /// Its checksum or its two halves do not agree.
    #[error("it is damaged: its checksum or its public half is wrong")]
    Damaged,
}

/// What tells keys apart in sentences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyId(pub(crate) [u8; 8]);

/// As minisign writes it.
impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}", u64::from_le_bytes(self.0))
    }
}

/// Checks signatures.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey {
    pub(crate) id: KeyId,
    pub(crate) key: VerifyingKey,
}

/// Its id.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl PublicKey {
    /// The text of its file.
    pub fn text(&self) -> String {
        let all = [&ALGORITHM[..], &self.id.0, self.key.as_bytes()].concat();
        text(&format!("minisign public key {self}"), &all)
    }

    /// Reads the text of a file, or its second line alone.
    ///
    /// # Errors
    /// If it is no public key.
    pub fn parse(text: &str) -> Result<PublicKey, KeyError> {
        let line = key_line(text);
        let Some(all) = bytes::<PUBLIC_BYTES>(line) else {
            let is_secret = bytes::<SECRET_BYTES>(line).is_some();
            return Err(if is_secret { KeyError::Secret } else { KeyError::NotPublic });
        };
        let key = VerifyingKey::from_bytes(&part(&all, 10)).ok();
        let key = key.filter(|key| part(&all, 0) == ALGORITHM && !key.is_weak());
        key.map(|key| PublicKey { id: KeyId(part(&all, 2)), key }).ok_or(KeyError::NotPublic)
    }
}

/// Signs. It is erased from memory when it is dropped.
pub struct SecretKey {
    id: [u8; 8],
    key: SigningKey,
}

/// A secret is never printed.
impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({})", self.public())
    }
}

impl SecretKey {
    /// A key from bytes that nobody else knows, and a random id.
    pub fn new(secret: [u8; 32], id: [u8; 8]) -> SecretKey {
        SecretKey { id, key: SigningKey::from_bytes(&secret) }
    }

    /// The key that checks what this one signs.
    pub fn public(&self) -> PublicKey {
        PublicKey { id: KeyId(self.id), key: self.key.verifying_key() }
    }

    /// The text of its file, which no password protects.
    pub fn text(&self) -> String {
        let pair = self.key.to_keypair_bytes();
        let head = [ALGORITHM, NO_PASSWORD, CHECKSUM].concat();
        let all = [&head[..], &[0; 48], &self.id, &pair, &checksum(&self.id, &pair)].concat();
        text("minisign secret key, without a password", &all)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// If it is no secret key, or has a password.
    pub fn parse(text: &str) -> Result<SecretKey, KeyError> {
        let line = key_line(text);
        let Some(all) = bytes::<SECRET_BYTES>(line) else {
            let is_public = bytes::<PUBLIC_BYTES>(line).is_some();
            return Err(if is_public { KeyError::Public } else { KeyError::NotSecret });
        };
        if part(&all, 0) != ALGORITHM || part(&all, 4) != CHECKSUM {
            return Err(KeyError::NotSecret);
        }
        if part(&all, 2) != NO_PASSWORD {
            return Err(KeyError::Password);
        }
        let (id, pair) = (part(&all, ID_AT), part::<64>(&all, ID_AT + 8));
        // minisign writes no checksum into keys without a password.
        let known: [u8; 32] = part(&all, ID_AT + 72);
        if known != [0; 32] && known != checksum(&id, &pair) {
            return Err(KeyError::Damaged);
        }
        let key = SigningKey::from_keypair_bytes(&pair).map_err(|_| KeyError::Damaged)?;
        Ok(SecretKey { id, key })
    }

    /// Signs some bytes.
    pub(crate) fn sign_bytes(&self, bytes: &[u8]) -> [u8; 64] {
        self.key.sign(bytes).to_bytes()
    }
}

/// The line with the key of a text that may have a comment before it.
fn key_line(text: &str) -> &str {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.find(|line| !line.starts_with(UNTRUSTED.trim_end())).unwrap_or_default()
}

fn checksum(id: &[u8; 8], pair: &[u8; 64]) -> [u8; 32] {
    Blake2b::<U32>::new()
        .chain_update(ALGORITHM)
        .chain_update(id)
        .chain_update(pair)
        .finalize()
        .into()
}
