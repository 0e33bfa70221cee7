//! The secret of a network, the keys that follow from it, and the files of both.
//!
//! The file of a secret is one word of hexadecimal digits. A file of keys has one line for each,
//! such as `operator 5f0c…` or `session 17 a19b…`.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::file::{FileError, create_private, read_private};
use crate::key::{Key, NONCE_BYTES, Nonce, RandomError, Right};

/// Sessions whose keys one file can have.
pub const SESSIONS_MAX: u32 = 100_000;

/// Fewest bytes of a secret.
const SECRET_BYTES_MIN: usize = NONCE_BYTES;

/// Why a secret or a file of keys cannot be used.
#[derive(Debug, Error)]
pub enum CredentialsError {
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file has neither a secret nor keys.
    #[error(
        "{} has neither a secret (at least 64 hexadecimal digits) nor keys in line {line}: make \
         one with `nearmetal exchange secret new`",
        path.display()
    )]
    Content {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1 on.
        line: usize,
    },
    /// A node needs the secret itself.
    #[error("{} has keys only, and a node needs the secret itself", .0.display())]
    KeysOnly(PathBuf),
    /// There are no random numbers for a new secret.
    #[error(transparent)]
    Random(#[from] RandomError),
}

/// The secret of a network, which is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// A new one.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn random() -> Result<Secret, CredentialsError> {
        Ok(Secret(Nonce::random()?.0.to_vec()))
    }

    /// Reads the file of a secret.
    ///
    /// # Errors
    /// If it cannot be read, others may read it, or it has no secret.
    pub fn read(path: &Path) -> Result<Secret, CredentialsError> {
        match Credentials::read(path)? {
            Credentials::Secret(secret) => Ok(secret),
            Credentials::Keys(_) => Err(CredentialsError::KeysOnly(path.into())),
        }
    }

    /// Creates its file.
    ///
    /// # Errors
    /// If it cannot be created, or exists.
    pub fn create(&self, path: &Path) -> Result<(), CredentialsError> {
        Ok(create_private(path, &self.text())?)
    }

    /// The text of its file.
    pub fn text(&self) -> String {
        let mut text = String::new();
        write_hex(&self.0, &mut text);
        text.push('\n');
        text
    }

    /// The key that goes with a right.
    pub fn key(&self, right: Right) -> Key {
        Key::derive(&self.0, right.to_string().as_bytes())
    }

    /// The keys of some sessions, and those of other rights.
    pub fn keys(
        &self,
        sessions: Option<RangeInclusive<u32>>,
        others: &[Right],
    ) -> BTreeMap<Right, Key> {
        let sessions = sessions.into_iter().flatten().map(Right::of_session);
        let rights = sessions.chain(others.iter().copied());
        rights.map(|right| (right, self.key(right))).collect()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// What an end of a connection has to prove who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// The secret, from which all keys follow.
    Secret(Secret),
    /// Some keys.
    Keys(BTreeMap<Right, Key>),
}

impl Credentials {
    /// Reads the file of a secret or of keys.
    ///
    /// # Errors
    /// If it cannot be read, others may read it, or it has neither.
    pub fn read(path: &Path) -> Result<Credentials, CredentialsError> {
        let text = read_private(path)?;
        let content = |line| CredentialsError::Content { path: path.into(), line };
        Credentials::parse(&text).map_err(content)
    }

    /// Creates its file.
    ///
    /// # Errors
    /// If it cannot be created, or exists.
    pub fn create(&self, path: &Path) -> Result<(), CredentialsError> {
        Ok(create_private(path, &self.text())?)
    }

