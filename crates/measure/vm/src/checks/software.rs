//! Programs, kernels, drivers and rights that guests and their links need.

use std::path::Path;

use nm_model::lab_plan::LabCheck;

use super::report::{command, good, missing, unknown, with};
use super::view::View;

const QEMU: [&str; 4] = [
    "/usr/bin/qemu-system-x86_64",
    "/usr/local/bin/qemu-system-x86_64",
    "/bin/qemu-system-x86_64",
    "/usr/libexec/qemu-kvm",
];

/// The checks.
pub fn checks(view: &View<'_>) -> Vec<LabCheck> {
    vec![
        qemu(view),
        kernel(view),
        namespaces(view),
        root(view),
        tap(view),
        bridge(view),
        vhost(view),
        af_xdp(view),
    ]
}

fn qemu(view: &View<'_>) -> LabCheck {
    const ID: &str = "software.qemu";
    match QEMU.iter().find(|path| view.files.exists(path)) {
        Some(path) => good(ID, format!("QEMU is {path}")),
        None => missing(
            ID,
            "QEMU for x86-64 is not installed",
            command("apt install qemu-system-x86   # Fedora: dnf install qemu-kvm"),
        ),
    }
}

/// The release of the kernel that guests would run, if nobody names one: the host's own, or the
/// last one that has an image and modules.
pub fn guest_release(view: &View<'_>) -> Option<String> {
    let has_modules = |release: &str| {
        ["/lib/modules", "/usr/lib/modules"]
            .iter()
            .any(|folder| view.files.exists(&format!("{folder}/{release}")))
    };
    let running = view.text("/proc/sys/kernel/osrelease");
    let images = view.files.names("/boot").into_iter();
    let mut releases: Vec<String> =
        images.filter_map(|name| name.strip_prefix("vmlinuz-").map(str::to_string)).collect();
    for folder in ["/usr/lib/modules", "/lib/modules"] {
        let all = view.files.names(folder).into_iter();
        releases.extend(all.filter(|name| view.files.exists(&format!("{folder}/{name}/vmlinuz"))));
    }
    releases.retain(|release| has_modules(release));
    if releases.contains(&running) { Some(running) } else { releases.pop() }
}

/// A kernel image of a release whose modules are there.
fn kernel(view: &View<'_>) -> LabCheck {
    const ID: &str = "software.kernel";
    if let Some(path) = view.named_kernel {
        return match Path::new(path).exists() {
            true => good(ID, format!("guests run the kernel {path}")),
            false => missing(
                ID,
                format!("the kernel that is named for guests, {path}, is not there"),
                command("name an image, a folder with boot/ and lib/modules/, or a Debian package"),
            ),
        };
    }
    let running = view.text("/proc/sys/kernel/osrelease");
    match guest_release(view) {
        Some(release) if release == running => {
            good(ID, format!("guests run the host's own kernel {running}"))
        }
        Some(other) => good(ID, format!("guests run the kernel {other}; the host runs {running}")),
        None => missing(
            ID,
            format!("there is no kernel image with modules in /boot (the host runs {running})"),
            command("apt install linux-image-cloud-amd64, or --kernel IMAGE|FOLDER|DEB"),
        ),
    }
}

/// The number in a line of `/proc/self/status`.
fn status(view: &View<'_>, label: &str) -> Option<String> {
    let text = view.text("/proc/self/status");
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    Some(line.split_whitespace().next()?.to_string())
}

/// Whether this process may do what root may in this namespace.
fn has_capability(view: &View<'_>, bit: u32) -> Option<bool> {
    let set = u64::from_str_radix(&status(view, "CapEff:")?, 16).ok()?;
    Some(set >> bit & 1 == 1)
}

fn namespaces(view: &View<'_>) -> LabCheck {
    const ID: &str = "rights.namespaces";
    const SYS_ADMIN: u32 = 21;
    const MAX: &str = "/proc/sys/user/max_user_namespaces";
    const DEBIAN: &str = "/proc/sys/kernel/unprivileged_userns_clone";
    const UBUNTU: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
    if has_capability(view, SYS_ADMIN) == Some(true) {
        return good(ID, "this process may make network namespaces");
    }
    let blocked = [(MAX, "0", "16384"), (DEBIAN, "0", "1"), (UBUNTU, "1", "0")]
        .into_iter()
        .find(|(path, value, _)| view.text(path) == *value);
    let check = match blocked {
        None if view.text(MAX).is_empty() => unknown(ID, "whether this user may make namespaces"),
        None => good(ID, "every user may make namespaces"),
        Some((path, _, wanted)) => missing(
            ID,
            format!("ordinary users may not make network namespaces ({path})"),
            command(format!("run as root, or: echo {wanted} > {path}")),
        ),
    };
    with(check, view, &[MAX, DEBIAN, UBUNTU])
}

fn root(view: &View<'_>) -> LabCheck {
    const ID: &str = "rights.root";
    const SYS_ADMIN: u32 = 21;
    match has_capability(view, SYS_ADMIN) {
        Some(true) => good(ID, "this process may change drivers of devices"),
        Some(false) => missing(
            ID,
            "this process may not change drivers of devices",
            command("run as root: sudo nearmetal lab run"),
        ),
        None => unknown(ID, "the rights of this process"),
    }
}

/// A device node, and the module that makes it.
fn node(view: &View<'_>, id: &str, path: &str, module: &str, purpose: &str) -> LabCheck {
    let check = match (view.files.exists(path), view.has_module(module)) {
        (true, _) => good(id, format!("{path} is there")),
        (false, true) => missing(
            id,
            format!("{path} is not there, which {purpose} needs"),
            command(format!("modprobe {module}")),
        ),
        (false, false) => missing(
            id,
            format!("{path} is not there, and this kernel has no module {module}"),
            command(format!(
                "install a kernel with {module} (Debian: linux-image-amd64), then modprobe {module}"
            )),
        ),
    };
    with(check, view, &[path])
}

fn tap(view: &View<'_>) -> LabCheck {
    node(view, "net.tap", "/dev/net/tun", "tun", "a virtual switch")
}

fn vhost(view: &View<'_>) -> LabCheck {
    node(view, "net.vhost", "/dev/vhost-net", "vhost_net", "packet copying by the kernel")
}

fn bridge(view: &View<'_>) -> LabCheck {
    const ID: &str = "net.bridge";
    match view.has_module("bridge") {
        true => good(ID, "the kernel has bridges"),
        false => missing(
            ID,
            "this kernel has no bridge",
            command("install a kernel with CONFIG_BRIDGE (Debian: linux-image-amd64)"),
        ),
    }
}

fn af_xdp(view: &View<'_>) -> LabCheck {
    const ID: &str = "guest.af_xdp";
    let release = view.text("/proc/sys/kernel/osrelease");
    let path = format!("/boot/config-{release}");
    let text = view.text(&path);
    let has = text.lines().any(|line| line == "CONFIG_XDP_SOCKETS=y");
    let check = match (text.is_empty(), has) {
        (true, _) => {
            unknown(ID, "whether the guests' kernel has AF_XDP: its configuration is not there")
        }
        (false, true) => good(ID, "the kernel has AF_XDP"),
        (false, false) => missing(
            ID,
            "the kernel has no AF_XDP",
            command("--kernel with CONFIG_XDP_SOCKETS (Debian: linux-image-cloud-amd64)"),
        ),
    };
    with(check, view, &[&path])
}
