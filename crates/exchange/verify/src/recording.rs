//! A recorded run as a folder: its files, and the manifest that says what they were when the run
//! ended.
//!
//! ```text
//! manifest.json   {"version":1,"files":{"client-0.log":{"size_bytes":9,"sha256":"…"},…}}
//! ```
//!
//! The manifest is written when all nodes have ended, so that nothing changes any more. It shows
//! damage and confusion, not forgery: whoever can change a file can write another manifest.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};

use nm_model::{Failure, FailureKind};
use nm_sys::complete_file::{self, Origin};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// The network's file in a recording.
pub const NETWORK: &str = "network.toml";

/// The folder of a recording below which its nodes keep journals.
pub const DATA: &str = "data";

/// The manifest in a recording.
pub const MANIFEST: &str = "manifest.json";

/// Version of the manifest's format.
const VERSION: u32 = 1;

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// Why a folder is not a recording that can be read or completed.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// The system refuses.
    #[error("{} cannot be {what}: {source}", path.display())]
    File {
        /// Which file or folder.
        path: PathBuf,
        /// `read` or `written`.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A link, which may lead out of the recording.
    #[error(
        "{} is a symbolic link; a recording contains its files itself: put what it refers to in \
         its place", .0.display()
    )]
    Link(PathBuf),
    /// A pipe or a device.
    #[error("{} is neither a file nor a folder; remove it", .0.display())]
    Special(PathBuf),
    /// The manifest is no manifest.
    #[error("{} is damaged: {source}", path.display())]
    Manifest {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The manifest has another format.
    #[error("{} has version {version}, and this nearmetal reads version {VERSION}", path.display())]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The journals of the network's file are somewhere else.
    #[error(
        "`data` in {} is `{}`, which leads out of the recording; correct it to the journals' \
         folder in the recording", network.display(), data.display()
    )]
    Outside {
        /// The network's file.
        network: PathBuf,
        /// What it says.
        data: PathBuf,
    },
}

impl From<RecordingError> for Failure {
    fn from(error: RecordingError) -> Failure {
        Failure::new(FailureKind::BadRequest, error.to_string())
    }
}

/// What the manifest says of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileDigest {
    size_bytes: u64,
    /// 64 hexadecimal digits.
    sha256: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    version: u32,
    /// By path below the recording.
    files: BTreeMap<PathBuf, FileDigest>,
}

/// Result of comparing a recording with its manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// Each difference as a sentence; none if the recording is as the run left it.
    Differences(Vec<String>),
    /// There is no manifest.
    NoManifest,
}

/// The folder of a recorded run.
#[derive(Debug)]
pub struct Recording {
    folder: PathBuf,
    /// Length of each file by its path below the folder, the manifest left out.
    files: BTreeMap<PathBuf, u64>,
}

impl Recording {
    /// Lists the files of a recording.
    ///
    /// # Errors
    /// If a folder cannot be read, or something in it is neither a file nor a folder. Sockets,
    /// which have no content, are left out.
    pub fn open(folder: &Path) -> Result<Recording, RecordingError> {
        let mut recording = Recording { folder: folder.to_path_buf(), files: BTreeMap::new() };
        recording.list(Path::new(""))?;
        recording.files.remove(Path::new(MANIFEST));
        Ok(recording)
    }

