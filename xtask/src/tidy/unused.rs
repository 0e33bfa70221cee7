//! Dependencies that no source file names.
//!
//! A dependency is used where a file has its name before `::`, or after `use` or `extern crate`.
//! One of `[dependencies]` must be named by code that is not for tests only.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use serde_json::Value;

use crate::tidy::fault::{Check, Fault};
use crate::tidy::tokens::{
    Lexed, after_item, attribute, ident, is_path_separator, is_punct, is_test_only,
};
use crate::tidy::use_tree::use_imports;
use crate::tidy::workspace::{Files, is_rust, list, members, relative, text};

pub fn check(metadata: &Value, files: &Files, sources: &Lexed) -> Vec<Fault> {
    let mut faults = vec![];
    for package in members(metadata) {
        let manifest = relative(metadata, text(package, "manifest_path"));
        faults.extend(package_faults(metadata, (package, &manifest), files, sources));
    }
    faults.extend(workspace_faults(files));
    faults
}

/// Names of crates that the files of a package mention.
struct Named {
    /// By what is built without tests.
    code: BTreeSet<String>,
    /// By the build script.
    build: BTreeSet<String>,
    /// By all.
    all: BTreeSet<String>,
}

fn package_faults(
    metadata: &Value,
    (package, manifest): (&Value, &Path),
    files: &Files,
    sources: &Lexed,
) -> Vec<Fault> {
    let folder = manifest.parent().unwrap_or(Path::new(""));
    let targets: Vec<PathBuf> = list(package, "targets")
        .iter()
        .map(|target| without_parents(&relative(metadata, text(target, "src_path"))))
        .collect();
    let named = named_by(folder, &targets, sources);
    let lines = files.get(manifest).map_or("", String::as_str);
    let dependencies = list(package, "dependencies");
    let mut faults = vec![];
    for dependency in dependencies {
        let key = dependency["rename"].as_str().unwrap_or(text(dependency, "name"));
        let name = key.replace('-', "_");
        let is_in_all = named.all.contains(&name);
        let problem = match text(dependency, "kind") {
            "dev" if !is_in_all => "no file names it; remove it",
            "dev" if repeats_normal(dependency, dependencies) => {
                "[dependencies] has it already, and tests see that; remove it here"
            }
            "build" if !named.build.contains(&name) => "build.rs does not name it; remove it",
            "" if !is_in_all => "no file names it; remove it",
            "" if !named.code.contains(&name) => {
                "only tests name it; move it to [dev-dependencies]"
            }
            _ => continue,
        };
        let line = lines.lines().position(|line| is_key(line, key)).map_or(1, |at| at + 1);
        let text = format!("dependency `{key}`: {problem}");
        faults.push(Fault::new(Check::Unused, manifest, line, text));
    }
    faults
}

/// Whether a development dependency adds no feature to the normal one of the same name.
fn repeats_normal(dependency: &Value, all: &[Value]) -> bool {
    let is_same = |other: &&Value| {
        other["kind"].is_null()
            && other["target"].is_null()
            && other["optional"] != true
            && other["name"] == dependency["name"]
    };
    all.iter().find(is_same).is_some_and(|normal| {
        let features = list(normal, "features");
        list(dependency, "features").iter().all(|feature| features.contains(feature))
    })
}

/// Dependencies of the workspace that no member takes.
fn workspace_faults(files: &Files) -> Vec<Fault> {
    let root = Path::new("Cargo.toml");
    let text = files.get(root).map_or("", String::as_str);
    let manifests: Vec<&String> = files
        .iter()
        .filter(|(path, _)| path.ends_with("Cargo.toml") && *path != root)
        .map(|(_, text)| text)
        .collect();
    let is_taken = |key: &str| {
        let takes = |line: &str| is_key(line, key) && line.contains("workspace");
        manifests.iter().any(|text| text.lines().any(takes))
    };
    let mut section = "";
    let mut faults = vec![];
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            section = line;
        }
        let key = line.split([' ', '=', '.']).next().unwrap_or_default();
        let is_entry = section == "[workspace.dependencies]" && line.contains('=');
        if is_entry && !key.starts_with('#') && !is_taken(key) {
            let text = format!("dependency `{key}`: no crate takes it; remove it");
            faults.push(Fault::new(Check::Unused, root, index + 1, text));
        }
    }
    faults
}

/// Whether a line of a manifest sets `key`.
fn is_key(line: &str, key: &str) -> bool {
    line.strip_prefix(key).is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
}

/// A path without `..`, each of which ends a folder before it.
fn without_parents(path: &Path) -> PathBuf {
    let mut short = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(short.pop()),
            part => short.push(part),
        }
    }
    short
}

/// What the files of a package name. `targets` may lie elsewhere, as an example of another package
/// does.
fn named_by(folder: &Path, targets: &[PathBuf], sources: &Lexed) -> Named {
    let mut named = Named { code: BTreeSet::new(), build: BTreeSet::new(), all: BTreeSet::new() };
    for (path, tokens) in sources {
        let inner = path.strip_prefix(folder);
        if !is_rust(path) || inner.is_err() && !targets.iter().any(|target| target == path) {
            continue;
        }
        collect(tokens, false, &mut named.all);
        let Ok(inner) = inner else { continue };
        if inner.starts_with("src") {
            collect(tokens, true, &mut named.code);
        } else if inner == "build.rs" {
            collect(tokens, false, &mut named.build);
        }
    }
    named
}

