//! Kernel modules that a guest loads: found in the folder of a kernel, in an order in which each
//! follows those that it needs. The needs are read from the modules themselves (`.modinfo`),
//! because a kernel that was only unpacked has no `modules.dep`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flate2::read::GzDecoder;

use crate::elf::{Elf, ElfError};

/// Why the modules of a guest cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// Neither a file nor a part of the kernel.
    #[error(
        "kernel module {name}{} is neither in {folder} nor built into that kernel: install the \
         package that has it (linux-image-amd64 on Debian, whose cloud kernels lack some drivers; \
         linux-modules-extra on Ubuntu; kernel-modules on Fedora), or choose another kernel",
        needed_by.as_ref().map(|by| format!(", which {by} needs,")).unwrap_or_default()
    )]
    Missing {
        /// Its name.
        name: String,
        /// The module that needs it, if it was not asked for.
        needed_by: Option<String>,
        /// Where it was searched.
        folder: String,
    },
    /// It cannot be read.
    #[error("cannot read the kernel module {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The program that unpacks it is not there, or failed.
    #[error("cannot unpack {path} with `{program}` (package {package}): {reason}")]
    Unpack {
        /// The file.
        path: String,
        /// The program.
        program: &'static str,
        /// The package that has it.
        package: &'static str,
        /// What went wrong.
        reason: String,
    },
    /// It is no module.
    #[error("{path} is not a kernel module: {source}")]
    Format {
        /// The file.
        path: String,
        /// Why.
        source: ElfError,
    },
}

/// A kernel module as the kernel takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Its name, with underscores.
    pub name: String,
    /// Its file, unpacked.
    pub bytes: Vec<u8>,
}

/// The modules of one kernel.
#[derive(Debug)]
pub struct ModuleTree {
    folder: PathBuf,
    files: HashMap<String, PathBuf>,
    built_in: HashSet<String>,
}

/// How module files are packed.
const SUFFIXES: [&str; 4] = [".ko", ".ko.xz", ".ko.zst", ".ko.gz"];

/// Folders below that of a kernel, least preferred first: an update replaces the kernel's module.
const FOLDERS: [&str; 4] = ["kernel", "", "extra", "updates"];

/// Most folders below each other; a module of the kernel has some six above it.
const DEPTH_MAX: usize = 16;

impl ModuleTree {
    /// Reads the names of all modules below `folder`, such as `/lib/modules/6.1.0-1-amd64`, and of
    /// those that are built into the kernel.
    pub fn read(folder: &Path) -> ModuleTree {
        let mut files = HashMap::new();
        for name in FOLDERS {
            let depth = if name.is_empty() { 0 } else { DEPTH_MAX };
            add_files(&folder.join(name), depth, &mut files);
        }
        let built_in = fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
        let built_in = built_in.lines().filter_map(|line| module_name(Path::new(line.trim())));
        ModuleTree { folder: folder.to_path_buf(), built_in: built_in.collect(), files }
    }

    /// Whether the kernel can have this module: as a file or built in.
    pub fn has(&self, name: &str) -> bool {
        let name = underscored(name);
        self.files.contains_key(&name) || self.built_in.contains(&name)
    }

    /// The modules `wanted` and all that they need, each after those that it needs. What is built
    /// into the kernel is left out.
    ///
    /// # Errors
    /// If one is neither there nor built in, or cannot be read.
    pub fn load_order(&self, wanted: &[&str]) -> Result<Vec<Module>, ModuleError> {
        let mut order = Order { tree: self, visited: HashSet::new(), modules: vec![] };
        for name in wanted {
            order.visit(&underscored(name), None)?;
        }
        Ok(order.modules)
    }
}

struct Order<'a> {
    tree: &'a ModuleTree,
    visited: HashSet<String>,
    modules: Vec<Module>,
}

