//! Signatures as texts beside what they sign.

use blake2::{Blake2b512, Digest};
use ed25519_dalek::Signature;

use crate::key::{KeyId, PublicKey, SecretKey};
use crate::lines::{UNTRUSTED, bytes, part, text};

/// Most bytes of a signature or a key as a text.
pub const TEXT_BYTES_MAX: u64 = 4096;

/// How the comment begins that is signed as well.
const TRUSTED: &str = "trusted comment: ";

/// The signature is over the BLAKE2b-512 of the bytes.
const OF_HASH: [u8; 2] = *b"ED";

/// The signature is over the bytes themselves, as old versions of minisign made it.
const OF_BYTES: [u8; 2] = *b"Ed";

/// Why a signature does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// Another text, or one that was cut off.
    #[error("it is no signature of minisign, or it was cut off")]
    NotASignature,
    /// Another key has signed.
    #[error("it was made by key {found}, not by {wanted}")]
    OtherKey {
        /// Id of the key that signed.
        found: KeyId,
        /// Id of the key that was asked for.
        wanted: KeyId,
    },
    /// It is not of these bytes.
    #[error("the bytes are not those that key {0} has signed")]
    OtherBytes(KeyId),
    /// The comment was changed.
    #[error("its trusted comment is not the one that key {0} has signed")]
    OtherComment(KeyId),
}

impl SecretKey {
    /// The text of a signature of `bytes`, with a comment of one line that is signed as well.
    pub fn sign(&self, bytes: &[u8], trusted_comment: &str) -> String {
        let comment = trusted_comment.replace(['\n', '\r'], " ");
        let signature = self.sign_bytes(&Blake2b512::digest(bytes));
        let public = self.public();
        let all = [&OF_HASH[..], &public.id.0, &signature].concat();
        let of_comment = self.sign_bytes(&[&signature[..], comment.as_bytes()].concat());
        let head = text(&format!("signature by minisign key {public}"), &all);
        let tail = text("", &of_comment);
        let (_, tail) = tail.split_once('\n').unwrap_or_default();
        format!("{head}{TRUSTED}{comment}\n{tail}")
    }
}

impl PublicKey {
    /// The trusted comment of a signature of `bytes` by this key.
    ///
    /// # Errors
    /// Why the signature does not hold.
    pub fn verify<'t>(&self, bytes: &[u8], text: &'t str) -> Result<&'t str, SignatureError> {
        let Parts { algorithm, id, signature, comment, of_comment } =
            Parts::of(text).ok_or(SignatureError::NotASignature)?;
        if id != self.id {
            return Err(SignatureError::OtherKey { found: id, wanted: self.id });
        }
        let hash = Blake2b512::digest(bytes);
        let signed = if algorithm == OF_HASH { &hash[..] } else { bytes };
        let holds = |signed: &[u8], signature: &[u8; 64]| {
            self.key.verify_strict(signed, &Signature::from_bytes(signature)).is_ok()
        };
        if !holds(signed, &signature) {
            return Err(SignatureError::OtherBytes(self.id));
        }
        if !holds(&[&signature[..], comment.as_bytes()].concat(), &of_comment) {
            return Err(SignatureError::OtherComment(self.id));
        }
        Ok(comment)
    }
}

/// What a text holds.
struct Parts<'t> {
    algorithm: [u8; 2],
    id: KeyId,
    signature: [u8; 64],
    comment: &'t str,
    of_comment: [u8; 64],
}

