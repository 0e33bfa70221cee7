//! Function length, from `fn` to the closing brace. Functions inside of functions and of macros
//! count as well.

use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::tidy::fault::{Check, Fault};
use crate::tidy::tokens::Lexed;

const FUNCTION_LINES_MAX: usize = 70;

pub fn check(sources: &Lexed) -> Vec<Fault> {
    let mut faults = vec![];
    for (path, tokens) in sources {
        stream_faults(path, tokens, &mut faults);
    }
    faults
}

fn stream_faults(path: &Path, tokens: &TokenStream, faults: &mut Vec<Fault>) {
    let trees: Vec<TokenTree> = tokens.clone().into_iter().collect();
    for (index, tree) in trees.iter().enumerate() {
        if let TokenTree::Group(group) = tree {
            stream_faults(path, &group.stream(), faults);
        }
        let Some((name, end_line)) = function(&trees[index..]) else { continue };
        let line = tree.span().start().line;
        let length = end_line - line + 1;
        if length > FUNCTION_LINES_MAX {
            let text = format!(
                "function `{name}` has {length} lines; split it into parts of at most \
                 {FUNCTION_LINES_MAX}"
            );
            faults.push(Fault::new(Check::Functions, path, line, text));
        }
    }
}

/// Name and last line of the function with a body that starts at the first of `trees`.
fn function(trees: &[TokenTree]) -> Option<(String, usize)> {
    let [TokenTree::Ident(keyword), name, ..] = trees else { return None };
    if *keyword != "fn" {
        return None;
    }
    let name = match name {
        TokenTree::Ident(name) => name.to_string(),
        // `fn $name` in a macro.
        TokenTree::Punct(dollar) if dollar.as_char() == '$' => trees.get(2)?.to_string(),
        _ => return None,
    };
    for tree in trees {
        match tree {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                return Some((name, group.span_close().end().line));
            }
            TokenTree::Punct(punct) if punct.as_char() == ';' => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tokens::lex_all;
    use crate::tidy::workspace::Files;

    fn faults_of(text: String) -> Vec<String> {
        let files = Files::from([("src/a.rs".into(), text)]);
        let (sources, unreadable) = lex_all(&files);
        assert_eq!(unreadable, []);
        check(&sources).iter().map(Fault::to_string).collect()
    }

    /// A function of `length` lines.
    fn function_text(length: usize) -> String {
        format!("fn long<T>(x: fn(u8)) {{\n{}}}\n", "    work();\n".repeat(length - 2))
    }

    #[test]
    fn long_function_is_a_fault() {
        assert_eq!(
            faults_of(format!("trait A {{ fn b(); }}\n{}", function_text(80))),
            ["src/a.rs:2: function `long` has 80 lines; split it into parts of at most 70 \
              [functions]"]
        );
    }

    #[test]
    fn long_functions_inside_of_others_and_of_macros_are_faults() {
        let inner = function_text(71);
        assert_eq!(faults_of(format!("mod a {{ impl B {{ {inner} }} }}")).len(), 1);
        assert_eq!(faults_of(format!("proptest! {{ {inner} }}")).len(), 1);
        assert_eq!(faults_of(format!("fn outer() {{ {inner} }}")).len(), 2);
    }

    #[test]
    fn function_at_the_limit_passes() {
        assert_eq!(faults_of(function_text(FUNCTION_LINES_MAX)), Vec::<String>::new());
    }
}
