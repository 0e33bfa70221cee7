//! `lab plan`, `lab export` and `lab undo`, as a user runs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{BINARY, run, run_in};

#[test]
fn the_plan_opens_nothing_for_writing() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let calls = "trace=open,openat,openat2,creat,truncate,ftruncate,rename,renameat,renameat2,\
                 unlink,unlinkat,mkdir,mkdirat,link,linkat,symlink,symlinkat,mknod,mknodat,chmod,\
                 fchmod,fchmodat,chown,fchown,fchownat,utimensat,setxattr";
    let output = Command::new("strace")
        .args(["-f", "-qq", "-e", calls, "-o"])
        .arg(&trace)
        .args([BINARY, "lab", "plan", "--format", "json"])
        .output()
        .expect("strace is installed by `cargo xtask setup`");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(plan["checks"].as_array().unwrap().len() >= 20);
    let text = fs::read_to_string(&trace).unwrap();
    assert!(text.contains("/proc/cpuinfo"), "the trace is not of the plan");
    let is_harmless = |line: &str| {
        line.contains("open")
            && !["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"]
                .iter()
                .any(|flag| line.contains(flag))
    };
    // Threads that end leave a line of their own.
    let is_call = |line: &&str| line.contains('(') && !line.contains("resumed>");
    let writes: Vec<&str> = text.lines().filter(is_call).filter(|l| !is_harmless(l)).collect();
    assert_eq!(writes, Vec::<&str>::new());
    assert!(!text.contains("/dev/kvm"), "KVM is opened");
}

#[test]
fn the_plan_of_a_recorded_tree_names_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("root/proc")).unwrap();
    fs::write(folder.path().join("root/proc/cpuinfo"), "flags : svm\n").unwrap();
    // What is not in a folder that the tree shows is missing; of the rest nothing is known.
    for path in ["root/usr/bin", "root/dev"] {
        fs::create_dir_all(folder.path().join(path)).unwrap();
        fs::write(folder.path().join(path).join("other"), "").unwrap();
    }
    let plan = run_in(folder.path(), &["lab", "plan", "--root", "root"]);
    assert_eq!(plan.code, 0, "{}", plan.stderr);
    for part in ["modprobe kvm_amd", "apt install qemu-system-x86", "or the tree does not show it"]
    {
        assert!(plan.stdout.contains(part), "{part}: {}", plan.stdout);
    }
    let none = run_in(folder.path(), &["lab", "plan", "--root", "elsewhere"]);
    assert_eq!(none.code, 2);
    assert!(none.stderr.contains("there is no folder elsewhere"), "{}", none.stderr);
}