impl Parts<'_> {
    fn of(text: &str) -> Option<Parts<'_>> {
        let mut lines = text.lines();
        lines.next().filter(|line| line.starts_with(UNTRUSTED.trim_end()))?;
        let all: [u8; 74] = bytes(lines.next()?)?;
        let comment = lines.next()?.strip_prefix(TRUSTED)?;
        let of_comment = bytes(lines.next()?)?;
        let algorithm = part(&all, 0);
        let is_known = [OF_HASH, OF_BYTES].contains(&algorithm);
        let is_end = lines.all(str::is_empty);
        let (id, signature) = (KeyId(part(&all, 2)), part(&all, 10));
        (is_known && is_end).then_some(Parts { algorithm, id, signature, comment, of_comment })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::KeyError;

    /// A key and signatures of the text `test` that the authors of minisign have published.
    const PUBLISHED: &str = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
    const OF_TEST: &str = "untrusted comment: signature from minisign secret key\n\
        RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/\
        z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=\n\
        trusted comment: timestamp:1556193335\tfile:test\n\
        y/rUw2y8/hOUYjZU71eHp/Wo1KZ40fGy2VJEDl34XMJM+TX48Ss/17u3IvIfbVR1FkZZSNCisQbuQY+bHwhEBg==";
    const OF_TEST_OLD: &str = "untrusted comment: signature from minisign secret key\n\
        RWQf6LRCGA9i59SLOFxz6NxvASXDJeRtuZykwQepbDEGt87ig1BNpWaVWuNrm73YiIiJbq\
        71Wi+dP9eKL8OC351vwIasSSbXxwA=\n\
        trusted comment: timestamp:1555779966\tfile:test\n\
        QtKMXWyYcwdpZAlPF7tE2ENJkRd1ujvKjlj1m9RtHTBnZPa5WKU5uWRs5GoP5M/VqE81QFuMKI5k/SfNQUaOAA==";

    fn key() -> SecretKey {
        SecretKey::new([7; 32], [1, 2, 3, 4, 5, 6, 7, 8])
    }

    #[test]
    fn published_signatures_hold_and_those_of_other_bytes_do_not() {
        let public = PublicKey::parse(PUBLISHED).unwrap();
        let comment = public.verify(b"test", OF_TEST);
        assert_eq!(comment, Ok("timestamp:1556193335\tfile:test"));
        let comment = public.verify(b"test", OF_TEST_OLD);
        assert_eq!(comment, Ok("timestamp:1555779966\tfile:test"));
        for text in [OF_TEST, OF_TEST_OLD] {
            let other = public.verify(b"Test", text);
            assert_eq!(other, Err(SignatureError::OtherBytes(public.id)));
            let changed = text.replace("file:test", "file:tost");
            let other = public.verify(b"test", &changed);
            assert_eq!(other, Err(SignatureError::OtherComment(public.id)));
        }
        let other = key().public().verify(b"test", OF_TEST).unwrap_err().to_string();
        assert_eq!(other, "it was made by key E7620F1842B4E81F, not by 0807060504030201");
    }

    #[test]
    fn keys_read_back_and_each_wrong_one_is_named() {
        let (secret, public) = (key().text(), key().public());
        assert_eq!(SecretKey::parse(&secret).unwrap().public(), public);
        assert_eq!(PublicKey::parse(&public.text()), Ok(public));
        assert_eq!(PublicKey::parse(&secret), Err(KeyError::Secret));
        let refused = |text: &str| SecretKey::parse(text).unwrap_err();
        assert_eq!(refused(&public.text()), KeyError::Public);
        assert_eq!(refused(&secret[..secret.len() - 9]), KeyError::NotSecret);
        // The third byte of the line begins the name of the password's function.
        assert_eq!(refused(&secret.replace("RWQAAEIy", "RWRTY0Iy")), KeyError::Password);
        let at = secret.len() - 60;
        let other = if secret.as_bytes()[at] == b'A' { "B" } else { "A" };
        let mut damaged = secret.clone();
        damaged.replace_range(at..=at, other);
        assert_eq!(refused(&damaged), KeyError::Damaged);
        assert!(!format!("{:?}", key()).contains(secret.lines().nth(1).unwrap()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn what_a_key_signed_holds_and_no_changed_byte_does(
            bytes in prop::collection::vec(any::<u8>(), 1..200),
            comment in "\\PC{0,20}",
            at in any::<prop::sample::Index>(),
        ) {
            let text = key().sign(&bytes, &comment);
            let public = key().public();
            prop_assert_eq!(public.verify(&bytes, &text), Ok(comment.as_str()));
            let mut other = bytes.clone();
            other[at.index(bytes.len())] ^= 1;
            let refused = Err(SignatureError::OtherBytes(public.id));
            prop_assert_eq!(public.verify(&other, &text), refused);
        }

        #[test]
        fn any_text_is_a_key_or_none(text in "\\PC{0,300}") {
            let _ = (PublicKey::parse(&text).is_ok(), SecretKey::parse(&text).is_ok());
            prop_assert!(key().public().verify(b"x", &text).is_err());
        }
    }
}
