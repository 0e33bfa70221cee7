//! Import cycles between the files of a target (library, program, tests, benches).
//!
//! A file imports another when it mentions, by `use` or by a path in code, an item that the other
//! defines or re-exports. `mod x;` alone is no import, nor is `use a::x` of a module `x`: what is
//! then mentioned as `x::Item` is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::tidy::fault::{Check, Fault};
use crate::tidy::modules::{Mention, MentionKind, ModuleTree};
use crate::tidy::tokens::Lexed;
use crate::tidy::workspace::{list, members, relative, text};

/// Imports by file: the files that it imports, each with the line and the name of one mention.
type Imports = BTreeMap<PathBuf, BTreeMap<PathBuf, (usize, String)>>;

pub fn check(metadata: &Value, sources: &Lexed) -> Vec<Fault> {
    let mut faults = BTreeSet::new();
    for package in members(metadata) {
        for target in list(package, "targets") {
            let root = relative(metadata, text(target, "src_path"));
            faults.extend(target_faults(&root, sources));
        }
    }
    faults.into_iter().collect()
}

/// One fault for each group of files of a target that import each other.
fn target_faults(root: &Path, sources: &Lexed) -> Vec<Fault> {
    let imports = imports_of(&ModuleTree::read(root, sources));
    let mut faults = vec![];
    let mut seen = BTreeSet::new();
    for file in imports.keys() {
        if seen.contains(file) {
            continue;
        }
        let group = files_in_cycle_with(file, &imports);
        if let Some(cycle) = shortest_cycle(&group, &imports) {
            faults.push(cycle_fault(&cycle, group.len(), &imports));
        }
        seen.extend(group);
    }
    faults
}

fn imports_of(tree: &ModuleTree) -> Imports {
    let mut imports = Imports::new();
    for (index, module) in tree.modules.iter().enumerate() {
        for mention in &module.mentions {
            let Some(target) = mentioned_module(tree, index, mention) else { continue };
            let file = &tree.modules[target].file;
            if *file != module.file {
                let edges = imports.entry(module.file.clone()).or_default();
                let name = mention.segments.join("::");
                edges.entry(file.clone()).or_insert((mention.line, name));
            }
        }
    }
    imports
}

/// The module whose file a mention imports.
fn mentioned_module(tree: &ModuleTree, from: usize, mention: &Mention) -> Option<usize> {
    if mention.kind == MentionKind::Macro {
        return tree.macros.get(&mention.segments[0]).copied();
    }
    match (resolve(tree, from, &mention.segments, 0)?, mention.kind) {
        (Resolved::Item(module), _) => Some(module),
        (
            Resolved::Module(module),
            MentionKind::ReExport | MentionKind::Glob | MentionKind::Attribute,
        ) => Some(module),
        (Resolved::Module(_), _) => None,
    }
}

enum Resolved {
    /// An item that this module defines or re-exports.
    Item(usize),
    Module(usize),
}

/// What a path in module `from` means; `None` for other crates and what is not known.
fn resolve(tree: &ModuleTree, from: usize, path: &[String], depth: usize) -> Option<Resolved> {
    // `use a::a` where `a` is another crate would go on for ever.
    const DEPTH_MAX: usize = 8;
    if depth > DEPTH_MAX {
        return None;
    }
    let mut at = from;
    let mut is_anchored = false;
    for (index, name) in path.iter().enumerate() {
        let module = &tree.modules[at];
        match name.as_str() {
            "crate" => at = 0,
            "super" => at = module.parent,
            "self" => {}
            _ if module.children.contains_key(name) => at = module.children[name],
            _ if module.names.contains(name) => return Some(Resolved::Item(at)),
            _ if module.bindings.contains_key(name) => {
                // An import of another module that is used through it is a re-export of its file.
                if at != from {
                    return Some(Resolved::Item(at));
                }
                let mut longer = module.bindings[name].clone();
                if longer == path[index..] {
                    return None;
                }
                match resolve(tree, at, &longer, depth + 1)? {
                    Resolved::Item(module) => return Some(Resolved::Item(module)),
                    Resolved::Module(_) if index + 1 == path.len() => {
                        return resolve(tree, at, &longer, depth + 1);
                    }
                    Resolved::Module(_) => {
                        longer.extend_from_slice(&path[index + 1..]);
                        return resolve(tree, at, &longer, depth + 1);
                    }
                }
            }
            _ if tree.macros.contains_key(name) && is_anchored => {
                return Some(Resolved::Item(tree.macros[name]));
            }
            // A macro made it.
            _ if is_anchored => return Some(Resolved::Item(at)),
            _ => return None,
        }
        is_anchored = true;
    }
    Some(Resolved::Module(at))
}

