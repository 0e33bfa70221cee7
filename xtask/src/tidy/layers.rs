//! Which crate may depend on which: wings, crates that alone may use a heavy dependency, and
//! crates that must stay free of some.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::tidy::fault::{Check, Fault};
use crate::tidy::house;
use crate::tidy::workspace::{list, members, relative, text};

/// Dependencies that few crates of ours may name, besides tests: consensus and its async runtime
/// stay in the replicated log, and the client has a face for programs on that runtime.
const RESERVED: [(&str, &[&str]); 2] =
    [("openraft", &["nm-replica"]), ("tokio", &["nm-replica", "nm-client"])];

/// Crates that are loaded into other programs, or lie below what is, and what must not come with
/// them.
const FREE: [&str; 3] = ["nm-accel", "nm-ring", "nm-sys"];
const FREE_OF: [&str; 3] = ["serde", "schemars", "toml"];

pub fn check(metadata: &Value) -> Vec<Fault> {
    let mut faults = vec![];
    for package in members(metadata) {
        let name = text(package, "name");
        let manifest = relative(metadata, text(package, "manifest_path"));
        let mut add = |text: String| faults.push(Fault::new(Check::Layers, &manifest, 1, text));
        if manifest.starts_with("crates") {
            forbidden_edges(package, &mut add);
        }
        for dependency in list(package, "dependencies") {
            let on = text(dependency, "name");
            for (_, owners) in RESERVED.iter().filter(|(reserved, _)| *reserved == on) {
                if !owners.contains(&name) && dependency["kind"] != "dev" {
                    let owners = owners.join(" and ");
                    add(format!("{name} depends on {on}, which only {owners} may; go through it"));
                }
            }
        }
        if FREE.contains(&name) {
            for path in forbidden_paths(metadata, text(package, "id")) {
                add(format!("{name} must be free of serde, schemars and toml; cut {path}"));
            }
        }
    }
    faults
}

fn forbidden_edges(package: &Value, add: &mut impl FnMut(String)) {
    let name = text(package, "name");
    if house::place(name).is_none() {
        return add(format!("{name} has no place; add it to xtask/src/tidy/house.rs"));
    }
    for dependency in list(package, "dependencies") {
        let on = text(dependency, "name");
        let is_for_tests = dependency["kind"] == "dev" && house::is_for_tests(name, on);
        if let Some(why) = house::forbidden(name, on).filter(|_| !is_for_tests) {
            add(format!("{name} depends on {on}, {why}; move what it needs"));
        }
    }
}

/// Ways by normal dependencies from a package to one of [`FREE_OF`], each as `a -> b -> c`.
fn forbidden_paths(metadata: &Value, root: &str) -> Vec<String> {
    let nodes: BTreeMap<&str, &Value> =
        list(&metadata["resolve"], "nodes").iter().map(|node| (text(node, "id"), node)).collect();
    let names: BTreeMap<&str, &str> = list(metadata, "packages")
        .iter()
        .map(|package| (text(package, "id"), text(package, "name")))
        .collect();
    let (mut found, mut seen) = (vec![], BTreeSet::from([root]));
    let mut open = vec![(root, names.get(root).copied().unwrap_or_default().to_string())];
    while let Some((id, path)) = open.pop() {
        let Some(node) = nodes.get(id) else { continue };
        for dependency in list(node, "deps").iter().filter(|dependency| is_normal(dependency)) {
            let next = text(dependency, "pkg");
            let name = names.get(next).copied().unwrap_or_default();
            let path = format!("{path} -> {name}");
            if FREE_OF.contains(&name) {
                found.push(path);
            } else if seen.insert(next) {
                open.push((next, path));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// Whether an edge of the resolved graph is one of `[dependencies]`.
fn is_normal(dependency: &Value) -> bool {
    list(dependency, "dep_kinds").iter().any(|kind| kind["kind"].is_null())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Metadata of packages in `crates/`, each with the names of its dependencies.
    fn metadata(packages: &[(&str, &[&str])]) -> Value {
        let package = |(name, on): &(&str, &[&str])| {
            let on: Vec<Value> = on.iter().map(|name| json!({"name": name})).collect();
            let manifest_path = format!("/w/crates/measure/{name}/Cargo.toml");
            json!({"id": name, "name": name, "manifest_path": manifest_path, "dependencies": on})
        };
        let node = |(name, on): &(&str, &[&str])| {
            let kinds = json!([{"kind": null}]);
            let on: Vec<Value> =
                on.iter().map(|name| json!({"pkg": name, "dep_kinds": kinds})).collect();
            json!({"id": name, "deps": on})
        };
        let ours = packages.iter().filter(|(name, _)| name.starts_with("nm-"));
        json!({
            "workspace_root": "/w",
            "workspace_members": ours.map(|(name, _)| name).collect::<Vec<_>>(),
            "packages": packages.iter().map(package).collect::<Vec<_>>(),
            "resolve": {"nodes": packages.iter().map(node).collect::<Vec<_>>()},
        })
    }

    fn texts(packages: &[(&str, &[&str])]) -> Vec<String> {
        check(&metadata(packages)).iter().map(Fault::to_string).collect()
    }

    #[test]
    fn upward_edge_and_crate_without_place_are_faults() {
        let faults = texts(&[("nm-stats", &["nm-model", "nm-lab"]), ("nm-unknown", &[])]);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].contains("nm-stats depends on nm-lab"));
        assert!(faults[1].contains("nm-unknown has no place"));
    }

    #[test]
    fn reserved_dependency_of_another_crate_is_a_fault() {
        let faults = texts(&[("nm-lab", &["tokio"])]);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(
            faults[0].contains("nm-lab depends on tokio, which only nm-replica and nm-client may")
        );
    }

    #[test]
    fn forbidden_dependency_is_found_through_others() {
        let packages: [(&str, &[&str]); 4] =
            [("nm-ring", &["nm-sys"]), ("nm-sys", &["x"]), ("x", &["serde"]), ("serde", &[])];
        let faults = texts(&packages);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].contains("cut nm-ring -> nm-sys -> x -> serde"), "{faults:?}");
        assert_eq!(
            texts(&[("nm-ring", &["nm-sys"]), ("nm-sys", &["libc"]), ("libc", &[])]).len(),
            0
        );
    }
}
