//! The files of the emulated host. They are shell, QEMU, nearmetal, the libraries of both, the
//! modules that it loads itself, and kernel and modules for the guests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nm_vm::cpio::Archive;
use nm_vm::elf::loadable_part;
use nm_vm::modules::ModuleTree;

use super::packages::Packages;
use crate::shell;

/// Modules of a host that carries guests and has the emulated NICs.
const HOST_MODULES: [&str; 7] =
    ["kvm_amd", "vhost_net", "tun", "bridge", "igb", "vfio_pci", "vfio_iommu_type1"];

/// Modules of its guests.
const GUEST_MODULES: [&str; 5] = ["virtio_pci", "virtio_console", "virtio_net", "igb", "igbvf"];

/// What QEMU reads at its start, of the packages.
const FIRMWARE: [&str; 6] = [
    "usr/share/qemu/kvmvapic.bin",
    "usr/share/qemu/linuxboot_dma.bin",
    "usr/share/qemu/pvh.bin",
    "usr/share/qemu/qboot.rom",
    "usr/share/seabios/bios-256k.bin",
    "usr/share/seabios/bios.bin",
];

/// Files by their path in the image, with their permissions.
type Files = BTreeMap<PathBuf, (u32, Vec<u8>)>;

/// Builds the image, in which `program` is `/usr/bin/nearmetal`.
pub fn build(packages: &Packages, program: &Path) -> Result<Vec<u8>> {
    let mut files = Files::new();
    files.insert("init".into(), (0o755, include_bytes!("init.sh").to_vec()));
    files.insert("bin/busybox".into(), (0o755, read(&packages.file("bin/busybox"))?));
    let qemu = packages.qemu()?;
    files.insert("usr/bin/qemu-system-x86_64".into(), (0o755, read(&qemu)?));
    files.insert("usr/bin/nearmetal".into(), (0o755, loadable_part(&read(program)?)?));
    for library in libraries(&qemu)?.into_iter().chain(libraries(program)?) {
        let content = read(&library)?;
        files.insert(library, (0o755, content));
    }
    for path in FIRMWARE {
        // QEMU looks for all of them in one folder.
        let name = Path::new("usr/share/qemu").join(Path::new(path).file_name().expect("a name"));
        files.insert(name, (0o644, read(&packages.file(path))?));
    }
    let release = packages.kernel_release()?;
    let kernel = format!("boot/vmlinuz-{release}");
    files.insert(kernel.clone().into(), (0o644, read(&packages.file(&kernel))?));
    add_modules(packages, &release, &mut files)?;
    archive(&files)
}

/// The host's modules in the order in which it loads them, and the guests' where a host has them.
fn add_modules(packages: &Packages, release: &str, files: &mut Files) -> Result<()> {
    let folder = format!("lib/modules/{release}");
    let tree = ModuleTree::read(&packages.file(&folder));
    for (number, module) in tree.load_order(&HOST_MODULES)?.into_iter().enumerate() {
        let name = format!("m/{number:03}-{}.ko", module.name);
        files.insert(name.into(), (0o644, module.bytes));
    }
    for module in tree.load_order(&GUEST_MODULES)? {
        let name = format!("{folder}/kernel/{}.ko", module.name);
        files.insert(name.into(), (0o644, module.bytes));
    }
    let built_in = format!("{folder}/modules.builtin");
    files.insert(built_in.clone().into(), (0o644, read(&packages.file(&built_in))?));
    Ok(())
}

/// The libraries that a program is linked with, and what loads them.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let (text, ok) = shell::output(&format!("ldd {}", program.display()))?;
    anyhow::ensure!(ok && !text.contains("not found"), "{} lacks: {text}", program.display());
    let path = |line: &str| {
        let at = line.find('/')?;
        line[at..].split(' ').next().map(PathBuf::from)
    };
    Ok(text.lines().filter_map(path).collect())
}

fn archive(files: &Files) -> Result<Vec<u8>> {
    let mut folders = BTreeSet::new();
    for path in files.keys() {
        let inside = path.strip_prefix("/").unwrap_or(path);
        folders.extend(inside.ancestors().skip(1).map(Path::to_path_buf));
    }
    folders
        .extend(["dev", "proc", "sys", "tmp", "root", "run", "etc", "usr/sbin"].map(PathBuf::from));
    let mut archive = Archive::new();
    for folder in folders.iter().filter(|folder| !folder.as_os_str().is_empty()) {
        archive.folder(&folder.to_string_lossy())?;
    }
    archive.device("dev/console", 5, 1)?;
    for (path, (permissions, content)) in files {
        let inside = path.strip_prefix("/").unwrap_or(path);
        archive.file(&inside.to_string_lossy(), *permissions, content)?;
    }
    Ok(archive.finish())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
