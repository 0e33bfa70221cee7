//! A folder for the reports of a comparison or a trend. What another run has written there is never
//! overwritten.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use nm_model::trend::Trend;
use nm_model::verdict::Comparison;
use nm_sys::complete_file;

use crate::document::{Document, Versioned};
use crate::folder::{RESULT, TRIALS};
use crate::{comparison, html, trend};

/// File that a comparison writes first, for programs.
pub const COMPARISON: &str = "comparison.json";

/// File that a trend writes first, for programs.
pub const TREND: &str = "trend.json";

/// The reports of a comparison: name and content of each file.
pub fn comparison_files(compared: &Comparison) -> Vec<(&'static str, String)> {
    vec![
        (COMPARISON, json(compared)),
        ("comparison.md", comparison::markdown(compared)),
        ("comparison.html", html::comparison(compared)),
    ]
}

/// The reports of a trend: name and content of each file.
pub fn trend_files(found: &Trend) -> Vec<(&'static str, String)> {
    vec![
        (TREND, json(found)),
        ("trend.md", trend::markdown(found)),
        ("trend.html", html::trend(found)),
    ]
}

fn json(document: &impl Document) -> String {
    let text = serde_json::to_string_pretty(&Versioned::new(document));
    text.expect("numbers, texts and lists with names can always be written as JSON") + "\n"
}

/// Why reports could not be written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The folder holds something else already.
    #[error(
        "{} already holds {}; name another folder with --out, or move that one away",
        .folder.display(), .file
    )]
    Taken {
        /// The folder.
        folder: PathBuf,
        /// The file that is there.
        file: String,
    },
    /// The folder cannot be made or written to.
    #[error("cannot write {}: {source}; choose another folder with --out", .path.display())]
    Io {
        /// Folder or file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Writes `files` (name, content) into `folder`, which is created if it is missing.
///
/// # Errors
/// If the folder holds a result or one of the files already, in which case nothing is written; or
/// if a file cannot be written.
pub fn write_new(folder: &Path, files: &[(&str, String)]) -> Result<(), OutputError> {
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |source| OutputError::Io { path, source }
    };
    fs::create_dir_all(folder).map_err(io(folder))?;
    let taken =
        |file: &str| OutputError::Taken { folder: folder.to_path_buf(), file: file.to_string() };
    let names = files.iter().map(|(name, _)| *name);
    for name in [RESULT, TRIALS, COMPARISON, TREND].into_iter().chain(names) {
        if folder.join(name).exists() {
            return Err(taken(name));
        }
    }
    let files: Vec<(PathBuf, &[u8])> =
        files.iter().map(|(name, text)| (folder.join(name), text.as_bytes())).collect();
    complete_file::create_all(&files).map_err(|(path, source)| match source.kind() {
        // Another process may have begun to write at the same time.
        ErrorKind::AlreadyExists => taken(&path.file_name().unwrap_or_default().to_string_lossy()),
        _ => OutputError::Io { path, source },
    })
}