    /// The secret or keys of a text; or the line that is wrong.
    fn parse(text: &str) -> Result<Credentials, usize> {
        if let [word] = text.split_whitespace().collect::<Vec<_>>()[..] {
            let secret = bytes_of_hex(word).filter(|bytes| bytes.len() >= SECRET_BYTES_MIN);
            return secret.map(|bytes| Credentials::Secret(Secret(bytes))).ok_or(1);
        }
        let mut keys = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (right, hex) = match words[..] {
                [] => continue,
                ["node", hex] => (Right::Node, hex),
                ["operator", hex] => (Right::Operator, hex),
                ["observer", hex] => (Right::Observer, hex),
                ["session", session, hex] => {
                    (Right::of_session(session.parse().map_err(|_| at + 1)?), hex)
                }
                _ => return Err(at + 1),
            };
            let key = bytes_of_hex(hex).and_then(|bytes| bytes.try_into().ok());
            keys.insert(right, Key(key.ok_or(at + 1)?));
        }
        if keys.is_empty() { Err(1) } else { Ok(Credentials::Keys(keys)) }
    }

    /// The text of its file.
    fn text(&self) -> String {
        match self {
            Credentials::Secret(secret) => secret.text(),
            Credentials::Keys(keys) => {
                let mut text = String::new();
                for (right, key) in keys {
                    let _ = write!(text, "{right} ");
                    write_hex(&key.0, &mut text);
                    text.push('\n');
                }
                text
            }
        }
    }

    /// The key that goes with a right, if it is there.
    pub fn key(&self, right: Right) -> Option<Key> {
        match self {
            Credentials::Secret(secret) => Some(secret.key(right)),
            Credentials::Keys(keys) => keys.get(&right).copied(),
        }
    }
}

fn write_hex(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
}

fn bytes_of_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Result<Credentials, usize> {
        Credentials::parse(text)
    }

    #[test]
    fn a_secret_is_read_back_from_its_file_and_never_printed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let secret = Secret::random().unwrap();
        secret.create(&path).unwrap();
        assert_eq!(Secret::read(&path).unwrap(), secret);
        assert_ne!(Secret::random().unwrap(), secret);
        assert_eq!(format!("{:?}", Credentials::Secret(secret)), "Secret(Secret)");
    }

    #[test]
    fn a_client_is_given_the_keys_of_its_sessions_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let secret = Secret::random().unwrap();
        Credentials::Keys(secret.keys(Some(3..=5), &[Right::Observer])).create(&path).unwrap();
        let keys = Credentials::read(&path).unwrap();
        for session in 3..=5 {
            let right = Right::Session(session);
            assert_eq!(keys.key(right), Some(secret.key(right)));
        }
        assert_eq!(keys.key(Right::Observer), Some(secret.key(Right::Observer)));
        for right in [Right::Session(2), Right::Session(6), Right::Operator, Right::Node] {
            assert_eq!(keys.key(right), None, "{right}");
        }
        let refused = Secret::read(&path).unwrap_err();
        assert!(refused.to_string().contains("keys only"), "{refused}");
        // All keys differ, and session 0 is the operator's.
        let all = secret.keys(Some(0..=50), &[Right::Node, Right::Observer]);
        let distinct: std::collections::BTreeSet<[u8; 32]> =
            all.values().map(|key| key.0).collect();
        assert_eq!((all.len(), distinct.len()), (53, 53));
        assert!(all.contains_key(&Right::Operator));
    }

    #[test]
    fn what_is_neither_a_secret_nor_keys_is_refused_with_its_line() {
        let key = "ab".repeat(32);
        assert!(parsed(&format!("{key}\n")).is_ok());
        assert_eq!(parsed(&"ab".repeat(31)), Err(1), "a short secret");
        assert_eq!(parsed(&format!("{key}a")), Err(1), "half a byte");
        assert_eq!(parsed(""), Err(1));
        assert_eq!(parsed("\n\n"), Err(1));
        assert!(parsed(&format!("operator {key}\n\nsession 7 {key}\n")).is_ok());
        for bad in ["director KEY", "session KEY", "session x KEY", "operator 12", "node KEY 7"] {
            let text = format!("node {key}\n{}\n", bad.replace("KEY", &key));
            assert_eq!(parsed(&text), Err(2), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_credentials_or_refused(text in "[ -~\n]{0,200}", word in "[0-9a-f ]{0,80}") {
            let _ = (parsed(&text), parsed(&word), parsed(&format!("session {word}")));
        }

        #[test]
        fn credentials_are_read_back(sessions in 1_u32..100, count in 0_u32..20) {
            let secret = Secret(vec![7; 40]);
            let keys = secret.keys(Some(sessions..=sessions + count), &[Right::Node]);
            for credentials in [Credentials::Secret(secret.clone()), Credentials::Keys(keys)] {
                prop_assert_eq!(parsed(&credentials.text()), Ok(credentials));
            }
        }
    }
}
