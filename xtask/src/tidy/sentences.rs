//! The length of sentences in documents and module comments. A reader who is tired, or to whom
//! English is foreign, understands a short sentence at once.

use std::path::Path;

use crate::tidy::fault::{Check, Fault};
use crate::tidy::workspace::{Files, is_rust};

/// The longest sentence that passes. A code span is one word, a link has the words of its text.
const WORDS_MAX: usize = 25;

/// Pages that are made from something else, and shortened there.
const GENERATED: [&str; 2] = ["docs/wire.md", "docs/stacks.md"];

const DOCUMENTS: [&str; 5] =
    ["README.md", "ARCHITECTURE.md", "METHODOLOGY.md", "CONTRIBUTING.md", "SPECIFICATION.md"];

/// Words that end with a full stop and end no sentence.
const ABBREVIATIONS: [&str; 6] = ["e.g.", "i.e.", "vs.", "cf.", "no.", "approx."];

pub fn check(files: &Files) -> Vec<Fault> {
    files.iter().flat_map(|(path, text)| file_faults(path, text)).collect()
}

fn file_faults(path: &Path, text: &str) -> Vec<Fault> {
    let blocks = if is_rust(path) {
        blocks(module_comment(text))
    } else if is_document(path) {
        blocks(text.lines().map(Some))
    } else {
        return vec![];
    };
    let sentences = blocks.iter().flat_map(sentences);
    let too_long = sentences.filter(|sentence| sentence.len() > WORDS_MAX);
    too_long.map(|sentence| fault(path, &sentence)).collect()
}

fn is_document(path: &Path) -> bool {
    let is_page = path.extension().is_some_and(|extension| extension == "md");
    let is_generated = GENERATED.iter().any(|page| path == Path::new(page));
    let is_named = DOCUMENTS.iter().any(|page| path == Path::new(page));
    is_named || (is_page && path.starts_with("docs") && !is_generated)
}

fn fault(path: &Path, sentence: &[Word]) -> Fault {
    let first: Vec<&str> = sentence.iter().take(6).map(|word| word.text.as_str()).collect();
    let (count, first) = (sentence.len(), first.join(" "));
    let text = format!("\"{first} …\" has {count} words; write sentences of at most {WORDS_MAX}");
    Fault::new(Check::Sentences, path, sentence[0].line, text)
}

/// The lines of a source file that are module comments; `None` for every other line.
fn module_comment(text: &str) -> impl Iterator<Item = Option<&str>> {
    text.lines().map(|line| {
        let comment = line.trim_start().strip_prefix("//!")?;
        Some(comment.strip_prefix(' ').unwrap_or(comment))
    })
}

/// Text that a sentence does not leave: a paragraph, an item of a list, a cell of a table.
#[derive(Default)]
struct Block {
    /// Number of the line where it begins.
    line: usize,
    text: String,
}

/// Splits Markdown into blocks. Headings, code and HTML are none.
fn blocks<'a>(lines: impl Iterator<Item = Option<&'a str>>) -> Vec<Block> {
    let (mut done, mut open) = (vec![], Block::default());
    let (mut fence, mut is_html, mut is_in_list) = (None, false, false);
    for (index, line) in lines.enumerate() {
        let raw = line.unwrap_or_default();
        let text = raw.trim_start_matches(['>', ' ']).trim_end();
        let marker = ["```", "~~~"].into_iter().find(|marker| text.starts_with(marker));
        let was_html = is_html;
        is_html = (is_html || text.starts_with("<!--")) && !text.contains("-->");
        let is_code = fence.is_some() || marker.is_some();
        if is_code && (fence.is_none() || fence == marker) {
            fence = if fence.is_none() { marker } else { None };
        }
        let is_indented_code = open.text.is_empty() && !is_in_list && raw.starts_with("    ");
        let ends = text.is_empty() || text.starts_with(['#', '<', '|']) || is_code || was_html;
        let item = list_item(text);
        if ends || item.is_some() {
            done.push(std::mem::take(&mut open));
        }
        is_in_list = item.is_some() || (is_in_list && (text.is_empty() || raw.starts_with(' ')));
        if text.starts_with('|') && !is_code && !was_html {
            done.extend(cells(text).map(|text| Block { line: index + 1, text }));
        } else if !ends && !is_indented_code {
            if open.text.is_empty() {
                open.line = index + 1;
            }
            open.text.push_str(item.unwrap_or(text));
            open.text.push('\n');
        }
    }
    done.push(open);
    done
}

/// What follows the marker of a list's item.
fn list_item(text: &str) -> Option<&str> {
    let after_number = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_numbered = after_number.len() < text.len();
    let bullets = ["- ", "* ", "+ "].iter().find_map(|bullet| text.strip_prefix(bullet));
    bullets.or_else(|| after_number.strip_prefix(". ").filter(|_| is_numbered))
}