impl Order<'_> {
    fn visit(&mut self, name: &str, needed_by: Option<&str>) -> Result<(), ModuleError> {
        // Before its needs, so that modules that claim to need each other end.
        if !self.visited.insert(name.to_string()) {
            return Ok(());
        }
        let Some(path) = self.tree.files.get(name) else {
            if self.tree.built_in.contains(name) {
                return Ok(());
            }
            return Err(ModuleError::Missing {
                name: name.to_string(),
                needed_by: needed_by.map(str::to_string),
                folder: self.tree.folder.display().to_string(),
            });
        };
        let bytes = unpacked(path)?;
        let needs = needs_of(&bytes).map_err(|source| {
            let path = path.display().to_string();
            ModuleError::Format { path, source }
        })?;
        for need in needs {
            self.visit(&need, Some(name))?;
        }
        self.modules.push(Module { name: name.to_string(), bytes });
        Ok(())
    }
}

fn underscored(name: &str) -> String {
    name.replace('-', "_")
}

/// The name of the module in the file at `path`; none if it has no module.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    SUFFIXES.iter().find_map(|suffix| file.strip_suffix(suffix)).map(underscored)
}

fn add_files(folder: &Path, depth_max: usize, files: &mut HashMap<String, PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        // Links are not followed as folders: `build` and `source` lead to the kernel's sources.
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => {
                if let Some(depth_max) = depth_max.checked_sub(1) {
                    add_files(&path, depth_max, files);
                }
            }
            Ok(_) => {
                if let Some(name) = module_name(&path) {
                    files.insert(name, path);
                }
            }
            Err(_) => {}
        }
    }
}

/// The modules that a module needs, from the entry `depends=` of its section `.modinfo`.
fn needs_of(module: &[u8]) -> Result<Vec<String>, ElfError> {
    let section = Elf::new(module)?.section(".modinfo")?.unwrap_or_default();
    let entry = section.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"depends="));
    let names = String::from_utf8_lossy(entry.unwrap_or_default());
    Ok(names.split(',').filter(|name| !name.is_empty()).map(underscored).collect())
}

/// The module in a file, whatever it is packed with: the guest then needs no program to unpack it.
fn unpacked(path: &Path) -> Result<Vec<u8>, ModuleError> {
    let read = |source| ModuleError::Read { path: path.display().to_string(), source };
    let extension = path.extension().and_then(|extension| extension.to_str());
    match extension {
        Some("xz") => by_program(path, "xz", "xz-utils"),
        Some("zst") => by_program(path, "zstd", "zstd"),
        Some("gz") => {
            let mut bytes = vec![];
            let packed = fs::File::open(path).map_err(read)?;
            GzDecoder::new(packed).read_to_end(&mut bytes).map_err(read)?;
            Ok(bytes)
        }
        _ => fs::read(path).map_err(read),
    }
}

