//! Suggestions for unknown names in plans and on the command line.

use std::fmt;

/// A word that is not one of the expected ones, with a suggestion if one is similar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownWord {
    /// What kind of word was expected, such as `stack` or `probe`.
    pub kind: &'static str,
    /// The unknown word.
    pub word: String,
    /// The nearest expected word, if it is near enough for a typing error.
    pub nearest: Option<String>,
    /// All expected words, in a stable order.
    pub expected: Vec<String>,
}

impl UnknownWord {
    /// Describes `word`, which is not one of `expected`.
    pub fn new<S: AsRef<str>>(kind: &'static str, word: &str, expected: &[S]) -> UnknownWord {
        UnknownWord {
            kind,
            word: word.to_string(),
            nearest: nearest(word, expected),
            expected: expected.iter().map(|e| e.as_ref().to_string()).collect(),
        }
    }
}

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {} `{}`", self.kind, self.word)?;
        match &self.nearest {
            Some(nearest) => write!(f, ", did you mean `{nearest}`?"),
            None => write!(f, "; {}", known(&self.expected.join(", "))),
        }
    }
}

impl std::error::Error for UnknownWord {}

/// The end of a sentence about an unknown word: a list of the known ones, which may be empty.
pub(crate) fn known(list: &str) -> String {
    match list.is_empty() {
        true => "there are none".to_string(),
        false => format!("known are {list}"),
    }
}

/// The expected word nearest to `word`, if it is near enough for a typing error.
///
/// Near means a Damerau-Levenshtein distance of at most a third of the longer word, or one being
/// the start of the other.
pub fn nearest<S: AsRef<str>>(word: &str, expected: &[S]) -> Option<String> {
    let lower = word.to_lowercase();
    expected
        .iter()
        .map(AsRef::as_ref)
        .map(|candidate| {
            let distance = strsim::damerau_levenshtein(&lower, candidate);
            let prefix =
                lower.len() >= 2 && (candidate.starts_with(&lower) || lower.starts_with(candidate));
            (if prefix { distance.min(1) } else { distance }, candidate)
        })
        .filter(|(distance, candidate)| *distance <= (candidate.len().max(word.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_words_are_suggested_and_others_are_not() {
        let stacks = ["tcp-spin", "tcp-blocking", "udp-spin"];
        assert_eq!(nearest("tcp-spn", &stacks).as_deref(), Some("tcp-spin"));
        assert_eq!(nearest("tcp-blcoking", &stacks).as_deref(), Some("tcp-blocking"));
        assert_eq!(nearest("infiniband", &stacks), None);
    }

    #[test]
    fn the_message_has_the_word_and_the_alternatives() {
        let near = UnknownWord::new("stack", "tcp-spn", &["tcp-spin"]);
        assert_eq!(near.to_string(), "unknown stack `tcp-spn`, did you mean `tcp-spin`?");
        let far = UnknownWord::new("stack", "quic", &["tcp-spin", "unix-epoll"]);
        assert_eq!(far.to_string(), "unknown stack `quic`; known are tcp-spin, unix-epoll");
        let none = UnknownWord::new::<&str>("sub-plan", "foo", &[]);
        assert_eq!(none.to_string(), "unknown sub-plan `foo`; there are none");
    }
}
