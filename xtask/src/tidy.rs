//! Rules that no compiler checks: layers point down, every file says what lives there, lines fit,
//! `unsafe` stays where it may, and every licence is one that may be linked.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::shell;

/// Crates from the top to the ground. A crate may depend on those below it only.
const LAYERS: [&str; 18] = [
    "nearmetal",
    "nm-report",
    "nm-judge",
    "nm-lab",
    "nm-exchange-lab",
    "nm-exchange",
    "nm-replica",
    "nm-book",
    "nm-codec",
    "nm-probe",
    "nm-host",
    "nm-accel",
    "nm-transport",
    "nm-ring",
    "nm-sys",
    "nm-stats",
    "nm-model",
    "nm-test-support",
];

/// Crates that may hold `unsafe`.
const UNSAFE: [&str; 5] = ["nm-sys", "nm-ring", "nm-transport", "nm-accel", "nm-test-support"];

/// Licences that may be linked; an expression needs one of its alternatives here.
const LICENCES: [&str; 11] = [
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "0BSD",
    "ISC",
    "Zlib",
    "Unlicense",
    "Unicode-3.0",
];

const LINE_WIDTH_MAX: usize = 100;

pub fn run() -> Result<()> {
    let mut faults = vec![];
    let metadata = metadata()?;
    layers(&metadata, &mut faults);
    licences(&metadata, &mut faults);
    for path in sources()? {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path:?}"))?;
        source(&path, &text, &mut faults);
    }
    for fault in &faults {
        eprintln!("tidy: {fault}");
    }
    if !faults.is_empty() {
        bail!("{} faults", faults.len());
    }
    eprintln!("tidy: no fault");
    Ok(())
}

fn metadata() -> Result<Value> {
    let (text, ok) = shell::output("cargo metadata --format-version 1 --locked")?;
    if !ok {
        bail!("cargo metadata failed: {text}");
    }
    Ok(serde_json::from_str(&text)?)
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn layers(metadata: &Value, faults: &mut Vec<String>) {
    let rank = |name: &str| LAYERS.iter().position(|layer| *layer == name);
    for package in list(metadata, "packages") {
        let name = package["name"].as_str().unwrap_or_default();
        if !name.starts_with("nm-") && name != "nearmetal" {
            continue;
        }
        let Some(own) = rank(name) else {
            faults.push(format!("crate {name} has no layer; add it to xtask/src/tidy.rs"));
            continue;
        };
        for dependency in list(package, "dependencies") {
            let on = dependency["name"].as_str().unwrap_or_default();
            // A crate's own tests may use it with its feature `test-support`.
            let is_own_test = on == name && dependency["kind"] == "dev";
            if !is_own_test && rank(on).is_some_and(|other| other <= own) {
                faults.push(format!("{name} depends on {on}, which is not below it"));
            }
        }
    }
}

fn licences(metadata: &Value, faults: &mut Vec<String>) {
    for package in list(metadata, "packages") {
        let name = package["name"].as_str().unwrap_or_default();
        let expression = package["license"].as_str().unwrap_or_default();
        if !is_allowed(expression) {
            faults.push(format!("{name} has licence `{expression}`, which may not be linked"));
        }
    }
}

/// Whether an SPDX expression can be met with [`LICENCES`]: every part joined by AND needs one
/// alternative that is allowed.
fn is_allowed(expression: &str) -> bool {
    let flat = expression.replace('/', " OR ").replace(['(', ')'], " ");
    flat.split(" AND ")
        .all(|part| part.split(" OR ").map(str::trim).any(|licence| LICENCES.contains(&licence)))
}

fn sources() -> Result<Vec<PathBuf>> {
    let (text, ok) = shell::output("git ls-files --cached --others --exclude-standard -- *.rs")?;
    if !ok {
        bail!("git ls-files failed: {text}");
    }
    Ok(text.lines().map(|line| shell::root().join(line)).filter(|p| p.is_file()).collect())
}

fn source(path: &Path, text: &str, faults: &mut Vec<String>) {
    let shown = path.strip_prefix(shell::root()).unwrap_or(path);
    let name = shown.display();
    if !text.starts_with("//!") {
        faults.push(format!("{name}:1: does not open with `//!` saying what lives there"));
    }
    for (index, line) in text.lines().enumerate() {
        let at = index + 1;
        if line.chars().count() > LINE_WIDTH_MAX {
            faults.push(format!("{name}:{at}: line is longer than {LINE_WIDTH_MAX} columns"));
        }
        if line.ends_with([' ', '\t']) {
            faults.push(format!("{name}:{at}: trailing white space"));
        }
    }
    let mut parts = shown.components().map(|part| part.as_os_str().to_string_lossy());
    let is_crate = parts.next().is_some_and(|part| part == "crates");
    let owner = parts.next().unwrap_or_default();
    let is_root = shown.ends_with("src/lib.rs") || shown.ends_with("src/main.rs");
    if is_crate
        && is_root
        && !UNSAFE.contains(&&*owner)
        && !text.contains("#![forbid(unsafe_code)]")
    {
        faults.push(format!("{name}: needs #![forbid(unsafe_code)]"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_upward_edge_is_a_fault() {
        let metadata = json!({"packages": [
            {"name": "nm-stats", "dependencies": [{"name": "nm-model"}, {"name": "nm-lab"}]},
            {"name": "nm-unknown", "dependencies": []},
        ]});
        let mut faults = vec![];
        layers(&metadata, &mut faults);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].contains("nm-stats depends on nm-lab"));
    }

    #[test]
    fn licences_need_one_allowed_alternative_in_each_part() {
        for good in
            ["MIT", "MIT OR Apache-2.0", "(MIT OR GPL-3.0) AND Unicode-3.0", "MIT/Apache-2.0"]
        {
            assert!(is_allowed(good), "{good}");
        }
        for bad in ["", "GPL-3.0", "EUPL-1.2", "MIT AND MPL-2.0"] {
            assert!(!is_allowed(bad), "{bad}");
        }
    }

    #[test]
    fn a_bad_file_is_a_fault() {
        let mut faults = vec![];
        let long = "x".repeat(LINE_WIDTH_MAX + 1);
        source(Path::new("crates/nm-judge/src/lib.rs"), &format!("use x; \n{long}\n"), &mut faults);
        assert_eq!(faults.len(), 4, "{faults:?}");
    }

    #[test]
    fn this_workspace_has_no_upward_edge() {
        let mut faults = vec![];
        layers(&metadata().unwrap(), &mut faults);
        assert_eq!(faults, Vec::<String>::new());
    }
}
