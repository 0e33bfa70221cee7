//! What a backup says of itself, in `backup.json`.

use std::fs;
use std::path::Path;

use nm_sys::complete_file::{self, Origin};
use serde::{Deserialize, Serialize};

use crate::error::BackupError;

/// Name of the file.
pub const DESCRIPTION: &str = "backup.json";

/// Version of its format.
const VERSION: u32 = 1;

/// What a backup contains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    version: u32,
    /// The program that wrote it.
    pub program: String,
    /// Number of the network, or zero.
    pub cluster: u64,
    /// The groups: cells, and control.
    pub groups: Vec<GroupDescription>,
}

/// The copy of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupDescription {
    /// Number of the group.
    pub group: u16,
    /// Its name, that of its folder.
    pub name: String,
    /// Whose replica was copied.
    pub node: String,
    /// Position of the snapshot with which the copy begins; 0 for none.
    pub first: u64,
    /// Position of the last record.
    pub position: u64,
    /// Term of that record.
    pub term: u64,
    /// Time of the last batch, ns since 1970; 0 if there is none.
    pub time_ns: u64,
    /// Hash of the state, 16 hexadecimal digits.
    pub state_hash: String,
}

impl Description {
    /// A description of these groups.
    pub fn new(program: &str, cluster: u64, groups: Vec<GroupDescription>) -> Description {
        Description { version: VERSION, program: program.to_string(), cluster, groups }
    }

    /// Reads that of a folder.
    ///
    /// # Errors
    /// If it cannot be read, or has another format.
    pub fn read(folder: &Path) -> Result<Description, BackupError> {
        let path = folder.join(DESCRIPTION);
        let text = fs::read(&path).map_err(|error| BackupError::file(&path, "read", error))?;
        let description: Description = serde_json::from_slice(&text)
            .map_err(|source| BackupError::Description { path: path.clone(), source })?;
        match description.version {
            VERSION => Ok(description),
            version => Err(BackupError::Version { path, version }),
        }
    }

    /// Writes it to a folder.
    ///
    /// # Errors
    /// If the disk does not take it.
    pub fn write(&self, folder: &Path) -> Result<(), BackupError> {
        let path = folder.join(DESCRIPTION);
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::from);
        text.and_then(|text| complete_file::replace(&path, text.as_bytes(), Origin::Measured))
            .map_err(|error| BackupError::file(&path, "written", error))
    }
}
