//! Choosing rows and series by path: `ENVIRONMENT/STACK` or a part of it, with `*` for any.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use crate::named_enum::text_serde;

/// A pattern over paths. `netns/*` and `*/tcp-spin` name one part, `tcp-*` without a slash matches
/// an environment or a stack, `*` matches everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    text: String,
}

impl Selector {
    /// A selector from its text.
    pub fn new(text: &str) -> Selector {
        Selector { text: text.trim().to_string() }
    }

    /// The selector that matches everything.
    pub fn any() -> Selector {
        Selector::new("*")
    }

    /// Whether this selector matches everything.
    pub fn is_any(&self) -> bool {
        matches!(self.text.as_str(), "*" | "*/*")
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a path matches.
    pub fn matches(&self, environment: &str, stack: &str) -> bool {
        match self.parts() {
            Some((left, right)) => glob(left, environment) && glob(right, stack),
            None => glob(&self.text, environment) || glob(&self.text, stack),
        }
    }

    /// The patterns of environment and stack, if both are written.
    pub(crate) fn parts(&self) -> Option<(&str, &str)> {
        self.text.rsplit_once('/')
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl FromStr for Selector {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Selector, Infallible> {
        Ok(Selector::new(text))
    }
}

text_serde!(Selector);

/// Whether `text` fits `pattern`, in which `*` stands for any number of characters. Runs in time
/// proportional to the product of the lengths at worst, without recursion.
pub(crate) fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pattern_matches_environment_and_stack() {
        let matches =
            |pattern: &str| Selector::new(pattern).matches("netns", "tcp-spin:tcp-blocking");
        for pattern in ["*", "netns/*", "*/tcp-spin:tcp-blocking", "*/tcp-*", "netns", "n*s/t*g"] {
            assert!(matches(pattern), "{pattern}");
        }
        for pattern in ["bridge/*", "*/tcp-spin", "netns/udp*", "", "netns/", "*x*"] {
            assert!(!matches(pattern), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_patterns_never_panic(
            pattern in "[a*é/]{0,8}", text in "[aé/]{0,8}",
        ) {
            let selector = Selector::new(&pattern);
            prop_assert_eq!(selector.matches(&text, &text), selector.matches(&text, &text));
            prop_assert!(glob("*", &text));
            prop_assert!(glob(&text, &text));
            let wide = format!("*{}*", text);
            let inside = format!("x{}y", text);
            prop_assert!(glob(&wide, &inside));
        }
    }
}
