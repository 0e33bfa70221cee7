//! Hypervisor and container.

use nm_model::facts::VirtualizationFacts;
use nm_sys::hostfiles::HostFiles;

/// Reads the facts from files. The CPU's signature ([`signature`]) is more reliable where it
/// exists.
pub fn read(files: &HostFiles) -> VirtualizationFacts {
    let dmi = |name| files.text(&format!("/sys/class/dmi/id/{name}"));
    VirtualizationFacts {
        hypervisor: hypervisor(files),
        product: match (dmi("sys_vendor"), dmi("product_name")) {
            (Some(vendor), Some(product)) if !product.starts_with(&vendor) => {
                Some(format!("{vendor} {product}"))
            }
            (vendor, product) => product.or(vendor),
        },
        container: container(files),
    }
}

const TREE: &str = "/sys/firmware/devicetree/base";

/// The hypervisor by its files and the firmware's tables; absent if there is no sign of one.
fn hypervisor(files: &HostFiles) -> Option<String> {
    if let Some(kind) = files.text("/sys/hypervisor/type") {
        return Some(if kind == "xen" { "Xen".to_string() } else { kind });
    }
    let known = by_tables(files).or_else(|| by_device_tree(files)).or_else(|| by_platform(files));
    let is_flagged = || has_flag(files) == Some(true);
    known.map(str::to_string).or_else(|| is_flagged().then(|| "unknown".to_string()))
}

/// Whether the hardware itself is below the kernel; absent where nothing tells.
///
/// x86 processors say so. Elsewhere tables of the firmware or a device tree must describe a machine
/// that is none of a hypervisor's.
pub fn is_metal(files: &HostFiles) -> Option<bool> {
    if hypervisor(files).is_some() {
        return Some(false);
    }
    let has_tables = files.text("/sys/class/dmi/id/sys_vendor").is_some();
    let has_model = files.text(&format!("{TREE}/model")).is_some();
    let is_native = cpuinfo(files, "platform").as_deref() == Some("PowerNV");
    let is_known = has_flag(files) == Some(false) || has_tables || has_model || is_native;
    is_known.then_some(true)
}

/// The first value of a field of `/proc/cpuinfo`.
fn cpuinfo(files: &HostFiles, field: &str) -> Option<String> {
    let text = files.text("/proc/cpuinfo")?;
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    let value = fields.filter(|(name, _)| name.trim() == field).map(|(_, value)| value).next();
    value.map(|value| value.trim().to_string())
}

/// Whether an x86 processor says that it is a hypervisor's; absent on others.
fn has_flag(files: &HostFiles) -> Option<bool> {
    let flags = cpuinfo(files, "flags")?;
    Some(flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

fn by_tables(files: &HostFiles) -> Option<&'static str> {
    let tables: String = ["sys_vendor", "product_name", "bios_vendor"]
        .iter()
        .filter_map(|name| files.text(&format!("/sys/class/dmi/id/{name}")))
        .collect::<Vec<_>>()
        .join(" ");
    const ANYWHERE: &[(&str, &str)] = &[
        ("VMware", "VMware"),
        ("Xen", "Xen"),
        ("VirtualBox", "VirtualBox"),
        ("Microsoft Corporation Virtual Machine", "Hyper-V"),
        ("KVM", "KVM"),
        ("OpenStack", "KVM"),
        ("Google Compute Engine", "KVM"),
        ("QEMU", "QEMU"),
    ];
    // Clouds rent out whole machines under the same name: on x86 the processor's flag decides.
    const CLOUDS: &[(&str, &str)] = &[
        ("Amazon EC2", "KVM"),
        ("Alibaba Cloud", "KVM"),
        ("Huawei Cloud", "KVM"),
        ("Hetzner vServer", "KVM"),
        ("Apple Virtualization", "Apple"),
        ("Parallels", "Parallels"),
    ];
    let by = |signs: &[(&str, &'static str)]| {
        signs.iter().find(|(sign, _)| tables.contains(sign)).map(|(_, name)| *name)
    };
    let is_rented_whole = has_flag(files).is_some() || tables.contains(".metal");
    by(ANYWHERE).or_else(|| by(if is_rented_whole { &[] } else { CLOUDS }))
}

/// The hypervisor by the device tree that it gives its guests.
fn by_device_tree(files: &HostFiles) -> Option<&'static str> {
    if let Some(text) = files.text(&format!("{TREE}/hypervisor/compatible")) {
        let known = [("kvm", "KVM"), ("xen", "Xen"), ("vmware", "VMware")];
        let found = known.iter().find(|(sign, _)| text.contains(sign));
        return Some(found.map_or("unknown", |(_, name)| name));
    }
    let text = files.text(&format!("{TREE}/compatible"))?;
    let made_up = ["linux,dummy-virt", "qemu,pseries", "riscv-virtio"];
    made_up.iter().any(|sign| text.contains(sign)).then_some("QEMU")
}

/// The hypervisor of machines that never run without one, or say so in their own files.
fn by_platform(files: &HostFiles) -> Option<&'static str> {
    if let Some(text) = files.text("/proc/sysinfo") {
        let program = text.lines().find_map(|line| line.strip_prefix("VM00 Control Program:"));
        return match program {
            Some(name) if name.contains("KVM") => Some("KVM"),
            Some(_) => Some("z/VM"),
            None => text.contains("LPAR").then_some("PR/SM"),
        };
    }
    let is_partition = cpuinfo(files, "platform").as_deref() == Some("pSeries");
    let machine = cpuinfo(files, "machine").unwrap_or_default();
    is_partition.then_some(if machine.contains("qemu") { "QEMU" } else { "PowerVM" })
}

