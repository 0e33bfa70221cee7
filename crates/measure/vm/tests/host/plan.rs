//! `lab plan` on hosts as trees of files: what runs, and the exact remedy for the rest.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nm_model::GuestExecution;
use nm_model::finding::FixKind;
use nm_model::lab_plan::{LabEnvironment, LabKind, LabPlan, LabStatus};
use nm_sys::hostfiles::HostFiles;
use nm_vm::checks::{View, lab_plan};

/// Files of a host: path and content. A content that begins with `->` is a symbolic link.
type Files = BTreeMap<String, String>;

const RELEASE: &str = "6.1.0-56-amd64";

/// A server on bare metal that can run everything: Intel or AMD, two ports with SR-IOV.
fn server(is_amd: bool) -> Files {
    let flag = if is_amd { "svm" } else { "vmx" };
    let kvm = match is_amd {
        true => "/sys/module/kvm_amd/parameters/avic",
        false => "/sys/module/kvm_intel/parameters/enable_apicv",
    };
    let clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let mut files = Files::new();
    let mut put = |path: &str, text: &str| drop(files.insert(path.into(), text.into()));
    put("/proc/cpuinfo", &format!("flags\t: fpu {flag} constant_tsc nonstop_tsc\n"));
    put("/proc/cmdline", "root=/dev/sda1 intel_iommu=on iommu=pt isolcpus=4-7");
    put("/proc/interrupts", " 24: 0 IR-PCI-MSIX-0000:3b:00.0 0-edge ens1f0\n");
    put("/proc/self/status", "Name: x\nCapEff:\t000001ffffffffff\n");
    put("/proc/self/limits", "Max locked memory         unlimited            unlimited  bytes\n");
    put("/proc/sys/kernel/osrelease", RELEASE);
    put("/dev/kvm", "");
    put("/dev/net/tun", "");
    put("/dev/vhost-net", "");
    put(kvm, "Y");
    put("/sys/module/kvm/parameters/halt_poll_ns", "200000");
    put("/sys/module/bridge/refcnt", "0");
    put("/sys/devices/system/cpu/online", "0-7");
    put("/sys/devices/system/cpu/isolated", "4-7");
    put("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance");
    put("/sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "2");
    put("/sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C1");
    put("/sys/devices/system/cpu/vulnerabilities/l1tf", "Not affected");
    put(clock, "tsc");
    put("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "1024");
    put("/sys/kernel/mm/ksm/run", "0");
    put("/sys/class/iommu/dmar0", "");
    put("/sys/bus/pci/drivers/vfio-pci/bind", "");
    put("/usr/bin/qemu-system-x86_64", "");
    put(&format!("/boot/vmlinuz-{RELEASE}"), "");
    put(&format!("/boot/config-{RELEASE}"), "CONFIG_XDP_SOCKETS=y\n");
    put(&format!("/lib/modules/{RELEASE}/modules.dep"), "");
    for (address, link, group) in [("0000:3b:00.0", "ens1f0", 20), ("0000:3b:00.1", "ens1f1", 21)] {
        let device = format!("/sys/bus/pci/devices/{address}");
        put(&format!("{device}/class"), "0x020000");
        put(&format!("{device}/numa_node"), "0");
        put(&format!("{device}/sriov_totalvfs"), "8");
        put(&format!("{device}/sriov_numvfs"), "0");
        put(&format!("{device}/iommu_group"), &format!("->../../../{group}"));
        put(&format!("{device}/net/{link}/ifindex"), "2");
        put(&format!("/sys/kernel/iommu_groups/{group}/devices/{address}"), "");
        put(&format!("/sys/class/net/{link}/flags"), "0x1003");
        put(&format!("/sys/class/net/{link}/carrier"), "1");
    }
    files
}

fn write(root: &Path, files: &Files) {
    for (path, text) in files {
        let path = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match text.strip_prefix("->") {
            Some(target) => symlink(target, path).unwrap(),
            None => fs::write(path, text).unwrap(),
        }
    }
}

fn plan_with(files: &Files, timed: Option<(GuestExecution, String)>) -> LabPlan {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), files);
    let files = HostFiles::new(folder.path());
    lab_plan(&View { files: &files, links: None, own_connection: None, named_kernel: None, timed })
}

