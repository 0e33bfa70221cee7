//! Terms explained where they stand: the meaning of the glossary is the title of the word.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use maud::{Markup, html};

/// The only source of meanings.
const GLOSSARY: &str = include_str!("../../../../../docs/glossary.md");

/// Words of a report that are explained, each with its term in the glossary. A longer one comes
/// before one that it contains.
const WORDS: [(&str, &str); 34] = [
    ("half round trip", "half round trip"),
    ("intended send", "intended send"),
    ("service time", "service time"),
    ("p99.99", "p99, percentile"),
    ("p99.9", "p99, percentile"),
    ("p99", "p99, percentile"),
    ("percentile", "p99, percentile"),
    ("es10", "expected shortfall (ES10)"),
    ("ES10", "expected shortfall (ES10)"),
    ("CV", "coefficient of variation (CV)"),
    ("95 % intervals", "bootstrap interval"),
    ("95 % interval", "bootstrap interval"),
    ("rounds", "round"),
    ("round", "round"),
    ("series", "row, series"),
    ("stacks", "stack"),
    ("stack", "stack"),
    ("environment", "environment"),
    ("targets", "target"),
    ("target", "target"),
    ("doubts", "doubt"),
    ("stolen time", "stolen time"),
    ("preempted", "preempted"),
    ("blocking", "mode"),
    ("spinning", "mode"),
    ("AF_XDP", "AF_XDP"),
    ("namespaces", "network namespace"),
    ("guests", "guest"),
    ("EMULATED", "emulated"),
    ("run delay", "run delay"),
    ("below the OS", "below the OS"),
    ("gaps", "gap"),
    ("margin", "margin"),
    ("guards", "guard (of a factor)"),
];

/// Meanings by term; of several rows of a term the first one counts.
static MEANINGS: LazyLock<BTreeMap<&str, String>> = LazyLock::new(|| {
    let mut meanings = BTreeMap::new();
    for line in GLOSSARY.lines().filter(|line| line.starts_with("| ")) {
        let mut cells = line.trim_matches('|').split(" | ").map(str::trim);
        if let (Some(term), Some(meaning)) = (cells.next(), cells.next()) {
            meanings.entry(term).or_insert_with(|| meaning.replace('`', ""));
        }
    }
    meanings
});

/// A part of a text: plain, a word with its meaning, or what stood between back-ticks.
enum Part<'t> {
    Plain(&'t str),
    Word(&'t str, &'static str),
    Code(&'t str),
}

/// Whether a word may begin or end between these letters.
fn is_edge(before: Option<char>, after: Option<char>) -> bool {
    let is_inside = |letter: Option<char>| {
        letter.is_some_and(|letter| letter.is_alphanumeric() || "_-/:+".contains(letter))
    };
    !(is_inside(before) && is_inside(after))
}

/// The word that begins at `at`, unless its term was explained already.
fn word_at(text: &str, at: usize, explained: &[&str]) -> Option<(usize, &'static str)> {
    let before = text[..at].chars().next_back();
    WORDS.iter().find_map(|(word, term)| {
        let rest = text[at..].strip_prefix(word)?;
        let mut letters = rest.chars();
        let after = letters.next();
        let is_number = after == Some('.') && letters.next().is_some_and(|c| c.is_ascii_digit());
        let is_path = |letter: Option<char>| letter.is_some_and(|c| "/-+:".contains(c));
        let is_alone = is_edge(before, word.chars().next())
            && is_edge(word.chars().next_back(), after)
            && !is_path(before)
            && !is_path(after);
        (is_alone && !is_number && !explained.contains(term)).then_some((word.len(), *term))
    })
}

/// What stands between the back-tick at `at` and the next one.
fn code_at(text: &str, at: usize) -> Option<&str> {
    let rest = text[at..].strip_prefix('`')?;
    Some(&rest[..rest.find('`')?])
}

/// `text` in parts; each term is explained once.
fn parts(text: &str) -> Vec<Part<'_>> {
    let mut parts = vec![];
    let mut explained: Vec<&str> = vec![];
    let (mut start, mut at) = (0, 0);
    while let Some(letter) = text[at..].chars().next() {
        if let Some(code) = code_at(text, at) {
            parts.extend([Part::Plain(&text[start..at]), Part::Code(code)]);
            at += code.len() + 2;
            start = at;
            continue;
        }
        match word_at(text, at, &explained) {
            Some((length, term)) => {
                parts.push(Part::Plain(&text[start..at]));
                parts.push(Part::Word(&text[at..at + length], term));
                explained.push(term);
                at += length;
                start = at;
            }
            None => at += letter.len_utf8(),
        }
    }
    parts.push(Part::Plain(&text[start..]));
    parts
}

/// `text` with the terms of the glossary explained.
pub fn explained(text: &str) -> Markup {
    html! {
        @for part in parts(text) {
            @match part {
                Part::Plain(text) => (text),
                Part::Code(code) => code { (code) },
                Part::Word(word, term) => {
                    @match MEANINGS.get(term) {
                        Some(meaning) => abbr title=(format!("{term}: {meaning}")) { (word) },
                        None => (word),
                    }
                }
            }
        }
    }
}

/// The terms that `texts` use with their meanings, folded: a touch screen shows no titles.
pub fn list<'t>(texts: impl IntoIterator<Item = &'t str>) -> Markup {
    let mut terms: Vec<&str> = vec![];
    for part in texts.into_iter().flat_map(parts) {
        match part {
            Part::Word(_, term) if !terms.contains(&term) => terms.push(term),
            _ => {}
        }
    }
    let rows = terms.iter().filter_map(|term| Some((term, MEANINGS.get(term)?)));
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return html! {};
    }
    html! {
        details {
            summary { "Words used here" }
            dl.words {
                @for (term, meaning) in &rows { div { dt { (term) } dd { (meaning) } } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_word_has_a_meaning_in_the_glossary() {
        for (word, term) in WORDS {
            assert!(MEANINGS.get(term).is_some_and(|text| text.len() > 10), "{word}: {term}");
        }
        let position = |word: &str| WORDS.iter().position(|(known, _)| *known == word);
        for (word, _) in WORDS {
            for (other, _) in WORDS {
                let is_part = word != other && word.starts_with(other);
                assert!(!is_part || position(word) < position(other), "{word} {other}");
            }
        }
    }

    #[test]
    fn a_word_is_explained_once_and_never_inside_a_name() {
        let text = explained("p99 5 µs and p99.9 of netns/tcp-blocking, 5 rounds & rounds");
        let text = text.into_string();
        assert_eq!(text.matches("<abbr ").count(), 2, "{text}");
        assert!(text.contains(">p99</abbr> 5") && text.contains(">rounds</abbr> &amp; rounds"));
        assert!(text.contains("nearest-rank percentile"), "{text}");
        assert_eq!(explained("background, targets2").into_string(), "background, targets2");
    }

    #[test]
    fn what_stands_between_back_ticks_is_code_and_no_word_in_it_is_explained() {
        let text = explained("run `compare --round p99`, then `alone").into_string();
        assert_eq!(text, "run <code>compare --round p99</code>, then `alone");
    }

    proptest! {
        #[test]
        fn no_letter_is_lost(
            text in "[a-z0-9 %.é/-]{0,30}(round|p99|half round trip)?`?\\PC{0,9}`?",
        ) {
            let joined: String = parts(&text)
                .into_iter()
                .map(|part| match part {
                    Part::Plain(text) | Part::Word(text, _) => text.to_string(),
                    Part::Code(text) => format!("`{text}`"),
                })
                .collect();
            prop_assert_eq!(joined, text);
        }
    }
}
