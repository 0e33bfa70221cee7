//! Files that people bring: output of other tools, plans, results.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use nm_model::plan_file::PublishedRun;
use nm_model::{Plan, RunResult};

/// Output of other tools.
pub fn importers(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(result) = nm_report::import::read(text, "input") {
        check(&result);
    }
}

/// A plan.
pub fn plan(bytes: &[u8]) {
    static PUBLISHED: LazyLock<Vec<PublishedRun>> = LazyLock::new(nm_report::reference::for_plans);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(error) = Plan::parse_with_runs(text, &PUBLISHED) {
        // Its end is behind the last line break.
        let lines = text.matches('\n').count() + 1;
        assert!(error.line.is_none_or(|line| (1..=lines).contains(&line)), "{error}");
    }
}

/// A result, of this or of an earlier version.
pub fn result(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(result) = nm_report::folder::parse(text, "input") {
        check(&result);
    }
}

/// What was read can be written, and read again.
fn check(result: &RunResult) {
    let text = serde_json::to_string(result).expect("a result has a text");
    if let Err(failure) = nm_report::folder::parse(&text, "again") {
        panic!("{failure}: {text}");
    }
}

/// Files of a folder of the workspace with one of these extensions.
fn files(folder: &str, extensions: &[&str]) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    let entries = fs::read_dir(&folder).expect("the folder is part of the workspace");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| extensions.contains(&extension))
    });
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a file")).collect()
}

pub fn importer_seeds() -> Vec<Vec<u8>> {
    files("crates/measure/report/tests/data/import", &["txt", "json", "csv", "keyval"])
}

pub fn plan_seeds() -> Vec<Vec<u8>> {
    files("plans", &["toml"])
}

pub fn result_seeds() -> Vec<Vec<u8>> {
    let mut all = files("crates/measure/report/tests/data/v1", &["json"]);
    all.extend(files("crates/measure/report/tests/data", &["json"]));
    all
}
