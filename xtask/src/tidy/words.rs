//! Words that must not come back, listed in `xtask/banned-words.txt` with what to say instead.
//!
//! They are compared, in any case, with the words of all tracked text files, where the parts of an
//! identifier (`is_caught_up`, `ReplicaStatus`) are words.

use std::collections::HashMap;
use std::path::Path;

use crate::tidy::fault::{Check, Fault};
use crate::tidy::regions::{Region, regions};
use crate::tidy::workspace::{Files, is_rust};

/// Where the words are listed, relative to the root.
const LIST: &str = "xtask/banned-words.txt";

/// Kinds of files that are read.
const EXTENSIONS: [&str; 8] = ["rs", "md", "toml", "html", "css", "json", "txt", "xml"];

/// Files that are not ours to word, or that tell of the past.
fn is_exempt(path: &Path) -> bool {
    let shown = path.to_string_lossy();
    // Output of other tools, and figures that others published.
    let is_data = shown.contains("tests/data/") || shown.starts_with("reference/");
    is_data || shown == "CHANGELOG.md" || shown == LIST
}

/// Where a banned word counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Anywhere,
    /// Only as a part of an identifier in code: ordinary English has a use for the word.
    Identifier,
    /// Only as the whole of an identifier in code, with its capitals.
    Exact,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    /// The word, or the words of a phrase, in lower case.
    words: Vec<String>,
    scope: Scope,
    /// As written in the list.
    shown: String,
    instead: String,
}

/// Rules by their first words.
type Rules = HashMap<String, Vec<Rule>>;

pub fn check(files: &Files) -> Vec<Fault> {
    let list = files.get(Path::new(LIST)).map_or("", String::as_str);
    let (rules, mut faults) = parse(list);
    for (path, text) in files {
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        if EXTENSIONS.contains(&&*extension) && !is_exempt(path) {
            faults.extend(file_faults(path, text, &rules));
        }
    }
    faults
}

/// The rules of the list: lines `word`, `ident:word` or `exact:Word`, a tab, what to say instead.
fn parse(list: &str) -> (Rules, Vec<Fault>) {
    let (mut rules, mut faults) = (Rules::new(), vec![]);
    for (index, line) in list.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (shown, instead) = line.split_once('\t').unwrap_or_default();
        let (scope, pattern) = match shown.split_once(':') {
            Some(("ident", pattern)) => (Scope::Identifier, pattern),
            Some(("exact", pattern)) => (Scope::Exact, pattern),
            _ => (Scope::Anywhere, shown),
        };
        let region = Region { text: pattern, line: 1, is_code: true };
        let words: Vec<String> = words_of(&[region]).into_iter().map(|word| word.lower).collect();
        let Some(first) = words.first().cloned().filter(|_| !instead.trim().is_empty()) else {
            let text = "not a word, a tab, and what to say instead; write all three";
            faults.push(Fault::new(Check::Words, Path::new(LIST), index + 1, text));
            continue;
        };
        let shown = pattern.to_string();
        let instead = instead.trim().to_string();
        rules.entry(first).or_default().push(Rule { words, scope, shown, instead });
    }
    (rules, faults)
}

fn file_faults(path: &Path, text: &str, rules: &Rules) -> Vec<Fault> {
    let regions =
        if is_rust(path) { regions(text) } else { vec![Region { text, line: 1, is_code: false }] };
    let words = words_of(&regions);
    let mut faults = vec![];
    for (index, word) in words.iter().enumerate() {
        for rule in rules.get(&word.lower).into_iter().flatten() {
            if rule_matches(rule, &words[index..]) {
                let text = format!("banned: \"{}\"; say {}", rule.shown, rule.instead);
                faults.push(Fault::new(Check::Words, path, word.line, text));
            }
        }
    }
    faults
}

/// Whether `rule` matches at the first of `words`.
fn rule_matches(rule: &Rule, words: &[Word<'_>]) -> bool {
    let Some(matched) = words.get(..rule.words.len()) else { return false };
    let is_phrase = matched.iter().zip(&rule.words).all(|(word, wanted)| word.lower == *wanted)
        && matched[1..].iter().all(|word| word.continues);
    let is_code = matched[0].is_code;
    is_phrase
        && match rule.scope {
            Scope::Anywhere => true,
            Scope::Identifier => is_code,
            Scope::Exact => is_code && matched[0].identifier == rule.shown,
        }
}

/// A word of prose, or a part of an identifier.
#[derive(Debug)]
struct Word<'a> {
    lower: String,
    line: usize,
    is_code: bool,
    /// The identifier or word that it is a part of.
    identifier: &'a str,
    /// Whether only white space, comment marks, hyphens or underscores part it from the word
    /// before, so that both can be parts of one phrase.
    continues: bool,
}

