//! Which parts of a Rust source are code, and which are prose: comments and strings.

/// A part of a source: its text, the line on which it starts, and whether it is code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region<'a> {
    pub text: &'a str,
    pub line: usize,
    pub is_code: bool,
}

/// The regions of a Rust source in order. Together they are the whole text.
pub fn regions(source: &str) -> Vec<Region<'_>> {
    let mut regions = vec![];
    let mut add = |from: usize, to: usize, is_code: bool| {
        if from < to {
            let line = source[..from].matches('\n').count() + 1;
            regions.push(Region { text: &source[from..to], line, is_code });
        }
    };
    let (mut code_from, mut at) = (0, 0);
    while at < source.len() {
        match prose_length(&source[at..]) {
            Some(length) => {
                add(code_from, at, true);
                add(at, at + length, false);
                at += length;
                code_from = at;
            }
            None => at += code_length(&source[at..]),
        }
    }
    add(code_from, source.len(), true);
    regions
}

/// The length of the comment or string at the start of `rest`.
fn prose_length(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(block_comment_length(rest));
    }
    if rest.starts_with('"') {
        return Some(string_length(rest));
    }
    let raw = rest.strip_prefix('r')?;
    let hashes = raw.len() - raw.trim_start_matches('#').len();
    let inner = raw[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = inner.find(&end).unwrap_or(inner.len());
    Some((1 + hashes + 1 + length + end.len()).min(rest.len()))
}

/// Block comments nest.
fn block_comment_length(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += first_length(&rest[at..]);
        }
    }
    rest.len()
}

fn string_length(rest: &str) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest.as_bytes()[at] {
            b'"' => return at + 1,
            b'\\' => at += 1 + first_length(&rest[at + 1..]),
            _ => at += first_length(&rest[at..]),
        }
    }
    rest.len()
}

/// The length of the word, literal or character of code at the start of `rest`: never zero.
fn code_length(rest: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
    if word > 0 {
        return word;
    }
    // A quote is a character, which may be `'"'`, or opens a lifetime.
    let Some(quoted) = rest.strip_prefix('\'') else { return first_length(rest) };
    if let Some(escaped) = quoted.strip_prefix('\\') {
        let skipped = first_length(escaped);
        return 2 + skipped + escaped[skipped..].find('\'').map_or(0, |end| end + 1);
    }
    let character = first_length(quoted);
    if quoted[character..].starts_with('\'') { 1 + character + 1 } else { 1 }
}

/// Bytes of the first character.
fn first_length(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, prose: &[(&str, usize)]) {
        let found = regions(source);
        let joined: String = found.iter().map(|region| region.text).collect();
        assert_eq!(joined, source);
        let found: Vec<(&str, usize)> = found
            .iter()
            .filter(|region| !region.is_code)
            .map(|region| (region.text, region.line))
            .collect();
        assert_eq!(found, prose);
    }

    #[test]
    fn comments_and_strings_are_prose() {
        check("a // b\nc /* d /* e */ f */ g", &[("// b", 1), ("/* d /* e */ f */", 2)]);
        check("a(\"b \\\" c\", d)", &[("\"b \\\" c\"", 1)]);
        check("a\n(r#\"b \" c\"#, br\"d\")", &[("r#\"b \" c\"#", 2), ("\"d\"", 2)]);
    }

    #[test]
    fn characters_lifetimes_and_names_are_code() {
        check(
            "fn a<'b>(c: &'b str) { d('\"'); e('\\''); f(b'\\\\'); g('é'); r#type; for_\"h\" }",
            &[("\"h\"", 1)],
        );
        check("'\\u{22}' '\"' // i", &[("// i", 1)]);
    }
}
