//! Facts read from fixture trees and from this machine.

mod record;
mod root;

use std::path::Path;
use std::time::Duration;

use nm_host::snapshot::{self, SnapshotOptions};
use nm_model::snapshot::Workload;
use nm_model::{Facts, Snapshot};

fn fixture(name: &str) -> Facts {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    nm_host::read(&root)
}

#[test]
fn bare_metal_host_with_two_sockets() {
    let facts = fixture("metal");
    assert_eq!(facts.host.name, "metal-1");
    assert_eq!(facts.host.kernel, "5.14.0-rt");
    assert_eq!(facts.host.os.as_deref(), Some("Rocky Linux 9.4 (Blue Onyx)"));
    assert_eq!(facts.host.load_1m, Some(0.12));
    assert!(facts.host.cmdline.unwrap().contains("isolcpus=2,3"));

    let cpu = facts.cpu;
    assert_eq!(cpu.model.as_deref(), Some("Intel(R) Xeon(R) CPU E5-2687W v4 @ 3.00GHz"));
    assert_eq!((cpu.online, cpu.allowed), (8, vec![1, 2, 3, 5, 6, 7]));
    assert_eq!(cpu.siblings, [[0, 4], [1, 5], [2, 6], [3, 7]]);
    assert_eq!((cpu.numa_nodes[&1], cpu.numa_nodes[&6]), (0, 1));
    assert_eq!(cpu.governor.as_deref(), Some("performance"));
    assert_eq!(cpu.idle_driver.as_deref(), Some("intel_idle"));
    assert_eq!(cpu.idle_states, ["POLL 0 µs", "C6 133 µs (disabled)"]);
    assert_eq!(cpu.isolated.as_deref(), Some("2-3"));
    assert_eq!(cpu.mitigations, ["meltdown: PTI"]);
    assert_eq!(cpu.quota, None);

    assert_eq!(facts.memory.total_bytes, 131_072_000 * 1024);
    assert_eq!(facts.memory.lock_limit_bytes, None);
    assert_eq!(facts.virtualization.hypervisor, None);
    assert_eq!(facts.virtualization.product.as_deref(), Some("Supermicro SYS-1028"));
    assert_eq!(facts.virtualization.container, None);
    assert_eq!(facts.clock.kernel_source.as_deref(), Some("tsc"));
    let setting = |name: &str| facts.settings[name].clone();
    assert_eq!(setting("net.core.busy_read"), "50");
    assert_eq!(setting("net.ipv4.tcp_rmem"), "4096 131072 6291456");
    assert_eq!(setting("kernel.sched_rt_runtime_us"), "-1");
    assert_eq!(setting("transparent_hugepage"), "always madvise [never]");
    assert_eq!(setting("irqbalance"), "running");
}

#[test]
fn kvm_guest_with_a_cgroup_v1_quota() {
    let facts = fixture("kvm-guest");
    assert_eq!(facts.virtualization.hypervisor.as_deref(), Some("KVM"));
    let product = facts.virtualization.product.unwrap();
    assert_eq!(product, "OpenStack Foundation OpenStack Nova");
    assert_eq!(facts.virtualization.container, None);
    assert_eq!(facts.cpu.quota.as_deref(), Some("150000 100000"));
    assert!(facts.cpu.siblings.is_empty());
    assert_eq!(facts.cpu.governor, None);
    assert_eq!(facts.memory.lock_limit_bytes, Some(8 << 20));
    assert_eq!(facts.host.os.as_deref(), Some("CentOS Linux 7 (Core)"));
    assert_eq!(facts.settings["irqbalance"], "not running");
    assert_eq!(facts.clock.kernel_source.as_deref(), Some("kvm-clock"));
}

#[test]
fn container_without_sysfs() {
    let facts = fixture("container");
    assert_eq!(facts.virtualization.container.as_deref(), Some("lxc"));
    assert_eq!(facts.virtualization.hypervisor, None);
    assert_eq!((facts.cpu.online, facts.cpu.allowed), (4, vec![2, 3]));
    assert_eq!(facts.cpu.quota.as_deref(), Some("200000 100000"));
    assert_eq!(facts.memory.lock_limit_bytes, Some(65536));
    assert_eq!(facts.memory.total_bytes, 0);
    assert!(facts.cpu.numa_nodes.is_empty());
}

#[test]
fn empty_root_gives_empty_facts() {
    let facts = fixture("no-such-tree");
    assert_eq!(facts.cpu.online, 0);
    assert_eq!(facts.cpu.model, None);
    assert!(facts.settings.is_empty());
    assert_eq!(facts.host.name, "");
}

#[test]
fn facts_of_this_machine_are_read() {
    let facts = nm_host::facts();
    assert!(!facts.host.name.is_empty() && !facts.host.kernel.is_empty());
    assert!(facts.cpu.online >= 1 && !facts.cpu.allowed.is_empty());
    assert!(facts.memory.total_bytes > 1 << 20);
    assert!(facts.links.iter().any(|link| link.name == "lo" && link.up));
    assert!(facts.settings.contains_key("net.ipv4.tcp_congestion_control"));
    assert_eq!(facts.nearmetal_version, env!("CARGO_PKG_VERSION"));
}

#[test]
fn facts_of_a_snapshot_equal_those_of_the_tree() {
    for name in ["metal", "kvm-guest", "container", "no-such-tree"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
        let snapshot = snapshot::of_root(&root, &Workload::default());
        assert_eq!(nm_host::read_from(&snapshot::files(&snapshot)), fixture(name), "{name}");
        let text = serde_json::to_string(&snapshot).unwrap();
        let again: Snapshot = serde_json::from_str(&text).unwrap();
        assert_eq!(again, snapshot, "{name}");
        assert_eq!(again.check(), Ok(()), "{name}");
    }
}

#[test]
fn snapshot_of_this_machine_has_two_samples_and_keeps_no_secrets() {
    let interval = Some(Duration::from_millis(50));
    let workload = Workload { pid: Some(std::process::id()), ..Workload::default() };
    let snapshot = snapshot::take(&SnapshotOptions { workload, interval });
    assert_eq!(snapshot.check(), Ok(()));
    assert_eq!(snapshot.left_out, Vec::<String>::new());
    let second = snapshot.second.as_ref().unwrap();
    assert!(second.interval_s >= 0.05);
    assert!(second.files.contains_key("/proc/stat") && second.files.len() < snapshot.files.len());
    let stat = format!("/proc/{}/stat", std::process::id());
    assert!(snapshot.files.contains_key(&stat) && second.files.contains_key(&stat));
    assert!(snapshot.calls.links.as_ref().unwrap()["lo"].up);
    let environment = snapshot.files.get("/proc/1/environ").map_or("", String::as_str);
    assert!(environment.is_empty() || environment.starts_with("container="), "{environment}");
    let is_command = |path: &&String| path.starts_with("/proc/") && path.ends_with("/cmdline");
    let commands: Vec<&String> = snapshot.files.keys().filter(is_command).collect();
    assert_eq!(commands, ["/proc/cmdline"], "command lines of processes may hold secrets");
}

#[test]
fn pipe_in_a_recorded_tree_is_not_waited_for() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("proc")).unwrap();
    let pipe = root.path().join("proc/stat");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let snapshot = snapshot::of_root(root.path(), &Workload::default());
    assert!(snapshot.files.is_empty());
    assert_eq!(snapshot.unreadable.len(), 1);
}