    fn list(&mut self, below: &Path) -> Result<(), RecordingError> {
        let folder = self.folder.join(below);
        let unreadable =
            |source| RecordingError::File { path: folder.clone(), what: "read", source };
        for entry in fs::read_dir(&folder).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            // Of the entry itself: a link is not followed.
            let metadata = entry.metadata().map_err(unreadable)?;
            let (kind, path) = (metadata.file_type(), below.join(entry.file_name()));
            if kind.is_symlink() {
                return Err(RecordingError::Link(entry.path()));
            } else if kind.is_dir() {
                self.list(&path)?;
            } else if kind.is_file() {
                self.files.insert(path, metadata.len());
            } else if !kind.is_socket() {
                return Err(RecordingError::Special(entry.path()));
            }
        }
        Ok(())
    }

    /// The folder of the journals. `data` is what the network's file says.
    ///
    /// An absolute path, which earlier versions wrote and runs on several hosts write, is not used.
    ///
    /// # Errors
    /// If it leads out of the recording.
    pub fn data(&self, data: Option<&Path>) -> Result<PathBuf, RecordingError> {
        let Some(data) = data.filter(|data| !data.is_absolute()) else {
            return Ok(self.folder.join(DATA));
        };
        let leads_down = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        if !data.components().all(leads_down) {
            let network = self.folder.join(NETWORK);
            return Err(RecordingError::Outside { network, data: data.to_path_buf() });
        }
        Ok(self.folder.join(data))
    }

    /// Writes the manifest: a crash leaves none, or all of it.
    ///
    /// # Errors
    /// If a file cannot be read, or the manifest cannot be written.
    pub fn seal(&self) -> Result<(), RecordingError> {
        let mut files = BTreeMap::new();
        for (path, size_bytes) in &self.files {
            let sha256 = self.sha256(path)?;
            files.insert(path.clone(), FileDigest { size_bytes: *size_bytes, sha256 });
        }
        let path = self.folder.join(MANIFEST);
        let write = || -> io::Result<()> {
            let text = serde_json::to_string_pretty(&Manifest { version: VERSION, files })?;
            complete_file::replace(&path, text.as_bytes(), Origin::Measured)
        };
        write().map_err(|source| RecordingError::File {
            path: path.clone(),
            what: "written",
            source,
        })
    }

    /// Compares each file with the manifest.
    ///
    /// # Errors
    /// If the manifest or a file cannot be read.
    pub fn compare(&self) -> Result<Comparison, RecordingError> {
        let path = self.folder.join(MANIFEST);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Comparison::NoManifest);
            }
            Err(source) => return Err(RecordingError::File { path, what: "read", source }),
        };
        let manifest: Manifest = match serde_json::from_slice(&text) {
            Ok(manifest) => manifest,
            Err(source) => return Err(RecordingError::Manifest { path, source }),
        };
        if manifest.version != VERSION {
            return Err(RecordingError::Version { path, version: manifest.version });
        }
        let mut differences = vec![];
        for (path, then) in &manifest.files {
            let Some(size_bytes) = self.files.get(path) else {
                differences.push(format!("{} is missing", path.display()));
                continue;
            };
            if let Some(how) = self.change(path, *size_bytes, then)? {
                differences.push(format!("{} {how}", path.display()));
            }
        }
        let added = self.files.keys().filter(|path| !manifest.files.contains_key(*path));
        differences.extend(
            added.map(|path| format!("{} was added after the run had ended", path.display())),
        );
        Ok(Comparison::Differences(differences))
    }

    /// How a file differs from what it was.
    fn change(
        &self,
        path: &Path,
        size_bytes: u64,
        then: &FileDigest,
    ) -> Result<Option<String>, RecordingError> {
        if size_bytes != then.size_bytes {
            let how = if size_bytes > then.size_bytes { "longer" } else { "shorter" };
            let was = then.size_bytes;
            return Ok(Some(format!(
                "is {how} than when the run ended: {size_bytes} bytes in place of {was}"
            )));
        }
        let is_same = self.sha256(path)? == then.sha256;
        Ok((!is_same).then(|| "was changed after the run had ended".to_string()))
    }

    fn sha256(&self, path: &Path) -> Result<String, RecordingError> {
        let path = self.folder.join(path);
        let digest = || -> io::Result<String> {
            let (mut file, mut block) = (File::open(&path)?, vec![0; READ_BYTES]);
            let mut digest = Sha256::new();
            loop {
                match file.read(&mut block)? {
                    0 => return Ok(format!("{:x}", digest.finalize())),
                    count => digest.update(&block[..count]),
                }
            }
        };
        digest().map_err(|source| RecordingError::File { path: path.clone(), what: "read", source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recording with one file in each of two folders.
    fn sealed() -> (tempfile::TempDir, Recording) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(DATA)).unwrap();
        fs::write(folder.path().join("client-0.log"), b"a log").unwrap();
        fs::write(folder.path().join("data/1.journal"), vec![7; READ_BYTES + 9]).unwrap();
        let recording = Recording::open(folder.path()).unwrap();
        recording.seal().unwrap();
        (folder, recording)
    }

    fn differences(folder: &Path) -> Vec<String> {
        match Recording::open(folder).unwrap().compare().unwrap() {
            Comparison::Differences(differences) => differences,
            Comparison::NoManifest => panic!("there is a manifest"),
        }
    }

    #[test]
    fn every_difference_from_the_manifest_is_a_sentence() {
        let (folder, recording) = sealed();
        let path = |name: &str| folder.path().join(name);
        assert_eq!(recording.sha256(Path::new("client-0.log")).unwrap().len(), 64);
        assert!(differences(folder.path()).is_empty());
        fs::write(path("client-0.log"), b"a lot").unwrap();
        assert_eq!(
            differences(folder.path()),
            ["client-0.log was changed after the run had ended"]
        );
        fs::write(path("client-0.log"), b"a log and more").unwrap();
        let longer = "client-0.log is longer than when the run ended: 14 bytes in place of 5";
        assert_eq!(differences(folder.path()), [longer]);
        fs::write(path("client-0.log"), b"a").unwrap();
        assert!(differences(folder.path())[0].contains("is shorter than"));
        fs::write(path("client-0.log"), b"a log").unwrap();
        fs::remove_file(path("data/1.journal")).unwrap();
        fs::write(path("data/2.journal"), b"").unwrap();
        let both =
            ["data/1.journal is missing", "data/2.journal was added after the run had ended"];
        assert_eq!(differences(folder.path()), both);
    }

    #[test]
    fn a_cut_or_foreign_manifest_is_refused_and_a_missing_one_is_known() {
        let (folder, recording) = sealed();
        let path = folder.path().join(MANIFEST);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 1]).unwrap();
        assert!(matches!(recording.compare(), Err(RecordingError::Manifest { .. })));
        fs::write(&path, text.replace("\"version\": 1", "\"version\": 2")).unwrap();
        assert!(matches!(recording.compare(), Err(RecordingError::Version { version: 2, .. })));
        fs::remove_file(&path).unwrap();
        assert_eq!(recording.compare().unwrap(), Comparison::NoManifest);
    }

    #[test]
    fn nothing_leads_out_of_a_recording() {
        let (folder, recording) = sealed();
        let own = folder.path().join(DATA);
        assert_eq!(recording.data(None).unwrap(), own);
        assert_eq!(recording.data(Some(Path::new("data"))).unwrap(), own);
        assert_eq!(recording.data(Some(Path::new("/elsewhere"))).unwrap(), own);
        for outside in ["..", "../other/data", "data/../../other"] {
            let error = recording.data(Some(Path::new(outside))).unwrap_err().to_string();
            assert!(error.contains("leads out of the recording"), "{error}");
        }
        std::os::unix::fs::symlink("/etc", own.join("mediator-0")).unwrap();
        let error = Recording::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("data/mediator-0 is a symbolic link"), "{error}");
    }
}