/// The hypervisor by the signature of CPUID leaf 0x40000000, if leaf 1 reports one.
#[cfg(target_arch = "x86_64")]
pub fn signature() -> Option<String> {
    use std::arch::x86_64::__cpuid;
    const PRESENT: u32 = 1 << 31;
    if __cpuid(1).ecx & PRESENT == 0 {
        return None;
    }
    let leaf = __cpuid(0x4000_0000);
    let bytes: Vec<u8> =
        [leaf.ebx, leaf.ecx, leaf.edx].iter().flat_map(|word| word.to_le_bytes()).collect();
    let text = String::from_utf8_lossy(&bytes);
    Some(name_of(text.trim_matches(|c: char| c == '\0' || c.is_whitespace())).to_string())
}

/// Other processors have no such signature.
#[cfg(not(target_arch = "x86_64"))]
pub fn signature() -> Option<String> {
    None
}

/// Name of QEMU's translator, which guests see as their hypervisor.
pub const QEMU_TCG: &str = "QEMU TCG";

/// The usual name of a hypervisor for its signature; an unknown signature is its own name.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86 has signatures"))]
fn name_of(signature: &str) -> &str {
    match signature {
        "KVMKVMKVM" | "Linux KVM Hv" => "KVM",
        "VMwareVMware" => "VMware",
        "XenVMMXenVMM" => "Xen",
        "Microsoft Hv" => "Hyper-V",
        "TCGTCGTCGTCG" => QEMU_TCG,
        "VBoxVBoxVBox" => "VirtualBox",
        "bhyve bhyve" => "bhyve",
        "ACRNACRNACRN" => "ACRN",
        "prl hyperv" | "lrpepyh  vr" => "Parallels",
        "" => "unknown",
        other => other,
    }
}

/// Whether this process is in a pod of Kubernetes, also where control groups are hidden. The
/// kubelet gives every container the port of the cluster's interface, and most pods an account.
pub fn is_pod(files: &HostFiles) -> bool {
    let environ = files.text("/proc/self/environ").unwrap_or_default();
    environ.split('\0').any(|entry| entry.starts_with("KUBERNETES_SERVICE_PORT="))
        || files.exists("/var/run/secrets/kubernetes.io/serviceaccount")
}

/// The container engine by the files and variables that engines create.
fn container(files: &HostFiles) -> Option<String> {
    // Images of virtual machines are made from those of containers, with their marks: who sees the
    // kernel's own threads is in no container of its own by these marks.
    let sees_kernel = files.text("/proc/2/comm").as_deref() == Some("kthreadd");
    if is_pod(files) {
        return Some("kubernetes".to_string());
    }
    if files.exists("/.dockerenv") && !sees_kernel {
        return Some("docker".to_string());
    }
    if files.exists("/run/.containerenv") && !sees_kernel {
        return Some("podman".to_string());
    }
    if let Some(name) = files.text("/run/systemd/container") {
        return Some(name);
    }
    let from_init = files.text("/proc/1/environ").and_then(|text| {
        let value = text.split('\0').find_map(|entry| entry.strip_prefix("container="))?;
        Some(value.to_string())
    });
    let from_groups = || {
        let text = files.text("/proc/self/cgroup")?;
        // A process that the engine's own service started is in no container.
        let parts = text.split(['/', '\n']).filter(|part| !part.ends_with(".service"));
        let text = parts.collect::<Vec<_>>().join("/");
        ["kubepods", "docker", "libpod", "containerd", "lxc"]
            .iter()
            .find(|sign| text.contains(*sign))
            .map(|sign| match *sign {
                "kubepods" => "kubernetes".to_string(),
                "libpod" => "podman".to_string(),
                other => other.to_string(),
            })
    };
    from_init.or_else(from_groups)
}

#[cfg(test)]
mod tests {
    use nm_sys::hostfiles::RecordedFiles;

    use super::*;

    #[test]
    fn a_pod_is_known_by_its_variables_or_its_account() {
        let none = RecordedFiles::default();
        let mut by_variable = none.clone();
        let variables = "PATH=/bin\0KUBERNETES_SERVICE_PORT=443\0A=b".to_string();
        by_variable.files.insert("/proc/self/environ".into(), variables);
        let mut by_account = none.clone();
        let account = "/var/run/secrets/kubernetes.io/serviceaccount".to_string();
        by_account.present.insert(account);
        for (files, engine) in
            [(none, None), (by_variable, Some("kubernetes")), (by_account, Some("kubernetes"))]
        {
            let found = container(&HostFiles::recorded(files.clone()));
            assert_eq!(found.as_deref(), engine, "{files:?}");
        }
    }

    #[test]
    fn signatures_map_to_names() {
        assert_eq!(name_of("KVMKVMKVM"), "KVM");
        assert_eq!(name_of(""), "unknown");
        assert_eq!(name_of("NewVisor"), "NewVisor");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn signature_agrees_with_the_hypervisor_flag() {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flagged = text.lines().any(|line| {
            line.starts_with("flags") && line.split_whitespace().any(|flag| flag == "hypervisor")
        });
        assert_eq!(signature().is_some(), flagged);
    }
}
