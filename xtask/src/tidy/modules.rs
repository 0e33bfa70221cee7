//! The module tree of one build target. It has which file each module is in, and the names it
//! defines and imports. It also has every path that it mentions outside of items for tests only.
//!
//! It is read from tokens, so that paths within macros count too. What macros generate is unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Group, TokenTree};

use crate::tidy::tokens::{
    Lexed, after_item, attribute, group, ident, is_path_separator, is_punct, is_test_only,
};
use crate::tidy::use_tree::{Import, use_imports};

/// A path that a module mentions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mention {
    pub segments: Vec<String>,
    pub line: usize,
    pub kind: MentionKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MentionKind {
    /// In an expression, type or macro.
    Path,
    Use,
    /// `pub use` of any visibility.
    ReExport,
    /// `use a::*`.
    Glob,
    /// In an attribute, which may name a whole module.
    Attribute,
    /// `name!`, whose `macro_rules` is visible where it stands above in the text of the crate.
    Macro,
}

#[derive(Debug, Default)]
pub struct Module {
    pub file: PathBuf,
    pub parent: usize,
    pub children: BTreeMap<String, usize>,
    /// Items that the module itself defines.
    pub names: BTreeSet<String>,
    /// Names that `use` brings in, with the paths they stand for.
    pub bindings: BTreeMap<String, Vec<String>>,
    pub mentions: Vec<Mention>,
}

/// All modules of a target; the first is its root.
#[derive(Debug, Default)]
pub struct ModuleTree {
    pub modules: Vec<Module>,
    /// Modules that define a macro by `macro_rules`.
    pub macros: BTreeMap<String, usize>,
}

/// Where the files of a module's children are.
struct Place<'a> {
    module: usize,
    folder: &'a Path,
}

impl ModuleTree {
    /// Reads the target whose root is the file `root`.
    pub fn read(root: &Path, sources: &Lexed) -> ModuleTree {
        let mut tree = ModuleTree::default();
        let folder = root.parent().unwrap_or(Path::new(""));
        tree.read_file(root, 0, folder, sources);
        tree
    }

    fn read_file(
        &mut self,
        file: &Path,
        parent: usize,
        folder: &Path,
        sources: &Lexed,
    ) -> Option<usize> {
        let tokens = sources.get(file)?;
        let module = self.modules.len();
        self.modules.push(Module { file: file.to_path_buf(), parent, ..Module::default() });
        let trees: Vec<TokenTree> = tokens.clone().into_iter().collect();
        self.read_items(&trees, &Place { module, folder }, true, sources);
        Some(module)
    }

    /// Reads the tokens of a module, or, if not `is_module_level`, of a body within it.
    fn read_items(
        &mut self,
        trees: &[TokenTree],
        place: &Place<'_>,
        is_module_level: bool,
        sources: &Lexed,
    ) {
        let mut path_attribute = None;
        let mut is_public = false;
        let mut index = 0;
        while index < trees.len() {
            if let Some((brackets, after)) = attribute(trees, index) {
                if is_test_only(brackets) {
                    index = after_item(trees, index);
                    continue;
                }
                path_attribute = path_of(brackets).or(path_attribute);
                self.read_attribute(brackets, place);
                index = after;
                continue;
            }
            let start = index;
            index = match ident(trees.get(index)).as_deref() {
                Some("pub") => {
                    is_public = true;
                    // The path within `pub(…)` is no import.
                    let is_limited = group(trees.get(index + 1), Delimiter::Parenthesis).is_some();
                    index + if is_limited { 2 } else { 1 }
                }
                Some("mod") => {
                    self.read_module(&trees[index..], place, path_attribute.take(), sources);
                    index + 3
                }
                Some("use") if !is_punct(trees.get(index + 1), '<') => {
                    let after = after_use(trees, index + 1);
                    self.read_use(&trees[index + 1..after], place.module, is_public);
                    after
                }
                Some("macro_rules") => {
                    if let Some(name) = ident(trees.get(index + 2)) {
                        self.macros.insert(name, place.module);
                    }
                    index + 3
                }
                Some(word) => {
                    if is_module_level && is_definition(word) {
                        let name = ident(trees.get(index + 1));
                        self.modules[place.module].names.extend(name);
                    }
                    self.read_path(trees, index, place.module)
                }
                None => {
                    if let Some(TokenTree::Group(inner)) = trees.get(index) {
                        let inner: Vec<TokenTree> = inner.stream().into_iter().collect();
                        self.read_items(&inner, place, false, sources);
                    }
                    index + 1
                }
            };
            if ident(trees.get(start)).is_none_or(|word| word != "pub") {
                is_public = false;
            }
        }
    }

