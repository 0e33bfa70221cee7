//! The Python package speaks the same format.

use std::fs;
use std::path::Path;

#[test]
fn the_python_package_has_the_version_and_digest_of_the_format() {
    let path = "../../../clients/python/nearmetal_client/wire.py";
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    assert_eq!(value("VERSION = "), nm_wire::VERSION.to_string());
    assert_eq!(value("DIGEST = "), format!("0x{:X}", nm_wire::digest()));
}
