//! A recorded tree whose symbolic links lead out of it: nothing behind them is read or written.

use std::fs;
use std::os::unix::fs::symlink;

use nm_tune::machine::{HostMachine, Machine};
use nm_tune::target::Target;
use nm_tune::value::Value;

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
