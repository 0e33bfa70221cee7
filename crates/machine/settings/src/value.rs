//! The value of a setting exactly as it was read, and the forms that some files have.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The value of a setting, exactly as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// The bytes of a file. The kernel's are ASCII.
    Text(String),
    /// The numbers of a link's setting.
    Numbers(Vec<u32>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => f.write_str(&text.trim_end().replace('\n', " ")),
            Value::Numbers(numbers) => {
                let texts: Vec<String> = numbers.iter().map(u32::to_string).collect();
                f.write_str(&texts.join(" "))
            }
        }
    }
}

/// The chosen word of a file that lists all choices and has the chosen one in brackets, such as
/// `always [madvise] never`. Only the word can be written.
pub fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    let (word, _) = rest.split_once(']')?;
    Some(word)
}

/// The same text with another word chosen; absent if the word is not a choice.
pub fn choose(text: &str, word: &str) -> Option<String> {
    let before = chosen(text)?;
    let plain = text.replacen(&format!("[{before}]"), before, 1);
    let at = plain.split_whitespace().find(|one| *one == word)?;
    // A part of the same text, so its place follows from its address within it.
    let start = at.as_ptr() as usize - plain.as_ptr() as usize;
    let (head, tail) = (&plain[..start], &plain[start + word.len()..]);
    Some(format!("{head}[{word}]{tail}"))
}

/// `word` with the line end that `old` has.
pub fn with_line_end(word: &str, old: &str) -> String {
    let end = if old.ends_with('\n') { "\n" } else { "" };
    format!("{word}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn brackets_move_to_the_chosen_word() {
        let text = "always [madvise] never\n";
        assert_eq!(chosen(text), Some("madvise"));
        assert_eq!(choose(text, "never").as_deref(), Some("always madvise [never]\n"));
        assert_eq!(choose(text, "madvise").as_deref(), Some(text));
        assert_eq!(choose(text, "defer"), None);
        let text = "always defer defer+madvise [madvise] never";
        let deferred = choose(text, "defer").unwrap();
        assert_eq!(deferred, "always [defer] defer+madvise madvise never");
        assert_eq!(choose(&deferred, "madvise").as_deref(), Some(text));
        assert_eq!((chosen("0\n"), choose("0\n", "0")), (None, None));
    }

    proptest! {
        #[test]
        fn choosing_and_choosing_back_restores_any_text(
            words in prop::collection::hash_set("[a-z+]{1,6}", 2..6),
            from in any::<prop::sample::Index>(),
            to in any::<prop::sample::Index>(),
        ) {
            let words: Vec<String> = words.into_iter().collect();
            let (from, to) = (&words[from.index(words.len())], &words[to.index(words.len())]);
            let text = words
                .iter()
                .map(|word| if word == from { format!("[{word}]") } else { word.clone() })
                .collect::<Vec<_>>()
                .join(" ");
            let other = choose(&text, to).unwrap();
            prop_assert_eq!(chosen(&other), Some(to.as_str()));
            prop_assert_eq!(choose(&other, from).unwrap(), text);
        }
    }
}
