//! A tree in place of the machine may be anybody's: what is behind its links is not its own.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::Path;

use nm_sys::hostfiles::HostFiles;

#[test]
fn links_out_of_a_tree_are_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    let tree = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "s").unwrap();
    fs::create_dir_all(tree.path().join("proc/inner")).unwrap();
    fs::write(tree.path().join("proc/inner/file"), "f").unwrap();
    let link = |target: &Path, name: &str| {
        symlink(target, tree.path().join(name)).unwrap();
    };
    link(&outside.path().join("secret"), "proc/secret");
    link(outside.path(), "sys");
    link(&tree.path().join("proc/inner"), "proc/own");
    link(Path::new("inner/file"), "proc/relative");
    let files = HostFiles::new(tree.path());
    let refused = files.read("/proc/secret", 10).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    assert_eq!((files.text("/sys/secret"), files.names("/sys")), (None, vec![]));
    assert!(!files.exists("/sys/secret") && !files.exists("/proc/secret"));
    assert_eq!(files.text("/proc/own/file").as_deref(), Some("f"));
    assert_eq!(files.text("/proc/relative").as_deref(), Some("f"));
    assert_eq!(files.link_name("/proc/relative").as_deref(), Some("file"));
    assert_eq!(files.link_name("/sys/secret"), None);
}
