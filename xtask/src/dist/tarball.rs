//! Archives whose bytes depend on their files only.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::write::GzEncoder;

/// A file or a folder in an archive or a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Path without a slash at its start.
    pub(super) path: String,
    /// Permission bits.
    pub(super) mode: u32,
    /// The bytes of a file; absent for a folder.
    pub(super) bytes: Option<Vec<u8>>,
}

impl Entry {
    /// A file.
    pub(super) fn file(path: impl Into<String>, mode: u32, bytes: Vec<u8>) -> Entry {
        Entry { path: path.into(), mode, bytes: Some(bytes) }
    }

    /// A folder.
    pub(super) fn folder(path: impl Into<String>, mode: u32) -> Entry {
        Entry { path: path.into(), mode, bytes: None }
    }
}

/// The folders that lead to `files`, each once, and the files, in the order of their paths.
pub(super) fn with_folders(files: &[Entry]) -> Vec<Entry> {
    let mut all: Vec<Entry> = files.to_vec();
    for file in files {
        let mut parents = file.path.match_indices('/').map(|(at, _)| &file.path[..at]);
        for parent in parents.by_ref() {
            if !all.iter().any(|entry| entry.path == parent) {
                all.push(Entry::folder(parent, 0o755));
            }
        }
    }
    all.sort_by(|a, b| a.path.cmp(&b.path));
    all
}

/// A tar archive of files of root, with one time for all.
pub(super) fn tar(entries: &[Entry], time_s: u64) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(vec![]);
    for Entry { path, mode, bytes } in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(*mode);
        header.set_mtime(time_s);
        header.set_uid(0);
        header.set_gid(0);
        let (kind, shown) = match bytes {
            Some(_) => (tar::EntryType::Regular, path.clone()),
            None => (tar::EntryType::Directory, format!("{path}/")),
        };
        header.set_entry_type(kind);
        let bytes = bytes.as_deref().unwrap_or_default();
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, &shown, bytes).with_context(|| shown.clone())?;
    }
    Ok(archive.into_inner()?)
}

/// Compressed for everything that reads gzip.
pub(super) fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(vec![], Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

/// Compressed by the program `zstd`.
pub(super) fn zstd(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut child = Command::new("zstd")
        .args(["-19", "--quiet", "--single-thread", "--stdout"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start zstd; `cargo xtask setup` installs it")?;
    let mut input = child.stdin.take().expect("its input is a pipe");
    let output = std::thread::scope(|scope| {
        let writing = scope.spawn(move || input.write_all(bytes));
        let output = child.wait_with_output();
        writing.join().expect("writing does not panic")?;
        anyhow::Ok(output?)
    })?;
    if !output.status.success() {
        bail!("zstd ended with {}", output.status);
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_depends_on_its_files_only() {
        let files = [Entry::file("usr/bin/a", 0o755, b"x".to_vec())];
        let all = with_folders(&files);
        let paths: Vec<&str> = all.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!(paths, ["usr", "usr/bin", "usr/bin/a"]);
        let first = tar(&all, 1).unwrap();
        assert_eq!(first, tar(&all, 1).unwrap());
        assert_eq!(gzip(&first).unwrap(), gzip(&first).unwrap());
        let mut read = tar::Archive::new(&first[..]);
        let modes: Vec<u32> =
            read.entries().unwrap().map(|entry| entry.unwrap().header().mode().unwrap()).collect();
        assert_eq!(modes, [0o755, 0o755, 0o755]);
    }
}
