//! The list of what the program and the library are made of, as CycloneDX 1.5: cargo's own graph
//! of what is linked for the processor.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::product::{Processor, VERSION};
use crate::shell;

/// The document of one processor.
pub(super) fn document(processor: Processor, time_s: u64) -> Result<Vec<u8>> {
    let line = format!(
        "cargo metadata --locked --format-version 1 --filter-platform {}-unknown-linux-musl",
        processor.name
    );
    let (text, is_ok) = shell::output(&line)?;
    if !is_ok {
        bail!("`{line}` failed: {text}");
    }
    let metadata: Value = serde_json::from_str(&text).context("cargo's graph of packages")?;
    let mut bytes = serde_json::to_vec_pretty(&of_metadata(&metadata, i64::try_from(time_s)?)?)?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn of_metadata(metadata: &Value, time_s: i64) -> Result<Value> {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let packages: BTreeMap<String, Value> = list(&metadata["packages"])
        .into_iter()
        .map(|package| (text(&package["id"]), package))
        .collect();
    let linked: BTreeMap<String, Vec<String>> = list(&metadata["resolve"]["nodes"])
        .into_iter()
        .map(|node| {
            let is_linked = |dependency: &Value| {
                list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null())
            };
            let of_node = list(&node["deps"]);
            let names = of_node.iter().filter(|one| is_linked(one)).map(|one| text(&one["pkg"]));
            (text(&node["id"]), names.collect())
        })
        .collect();
    let is_root = |package: &Value| ["nearmetal", "nm-accel"].contains(&&*text(&package["name"]));
    let mut open: Vec<&String> =
        packages.iter().filter(|(_, package)| is_root(package)).map(|(id, _)| id).collect();
    let mut reached = BTreeSet::new();
    while let Some(id) = open.pop() {
        if reached.insert(id) {
            open.extend(linked.get(id).with_context(|| format!("{id} is not in the graph"))?);
        }
    }
    let reference = |id: &String| {
        let package = &packages[id];
        format!("pkg:cargo/{}@{}", text(&package["name"]), text(&package["version"]))
    };
    let component = |id: &&String| {
        let package = &packages[*id];
        json!({
            "type": "library", "bom-ref": reference(id), "purl": reference(id),
            "name": package["name"], "version": package["version"],
            "licenses": [{ "expression": package["license"] }],
        })
    };
    let depends = |id: &&String| {
        let names: BTreeSet<String> = linked[*id].iter().map(reference).collect();
        json!({ "ref": reference(id), "dependsOn": names })
    };
    Ok(json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {
            "timestamp": Timestamp::from_second(time_s)?.to_string(),
            "component": { "type": "application", "name": "nearmetal", "version": VERSION },
        },
        "components": reached.iter().map(component).collect::<Vec<_>>(),
        "dependencies": reached.iter().map(depends).collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_linked_is_listed() {
        let package =
            |name: &str| json!({"id": name, "name": name, "version": "1", "license": "MIT"});
        let metadata = json!({
            "packages": [package("nearmetal"), package("linked"), package("test-only")],
            "resolve": {"nodes": [
                {"id": "nearmetal", "deps": [
                    {"pkg": "linked", "dep_kinds": [{"kind": null}]},
                    {"pkg": "test-only", "dep_kinds": [{"kind": "dev"}]}]},
                {"id": "linked", "deps": []}, {"id": "test-only", "deps": []}]},
        });
        let document = of_metadata(&metadata, 0).unwrap();
        let names: Vec<&Value> =
            document["components"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["linked", "nearmetal"]);
    }
}
