//! Whether two builds of one commit in two folders give the same bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::shell;

/// Where the other build lies: deeper than this one, by a path of another length.
const CLONE: &str = "target/dist-twice/of-another-length";

/// Builds both and compares the sums of all files in `folder`, which lies below both roots.
pub(super) fn run(folder: &str) -> Result<()> {
    if !shell::output("git status --porcelain")?.0.trim().is_empty() {
        bail!("there are changes that are not committed, which a clone lacks; commit them first");
    }
    let (here, clone) = (shell::root(), shell::root().join(CLONE));
    let _ = fs::remove_dir_all(&clone);
    shell::run(&format!("git clone --quiet {} {}", here.display(), clone.display()))?;
    shell::run("cargo xtask dist")?;
    // An xtask of its own: it takes the folder that it was built in for the root.
    let manifest = clone.join("Cargo.toml");
    let line = format!("cargo run --quiet --manifest-path {} -p xtask -- dist", manifest.display());
    shell::run(&line)?;
    let sums = |root: &Path| -> Result<String> {
        let path = root.join(folder).join("SHA256SUMS");
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let (ours, theirs) = (sums(&here)?, sums(&clone)?);
    fs::remove_dir_all(&clone)?;
    match differing(&ours, &theirs) {
        names if names.is_empty() => {
            println!("equal bytes in two folders: {} files", ours.lines().count());
            Ok(())
        }
        names => bail!("other bytes in another folder: {}", names.join(", ")),
    }
}

/// The files that have not the same sum in both lists.
fn differing(ours: &str, theirs: &str) -> Vec<String> {
    let by_name = |text: &str| -> BTreeMap<String, String> {
        let lines = text.lines().filter_map(|line| line.split_once("  "));
        lines.map(|(sum, name)| (name.to_string(), sum.to_string())).collect()
    };
    let (ours, theirs) = (by_name(ours), by_name(theirs));
    let names = ours.keys().chain(theirs.keys().filter(|name| !ours.contains_key(*name)));
    names.filter(|name| ours.get(*name) != theirs.get(*name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_differs_by_its_sum_or_if_one_build_lacks_it() {
        let ours = "aa  program\nbb  library\ncc  image\n";
        let theirs = "aa  program\nb0  library\ndd  package\n";
        assert_eq!(differing(ours, ours), Vec::<String>::new());
        assert_eq!(differing(ours, theirs), ["image", "library", "package"]);
    }
}
