//! What the checks read: the tracked text files of the workspace and cargo's view of its packages.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::shell;

/// Texts of files by their paths relative to the root.
pub type Files = BTreeMap<PathBuf, String>;

pub struct Workspace {
    /// Every tracked or new file that is text.
    pub files: Files,
    pub metadata: Value,
}

impl Workspace {
    pub fn read() -> Result<Workspace> {
        let (text, ok) = shell::output("git ls-files --cached --others --exclude-standard")?;
        if !ok {
            bail!("git ls-files failed: {text}");
        }
        let mut files = Files::new();
        for line in text.lines() {
            let path = shell::root().join(line);
            // A file that was removed but not yet committed is still listed.
            if !path.is_file() {
                continue;
            }
            let bytes = fs::read(&path).with_context(|| format!("cannot read {path:?}"))?;
            if let Ok(text) = String::from_utf8(bytes) {
                files.insert(PathBuf::from(line), text);
            }
        }
        Ok(Workspace { files, metadata: metadata()? })
    }
}

/// Cargo's view of the workspace.
pub fn metadata() -> Result<Value> {
    let (text, ok) = shell::output("cargo metadata --format-version 1 --locked")?;
    if !ok {
        bail!("cargo metadata failed: {text}");
    }
    Ok(serde_json::from_str(&text)?)
}

/// The array at `key`, empty where there is none.
pub fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// The string at `key`, empty where there is none.
pub fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// The packages of this workspace in cargo's metadata.
pub fn members(metadata: &Value) -> impl Iterator<Item = &Value> {
    let members = list(metadata, "workspace_members");
    list(metadata, "packages").iter().filter(move |package| members.contains(&package["id"]))
}

/// A path of cargo's metadata relative to the root of the workspace.
pub fn relative(metadata: &Value, path: &str) -> PathBuf {
    let path = Path::new(path);
    path.strip_prefix(text(metadata, "workspace_root")).unwrap_or(path).to_path_buf()
}

/// Whether a file is Rust source.
pub fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}
