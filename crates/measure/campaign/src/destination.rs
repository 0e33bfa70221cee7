//! The name of a result, and where it is kept.

use std::path::Path;

use jiff::Timestamp;
use nm_model::Failure;
use nm_report::folder::{ResultFolder, file_name};

/// Where results go without `--out`.
const RESULTS: &str = "nearmetal-out";

/// Name of a result.
pub enum RunName {
    /// This name.
    Fixed(String),
    /// The time of the start, and this text.
    WithTime(String),
}

impl RunName {
    /// The name of a result that begins now.
    pub fn at(self, started: Timestamp) -> String {
        match self {
            RunName::Fixed(name) => name,
            RunName::WithTime(text) => {
                file_name(&format!("{}-{text}", started.strftime("%Y%m%dT%H%M%SZ")))
            }
        }
    }
}

/// Where a result is kept.
pub enum Destination<'a> {
    /// In this folder, which is created.
    Folder(&'a Path),
    /// In a new folder with the name of the result.
    NewFolder,
    /// Only in memory.
    Memory,
}

impl<'a> Destination<'a> {
    /// The folder of `--out`, or a new one.
    pub fn folder_or_new(out: Option<&'a Path>) -> Destination<'a> {
        out.map_or(Destination::NewFolder, Destination::Folder)
    }

    /// Creates the folder of a result with this name, if there is to be one.
    ///
    /// # Errors
    /// If it cannot be created, or holds another result.
    pub fn folder(&self, name: &str) -> Result<Option<ResultFolder>, Failure> {
        Ok(match self {
            Destination::Folder(path) => Some(ResultFolder::at(path)?),
            Destination::NewFolder => Some(ResultFolder::create(RESULTS.as_ref(), name)?),
            Destination::Memory => None,
        })
    }
}