/// Adds the names that may be those of crates.
fn collect(tokens: &TokenStream, is_without_tests: bool, names: &mut BTreeSet<String>) {
    let trees: Vec<TokenTree> = tokens.clone().into_iter().collect();
    let mut index = 0;
    while index < trees.len() {
        if let Some((brackets, _)) = attribute(&trees, index)
            && is_without_tests
            && is_test_only(brackets)
        {
            index = after_item(&trees, index);
            continue;
        }
        match &trees[index] {
            TokenTree::Group(group) => collect(&group.stream(), is_without_tests, names),
            TokenTree::Ident(word) if *word == "use" => {
                let length = trees[index..].iter().position(|tree| is_punct(Some(tree), ';'));
                let end = length.map_or(trees.len(), |length| index + length);
                let imports = use_imports(&trees[index + 1..end]).into_iter();
                names.extend(imports.filter_map(|import| import.segments.into_iter().next()));
            }
            TokenTree::Ident(_) => {
                let previous = index.checked_sub(1).and_then(|at| ident(trees.get(at)));
                let is_extern = previous.is_some_and(|word| word == "crate");
                if is_extern || is_path_separator(&trees, index + 1) {
                    names.extend(ident(trees.get(index)));
                }
            }
            _ => {}
        }
        index += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tokens::lex_all;
    use serde_json::json;

    fn faults_of(dependencies: Value, sources: &[(&str, &str)]) -> Vec<String> {
        let elsewhere = "/w/crates/x/../y/examples/b.rs";
        let package = json!({"dependencies": dependencies, "targets": [{"src_path": elsewhere}]});
        let metadata = json!({"workspace_root": "/w"});
        let manifest = "[dependencies]\na.workspace = true\nb-c = \"1\"\n";
        let mut files = Files::from([("crates/x/Cargo.toml".into(), manifest.to_string())]);
        files.extend(sources.iter().map(|(path, text)| (path.into(), (*text).to_string())));
        let (lexed, unreadable) = lex_all(&files);
        assert_eq!(unreadable, []);
        let manifest = Path::new("crates/x/Cargo.toml");
        let faults = package_faults(&metadata, (&package, manifest), &files, &lexed);
        faults.iter().map(Fault::to_string).collect()
    }

    #[test]
    fn unused_dependency_is_a_fault() {
        let dependencies = json!([{"name": "a"}, {"name": "b-c"}]);
        assert_eq!(
            faults_of(
                dependencies,
                &[
                    ("crates/x/src/lib.rs", "use a::B; // b_c::d\nlet b_c = 1;"),
                    ("crates/y/src/lib.rs", "use b_c::D;"),
                ]
            ),
            ["crates/x/Cargo.toml:3: dependency `b-c`: no file names it; remove it [unused]"]
        );
    }

    #[test]
    fn an_example_of_another_package_may_be_a_target() {
        let dependencies = || json!([{"name": "b-c", "kind": "dev"}]);
        let at = |path| faults_of(dependencies(), &[(path, "use b_c::D;")]).len();
        assert_eq!((at("crates/y/examples/b.rs"), at("crates/y/examples/other.rs")), (0, 1));
    }

    #[test]
    fn dependency_of_tests_does_not_belong_to_the_code() {
        let dependencies = json!([{"name": "a"}, {"name": "b-c", "kind": "dev"}]);
        let faults = faults_of(
            dependencies,
            &[("crates/x/src/lib.rs", "#[cfg(test)] mod tests { use a::B; fn f() { b_c::g!() } }")],
        );
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].contains("only tests name it"), "{faults:?}");
    }

    #[test]
    fn repeated_development_dependency_is_a_fault_unless_it_adds_a_feature() {
        let sources = [("crates/x/src/lib.rs", "use a::B;")];
        let repeated = json!([{"name": "a"}, {"name": "a", "kind": "dev"}]);
        assert_eq!(faults_of(repeated, &sources).len(), 1);
        let extended = json!([{"name": "a"}, {"name": "a", "kind": "dev", "features": ["test"]}]);
        assert_eq!(faults_of(extended, &sources), Vec::<String>::new());
    }

    #[test]
    fn renamed_derived_and_built_dependencies_are_used() {
        let dependencies = json!([
            {"name": "long-name", "rename": "a"},
            {"name": "b-c", "target": "cfg(loom)"},
            {"name": "d"},
            {"name": "e", "kind": "build"},
        ]);
        let faults = faults_of(
            dependencies,
            &[
                (
                    "crates/x/src/lib.rs",
                    "#[cfg(loom)] use {a, b_c};\n#[derive(d::Error)] struct F;",
                ),
                ("crates/x/build.rs", "fn main() { e::run() }"),
            ],
        );
        assert_eq!(faults, Vec::<String>::new());
    }

    #[test]
    fn dependency_of_the_workspace_that_no_crate_takes_is_a_fault() {
        let root = "[workspace.dependencies]\na = \"1\"\n# tests\nb = { version = \"2\" }\n\
                    [profile.dev]\nc = 1\n";
        let files = Files::from([
            ("Cargo.toml".into(), root.to_string()),
            ("crates/x/Cargo.toml".into(), "[dependencies]\na.workspace = true\n".to_string()),
        ]);
        let faults: Vec<String> = workspace_faults(&files).iter().map(Fault::to_string).collect();
        assert_eq!(faults, ["Cargo.toml:4: dependency `b`: no crate takes it; remove it [unused]"]);
    }
}
