//! Tokens of Rust sources, and what several checks ask of them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::tidy::fault::{Check, Fault};
use crate::tidy::workspace::{Files, is_rust};

/// Token streams of the Rust files by path.
pub type Lexed = BTreeMap<PathBuf, TokenStream>;

/// The tokens of all Rust files, and a fault for each file that has none.
pub fn lex_all(files: &Files) -> (Lexed, Vec<Fault>) {
    let (mut lexed, mut faults) = (Lexed::new(), vec![]);
    for (path, text) in files.iter().filter(|(path, _)| is_rust(path)) {
        match text.parse::<TokenStream>() {
            Ok(tokens) => {
                lexed.insert(path.clone(), tokens);
            }
            Err(error) => {
                let line = error.span().start().line;
                let text = format!("not Rust ({error}); make it compile");
                faults.push(Fault::new(Check::Text, path, line, text));
            }
        }
    }
    (lexed, faults)
}

pub fn is_punct(tree: Option<&TokenTree>, wanted: char) -> bool {
    matches!(tree, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

/// The identifier that `tree` is, without `r#`.
pub fn ident(tree: Option<&TokenTree>) -> Option<String> {
    match tree? {
        TokenTree::Ident(ident) => {
            let name = ident.to_string();
            Some(name.strip_prefix("r#").map(str::to_string).unwrap_or(name))
        }
        _ => None,
    }
}

pub fn group(tree: Option<&TokenTree>, delimiter: Delimiter) -> Option<&Group> {
    match tree? {
        TokenTree::Group(group) if group.delimiter() == delimiter => Some(group),
        _ => None,
    }
}

/// Whether two colons stand at `index`.
pub fn is_path_separator(trees: &[TokenTree], index: usize) -> bool {
    is_punct(trees.get(index), ':') && is_punct(trees.get(index + 1), ':')
}

/// The attribute whose `#` stands at `index`: its brackets, and the index after it.
pub fn attribute(trees: &[TokenTree], index: usize) -> Option<(&Group, usize)> {
    if !is_punct(trees.get(index), '#') {
        return None;
    }
    let at = if is_punct(trees.get(index + 1), '!') { index + 2 } else { index + 1 };
    Some((group(trees.get(at), Delimiter::Bracket)?, at + 1))
}

/// Whether an attribute is a `cfg` that holds in builds of tests only.
pub fn is_test_only(attribute: &Group) -> bool {
    let trees: Vec<TokenTree> = attribute.stream().into_iter().collect();
    ident(trees.first()).is_some_and(|name| name == "cfg")
        && group(trees.get(1), Delimiter::Parenthesis)
            .is_some_and(|predicate| requires_test(&predicate.stream()))
}

/// Whether a `cfg` predicate can only hold where `test` holds.
fn requires_test(predicate: &TokenStream) -> bool {
    let trees: Vec<TokenTree> = predicate.clone().into_iter().collect();
    let Some(name) = ident(trees.first()) else { return false };
    let Some(inner) = group(trees.get(1), Delimiter::Parenthesis) else { return name == "test" };
    let inner: Vec<TokenTree> = inner.stream().into_iter().collect();
    let mut parts = inner
        .split(|tree| is_punct(Some(tree), ','))
        .filter(|part| !part.is_empty())
        .map(|part| requires_test(&part.iter().cloned().collect()));
    match name.as_str() {
        "all" => parts.any(|needs| needs),
        "any" => parts.all(|needs| needs),
        _ => false,
    }
}

/// The index after the item, statement or field at `index`: the end of its braces, or of its `;` or
/// `,` outside of angle brackets.
pub fn after_item(trees: &[TokenTree], mut index: usize) -> usize {
    while let Some((_, after)) = attribute(trees, index) {
        index = after;
    }
    let mut depth = 0i32;
    while let Some(tree) = trees.get(index) {
        match tree {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => return index + 1,
            TokenTree::Punct(punct) => match punct.as_char() {
                ';' => return index + 1,
                ',' if depth <= 0 => return index + 1,
                '<' => depth += 1,
                '>' if !index.checked_sub(1).is_some_and(|at| is_punct(trees.get(at), '-')) => {
                    depth -= 1;
                }
                _ => {}
            },
            _ => {}
        }
        index += 1;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trees(text: &str) -> Vec<TokenTree> {
        text.parse::<TokenStream>().unwrap().into_iter().collect()
    }

    #[test]
    fn cfg_that_needs_test_is_known() {
        for (text, wanted) in [
            ("#[cfg(test)]", true),
            ("#[cfg(all(test, not(loom)))]", true),
            ("#[cfg(any(test, feature = \"test-support\"))]", false),
            ("#[cfg(not(test))]", false),
            ("#[cfg(loom)]", false),
            ("#[test]", false),
        ] {
            let trees = trees(text);
            let (brackets, _) = attribute(&trees, 0).unwrap();
            assert_eq!(is_test_only(brackets), wanted, "{text}");
        }
    }

    #[test]
    fn end_of_an_item_is_found() {
        for text in [
            "fn a<K, V>(b: u8) -> Vec<K> { c; }",
            "#[d] mod e;",
            "field: BTreeMap<u8, fn(u8) -> u8>,",
            "use a::{b, c}; ",
        ] {
            let mut all = trees(text);
            let length = all.len();
            all.extend(trees("after"));
            // A `use` with braces ends at them; the `;` that is left harms nobody.
            let end = after_item(&all, 0);
            assert!(end == length || text.starts_with("use"), "{text}: {end} of {length}");
        }
    }
}
