//! What is wrong with a TOML file, in words: the line, the word, and the nearest right one.

use crate::value_type;
use crate::words::{self, nearest};

/// The line of a byte offset in the text, counted from 1.
pub fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// The line of an error, counted from 1, and a sentence without a full stop; `otherwise` if the
/// error has no text.
pub fn describe(text: &str, error: &toml::de::Error, otherwise: &str) -> (usize, String) {
    let message = error.message();
    let mut quoted = message.split('`').skip(1).step_by(2);
    let word = quoted.next().unwrap_or_default();
    // The span of an error inside a block is the block's heading; the word is further down.
    let start = error.span().map_or(0, |span| span.start);
    let is_present = !word.is_empty() && !message.starts_with("missing field");
    let line = match text[start..].find(word).filter(|_| is_present) {
        Some(at) => line_of(text, start + at),
        None => error.span().map_or(1, |span| line_of(text, span.start)),
    };
    let mut message = message.lines().next().unwrap_or(otherwise).to_string();
    if let Some(rest) = message.strip_prefix("unknown field `").map(str::to_string)
        && let Some((bad, expected)) = rest.split_once("`, expected ")
    {
        let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        message = match nearest(bad, &known) {
            Some(near) => format!("unknown field `{bad}`, did you mean `{near}`?"),
            None => format!("unknown field `{bad}`; {}", words::known(&known.join(", "))),
        };
    }
    // A list may have several lines, of which the first has the key.
    let lines: Vec<&str> = text.lines().take(line).collect();
    if let Some(key) = lines.iter().rev().find_map(|line| value_type::key_of_line(line)) {
        let value = lines.last().and_then(|line| line.split_once('=')).map(|(_, value)| value);
        message = match value.map(str::trim).filter(|_| message.contains("number out of range")) {
            Some(value) => value_type::out_of_range(key, value),
            None => value_type::sentence(key, &message),
        };
    }
    (line, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        #[serde(rename = "seconds")]
        _seconds: u32,
    }

    #[test]
    fn errors_have_a_line_and_a_right_word() {
        let described = |text: &str| {
            let error = toml::from_str::<Sample>(text).unwrap_err();
            describe(text, &error, "not a sample")
        };
        let (line, message) = described("\nsecond = 3\n");
        assert_eq!(
            (line, message.as_str()),
            (2, "unknown field `second`, did you mean `seconds`?")
        );
        let (line, message) = described("# a day\n\nseconds = \"3\"");
        assert_eq!(line, 3);
        assert!(message.contains("write 3 without quotes"), "{message}");
        assert_eq!(described("seconds = ").0, 1);
        assert_eq!(line_of("a\nb", 2), 2);
    }
}