fn by_program(
    path: &Path,
    program: &'static str,
    package: &'static str,
) -> Result<Vec<u8>, ModuleError> {
    let failed = |reason: String| {
        let path = path.display().to_string();
        ModuleError::Unpack { path, program, package, reason }
    };
    let mut command = Command::new(program);
    command.args(["-d", "-c", "--"]).arg(path).stdin(Stdio::null());
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_string())),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use nm_sys::private_folder::PrivateFolder;
    use proptest::prelude::*;
    use std::io::Write;

    /// An object file with a section `.modinfo`, as modules are.
    pub fn module(modinfo: &str) -> Vec<u8> {
        const NAMES: &[u8] = b"\0.modinfo\0.shstrtab\0";
        let (content, header_bytes) = (modinfo.as_bytes(), 64);
        let mut bytes = vec![0; header_bytes];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        let names_at = header_bytes + content.len();
        let sections_at = names_at + NAMES.len();
        bytes[0x28..0x30].copy_from_slice(&(sections_at as u64).to_le_bytes());
        bytes[0x3a..0x40].copy_from_slice(&[64, 0, 3, 0, 2, 0]);
        bytes.extend_from_slice(content);
        bytes.extend_from_slice(NAMES);
        for (name, offset, length) in
            [(0u32, 0, 0), (1, header_bytes, content.len()), (10, names_at, NAMES.len())]
        {
            let mut section = [0; 64];
            section[..4].copy_from_slice(&name.to_le_bytes());
            section[24..32].copy_from_slice(&(offset as u64).to_le_bytes());
            section[32..40].copy_from_slice(&(length as u64).to_le_bytes());
            bytes.extend_from_slice(&section);
        }
        bytes
    }

    pub fn folder() -> PrivateFolder {
        PrivateFolder::create(&std::env::temp_dir(), "nm-vm-test-").unwrap()
    }

    /// Writes modules, each with the names that it needs, at paths below `folder`.
    pub fn write_modules(folder: &Path, modules: &[(&str, &str)]) {
        for (path, needs) in modules {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let bytes = module(&format!("license=GPL\0depends={needs}\0name=x\0"));
            match path.extension().unwrap().to_str().unwrap() {
                "ko" => fs::write(path, bytes).unwrap(),
                "gz" => {
                    let file = fs::File::create(path).unwrap();
                    let mut packed = flate2::write::GzEncoder::new(file, Default::default());
                    packed.write_all(&bytes).unwrap();
                    packed.finish().unwrap();
                }
                packer => pack(packer, &path, &bytes),
            }
        }
    }

    fn pack(extension: &str, path: &Path, bytes: &[u8]) {
        let program = if extension == "zst" { "zstd" } else { extension };
        let mut command = Command::new(program);
        command.arg("-c").stdin(Stdio::piped()).stdout(fs::File::create(path).unwrap());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
        child.stdin.take().unwrap().write_all(bytes).unwrap();
        assert!(child.wait().unwrap().success());
    }

    fn order(folder: &Path, wanted: &[&str]) -> Vec<String> {
        let modules = ModuleTree::read(folder).load_order(wanted).unwrap();
        modules.into_iter().map(|module| module.name).collect()
    }

    /// As in Debian's cloud kernel 6.1: everything is a module, nothing is packed.
    #[test]
    fn modules_of_a_modular_kernel_follow_what_they_need() {
        let folder = folder();
        write_modules(
            folder.path(),
            &[
                ("kernel/drivers/virtio/virtio.ko", ""),
                ("kernel/drivers/virtio/virtio_ring.ko", "virtio"),
                ("kernel/drivers/virtio/virtio_pci_modern_dev.ko", ""),
                ("kernel/drivers/virtio/virtio_pci_legacy_dev.ko", ""),
                (
                    "kernel/drivers/virtio/virtio_pci.ko",
                    "virtio_pci_modern_dev,virtio,virtio_ring,virtio_pci_legacy_dev",
                ),
                ("kernel/drivers/char/virtio_console.ko", "virtio,virtio_ring"),
                ("kernel/net/core/failover.ko", ""),
                ("kernel/drivers/net/net_failover.ko", "failover"),
                ("kernel/drivers/net/virtio_net.ko", "virtio,virtio_ring,net_failover"),
            ],
        );
        assert_eq!(
            order(folder.path(), &["virtio_pci", "virtio_console", "virtio_net"]),
            [
                "virtio_pci_modern_dev",
                "virtio",
                "virtio_ring",
                "virtio_pci_legacy_dev",
                "virtio_pci",
                "virtio_console",
                "failover",
                "net_failover",
                "virtio_net",
            ]
        );
    }

    /// As in Debian's kernel 6.12: packed, and the bus of virtual devices built in.
    #[test]
    fn packed_modules_are_unpacked_and_built_in_ones_left_out() {
        let folder = folder();
        write_modules(
            folder.path(),
            &[
                ("kernel/drivers/net/virtio_net.ko.xz", "net_failover"),
                ("kernel/drivers/net/net_failover.ko.gz", "failover"),
                ("kernel/net/core/failover.ko.zst", ""),
                ("kernel/drivers/net/ethernet/intel/igbvf/igbvf.ko.xz", ""),
            ],
        );
        let built_in =
            "kernel/drivers/virtio/virtio_pci.ko\nkernel/drivers/char/virtio-console.ko\n";
        fs::write(folder.path().join("modules.builtin"), built_in).unwrap();
        let wanted = ["virtio_pci", "virtio-console", "virtio_net", "igbvf"];
        assert_eq!(
            order(folder.path(), &wanted),
            ["failover", "net_failover", "virtio_net", "igbvf"]
        );
        let modules = ModuleTree::read(folder.path()).load_order(&["failover"]).unwrap();
        assert_eq!(modules[0].bytes, module("license=GPL\0depends=\0name=x\0"));
    }

    #[test]
    fn update_replaces_the_module_of_the_kernel() {
        let folder = folder();
        write_modules(
            folder.path(),
            &[
                ("updates/dkms/ixgbevf.ko", "helper"),
                ("extra/helper.ko", ""),
                ("kernel/drivers/net/ixgbevf.ko", ""),
                ("kernel/drivers/net/helper.ko", "ixgbevf"),
            ],
        );
        std::os::unix::fs::symlink("/", folder.path().join("build")).unwrap();
        assert_eq!(order(folder.path(), &["ixgbevf"]), ["helper", "ixgbevf"]);
    }

    #[test]
    fn missing_module_is_named_with_what_needs_it() {
        let folder = folder();
        write_modules(folder.path(), &[("kernel/a.ko", "b"), ("kernel/c.ko", "c")]);
        let tree = ModuleTree::read(folder.path());
        let error = tree.load_order(&["igbvf"]).unwrap_err().to_string();
        assert!(error.starts_with("kernel module igbvf is neither in "), "{error}");
        assert!(error.contains("linux-image-amd64"), "{error}");
        let error = tree.load_order(&["a"]).unwrap_err().to_string();
        assert!(error.starts_with("kernel module b, which a needs, is neither"), "{error}");
        assert_eq!(order(folder.path(), &["c"]), ["c"], "a module that needs itself");
        assert!(tree.has("a") && !tree.has("igbvf"));
    }

    #[test]
    fn damaged_files_are_errors() {
        let folder = folder();
        write_modules(folder.path(), &[("kernel/a.ko", "")]);
        for name in ["kernel/b.ko", "kernel/c.ko.xz", "kernel/d.ko.zst", "kernel/e.ko.gz"] {
            fs::write(folder.path().join(name), "nothing").unwrap();
        }
        let tree = ModuleTree::read(folder.path());
        let error = |name| tree.load_order(&[name]).unwrap_err().to_string();
        assert!(error("b").contains("b.ko is not a kernel module"), "{}", error("b"));
        assert!(error("c").contains("`xz` (package xz-utils)"), "{}", error("c"));
        assert!(error("d").contains("`zstd` (package zstd)"), "{}", error("d"));
        assert!(error("e").contains("cannot read the kernel module"), "{}", error("e"));
    }

    /// A kernel of this machine, if it has one: all needs come before what needs them.
    #[test]
    fn real_kernel_has_the_modules_of_guests_in_order() {
        let fetched = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../target/guest-kernel");
        let fetched = Path::new(fetched).exists().then(|| fetched.to_string());
        let choice = std::env::var("NEARMETAL_GUEST_KERNEL").ok().or(fetched);
        let found = crate::kernel::GuestKernel::find(choice.as_deref());
        let Some(kernel) = nm_test_support::skip::needed(found) else { return };
        let tree = ModuleTree::read(&kernel.modules);
        let modules = tree.load_order(&crate::image::MODULES).unwrap();
        for (index, module) in modules.iter().enumerate() {
            for need in needs_of(&module.bytes).unwrap() {
                let is_loaded = modules[..index].iter().any(|earlier| earlier.name == need);
                assert!(is_loaded || tree.built_in.contains(&need), "{} {need}", module.name);
            }
        }
        for name in crate::image::MODULES {
            let is_loaded = modules.iter().any(|module| module.name == name);
            assert!(is_loaded || tree.built_in.contains(name), "{name}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_modinfo_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let text = String::from_utf8_lossy(&bytes);
            prop_assert!(needs_of(&module(&text)).is_ok());
            let _ = needs_of(&bytes);
        }

        #[test]
        fn needs_are_read_back(names in prop::collection::vec("[a-z][a-z0-9_]{0,8}", 0..5)) {
            let text = format!("author=x\0depends={}\0vermagic=1\0", names.join(","));
            prop_assert_eq!(needs_of(&module(&text)).unwrap(), names);
        }
    }
}
