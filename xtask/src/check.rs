//! `cargo xtask check`: what can be known of a change within two minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use nm_sys::clock::Moment;
use serde_json::Value;

use crate::tidy::{self, house, workspace};
use crate::{shell, suite};

const USAGE: &str = "\
usage: cargo xtask check [--base REF]

Format, tidy, clippy and the unit tests of the crates that differ from REF (default: main) and of
the crates that depend on them. It needs no root and installs nothing. A test that needs what this
machine has not says so; `cargo xtask ci` has everything and runs the rest.

  --base REF   compare with this commit; `--base HEAD` takes what is not committed";

/// What is compared with, unless the user names something else.
const BASE: &str = "main";

pub fn run(args: &[String]) -> Result<()> {
    let base = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => BASE,
        ["--help" | "-h"] => {
            println!("{USAGE}");
            return Ok(());
        }
        ["--base", base] => base,
        _ => bail!("{USAGE}"),
    };
    let begin = Moment::now();
    shell::run("cargo fmt --all --check")?;
    tidy::run(&[])?;
    let metadata = workspace::metadata()?;
    let changed = changed_crates(base)?;
    let packages = with_dependents(&changed, &metadata);
    eprintln!("changed since {base}: {}", listed(&changed));
    eprintln!(
        "and what depends on it: {}",
        listed(&packages.difference(&changed).cloned().collect())
    );
    if !packages.is_empty() {
        let names: String = packages.iter().map(|name| format!(" -p {name}")).collect();
        shell::run(&format!("cargo clippy --locked --all-targets{names} -- -D warnings"))?;
        let kinds = target_kinds(&packages, &metadata);
        suite::quick_test(&format!("cargo test --locked{kinds}{names}"))?.conclude()?;
    }
    eprintln!("checked in {} s", begin.elapsed().as_secs());
    Ok(())
}

fn listed(names: &BTreeSet<String>) -> String {
    match names.is_empty() {
        true => "nothing".to_string(),
        false => names.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
    }
}

/// The crates of which a file differs from `base`, or is new.
fn changed_crates(base: &str) -> Result<BTreeSet<String>> {
    let lines = |line: &str| -> Result<String> {
        match shell::output(line)? {
            (text, true) => Ok(text),
            (text, false) => bail!("`{line}` failed: {text}"),
        }
    };
    let fork = lines(&format!("git merge-base HEAD {base}"))
        .with_context(|| format!("what changed since {base}? name another commit with --base"))?;
    let tracked = lines(&format!("git diff --name-only {}", fork.trim()))?;
    let new = lines("git ls-files --others --exclude-standard")?;
    Ok(owners(tracked.lines().chain(new.lines())))
}

fn owners<'a>(files: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    files.filter_map(|file| house::owner(Path::new(file))).collect()
}

/// These crates and all of the workspace that depend on them, also for their tests.
fn with_dependents(changed: &BTreeSet<String>, metadata: &Value) -> BTreeSet<String> {
    let mut users: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut known = BTreeSet::new();
    for package in workspace::members(metadata) {
        let name = workspace::text(package, "name");
        known.insert(name);
        for on in workspace::list(package, "dependencies") {
            users.entry(workspace::text(on, "name")).or_default().push(name);
        }
    }
    let mut open: Vec<&str> = changed.iter().map(String::as_str).collect();
    let mut found = BTreeSet::new();
    while let Some(name) = open.pop() {
        // A crate that was removed or renamed has files that changed, and is no more.
        if known.contains(name) && found.insert(name.to_string()) {
            open.extend(users.get(name).into_iter().flatten());
        }
    }
    found
}

/// The options that choose the unit tests alone, of the kinds of targets that there are.
fn target_kinds(packages: &BTreeSet<String>, metadata: &Value) -> &'static str {
    let has = |kind: &str| {
        workspace::members(metadata)
            .filter(|package| packages.contains(workspace::text(package, "name")))
            .flat_map(|package| workspace::list(package, "targets"))
            .any(|target| workspace::list(target, "kind").iter().any(|one| one == kind))
    };
    match (has("lib"), has("bin")) {
        (true, true) => " --lib --bins",
        (true, false) => " --lib",
        _ => " --bins",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn files_belong_to_crates_or_to_none() {
        let files = ["crates/measure/model/src/a.rs", "docs/limits.md", "xtask/src/main.rs"];
        assert_eq!(owners(files.into_iter()), set(&["nm-model", "xtask"]));
    }

    #[test]
    fn what_depends_on_a_change_is_checked_too() {
        let package = |name: &str, on: &[&str], kind: &str| {
            let on: Vec<Value> = on.iter().map(|name| json!({"name": name})).collect();
            json!({"id": name, "name": name, "dependencies": on, "targets": [{"kind": [kind]}]})
        };
        let metadata = json!({
            "workspace_members": ["a", "b", "c", "d"],
            "packages": [
                package("a", &["serde"], "lib"),
                package("b", &["a"], "lib"),
                package("c", &["b"], "bin"),
                package("d", &[], "bin"),
            ],
        });
        let found = with_dependents(&set(&["a", "removed"]), &metadata);
        assert_eq!(found, set(&["a", "b", "c"]));
        assert_eq!(target_kinds(&found, &metadata), " --lib --bins");
        assert_eq!(target_kinds(&set(&["d"]), &metadata), " --bins");
        assert_eq!(with_dependents(&set(&["d"]), &metadata), set(&["d"]));
    }
}
