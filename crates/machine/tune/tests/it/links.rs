//! A recorded tree whose symbolic links lead out of it: nothing behind them is read or written.

use std::fs;
use std::os::unix::fs::symlink;

use nm_settings::target::Target;
use nm_settings::value::Value;
use nm_tune::machine::{HostMachine, Machine};

#[test]
fn nothing_behind_a_link_out_of_a_tree_is_read_or_written() {
    let folder = tempfile::tempdir().unwrap();
    let (tree, outside) = (folder.path().join("tree"), folder.path().join("outside"));
    fs::create_dir_all(tree.join("proc/sys")).unwrap();
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("stat_interval"), "1\n").unwrap();
    symlink(&outside, tree.join("proc/sys/vm")).unwrap();
    let mut machine = HostMachine::recorded(&tree);
    let target = Target::Sysctl { name: "vm.stat_interval".parse().unwrap() };
    let refused = machine.read(&target).unwrap_err().to_string();
    assert!(refused.contains("a symbolic link leads out of the folder"), "{refused}");
    let refused = machine.write(&target, &Value::Text("10\n".into())).unwrap_err().to_string();
    assert!(refused.contains("a symbolic link leads out of the folder"), "{refused}");
    assert_eq!(fs::read_to_string(outside.join("stat_interval")).unwrap(), "1\n");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "nothing was added");
}

#[test]
fn a_link_in_the_place_of_a_new_file_is_not_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let (tree, outside) = (folder.path().join("tree"), folder.path().join("outside"));
    fs::create_dir_all(tree.join("proc/sys/vm")).unwrap();
    fs::write(tree.join("proc/sys/vm/stat_interval"), "1\n").unwrap();
    fs::write(&outside, "kept").unwrap();
    symlink(&outside, tree.join("proc/sys/vm/stat_interval.nearmetal-new")).unwrap();
    let mut machine = HostMachine::recorded(&tree);
    let target = Target::Sysctl { name: "vm.stat_interval".parse().unwrap() };
    machine.write(&target, &Value::Text("10\n".into())).unwrap();
    assert_eq!(fs::read_to_string(&outside).unwrap(), "kept");
    assert_eq!(fs::read_to_string(tree.join("proc/sys/vm/stat_interval")).unwrap(), "10\n");
    assert_eq!(machine.read(&target).unwrap(), Value::Text("10\n".into()));
}

#[test]
fn what_is_no_regular_file_of_a_tree_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    let path = tree.join("proc/sys/vm/stat_interval");
    let target = Target::Sysctl { name: "vm.stat_interval".parse().unwrap() };
    for kind in ["folder", "socket", "link"] {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match kind {
            "folder" => fs::create_dir(&path).unwrap(),
            "socket" => drop(std::os::unix::net::UnixListener::bind(&path).unwrap()),
            _ => symlink("other", &path).unwrap(),
        }
        fs::write(tree.join("proc/sys/vm/other"), "kept").unwrap();
        let mut machine = HostMachine::recorded(&tree);
        let refused = machine.write(&target, &Value::Text("10\n".into())).unwrap_err();
        assert!(refused.to_string().contains("it is not a regular file"), "{refused}");
        assert_eq!(fs::read_dir(tree.join("proc/sys/vm")).unwrap().count(), 2, "{kind}");
        assert_eq!(fs::read_to_string(tree.join("proc/sys/vm/other")).unwrap(), "kept");
        fs::remove_dir_all(&tree).unwrap();
    }
}
