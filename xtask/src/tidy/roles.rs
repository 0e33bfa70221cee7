//! The exchange's product code is what its simulation drives. Only whole modules are for tests, and
//! a role names nothing with a clock, a thread, a socket or a file.

use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};

use crate::tidy::fault::{Check, Fault};
use crate::tidy::tokens::{self, Lexed};

const WING: &str = "crates/exchange";

/// The folders of the roles.
const NODE: &str = "crates/exchange/exchange/src/node";
const ROLES: [&str; 6] = ["control", "gateway", "mediator", "processor", "replica", "router"];

/// What no role names: crates, modules of `std`, and types.
const BANNED: [&str; 12] = [
    "nm_sys",
    "env",
    "fs",
    "net",
    "os",
    "process",
    "thread",
    "Instant",
    "SystemTime",
    "TcpStream",
    "UnixStream",
    "Waker",
];

pub fn check(sources: &Lexed) -> Vec<Fault> {
    let mut faults = vec![];
    for (path, tokens) in sources {
        let is_product = path.components().any(|part| part.as_os_str() == "src");
        if path.starts_with(WING) && is_product {
            let is_role = ROLES.iter().any(|role| path.starts_with(Path::new(NODE).join(role)));
            stream_faults(path, tokens, is_role, &mut faults);
        }
    }
    faults
}

fn stream_faults(path: &Path, tokens: &TokenStream, is_role: bool, faults: &mut Vec<Fault>) {
    let trees: Vec<TokenTree> = tokens.clone().into_iter().collect();
    let mut at = 0;
    while let Some(tree) = trees.get(at) {
        let line = tree.span().start().line;
        if let Some((attribute, after)) = tokens::attribute(&trees, at)
            && tokens::is_test_only(attribute)
        {
            if !is_module(&trees, after) {
                let text = "`#[cfg(test)]` stands on something else than a module; pass what tests \
                            need in, or move it to their module";
                faults.push(Fault::new(Check::Roles, path, line, text));
            }
            at = tokens::after_item(&trees, at);
            continue;
        }
        match tree {
            TokenTree::Group(group) => stream_faults(path, &group.stream(), is_role, faults),
            TokenTree::Ident(name) if is_role && is_banned(&trees, at) => {
                let text =
                    format!("a role names `{name}`; the event loop has it, and passes it in");
                faults.push(Fault::new(Check::Roles, path, line, text));
            }
            _ => {}
        }
        at += 1;
    }
}

/// Whether the item behind an attribute, other attributes and a visibility is a module.
fn is_module(trees: &[TokenTree], mut at: usize) -> bool {
    while let Some((_, after)) = tokens::attribute(trees, at) {
        at = after;
    }
    if tokens::ident(trees.get(at)).is_some_and(|word| word == "pub") {
        at += 1;
        at += usize::from(matches!(trees.get(at), Some(TokenTree::Group(_))));
    }
    tokens::ident(trees.get(at)).is_some_and(|word| word == "mod")
}

/// Whether a banned name stands here: a crate, a type, or a module behind `std::`.
fn is_banned(trees: &[TokenTree], at: usize) -> bool {
    let Some(name) = tokens::ident(trees.get(at)) else { return false };
    if !BANNED.contains(&name.as_str()) {
        return false;
    }
    let is_module = name.chars().all(char::is_lowercase);
    let of_std = at >= 3
        && tokens::is_path_separator(trees, at - 2)
        && tokens::ident(trees.get(at - 3)).is_some_and(|root| root == "std");
    !is_module || of_std
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::workspace::Files;

    fn faults(path: &str, text: &str) -> Vec<String> {
        let (sources, _) = tokens::lex_all(&Files::from([(path.into(), text.into())]));
        check(&sources).iter().map(Fault::to_string).collect()
    }

    #[test]
    fn only_modules_of_the_exchange_are_for_tests() {
        let path = "crates/exchange/book/src/a.rs";
        for text in ["#[cfg(test)] mod a { fn b() {} }", "#[cfg(test)]\npub(crate) mod a;\n"] {
            assert_eq!(faults(path, text), Vec::<String>::new());
            assert_eq!(faults("crates/ground/sys/src/a.rs", "#[cfg(test)] fn a() {}").len(), 0);
        }
        for item in ["fn a() {}", "pub const A: u8 = 1;", "use a::b;", "if now() { return; }"] {
            let text = format!("impl A {{ fn f() {{ }} }}\nmod b {{\n#[cfg(test)]\n{item} }}");
            let found = faults(path, &text);
            assert_eq!(found.len(), 1, "{item}");
            assert!(found[0].contains("a.rs:3: `#[cfg(test)]` stands on"), "{found:?}");
        }
    }

    #[test]
    fn a_role_names_no_clock_thread_or_socket() {
        let path = "crates/exchange/exchange/src/node/router/mod.rs";
        for text in [
            "use nm_sys::clock;",
            "fn f() { std::thread::yield_now(); }",
            "fn f() -> Instant { Instant::now() }",
            "use std::fs::File;",
        ] {
            assert!(faults(path, text)[0].contains("a role names `"), "{text}");
            let elsewhere = "crates/exchange/exchange/src/node/runtime/links.rs";
            assert_eq!(faults(elsewhere, text), Vec::<String>::new());
        }
        let allowed = "use crate::process::net; #[cfg(test)] mod tests { use nm_sys::clock; }";
        assert_eq!(faults(path, allowed), Vec::<String>::new());
    }

    /// What a file of clippy's bans.
    fn banned_methods(path: &str) -> Vec<String> {
        let text = std::fs::read_to_string(crate::shell::root().join(path)).unwrap();
        let file: toml::Table = toml::from_str(&text).unwrap();
        let entries = file["disallowed-methods"].as_array().unwrap();
        entries.iter().map(|entry| entry["path"].as_str().unwrap().to_string()).collect()
    }

    /// Clippy reads the file of the crate alone.
    #[test]
    fn calls_that_block_are_banned_in_the_exchange_beside_what_the_workspace_bans() {
        for name in ["exchange", "doors", "feed"] {
            check_banned(&format!("crates/exchange/{name}/clippy.toml"));
        }
    }

    /// Whether a crate with a loop that must not block bans what the workspace bans, and what
    /// blocks.
    fn check_banned(path: &str) {
        let own = banned_methods(path);
        for method in banned_methods("clippy.toml") {
            assert!(own.contains(&method), "{path}: {method}");
        }
        for method in [
            "std::thread::sleep",
            "std::os::unix::net::UnixStream::connect",
            "std::net::TcpStream::connect",
            "std::fs::write",
            "std::fs::File::sync_all",
            "std::sync::mpsc::Receiver::recv",
            "std::process::Command::status",
            "std::io::stderr",
        ] {
            assert!(own.iter().any(|banned| banned == method), "{path}: {method}");
        }
    }
}
