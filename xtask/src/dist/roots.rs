//! Folders in which packages are installed and programs run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::shell;

/// The Debian releases that the package is installed on: 11, 12 and 13.
pub(super) const RELEASES: [&str; 3] = ["bullseye", "bookworm", "trixie"];

/// Where roots lie.
pub(super) fn folder() -> PathBuf {
    shell::root().join("target/dist-roots")
}

/// Makes the roots of Debian that are not there yet.
pub(super) fn make() -> Result<()> {
    for release in RELEASES {
        // Written once the root is complete.
        let complete = folder().join(format!("{release}.complete"));
        if !complete.is_file() {
            let root = empty(&folder(), release)?;
            let line = format!("debootstrap --variant=minbase {release} {}", root.display());
            shell::run_quietly(&line)?;
            fs::write(&complete, "")?;
        }
    }
    Ok(())
}

/// An empty folder of this name.
pub(super) fn empty(roots: &Path, name: &str) -> Result<PathBuf> {
    let root = roots.join(name);
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
    Ok(root)
}
