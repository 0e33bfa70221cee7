//! `nearmetal generate` on a recorded host, on this machine, and with input that it refuses.

use std::fs;
use std::path::Path;

use crate::support::{Run, run};

/// A host of one node with four cores and a network card.
fn record(root: &Path) {
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("proc/cpuinfo", "flags : svm constant_tsc nonstop_tsc\n");
    write("sys/devices/system/cpu/online", "0-3\n");
    write("sys/devices/system/node/node0/cpulist", "0-3\n");
    for file in ["free_hugepages", "nr_hugepages"] {
        write(&format!("sys/devices/system/node/node0/hugepages/hugepages-1048576kB/{file}"), "8");
    }
    let device = "sys/bus/pci/devices/0000:01:00.0";
    for (file, text) in [("class", "0x020000"), ("vendor", "0x15b3"), ("device", "0x1017")] {
        write(&format!("{device}/{file}"), text);
    }
    write(&format!("{device}/net/ens1/operstate"), "up");
    write("sys/kernel/iommu_groups/1/devices/0000:01:00.0/class", "");
}

fn generate(root: &Path, kind: &str, more: &[&str]) -> Run {
    let root = root.to_str().unwrap();
    let guest = ["--vcpus", "2", "--memory", "4GiB", "--nic", "ens1", "--root", root];
    run(&[&["generate", kind], guest.as_slice(), more].concat())
}

#[test]
fn configurations_are_written_for_a_recorded_host() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path());
    let text = generate(folder.path(), "openstack", &[]);
    assert_eq!(text.code, 0, "{}", text.stderr);
    assert!(text.stdout.contains("cpu_dedicated_set = 1-3\n"), "{}", text.stdout);
    let flavor = generate(folder.path(), "openstack", &["--part", "flavor"]);
    assert!(flavor.stdout.contains("openstack flavor create latency --vcpus 2 --ram 4096"));
    assert!(!flavor.stdout.contains("[compute]"), "{}", flavor.stdout);

    let file = folder.path().join("latency.xml");
    let out = ["--out", file.to_str().unwrap()];
    let written = generate(folder.path(), "libvirt", &out);
    assert_eq!((written.code, written.stdout.as_str()), (0, ""), "{}", written.stderr);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("<vcpupin vcpu='1' cpuset='2'/>"), "{text}");
    let again = generate(folder.path(), "libvirt", &out);
    assert_eq!(again.code, 5, "{}", again.stderr);
    assert_eq!(fs::read_to_string(&file).unwrap(), text, "a file is never written over");
}

#[test]
fn a_host_that_cannot_carry_the_guest_and_bad_input_have_codes_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path());
    let cases: [(&[&str], i32, &str); 4] = [
        (&["--dedicated-cores", "9"], 2, "9 dedicated cores"),
        (&["--disk", "relative.raw"], 2, "must be an absolute path"),
        (&["--page", "2MiB"], 4, "0 free of 0 pages of 2 MiB"),
        (&["--name", "a/b"], 2, "the name `a/b`"),
    ];
    for (options, code, text) in cases {
        let refused = generate(folder.path(), "libvirt", options);
        assert_eq!(refused.code, code, "{options:?}: {}", refused.stderr);
        let [error] = refused.errors()[..] else { panic!("{}", refused.stderr) };
        assert!(error.contains(text), "{error}");
        assert_eq!(refused.stdout, "");
    }
    let empty = generate(&folder.path().join("proc"), "openstack", &[]);
    assert_eq!(empty.code, 2, "{}", empty.stderr);
    assert!(empty.stderr.contains("CPUs are unknown"), "{}", empty.stderr);
    let absent = generate(&folder.path().join("absent"), "openstack", &[]);
    assert_eq!(absent.code, 2, "{}", absent.stderr);
    assert!(absent.stderr.contains("--root: there is no folder"), "{}", absent.stderr);
}