/// The files that `file` imports, directly or not, and that import it; with itself.
fn files_in_cycle_with(file: &Path, imports: &Imports) -> BTreeSet<PathBuf> {
    let mut group: BTreeSet<PathBuf> = distances(file, imports)
        .into_keys()
        .filter(|other| distances(other, imports).contains_key(file))
        .collect();
    group.insert(file.to_path_buf());
    group
}

/// The files that can be reached from `file` by one import or more, each with its predecessor.
fn distances(file: &Path, imports: &Imports) -> BTreeMap<PathBuf, PathBuf> {
    let mut previous = BTreeMap::new();
    let mut queue = VecDeque::from([file.to_path_buf()]);
    while let Some(from) = queue.pop_front() {
        for to in imports.get(&from).into_iter().flat_map(BTreeMap::keys) {
            if !previous.contains_key(to) {
                previous.insert(to.clone(), from.clone());
                queue.push_back(to.clone());
            }
        }
    }
    previous
}

/// The shortest cycle within `group`: its files in order, each importing the next and the last the
/// first.
fn shortest_cycle(group: &BTreeSet<PathBuf>, imports: &Imports) -> Option<Vec<PathBuf>> {
    let cycles = group.iter().filter_map(|file| {
        let previous = distances(file, imports);
        let mut cycle = vec![previous.get(file)?.clone()];
        while cycle.last() != Some(file) {
            cycle.push(previous[cycle.last()?].clone());
        }
        cycle.reverse();
        Some(cycle)
    });
    cycles.min_by_key(Vec::len)
}

