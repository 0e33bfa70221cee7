//! Installs what the tests need beside Rust: the Debian packages of the programs that they start,
//! and a compiler for the fuzzers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{python, shell};

const PACKAGES: &[&str] = &[
    // Network namespaces, and the browser that opens the reports.
    "iproute2",
    "chromium",
    // Unmodified programs that are tested under `nearmetal accel`.
    "sockperf",
    "iperf3",
    "nuttcp",
    "redis-server",
    "redis-tools",
    "memcached",
    "libmemcached-tools",
    "nginx-light",
    "wrk",
    "curl",
    "openssl",
    "openssh-client",
    "openssh-server",
    "postgresql",
    "python3",
    "openjdk-17-jdk-headless",
    "nodejs",
    "apache2-utils",
    "apache2-bin",
    "lighttpd",
    "mariadb-server-core",
    "mariadb-client",
    "python3-grpcio",
    "python3-zmq",
    "rsync",
    "socat",
    "h2o",
    "libnginx-mod-stream",
    "php-fpm",
    "python3-uvicorn",
    "ruby",
    "strace",
    // Programs that cannot carry the accelerator's library, and a tool that must.
    "musl-tools",
    "valgrind",
    "erlang-base",
    "haproxy",
    // The schema of virtual machines, and what checks a document against it.
    "libvirt0",
    "libvirt-clients",
    "libxml2-utils",
    // Virtual machines.
    "qemu-system-x86",
    // A cluster of three nodes on this machine.
    "slurmctld",
    "slurmd",
    "slurm-client",
    "munge",
    // A router that translates addresses.
    "nftables",
    // What signs and verifies beside us.
    "minisign",
    // What checks units.
    "systemd",
    // The published work of the compute probe.
    "bc",
    // The fuzzers' engine is C++.
    "g++",
    // Packing, and trying what was packed.
    "python3-venv",
    "zstd",
    "rpm",
    "debootstrap",
    "qemu-user-static",
];

/// Asked by packages before they start their services; 101 means no.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Package of the kernel of virtual machines; it depends on the newest one of its kind.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";

/// Where that kernel is unpacked, below the root. It is not installed: it would be started by the
/// machine itself.
const KERNEL_FOLDER: &str = "target/guest-kernel";

/// Installs the packages that are missing, and fetches a kernel for virtual machines. With all of
/// them there, it needs no rights. Programs of PyPI are fetched as far as it answers.
pub fn run() -> Result<()> {
    install()?;
    fetch_kernel()?;
    for tools in [python::ITCHFEED, python::KUBERNETES, python::ANSIBLE] {
        tools.programs()?;
    }
    Ok(())
}

fn install() -> Result<()> {
    let missing = missing(PACKAGES)?;
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !is_root()? {
        bail!(
            "the tests need packages that only root can install; run `cargo xtask setup` as root, \
             or `apt-get install {list}`"
        );
    }
    // The tests start the servers themselves, on ports of their own.
    let _policy = NoServices::begin()?;
    shell::run_with("apt-get update -qq", APT)?;
    shell::run_with(&format!("apt-get install -y -qq --no-install-recommends {list}"), APT)
}

/// Unpacks a kernel for virtual machines, unless it was done before. That of the machine itself may
/// be readable by root only, or have none of the drivers of virtual devices.
fn fetch_kernel() -> Result<()> {
    let unpacked = shell::root().join(KERNEL_FOLDER);
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let has_kernel = |folder: &Path| names(folder).iter().any(|it| it.starts_with("vmlinuz"));
    if has_kernel(&unpacked.join("boot")) {
        return Ok(());
    }
    let depends = || shell::output(&format!("apt-cache depends --important {KERNEL_PACKAGE}"));
    let mut found = depends()?.0;
    if kernel_package(&found).is_none() && is_root()? {
        // No list of packages was fetched yet.
        shell::run_with("apt-get update -qq", APT)?;
        found = depends()?.0;
    }
    let Some(package) = kernel_package(&found) else {
        bail!(
            "no package with a kernel for virtual machines is known here; run `apt-get update` as \
             root: {found}"
        );
    };
    let folder = shell::root().join("target/guest-kernel-package");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    eprintln!("$ apt-get download {package}");
    let status = shell::command(&format!("apt-get download -qq {package}"))
        .current_dir(&folder)
        .status()
        .context("cannot start apt-get")?;
    let files = names(&folder);
    let (true, [file]) = (status.success(), &files[..]) else {
        bail!("apt-get downloaded {} packages instead of {package}", files.len());
    };
    let line = format!("dpkg-deb -x {} {}", folder.join(file).display(), unpacked.display());
    shell::run(&line)?;
    fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
}

/// The package with the kernel itself, in what `apt-cache depends` prints.
fn kernel_package(depends: &str) -> Option<&str> {
    let mut packages = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    packages.find(|name| name.starts_with("linux-image-"))
}

/// Environment under which packages ask no questions.
const APT: &[(&str, &str)] = &[("DEBIAN_FRONTEND", "noninteractive")];

/// Those of `packages` that are not installed.
fn missing<'a>(packages: &[&'a str]) -> Result<Vec<&'a str>> {
    let query = "dpkg-query -W -f=${Package}\\t${Status}\\n";
    let Ok((installed, _)) = shell::output(&format!("{query} {}", packages.join(" "))) else {
        bail!(
            "this is no Debian, as dpkg-query is missing; install the programs of these packages \
             by hand, then use `cargo test --workspace`: {}",
            packages.join(" ")
        );
    };
    Ok(packages.iter().copied().filter(|name| !is_installed(&installed, name)).collect())
}

/// Whether the output of dpkg-query, lines of name, tab and status, has the package as installed.
fn is_installed(output: &str, package: &str) -> bool {
    output
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .any(|(name, status)| name == package && status.ends_with(" ok installed"))
}

fn is_root() -> Result<bool> {
    let (id, _) = shell::output("id -u")?;
    Ok(id.trim() == "0")
}

/// While it lives, installed packages start no service. A policy of the machine itself stays.
struct NoServices {
    is_ours: bool,
}

impl NoServices {
    fn begin() -> Result<NoServices> {
        let is_ours = !Path::new(POLICY).exists();
        let policy = NoServices { is_ours };
        if is_ours {
            fs::write(POLICY, "#!/bin/sh\nexit 101\n")
                .and_then(|()| fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755)))
                .with_context(|| format!("cannot write {POLICY}"))?;
        }
        Ok(policy)
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = fs::remove_file(POLICY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_is_what_its_package_depends_on() {
        let depends = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n";
        assert_eq!(kernel_package(depends), Some("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(kernel_package("N: Unable to locate package\n"), None);
    }

    #[test]
    fn package_is_installed_only_with_that_status() {
        let output = "curl\tinstall ok installed\nwrk\tdeinstall ok config-files\n";
        assert!(is_installed(output, "curl"));
        assert!(!is_installed(output, "wrk"));
        assert!(!is_installed(output, "nginx-light"));
    }
}