/// The cells of a row. A bar in a code span, or behind a backslash, separates nothing.
fn cells(row: &str) -> impl Iterator<Item = String> {
    let (mut cells, mut is_code, mut is_escaped) = (vec![String::new()], false, false);
    for c in row.chars() {
        is_code ^= c == '`';
        if c == '|' && !is_code && !is_escaped {
            cells.push(String::new());
        } else if let Some(cell) = cells.last_mut() {
            cell.push(c);
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    cells.into_iter()
}

struct Word {
    line: usize,
    text: String,
}

/// The sentences of a block, as words.
fn sentences(block: &Block) -> Vec<Vec<Word>> {
    let mut sentences = vec![vec![]];
    for word in words(block) {
        let ends = ends_sentence(&word.text);
        let counts = word.text.contains(|c: char| c.is_alphanumeric() || c == '`');
        if let Some(sentence) = sentences.last_mut().filter(|_| counts) {
            sentence.push(word);
        }
        if ends {
            sentences.push(vec![]);
        }
    }
    sentences
}

/// The words of a block: a code span becomes one, the target of a link none.
fn words(block: &Block) -> Vec<Word> {
    let (mut words, mut line, mut rest) = (vec![], block.line, block.text.as_str());
    let mut word = String::new();
    while let Some(first) = rest.chars().next() {
        let taken = if first == '`' {
            let code = code_span(rest);
            word.extend(code.chars().map(|c| if c.is_whitespace() { '\u{a0}' } else { c }));
            code.len()
        } else if rest.starts_with("](") {
            rest.find(')').map_or(rest.len(), |end| end + 1)
        } else {
            if first.is_ascii_whitespace() && !word.is_empty() {
                words.push(Word { line, text: std::mem::take(&mut word) });
            } else if !first.is_ascii_whitespace() && !['[', ']', '*'].contains(&first) {
                word.push(first);
            }
            first.len_utf8()
        };
        line += rest[..taken].matches('\n').count();
        rest = &rest[taken..];
    }
    if !word.is_empty() {
        words.push(Word { line, text: word });
    }
    words
}

/// The code span with which a text begins, its quotes included.
fn code_span(text: &str) -> &str {
    let n_quotes = text.len() - text.trim_start_matches('`').len();
    let (quotes, inner) = text.split_at(n_quotes);
    inner.find(quotes).map_or(quotes, |end| &text[..end + 2 * n_quotes])
}

fn ends_sentence(word: &str) -> bool {
    let bare = word.trim_end_matches([')', '"', '”', '_', '\'']);
    let is_abbreviation = ABBREVIATIONS.contains(&bare.trim_start_matches('('));
    bare.ends_with(['.', '?', '!']) && !is_abbreviation
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    /// A sentence of so many words.
    fn sentence(n_words: usize) -> String {
        format!("{}ends.", "word ".repeat(n_words - 1))
    }

    fn lines(path: &str, text: &str) -> Vec<usize> {
        file_faults(Path::new(path), text).iter().map(|fault| fault.line).collect()
    }

    fn page(text: &str) -> Vec<usize> {
        lines("docs/guides/tune.md", text)
    }

    #[test]
    fn long_sentences_are_found_wherever_text_stands() {
        let long = sentence(26);
        let broken = long.replacen(' ', "\n", 9);
        assert_eq!(page(&format!("Short.\n{broken}\n")), [2]);
        assert_eq!(page(&format!("Short. {broken}\n\n{long}")), [1, 12]);
        assert_eq!(page(&format!("Steps:\n\n1. Short.\n2. {long}\n   {long}\n")), [4, 5]);
        assert_eq!(page(&format!("- a\n\n    {long}\n")), [3]);
        assert_eq!(page(&format!("| a | b |\n| --- | --- |\n| x | Yes. {long} |\n")), [3]);
        let source = format!("//! Head.\n//!\n//! {long}\n\nfn f() {{}}\n");
        assert_eq!(lines("crates/ground/sys/src/lib.rs", &source), [3]);
    }

    #[test]
    fn what_is_no_sentence_passes() {
        let long = sentence(26);
        assert_eq!(page(&format!("# {long}\n\n```text\n{long}\n```\n\n    {long}\n")), NONE);
        assert_eq!(page(&format!("<!-- a\n{long}\n-->\nShort.\n")), NONE);
        let target = long.replace("ends.", "");
        assert_eq!(page(&format!("A [link]({target}) and `{long}` end.\n")), NONE);
        assert_eq!(page(&format!("- {0}\n- {0}\n", sentence(25))), NONE);
        assert_eq!(page(&format!("| {0} `a | b` | {0} |\n", sentence(20))), NONE);
        let source = format!("//! ```\n//! {long}\n//! ```\n/// {long}\n// {long}\n");
        assert_eq!(lines("crates/ground/sys/src/lib.rs", &source), NONE);
        assert_eq!(lines("CHANGELOG.md", &long), NONE);
        assert_eq!(lines("docs/wire.md", &long), NONE);
    }

    #[test]
    fn full_stops_end_sentences_colons_and_abbreviations_do_not() {
        let half = "word ".repeat(13);
        assert_eq!(page(&format!("{half}: {half}.")), [1]);
        assert_eq!(page(&format!("{half}, e.g. {half}.")), [1]);
        assert_eq!(page(&format!("**{half}end.** {half}.")), NONE);
        assert_eq!(page(&format!("({half}end.) {half} = 1.5 µs → {half}")), [1]);
    }

    #[test]
    fn fault_names_the_count_and_the_first_words() {
        let text = format!("The `first word` of [many](target) {}", sentence(26));
        let faults = file_faults(Path::new("README.md"), &text);
        let wanted = "README.md:1: \"The `first\u{a0}word` of many word word …\" has 30 words; \
                      write sentences of at most 25 [sentences]";
        assert_eq!(faults[0].to_string(), wanted);
    }
}
