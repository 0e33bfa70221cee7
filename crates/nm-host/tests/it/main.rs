//! Facts read from fixture trees and from this machine.

use std::path::Path;

use nm_model::Facts;

fn fixture(name: &str) -> Facts {
    nm_host::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name))
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
