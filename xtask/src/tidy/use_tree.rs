//! The imports of a `use`, flat: one for each leaf of its tree.

use proc_macro2::{Delimiter, TokenTree};

use crate::tidy::tokens::{group, ident, is_path_separator, is_punct};

/// One leaf of a `use` tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    pub segments: Vec<String>,
    /// The name that it gets here; `None` for a glob and for `as _`.
    pub alias: Option<String>,
    pub line: usize,
    pub is_glob: bool,
}

/// The imports of the tokens between `use` and `;`. A path of another crate, `::name`, is none.
pub fn use_imports(trees: &[TokenTree]) -> Vec<Import> {
    let mut imports = vec![];
    if !is_path_separator(trees, 0) {
        collect(trees, &[], &mut imports);
    }
    imports
}

/// Adds the imports of a comma-separated list of trees below `prefix`.
fn collect(trees: &[TokenTree], prefix: &[String], imports: &mut Vec<Import>) {
    for tree in trees.split(|tree| is_punct(Some(tree), ',')) {
        branch(tree, prefix, imports);
    }
}

fn branch(trees: &[TokenTree], prefix: &[String], imports: &mut Vec<Import>) {
    let Some(first) = trees.first() else { return };
    let line = first.span().start().line;
    let mut segments = prefix.to_vec();
    let mut index = 0;
    loop {
        if let Some(inner) = group(trees.get(index), Delimiter::Brace) {
            let inner: Vec<TokenTree> = inner.stream().into_iter().collect();
            return collect(&inner, &segments, imports);
        }
        if is_punct(trees.get(index), '*') {
            imports.push(Import { segments, alias: None, line, is_glob: true });
            return;
        }
        let Some(name) = ident(trees.get(index)) else { return };
        // `a::{self}` is `a`.
        if name != "self" || segments.is_empty() {
            segments.push(name);
        }
        if !is_path_separator(trees, index + 1) {
            break;
        }
        index += 3;
    }
    let alias = match ident(trees.get(index + 1)).as_deref() {
        Some("as") => ident(trees.get(index + 2)).filter(|name| name != "_"),
        _ => segments.last().cloned(),
    };
    imports.push(Import { segments, alias, line, is_glob: false });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proc_macro2::TokenStream;

    #[test]
    fn leaves_are_listed_with_their_paths_and_names() {
        let tokens: TokenStream = "crate::{a::{self, B as C}, d::*, e as _}".parse().unwrap();
        let trees: Vec<TokenTree> = tokens.into_iter().collect();
        let shown: Vec<(String, Option<String>, bool)> = use_imports(&trees)
            .into_iter()
            .map(|import| (import.segments.join("::"), import.alias, import.is_glob))
            .collect();
        let name = |text: &str| Some(text.to_string());
        assert_eq!(
            shown,
            [
                ("crate::a".to_string(), name("a"), false),
                ("crate::a::B".to_string(), name("C"), false),
                ("crate::d".to_string(), None, true),
                ("crate::e".to_string(), None, false),
            ]
        );
    }
}
