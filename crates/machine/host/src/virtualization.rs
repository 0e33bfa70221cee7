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

/// The hypervisor by its files and the firmware's tables; absent if there is no sign of one.
fn hypervisor(files: &HostFiles) -> Option<String> {
    if let Some(kind) = files.text("/sys/hypervisor/type") {
        return Some(if kind == "xen" { "Xen".to_string() } else { kind });
    }
    let tables: String = ["sys_vendor", "product_name", "bios_vendor"]
        .iter()
        .filter_map(|name| files.text(&format!("/sys/class/dmi/id/{name}")))
        .collect::<Vec<_>>()
        .join(" ");
    let by_tables = [
        ("VMware", "VMware"),
        ("Xen", "Xen"),
        ("VirtualBox", "VirtualBox"),
        ("Microsoft Corporation Virtual Machine", "Hyper-V"),
        ("KVM", "KVM"),
        ("OpenStack", "KVM"),
        ("Google Compute Engine", "KVM"),
        ("QEMU", "QEMU"),
    ]
    .iter()
    .find(|(sign, _)| tables.contains(sign))
    .map(|(_, name)| (*name).to_string());
    let flagged = || {
        let text = files.text("/proc/cpuinfo")?;
        let flags = text.lines().find(|line| line.starts_with("flags"))?;
        flags.split_whitespace().any(|flag| flag == "hypervisor").then(|| "unknown".to_string())
    };
    by_tables.or_else(flagged)
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

/// The usual name of a hypervisor for its signature; an unknown signature is its own name.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86 has signatures"))]
fn name_of(signature: &str) -> &str {
    match signature {
        "KVMKVMKVM" | "Linux KVM Hv" => "KVM",
        "VMwareVMware" => "VMware",
        "XenVMMXenVMM" => "Xen",
        "Microsoft Hv" => "Hyper-V",
        "TCGTCGTCGTCG" => "QEMU TCG",
        "VBoxVBoxVBox" => "VirtualBox",
        "bhyve bhyve" => "bhyve",
        "ACRNACRNACRN" => "ACRN",
        "prl hyperv" | "lrpepyh  vr" => "Parallels",
        "" => "unknown",
        other => other,
    }
}

/// The container engine by the files and variables that engines create.
fn container(files: &HostFiles) -> Option<String> {
    if files.exists("/.dockerenv") {
        return Some("docker".to_string());
    }
    if files.exists("/run/.containerenv") {
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
    use super::*;

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
