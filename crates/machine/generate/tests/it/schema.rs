//! Documents against libvirt's own schemas.

use std::path::Path;
use std::process::Command;

/// Of libvirt's package, which `xtask setup` installs with xmllint.
const SCHEMAS: &str = "/usr/share/libvirt/schemas";

/// Whether the schemas are there; where `xtask setup` ran, a missing one is an error.
pub fn has_schemas() -> bool {
    let needs = format!("{SCHEMAS} is missing; `cargo xtask setup` installs it");
    nm_test_support::skip::can_run(Path::new(SCHEMAS).is_dir(), &needs)
}

/// What xmllint says of each document. Reading the schema takes a second, so all are checked at
/// once.
pub fn validate_all(documents: &[String], schema: &str) -> Vec<Result<(), String>> {
    let folder = tempfile::tempdir().unwrap();
    let path = |at: usize| folder.path().join(format!("{at}.xml"));
    for (at, xml) in documents.iter().enumerate() {
        std::fs::write(path(at), xml).unwrap();
    }
    let output = Command::new("xmllint")
        .args(["--nonet", "--noout", "--relaxng", &format!("{SCHEMAS}/{schema}.rng")])
        .args((0..documents.len()).map(path))
        .output()
        .expect("xmllint is installed with the schema");
    let text = String::from_utf8_lossy(&output.stderr);
    let has = |at: usize, what: &str| text.contains(&format!("{} {what}", path(at).display()));
    let result = |at| match (has(at, "validates"), has(at, "fails to validate")) {
        (true, false) => Ok(()),
        (false, true) => Err(text.to_string()),
        _ => panic!("document {at}: {text}"),
    };
    (0..documents.len()).map(result).collect()
}