fn words_of<'a>(regions: &[Region<'a>]) -> Vec<Word<'a>> {
    let mut words = vec![];
    let mut continues = false;
    for region in regions {
        let mut line = region.line;
        let mut rest = region.text;
        while let Some(first) = rest.chars().next() {
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            if !is_part(first) {
                line += usize::from(first == '\n');
                continues = continues && (first.is_whitespace() || "/!*#-`\\".contains(first));
                rest = &rest[first.len_utf8()..];
                continue;
            }
            let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            let (identifier, after) = rest.split_at(length);
            for part in parts_of(identifier) {
                let lower = part.to_lowercase();
                words.push(Word { lower, line, is_code: region.is_code, identifier, continues });
                continues = true;
            }
            rest = after;
        }
    }
    words
}

/// The parts of `snake_case` and `CamelCase`; digits belong to the part before.
fn parts_of(identifier: &str) -> Vec<&str> {
    let mut parts = vec![];
    for piece in identifier.split('_') {
        let letters: Vec<(usize, char)> = piece.char_indices().collect();
        let mut from = 0;
        for index in 1..letters.len() {
            let (at, letter) = letters[index];
            let before = letters[index - 1].1;
            let is_next_lower =
                letters.get(index + 1).is_some_and(|(_, letter)| letter.is_lowercase());
            let is_end_of_capitals = before.is_uppercase() && is_next_lower;
            if letter.is_uppercase() && (!before.is_uppercase() || is_end_of_capitals) {
                parts.push(&piece[from..at]);
                from = at;
            }
        }
        parts.push(&piece[from..]);
    }
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "# A comment.\n\
                         frob\tuse\n\
                         blue moon\trarely\n\
                         red_flag\twarning\n\
                         ident:plonk\tinsert\n\
                         exact:Zap\tRemove\n";

    fn faults_of(name: &str, text: &str) -> Vec<String> {
        let files =
            Files::from([(LIST.into(), RULES.to_string()), (name.into(), text.to_string())]);
        check(&files).iter().map(Fault::to_string).collect()
    }

    #[test]
    fn banned_word_is_a_fault_in_an_identifier_a_comment_and_a_document() {
        assert_eq!(
            faults_of("a.rs", "fn is_frob() {}\n"),
            ["a.rs:1: banned: \"frob\"; say use [words]"]
        );
        for (name, text) in [
            ("a.rs", "struct FrobList;"),
            ("a.rs", "const FROB: u8 = 1;"),
            ("a.rs", "// They frob it.\n"),
            ("a.rs", "/// `frob`\nfn a() {}"),
            ("a.rs", "print(\"Frob.\")"),
            ("README.md", "What to frob."),
            ("plans/a.toml", "frob = 1"),
        ] {
            assert_eq!(faults_of(name, text).len(), 1, "{name}: {text}");
        }
    }

    #[test]
    fn phrase_is_found_across_lines_and_in_identifiers() {
        for text in [
            "// once in a blue\n    // moon\n",
            "fn blue_moon() {}",
            "struct BlueMoon;",
            "/// Blue-moon.",
            "fn a() { red_flag() }",
            "// a red flag",
        ] {
            assert_eq!(faults_of("a.rs", text).len(), 1, "{text}");
        }
        assert_eq!(faults_of("a.rs", "// blue. Moon, red(flag)"), Vec::<String>::new());
    }

    #[test]
    fn ordinary_words_are_banned_as_identifiers_only() {
        assert_eq!(faults_of("a.rs", "fn plonk_it() {}").len(), 1);
        assert_eq!(faults_of("a.rs", "struct Zap;").len(), 1);
        for text in ["// plonk, Zap", "fn zap() {}", "struct ZapList;", "say(\"plonk\")"] {
            assert_eq!(faults_of("a.rs", text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn parts_of_longer_words_and_exempt_files_pass() {
        assert_eq!(faults_of("a.rs", "// frobnicate\nfn frobs() {}"), Vec::<String>::new());
        for name in ["CHANGELOG.md", "crates/a/tests/data/b.txt", "Cargo.lock", "a.csv"] {
            assert_eq!(faults_of(name, "frob"), Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn line_without_replacement_is_a_fault() {
        let files = Files::from([(LIST.into(), "frob\n".to_string())]);
        assert_eq!(check(&files).len(), 1);
    }

    #[test]
    fn identifiers_are_split_at_capitals_and_underscores() {
        for (identifier, parts) in [
            ("is_caught_up", vec!["is", "caught", "up"]),
            ("ReplicaStatus", vec!["Replica", "Status"]),
            ("HTTPServer2", vec!["HTTP", "Server2"]),
            ("P99", vec!["P99"]),
            ("_", vec![]),
        ] {
            assert_eq!(parts_of(identifier), parts);
        }
    }
}