    /// `mod name;` or `mod name { … }` at the first of `trees`.
    fn read_module(
        &mut self,
        trees: &[TokenTree],
        place: &Place<'_>,
        path_attribute: Option<String>,
        sources: &Lexed,
    ) {
        let Some(name) = ident(trees.get(1)) else { return };
        if let Some(body) = group(trees.get(2), Delimiter::Brace) {
            let module = self.modules.len();
            let file = self.modules[place.module].file.clone();
            self.modules.push(Module { file, parent: place.module, ..Module::default() });
            self.modules[place.module].children.insert(name.clone(), module);
            let body: Vec<TokenTree> = body.stream().into_iter().collect();
            let folder = place.folder.join(&name);
            self.read_items(&body, &Place { module, folder: &folder }, true, sources);
            return;
        }
        if !is_punct(trees.get(2), ';') {
            return;
        }
        let own_file = self.modules[place.module].file.clone();
        let (file, folder) = match path_attribute {
            Some(path) => {
                let file = own_file.parent().unwrap_or(Path::new("")).join(path);
                let folder = file.parent().unwrap_or(Path::new("")).to_path_buf();
                (file, folder)
            }
            None => {
                let folder = place.folder.join(&name);
                let flat = place.folder.join(format!("{name}.rs"));
                let is_flat = sources.contains_key(&flat);
                (if is_flat { flat } else { folder.join("mod.rs") }, folder)
            }
        };
        if let Some(module) = self.read_file(&normal(&file), place.module, &folder, sources) {
            self.modules[place.module].children.insert(name, module);
        }
    }

    fn read_use(&mut self, trees: &[TokenTree], module: usize, is_public: bool) {
        for Import { segments, alias, line, is_glob } in use_imports(trees) {
            let kind = match (is_glob, is_public) {
                (true, _) => MentionKind::Glob,
                (false, true) => MentionKind::ReExport,
                (false, false) => MentionKind::Use,
            };
            let module = &mut self.modules[module];
            if let Some(alias) = alias {
                module.bindings.entry(alias).or_insert_with(|| segments.clone());
            }
            module.mentions.push(Mention { segments, line, kind });
        }
    }

    /// The path or macro call at `index`; returns the index after it.
    fn read_path(&mut self, trees: &[TokenTree], index: usize, module: usize) -> usize {
        let line = trees[index].span().start().line;
        // `::name` is the path of another crate, `a.name` a field or method.
        let is_global = index >= 2 && is_path_separator(trees, index - 2);
        let mut segments: Vec<String> = ident(trees.get(index)).into_iter().collect();
        let mut at = index + 1;
        while is_path_separator(trees, at) {
            let Some(name) = ident(trees.get(at + 2)) else { break };
            segments.push(name);
            at += 3;
        }
        let is_macro = is_punct(trees.get(at), '!') && !is_punct(trees.get(at + 1), '=');
        let kind = match segments.len() {
            1 if is_macro => MentionKind::Macro,
            1 => return at,
            _ => MentionKind::Path,
        };
        if !is_global {
            self.modules[module].mentions.push(Mention { segments, line, kind });
        }
        at
    }

    /// `#[serde(with = "path")]` and its like name functions in strings.
    fn read_attribute(&mut self, brackets: &Group, place: &Place<'_>) {
        let trees: Vec<TokenTree> = brackets.stream().into_iter().collect();
        if ident(trees.first()).is_none_or(|name| name != "serde") {
            return;
        }
        let Some(arguments) = group(trees.get(1), Delimiter::Parenthesis) else { return };
        let arguments: Vec<TokenTree> = arguments.stream().into_iter().collect();
        for argument in arguments.windows(3) {
            let [TokenTree::Ident(key), _, TokenTree::Literal(value)] = argument else { continue };
            let text = value.to_string();
            let segments: Vec<String> =
                text.trim_matches('"').split("::").map(str::to_string).collect();
            if segments.len() > 1 || *key == "with" {
                let line = value.span().start().line;
                let mention = Mention { segments, line, kind: MentionKind::Attribute };
                self.modules[place.module].mentions.push(mention);
            }
        }
    }
}

/// The value of `#[path = "…"]`.
fn path_of(brackets: &Group) -> Option<String> {
    let trees: Vec<TokenTree> = brackets.stream().into_iter().collect();
    match trees.as_slice() {
        [TokenTree::Ident(name), _, TokenTree::Literal(value)] if *name == "path" => {
            Some(value.to_string().trim_matches('"').to_string())
        }
        _ => None,
    }
}

/// The index of the `;` that ends a `use`.
fn after_use(trees: &[TokenTree], index: usize) -> usize {
    let rest = trees[index..].iter().position(|tree| is_punct(Some(tree), ';'));
    rest.map_or(trees.len(), |length| index + length)
}

/// Whether a keyword is followed by the name that it defines.
fn is_definition(word: &str) -> bool {
    matches!(
        word,
        "struct" | "enum" | "union" | "trait" | "fn" | "const" | "static" | "type" | "mut"
    )
}

/// A path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        if part.as_os_str() == ".." {
            out.pop();
        } else {
            out.push(part);
        }
    }
    out
}