fn plan(files: &Files) -> LabPlan {
    plan_with(files, None)
}

fn of(plan: &LabPlan, kind: LabKind) -> &LabEnvironment {
    plan.environments.iter().find(|one| one.kind == kind).unwrap()
}

fn runnable(plan: &LabPlan) -> Vec<LabKind> {
    let mut kinds: Vec<LabKind> =
        plan.environments.iter().filter(|one| one.can_run()).map(|one| one.kind).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

/// The fixes of what stands in the way, as a user reads them.
fn fixes(plan: &LabPlan, kind: LabKind) -> Vec<String> {
    of(plan, kind)
        .unavailable_reasons
        .iter()
        .map(|unavailable_reason| unavailable_reason.fix.to_string())
        .collect()
}

#[test]
fn a_server_on_bare_metal_runs_everything() {
    for is_amd in [false, true] {
        let plan = plan(&server(is_amd));
        assert_eq!(runnable(&plan), LabKind::ALL, "AMD: {is_amd}");
        assert_eq!(plan.execution.execution, GuestExecution::RealKvm);
        assert!(plan.environments.iter().all(|one| !one.is_emulated));
        let bad: Vec<_> = plan
            .checks
            .iter()
            .filter(|check| matches!(check.status, LabStatus::Missing | LabStatus::Worse))
            .collect();
        assert!(bad.is_empty(), "{bad:?}");
        let sriov: Vec<_> =
            plan.environments.iter().filter(|one| one.kind == LabKind::SriovVf).collect();
        assert_eq!(sriov.len(), 2, "one for each device");
        let command = sriov[1].command.as_deref();
        assert_eq!(command, Some("nearmetal lab run --env sriov --nic ens1f1"));
        let both = of(&plan, LabKind::SriovPf).command.as_deref();
        assert_eq!(both, Some("nearmetal lab run --env sriov --nic ens1f0 --nic ens1f1"));
        assert!(plan.took_us < 60_000_000);
    }
}

#[test]
fn without_an_iommu_only_pass_through_is_impossible() {
    let mut files = server(false);
    files.retain(|path, _| !path.contains("iommu"));
    let all: Vec<LabKind> = LabKind::ALL.to_vec();
    let without = |kinds: &[LabKind]| -> Vec<LabKind> {
        all.iter().copied().filter(|kind| !kinds.contains(kind)).collect()
    };
    let passed = [LabKind::SriovVf, LabKind::SriovPf];
    let found = plan(&files);
    assert_eq!(runnable(&found), without(&passed));
    let expected = ["firmware: switch on VT-d; then boot with intel_iommu=on iommu=pt"];
    assert_eq!(fixes(&found, LabKind::SriovVf), expected);
    // The firmware has one, and the kernel was not asked to use it.
    files.insert("/sys/firmware/acpi/tables/DMAR".into(), String::new());
    let expected = ["kernel command line: intel_iommu=on iommu=pt"];
    assert_eq!(fixes(&plan(&files), LabKind::SriovPf), expected);
    let mut files = server(true);
    files.retain(|path, _| !path.contains("iommu"));
    assert_eq!(fixes(&plan(&files), LabKind::SriovVf), ["firmware: switch on AMD-Vi (IOMMU)"]);
}

#[test]
fn interrupts_that_are_not_remapped_are_named_with_their_cause() {
    let mut files = server(false);
    files.insert("/proc/interrupts".into(), " 24: 0 PCI-MSIX-0000:3b:00.0 0-edge x\n".into());
    let fix = fixes(&plan(&files), LabKind::SriovVf);
    assert_eq!(fix, ["firmware: switch on interrupt remapping (often called x2APIC)"]);
    files.insert("/proc/cmdline".into(), "intel_iommu=on iommu=pt intremap=off".into());
    let fix = fixes(&plan(&files), LabKind::SriovVf);
    assert_eq!(fix, ["kernel command line: remove intremap=off"]);
}

#[test]
fn a_shared_group_and_a_device_in_use_are_named() {
    let mut files = server(false);
    files.insert("/sys/kernel/iommu_groups/20/devices/0000:3c:00.0".into(), String::new());
    files.insert("/sys/bus/pci/devices/0000:3c:00.0/class".into(), "0x010400".into());
    let shared = plan(&files);
    let unavailable_reason = &of(&shared, LabKind::SriovVf).unavailable_reasons[0];
    assert_eq!(unavailable_reason.check, "ens1f0.group");
    assert!(unavailable_reason.reason.contains("0000:3c:00.0"), "{}", unavailable_reason.reason);
    assert!(!unavailable_reason.fix.to_string().contains("acs_override"));
    // Nor can the other port be passed beside it, but its functions can.
    assert!(!runnable(&shared).contains(&LabKind::SriovPf));
    assert!(runnable(&shared).contains(&LabKind::SriovVf));
    let mut files = server(false);
    files.insert("/sys/class/net/ens1f0/flags".into(), "0x1002".into());
    let route = "I D G F R U M Mask\nens1f1 00000000 0102000A 3 0 0 0 00000000 0 0 0\n";
    files.insert("/proc/net/route".into(), route.into());
    let used = plan(&files);
    assert_eq!(fixes(&used, LabKind::SriovVf), ["ip link set ens1f0 up"]);
    assert_eq!(
        used.check("ens1f1.unused").unwrap().summary,
        "ens1f1 carries the default route (via 10.0.2.1)"
    );
}

#[test]
fn without_huge_pages_and_with_few_cores_everything_runs_worse() {
    let mut files = server(false);
    files.insert("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages".into(), "0".into());
    files.insert("/sys/devices/system/cpu/online".into(), "0-3".into());
    for cpu in 0..4 {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        files.insert(path, format!("{},{}", cpu % 2, cpu % 2 + 2));
    }
    let found = plan(&files);
    assert_eq!(runnable(&found), LabKind::ALL);
    let pages = found.check("memory.huge_pages").unwrap();
    assert_eq!(pages.status, LabStatus::Worse);
    let fix = "echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    assert_eq!(pages.fix.as_ref().unwrap().to_string(), fix);
    let cores = found.check("cpu.cores").unwrap();
    assert_eq!(cores.status, LabStatus::Worse);
    assert!(cores.summary.starts_with("2 cores with 4 CPUs"), "{}", cores.summary);
}

#[test]
fn kvm_without_virtualization_is_taken_for_an_interpreter_until_it_is_timed() {
    let mut files = server(true);
    files.insert("/proc/cpuinfo".into(), "flags\t: fpu hypervisor constant_tsc\n".into());
    let found = plan(&files);
    assert_eq!(found.execution.execution, GuestExecution::InterpretedKvm);
    assert!(!found.execution.is_timed);
    assert!(of(&found, LabKind::Vswitch).is_emulated && !of(&found, LabKind::Bare).is_emulated);
    assert!(found.check("kvm.usable").unwrap().summary.contains("--probe"));
    let timed = (GuestExecution::NestedKvm, "4.5 ns for each round".to_string());
    let timed = plan_with(&files, Some(timed));
    assert!(timed.execution.is_timed && of(&timed, LabKind::Wire).is_emulated);
    assert!(timed.check("kvm.usable").unwrap().summary.contains("4.5 ns"));
    files.insert("/proc/cpuinfo".into(), "flags\t: fpu svm hypervisor\n".into());
    assert_eq!(plan(&files).execution.execution, GuestExecution::NestedKvm);
}

#[test]
fn a_container_lacks_devices_and_names_how_to_get_them() {
    let mut files = server(false);
    for path in ["/dev/kvm", "/dev/vhost-net", "/usr/bin/qemu-system-x86_64"] {
        files.remove(path);
    }
    files.insert("/usr/bin/sh".into(), String::new());
    files.insert("/.dockerenv".into(), String::new());
    files.insert("/proc/self/status".into(), "CapEff:\t00000000a80425fb\n".into());
    files.insert("/proc/sys/user/max_user_namespaces".into(), "0".into());
    let found = plan(&files);
    assert_eq!(found.execution.execution, GuestExecution::Tcg);
    assert_eq!(runnable(&found), vec![]);
    let kvm = found.check("kvm.usable").unwrap();
    assert!(kvm.fix.as_ref().unwrap().text.contains("--device /dev/kvm"));
    let fix = fixes(&found, LabKind::Vhost);
    assert_eq!(fix[0], "apt install qemu-system-x86   # Fedora: dnf install qemu-kvm");
    assert_eq!(fix[1], "run as root, or: echo 16384 > /proc/sys/user/max_user_namespaces");
    assert!(fix[2].contains("install a kernel with vhost_net"), "{fix:?}");
    // With its module at hand, the command is enough.
    let modules = format!("/lib/modules/{RELEASE}/modules.dep");
    files.insert(modules, "kernel/drivers/vhost/vhost_net.ko.xz: kernel/x.ko\n".into());
    assert_eq!(fixes(&plan(&files), LabKind::Vhost)[2], "modprobe vhost_net");
}

#[test]
fn pass_through_needs_kvm_and_the_plan_says_so() {
    let mut files = server(false);
    files.remove("/dev/kvm");
    let found = plan(&files);
    assert!(!runnable(&found).contains(&LabKind::SriovVf));
    let why = of(&found, LabKind::SriovVf).unavailable_reasons.last().unwrap();
    assert_eq!(why.check, "kvm.usable");
    assert!(why.reason.contains("only guests that KVM executes"), "{}", why.reason);
    assert!(runnable(&found).contains(&LabKind::Vswitch), "others are emulated");
    // An interpreter is no KVM for it, either.
    let timed = (GuestExecution::InterpretedKvm, "1067 ns".to_string());
    assert!(!runnable(&plan_with(&server(false), Some(timed))).contains(&LabKind::SriovPf));
}

/// A host with a third port, of another kind: driver and speed.
fn with_management_port() -> Files {
    let mut files = server(false);
    let mut put = |path: String, text: &str| drop(files.insert(path, text.to_string()));
    let device = "/sys/bus/pci/devices/0000:01:00.0";
    put(format!("{device}/class"), "0x020000");
    put(format!("{device}/iommu_group"), "->../../../22");
    put(format!("{device}/net/eno1/ifindex"), "2");
    put("/sys/kernel/iommu_groups/22/devices/0000:01:00.0".into(), "");
    put("/sys/class/net/eno1/flags".into(), "0x1003");
    put("/sys/class/net/eno1/carrier".into(), "1");
    put("/sys/class/net/eno1/speed".into(), "1000");
    for link in ["ens1f0", "ens1f1"] {
        put(format!("/sys/class/net/{link}/speed"), "25000");
    }
    for (address, driver) in
        [("0000:01:00.0", "igb"), ("0000:3b:00.0", "ice"), ("0000:3b:00.1", "ice")]
    {
        put(format!("/sys/bus/pci/devices/{address}/driver"), &format!("->../../drivers/{driver}"));
    }
    files
}

#[test]
fn a_port_is_paired_with_one_of_its_kind_only() {
    let files = with_management_port();
    let found = plan(&files);
    let pairs: Vec<&LabEnvironment> =
        found.environments.iter().filter(|one| one.kind == LabKind::SriovPf).collect();
    assert_eq!(pairs.len(), 3);
    let of_port = |name: &str| pairs.iter().find(|one| one.nics[0] == name).unwrap();
    assert_eq!(of_port("ens1f0").nics, ["ens1f0", "ens1f1"]);
    let alone = of_port("eno1");
    assert_eq!(alone.nics, ["eno1"], "a 1G port has no partner here");
    let why = &alone.unavailable_reasons[0].reason;
    assert_eq!(
        why,
        "ens1f0 (ice, 25000 Mb/s) is not of the same kind as eno1 (igb, 1000 Mb/s), so no cable \
         joins them"
    );
}

#[test]
fn the_driver_of_the_card_must_be_in_the_guests_kernel() {
    let mut files = with_management_port();
    let modules = format!("/lib/modules/{RELEASE}/modules.dep");
    files.insert(modules.clone(), "kernel/drivers/net/ethernet/intel/igbvf/igbvf.ko:\n".into());
    let found = plan(&files);
    let why = found.check("ens1f0.function_driver").unwrap();
    assert_eq!(why.status, LabStatus::Missing);
    assert_eq!(why.summary, format!("the guests' kernel {RELEASE} has no driver iavf"));
    let vf = found.environments.iter().find(|one| one.kind == LabKind::SriovVf);
    assert!(vf.is_some_and(|one| !one.can_run()));
    let has = "kernel/drivers/net/ethernet/intel/iavf/iavf.ko.xz:\nkernel/ice.ko.xz:\n";
    files.insert(modules, has.into());
    let found = plan(&files);
    assert_eq!(found.check("ens1f0.function_driver").unwrap().status, LabStatus::Good);
    let is_vf = |one: &&LabEnvironment| one.kind == LabKind::SriovVf && one.nics == ["ens1f0"];
    let vf = found.environments.iter().find(is_vf).unwrap();
    assert!(vf.can_run() && vf.unknown.is_empty(), "{vf:?}");
}

/// A recording has what its tool records, and says nothing about the rest of the host.
#[test]
fn what_a_recorded_tree_does_not_show_is_unknown() {
    let mut files = server(false);
    files.retain(|path, _| {
        !["/usr/", "/boot/", "/lib/", "/dev/net", "/dev/vhost", "/sys/module"]
            .iter()
            .any(|start| path.starts_with(start))
    });
    let found = plan(&files);
    for id in ["software.qemu", "software.kernel", "net.tap", "net.vhost", "net.bridge"] {
        let check = found.check(id).unwrap();
        assert_eq!(check.status, LabStatus::Unknown, "{id}: {}", check.summary);
    }
    let vswitch = of(&found, LabKind::Vswitch);
    assert!(vswitch.unavailable_reasons.is_empty() && vswitch.unknown.len() >= 4, "{vswitch:?}");
    // Where the tree shows the folder, what is not in it is missing.
    files.insert("/usr/bin/ls".into(), String::new());
    assert_eq!(plan(&files).check("software.qemu").unwrap().status, LabStatus::Missing);
}

#[test]
fn an_empty_tree_is_unknown_and_not_good() {
    let found = plan(&Files::from([("/x".to_string(), String::new())]));
    let good: Vec<&str> = found
        .checks
        .iter()
        .filter(|check| check.status == LabStatus::Good)
        .map(|check| check.id.as_str())
        .collect();
    assert_eq!(good, Vec::<&str>::new());
    for check in &found.checks {
        let needs_fix = matches!(check.status, LabStatus::Missing | LabStatus::Worse);
        assert_eq!(needs_fix, check.fix.is_some(), "{}", check.id);
    }
    let fix = &of(&found, LabKind::SriovVf).unavailable_reasons.last().unwrap().fix;
    assert_eq!(fix.kind, FixKind::Hardware);
}

#[test]
fn the_plan_of_this_machine_is_read_back_from_its_json() {
    let files = HostFiles::default();
    let links = nm_sys::ethtool::Links::new().unwrap();
    let view = View {
        files: &files,
        links: Some(&links),
        own_connection: None,
        named_kernel: None,
        timed: None,
    };
    let plan = lab_plan(&view);
    assert!(plan.checks.len() >= 20, "{}", plan.checks.len());
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<LabPlan>(&text).unwrap(), plan);
}
