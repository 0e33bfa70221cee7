//! Configurations for recorded hosts.

mod engines;
mod host;
mod libvirt;
mod libvirt_pair;
mod openstack;
mod placement;
mod qemu_pair;
mod schema;

/// Compares a text with the reviewed one, which `UPDATE=1` writes.
fn golden(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "UPDATE=1 writes {}", path.display());
}
