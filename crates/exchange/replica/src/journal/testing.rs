//! What tests ask of the journal in a folder.

use std::path::{Path, PathBuf};

use super::format;
use super::reader::{files, last_record};
use super::watermark::Watermark;
use crate::env::Env;

/// Its files, oldest first.
pub fn paths(env: &Env, folder: &Path) -> Vec<PathBuf> {
    files(env, folder).unwrap().into_iter().map(|(_, path)| path).collect()
}

/// Index of the last record below its watermark.
pub fn watermark_index(env: &Env, folder: &Path) -> u64 {
    Watermark::read(env, folder).unwrap().index()
}

/// Whether damage of each of its records differs from a torn write.
pub fn is_covered(env: &Env, folder: &Path) -> bool {
    let last = last_record(env, folder).unwrap();
    last.is_some_and(|(_, index)| index <= watermark_index(env, folder))
}

/// Index of the last record in a file of it.
pub fn last_in_file(path: &Path) -> u64 {
    let first = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    let scan = format::scan(&std::fs::read(path).unwrap(), first, None);
    scan.places.last().map_or(0, |place| place.index)
}
