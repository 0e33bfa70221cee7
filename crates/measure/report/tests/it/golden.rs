//! Comparison with committed files. `UPDATE=1` writes them again.

use std::path::{Path, PathBuf};

/// A file below the crate.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Fails unless `text` is what the file holds.
pub fn check(name: &str, text: &str) {
    let path = path(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; make it with UPDATE=1", path.display()));
    if kept == text {
        return;
    }
    let line = kept.lines().zip(text.lines()).position(|(a, b)| a != b);
    let line = line.unwrap_or(kept.lines().count().min(text.lines().count()));
    let of = |text: &str| {
        text.lines().nth(line).unwrap_or("(end)").chars().take(300).collect::<String>()
    };
    panic!(
        "{name} differs from line {}\nkept: {}\nmade: {}\nif this is meant: UPDATE=1 cargo test",
        line + 1,
        of(&kept),
        of(text)
    );
}