#[test]
fn a_pair_is_exported_into_a_new_folder_only() {
    let folder = tempfile::tempdir().unwrap();
    let export =
        |more: &[&str]| run_in(folder.path(), &[&["lab", "export", "libvirt"], more].concat());
    for (args, part) in [
        (vec!["wire", "--vcpus", "65"], "from 1 to 64"),
        (vec!["wire", "--memory-mib", "1"], "from 192 to 65536"),
        (vec!["wire", "--nic", "eth0"], "--nic is for the environment sriov only"),
        (vec!["sriov"], "sriov takes --nic once or twice, not 0 times"),
        (vec!["sriov", "--nic", "none"], "there is no network device none on PCI"),
    ] {
        let refused = export(&[args.as_slice(), &["--out", "other"]].concat());
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    let absent = export(&["wire", "--kernel", "absent", "--out", "other"]);
    assert_eq!(absent.code, 4, "{}", absent.stderr);
    assert!(!folder.path().join("other").exists());

    // A kernel without its modules, all of which are built in.
    let modules = folder.path().join("kernel/lib/modules/6.1.0-test");
    fs::create_dir_all(folder.path().join("kernel/boot")).unwrap();
    fs::create_dir_all(modules.join("kernel")).unwrap();
    fs::write(folder.path().join("kernel/boot/vmlinuz-6.1.0-test"), "kernel").unwrap();
    let built_in = ["virtio_pci", "virtio_console", "virtio_net"]
        .map(|name| format!("kernel/drivers/{name}.ko\n"));
    fs::write(modules.join("modules.builtin"), built_in.concat()).unwrap();
    let done = export(&["vhost", "--kernel", "kernel", "--out", "pair"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let text = |name: &str| fs::read_to_string(folder.path().join("pair").join(name)).unwrap();
    let client = text("client.xml");
    for part in ["<driver name='vhost'/>", "nm.side=client", "10.77.0.1/24", "/pair/vmlinuz<"] {
        assert!(client.contains(part), "{part}: {client}");
    }
    assert!(text("commands.txt").contains("virsh net-create"));
    assert_eq!(text("vmlinuz"), "kernel");
    let initrd = fs::metadata(folder.path().join("pair/initrd")).unwrap();
    assert!(initrd.len() > 1 << 20, "the program is in it: {} bytes", initrd.len());
    assert_eq!(export(&["wire", "--kernel", "kernel", "--out", "pair"]).code, 5, "not empty");
}

/// A recorded tree whose device was given virtual functions by a run that was killed.
fn killed_run(folder: &Path, functions: &str) -> (PathBuf, PathBuf) {
    let root = folder.canonicalize().unwrap().join("root");
    let device = root.join("sys/bus/pci/devices/0000:3b:00.0");
    fs::create_dir_all(&device).unwrap();
    fs::create_dir_all(root.join("proc/sys/kernel/random")).unwrap();
    fs::write(root.join("proc/sys/kernel/random/boot_id"), "boot-1\n").unwrap();
    fs::write(device.join("sriov_numvfs"), functions).unwrap();
    let state = folder.join("state");
    fs::create_dir(&state).unwrap();
    let origin = r#""boot_id":"boot-1","mount_namespace":"x","network_namespace":"x""#;
    let begin = format!(
        r#"{{"state":"begin","format":1,"run":"r1","started":"","version":"0","root":"{}",
        "origin":{{{origin}}},"confirm_within_s":null}}"#,
        root.display()
    );
    let target = r#"{"kind":"pci","address":"0000:3b:00.0","setting":"functions"}"#;
    let intent = format!(
        r#"{{"state":"intent","seq":1,"step":"pci.functions","target":{target},
        "old":{{"text":"0\n"}},"new":{{"text":"2\n"}},{origin},"device":null}}"#
    );
    let lines = [begin, intent].map(|line| line.replace("\n        ", "") + "\n");
    fs::write(state.join("r1.jsonl"), lines.concat()).unwrap();
    (root, state)
}

#[test]
fn a_killed_run_is_undone_once_and_a_conflict_has_an_exit_code_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (root, state) = killed_run(folder.path(), "2\n");
    let (root_text, state_text) = (root.to_str().unwrap(), state.to_str().unwrap());
    let place = ["lab", "undo", "--root", root_text, "--state", state_text];
    let functions = root.join("sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs");
    let undone = run(&place);
    assert_eq!(undone.code, 0, "{}", undone.stderr);
    assert!(undone.stdout.contains("restored to 0"), "{}", undone.stdout);
    assert_eq!(fs::read_to_string(&functions).unwrap(), "0\n");
    assert!(run(&place).stderr.contains("nothing to undo"));

    let folder = tempfile::tempdir().unwrap();
    let (root, state) = killed_run(folder.path(), "4\n");
    let (root_text, state_text) = (root.to_str().unwrap(), state.to_str().unwrap());
    let place = ["lab", "undo", "--root", root_text, "--state", state_text];
    let conflict = run(&place);
    assert_eq!(conflict.code, 5, "{}", conflict.stderr);
    assert!(conflict.stderr.contains("--keep-theirs pci.functions"), "{}", conflict.stderr);
    let kept = run(&[&place[..], &["--keep-theirs", "pci.functions"]].concat());
    assert_eq!(kept.code, 0, "{}", kept.stderr);
    let functions = root.join("sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs");
    assert_eq!(fs::read_to_string(&functions).unwrap(), "4\n");
    let unknown = run(&[&place[..], &["--force", "mem.thp"]].concat());
    assert_eq!(unknown.code, 2, "{}", unknown.stderr);
}