fn cycle_fault(cycle: &[PathBuf], group_size: usize, imports: &Imports) -> Fault {
    let next = |index: usize| &cycle[(index + 1) % cycle.len()];
    let steps: Vec<String> = (0..cycle.len())
        .map(|index| {
            let (line, name) = &imports[&cycle[index]][next(index)];
            format!("{}:{line} -> {} ({name})", cycle[index].display(), next(index).display())
        })
        .collect();
    let first_line = imports[&cycle[0]][next(0)].0;
    let text = format!(
        "import cycle, the shortest among {group_size} files that import each other: {}; move \
         what both need to a file below both",
        steps.join(", ")
    );
    Fault::new(Check::Imports, &cycle[0], first_line, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tokens::lex_all;
    use crate::tidy::workspace::Files;

    /// The faults of a crate with these files below `src/`, its root `lib.rs`.
    fn faults_of(files: &[(&str, &str)]) -> Vec<String> {
        let texts: Files = files
            .iter()
            .map(|(name, text)| (Path::new("src").join(name), (*text).to_string()))
            .collect();
        let (sources, unreadable) = lex_all(&texts);
        assert_eq!(unreadable, []);
        let faults = target_faults(Path::new("src/lib.rs"), &sources);
        faults.iter().map(Fault::to_string).collect()
    }

    #[track_caller]
    fn assert_cycle_of(length: usize, files: &[(&str, &str)]) {
        let faults = faults_of(files);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(faults[0].matches(" -> ").count(), length, "{faults:?}");
    }

    #[track_caller]
    fn assert_no_cycle(files: &[(&str, &str)]) {
        assert_eq!(faults_of(files), Vec::<String>::new());
    }

    #[test]
    fn cycle_of_two_files_is_shown_with_its_names() {
        assert_eq!(
            faults_of(&[
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "use crate::b::B;\npub struct A(B);"),
                ("b.rs", "pub struct B;\nfn f() { crate::a::A::new() }"),
            ]),
            ["src/a.rs:1: import cycle, the shortest among 2 files that import each other: \
              src/a.rs:1 -> src/b.rs (crate::b::B), src/b.rs:2 -> src/a.rs (crate::a::A::new); \
              move what both need to a file below both [imports]"]
        );
    }

    #[test]
    fn cycle_of_three_files_is_found_beside_files_without() {
        assert_cycle_of(
            3,
            &[
                ("lib.rs", "mod a; mod b; mod c; mod d; pub use a::f;"),
                ("a.rs", "use super::b; pub fn f() { b::g() }"),
                ("b.rs", "use super::d::D; pub fn g() { super::c::h() }"),
                ("c.rs", "use crate::{a as first, d}; pub fn h(_: d::D) { first::f() }"),
                ("d.rs", "pub struct D;"),
            ],
        );
    }

    #[test]
    fn child_that_uses_items_of_its_parent_is_a_cycle_where_the_parent_uses_it() {
        let child = ("a/b.rs", "use super::A; pub fn f(_: A) {}");
        assert_cycle_of(
            2,
            &[("lib.rs", "mod a;"), ("a.rs", "mod b; pub use b::f; pub struct A;"), child],
        );
        assert_cycle_of(
            2,
            &[("lib.rs", "mod a;"), ("a/mod.rs", "mod b; struct A; fn g() { b::f(A) }"), child],
        );
        assert_no_cycle(&[("lib.rs", "mod a;"), ("a.rs", "mod b; pub struct A;"), child]);
    }

    #[test]
    fn globs_re_exports_macros_and_attributes_are_imports() {
        for (a, b) in [
            ("use crate::b::*;", "use super::a::X; pub struct B;"),
            ("pub use crate::b;", "use crate::a::X;"),
            ("pub use crate::b::B;", "use super::a::B as Other; pub struct B;"),
            ("fn f() { println!(\"{}\", crate::b::f(1)) }", "fn f() { assert!(crate::a::g()) }"),
            ("struct X(#[serde(with = \"crate::b::c\")] u8);", "mod c { use super::super::a::X; }"),
            ("macro_rules! m { () => { $crate::b::f() } }", "fn f() { m!() }"),
        ] {
            assert_cycle_of(2, &[("lib.rs", "mod a; mod b;"), ("a.rs", a), ("b.rs", b)]);
        }
    }

    #[test]
    fn path_attribute_and_nested_inline_modules_lead_to_the_right_files() {
        assert_cycle_of(
            2,
            &[
                ("lib.rs", "mod a { pub mod b; } #[path = \"other/c.rs\"] mod d;"),
                ("a/b.rs", "use crate::d::X;"),
                ("other/c.rs", "pub fn f() { crate::a::b::g() }"),
            ],
        );
    }

    #[test]
    fn modules_tests_other_crates_and_local_names_are_no_imports() {
        assert_no_cycle(&[
            ("lib.rs", "pub mod a; pub mod b; use std::fmt; struct Own; pub use a::A;"),
            (
                "a.rs",
                "use crate::b; use std::fmt::{self, b as _}; pub struct A;
                 pub(crate) fn f() { Own::new(); ::b::g(); fmt::b(); x.b() } struct Own;
                 #[cfg(test)] mod tests { use super::*; use crate::b::B; }
                 #[cfg(test)] fn t() { b::g() }",
            ),
            ("b.rs", "use crate::a::A; pub struct B(pub(in crate::b) A);"),
        ]);
    }
}
