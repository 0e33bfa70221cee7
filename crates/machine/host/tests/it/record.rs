//! Recordings: nothing in them names the machine, and they read back.

use std::fs;

use nm_host::record::{anonymous, write};
use nm_model::Snapshot;
use nm_model::snapshot::LinkCalls;

fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot::default();
    let files = [
        ("/proc/sys/kernel/hostname", "trading-7"),
        ("/proc/sys/kernel/random/boot_id", "520b46e9-fefe-4705-ab69-8ba5b621ea48"),
        ("/proc/cmdline", "isolcpus=2-5 root=/dev/sda1 ip=10.1.2.3 quiet -- --key 7"),
        ("/proc/self/cgroup", "0::/system.slice/orders.service"),
        ("/proc/2/comm", "kthreadd"),
        ("/proc/9/comm", "kworker/0:1"),
        ("/proc/9/status", "Name:\tkworker/0:1\nPPid:\t2"),
        ("/proc/70/comm", "orders"),
        ("/proc/70/status", "Name:\torders\nPPid:\t1\nCpus_allowed_list:\t2-5"),
        ("/proc/71/comm", "irqbalance"),
        ("/sys/class/net/eth0/address", "aa:bb:cc:01:02:03"),
        ("/sys/fs/cgroup/system.slice/orders.service/cpu.max", "max 100000"),
        ("/run/libvirt/qemu/orders-vm.xml", "<name>orders-vm</name>\n<vcpu >2</vcpu>"),
    ];
    snapshot.files.extend(files.map(|(path, text)| (path.to_string(), text.to_string())));
    snapshot.folders.insert("/run/libvirt/qemu".into(), vec!["orders-vm.xml".into()]);
    snapshot.symlinks.insert("/sys/class/net/eth0/device".into(), "virtio1".into());
    snapshot.symlinks.insert("/sys/class/net/eth0/device/driver".into(), "virtio_net".into());
    snapshot.files.insert("/sys/class/net/eth0/device/vendor".into(), "0x1af4".into());
    snapshot.present.push("/dev/kvm".into());
    snapshot.unreadable.insert("/sys/kernel/x".into(), "permission denied".into());
    let mac = Some("aa:bb:cc:01:02:03".to_string());
    let link = LinkCalls { mac, ..LinkCalls::default() };
    snapshot.calls.links = Some([("eth0".to_string(), link)].into());
    snapshot
}

#[test]
fn a_recording_names_neither_machine_nor_owner() {
    let snapshot = anonymous(&snapshot());
    let text = serde_json::to_string(&snapshot).unwrap();
    for secret in ["trading", "520b46e9", "orders", "aa:bb", "sda1", "10.1.2.3", "--key"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    let file = |path: &str| snapshot.files[path].as_str();
    assert_eq!(file("/proc/cmdline"), "isolcpus=2-5 root=recorded ip=recorded quiet");
    assert_eq!(file("/proc/9/comm"), "kworker/0:1");
    assert_eq!(file("/proc/71/comm"), "irqbalance");
    assert_eq!(file("/proc/70/status"), "Name:\tprogram\nPPid:\t1\nCpus_allowed_list:\t2-5");
    // The same in all places, so that they still belong together.
    let link = &snapshot.calls.links.as_ref().unwrap()["eth0"];
    assert_eq!(Some(file("/sys/class/net/eth0/address")), link.mac.as_deref());
    let group = file("/proc/self/cgroup").strip_prefix("0::").unwrap();
    assert_eq!(file(&format!("/sys/fs/cgroup{group}/cpu.max")), "max 100000");
    let domain = &snapshot.folders["/run/libvirt/qemu"][0];
    let name = domain.strip_suffix(".xml").unwrap();
    assert!(file(&format!("/run/libvirt/qemu/{domain}")).contains(name));
}

#[test]
fn a_recording_reads_back_also_after_it_was_moved() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("a"), folder.path().join("b/c"));
    let snapshot = snapshot();
    write(&snapshot, &first).unwrap();
    let error = write(&snapshot, &first).unwrap_err().to_string();
    assert!(error.contains("is not empty; name a new folder"), "{error}");
    fs::create_dir_all(folder.path().join("b")).unwrap();
    fs::rename(&first, &second).unwrap();
    let expected = anonymous(&snapshot);
    let mut read = nm_host::snapshot::of_root(&second, &expected.workload);
    assert_eq!(read.symlinks["/sys/class/net/eth0/device"], "virtio1");
    assert_eq!(read.symlinks["/sys/class/net/eth0/device/driver"], "virtio_net");
    assert_eq!(read.files["/sys/class/net/eth0/device/vendor"], "0x1af4");
    assert!(read.present.contains(&"/dev/kvm".to_string()));
    read.files.retain(|path, _| expected.files.contains_key(path));
    for (path, text) in &read.files {
        assert_eq!(text, &expected.files[path], "{path}");
    }
    assert_eq!(read.calls, expected.calls);
    assert_eq!(read.unreadable, expected.unreadable);
}
