//! The file system of a guest, built in memory. It has the running program as `/init`, the
//! libraries that it is linked with, and the kernel modules of the guest's devices. Built twice
//! from the same parts it has the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::cpio::{Archive, CpioError};
use crate::elf::{Elf, ElfError, loadable_part};
use crate::kernel::GuestKernel;
use crate::modules::{ModuleError, ModuleTree};

/// Modules that every guest needs: its control port and its virtual NIC.
pub const MODULES: [&str; 3] = ["virtio_pci", "virtio_console", "virtio_net"];

/// Drivers of the functions of physical NICs that can be passed through.
pub const PASS_THROUGH_MODULES: [&str; 12] = [
    "igbvf",
    "igb",
    "ixgbevf",
    "ixgbe",
    "iavf",
    "i40e",
    "ice",
    "mlx5_core",
    "mlx4_en",
    "sfc",
    "bnxt_en",
    "e1000e",
];

/// Folder of the modules; their names have the order in which they are loaded.
pub const MODULES_FOLDER: &str = "m";

/// Folders on which the guest mounts file systems, or that programs expect.
const FOLDERS: [&str; 6] = ["dev", "m", "proc", "root", "sys", "tmp"];

/// Why an image cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The program or a library cannot be read.
    #[error("cannot read {path} for the guests' image: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The program or a library is not one that can run in a guest.
    #[error("{path} cannot run in a guest: {source}")]
    Program {
        /// The file.
        path: String,
        /// Why.
        source: ElfError,
    },
    /// A module is missing or cannot be read.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// A file cannot be added.
    #[error("cannot add a file to the guests' image: {0}")]
    Archive(#[from] CpioError),
}

/// What an image is made of.
#[derive(Debug, Clone)]
pub struct ImageParts<'a> {
    /// The program that becomes `/init`.
    pub program: PathBuf,
    /// The shared libraries that it is linked with.
    pub libraries: Vec<PathBuf>,
    /// The kernel, for its modules.
    pub kernel: &'a GuestKernel,
    /// Modules without which the guest is of no use.
    pub modules: Vec<String>,
    /// Modules that are added if the kernel has them.
    pub optional_modules: Vec<String>,
}

impl<'a> ImageParts<'a> {
    /// This program, as it runs, with the modules of a guest with virtual devices.
    ///
    /// # Errors
    /// If the memory map of this process cannot be read.
    pub fn of_this_program(kernel: &'a GuestKernel) -> Result<ImageParts<'a>, ImageError> {
        const MAPS: &str = "/proc/self/maps";
        let read = |source| ImageError::Read { path: MAPS.to_string(), source };
        let maps = fs::read_to_string(MAPS).map_err(read)?;
        let own = fs::read_link("/proc/self/exe").map_err(read)?;
        Ok(ImageParts {
            // Leads to the running program even if its file was replaced.
            program: PathBuf::from("/proc/self/exe"),
            libraries: mapped_libraries(&maps, &own),
            kernel,
            modules: MODULES.map(str::to_string).to_vec(),
            optional_modules: vec![],
        })
    }

    /// With the drivers of functions that are passed through, as far as the kernel has them.
    #[must_use]
    pub fn with_pass_through(mut self) -> ImageParts<'a> {
        self.optional_modules.extend(PASS_THROUGH_MODULES.map(str::to_string));
        self
    }
}

/// The libraries in a memory map: files that are mapped as code, except the program.
fn mapped_libraries(maps: &str, program: &Path) -> Vec<PathBuf> {
    let is_code = |line: &&str| line.split(' ').nth(1).is_some_and(|flags| flags.contains('x'));
    let path = |line: &str| line.find('/').map(|at| PathBuf::from(&line[at..]));
    let paths: BTreeSet<PathBuf> = maps.lines().filter(is_code).filter_map(path).collect();
    paths.into_iter().filter(|path| path != program).collect()
}

/// What is in an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageEntry {
    /// Its path in the guest.
    pub path: String,
    /// Its length; zero for folders and devices.
    pub bytes: u64,
}

/// An image that the kernel unpacks at its start.
#[derive(Debug)]
pub struct Image {
    /// The archive, to be given to QEMU as `-initrd`.
    pub bytes: Vec<u8>,
    /// The modules that are in it, in the order in which they are loaded.
    pub modules: Vec<String>,
    /// SHA-256 of the program's file, hexadecimal.
    pub program_sha256: String,
    entries: Vec<ImageEntry>,
}

impl Image {
    /// Builds an image.
    ///
    /// # Errors
    /// What cannot be read, or which module is missing.
    pub fn build(parts: &ImageParts<'_>) -> Result<Image, ImageError> {
        let program = read(&parts.program)?;
        let in_guest = |path: &Path, source| {
            let path = path.display().to_string();
            ImageError::Program { path, source }
        };
        let init = loadable_part(&program).map_err(|error| in_guest(&parts.program, error))?;
        let interpreter = Elf::new(&init[..])
            .and_then(|elf| elf.interpreter())
            .map_err(|error| in_guest(&parts.program, error))?;
        // One of the mapped libraries, which programs name by another path.
        let linker = interpreter.as_ref().and_then(|path| fs::canonicalize(path).ok());
        let mut files = BTreeMap::new();
        for path in parts.libraries.iter().filter(|path| Some(*path) != linker.as_ref()) {
            let library = read(path)?;
            let name = Elf::new(&library[..])
                .and_then(|elf| elf.library_name())
                .map_err(|error| in_guest(path, error))?;
            // The linker searches for that name, of which the mapped file may be a version.
            let path = name.map_or(path.clone(), |name| path.with_file_name(name));
            files.insert(path, (0o755, library));
        }
        if let Some(path) = interpreter.map(PathBuf::from) {
            let content = read(&path)?;
            files.insert(path, (0o755, content));
        }
        files.insert(PathBuf::from("init"), (0o755, init));
        let tree = ModuleTree::read(&parts.kernel.modules);
        let optional = parts.optional_modules.iter().filter(|name| tree.has(name));
        let wanted: Vec<&str> = parts.modules.iter().chain(optional).map(String::as_str).collect();
        let mut modules = vec![];
        for (number, module) in tree.load_order(&wanted)?.into_iter().enumerate() {
            let path = format!("{MODULES_FOLDER}/{number:03}-{}.ko", module.name);
            files.insert(PathBuf::from(path), (0o644, module.bytes));
            modules.push(module.name);
        }
        let (bytes, entries) = archive(&files)?;
        let program_sha256 = hexadecimal(&Sha256::digest(&program));
        Ok(Image { bytes, modules, program_sha256, entries })
    }

    /// What is in it, in the order of the archive.
    pub fn list(&self) -> &[ImageEntry] {
        &self.entries
    }
}

/// Files with their permissions and content, by their path.
type Files = BTreeMap<PathBuf, (u32, Vec<u8>)>;

/// The archive of folders, console and `files`, and what is in it.
fn archive(files: &Files) -> Result<(Vec<u8>, Vec<ImageEntry>), ImageError> {
    let within = |path: &Path| path.to_string_lossy().trim_start_matches('/').to_string();
    let mut folders: BTreeSet<String> = FOLDERS.map(str::to_string).into();
    for path in files.keys() {
        folders.extend(path.ancestors().skip(1).map(within).filter(|name| !name.is_empty()));
    }
    let mut archive = Archive::new();
    let mut entries = vec![];
    let mut note = |name: &str, bytes: usize| {
        entries.push(ImageEntry { path: format!("/{name}"), bytes: bytes as u64 });
    };
    // A folder sorts before what is in it.
    for folder in &folders {
        archive.folder(folder)?;
        note(folder, 0);
    }
    // The kernel opens it as standard input and output of the program.
    archive.device("dev/console", 5, 1)?;
    note("dev/console", 0);
    for (path, (permissions, content)) in files {
        let name = within(path);
        archive.file(&name, *permissions, content)?;
        note(&name, content.len());
    }
    Ok((archive.finish(), entries))
}

fn read(path: &Path) -> Result<Vec<u8>, ImageError> {
    fs::read(path).map_err(|source| ImageError::Read { path: path.display().to_string(), source })
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::tests::{folder, write_modules};
    use nm_sys::private_folder::PrivateFolder;

    /// A folder with a kernel that has the modules of guests and one driver.
    fn kernel() -> (PrivateFolder, GuestKernel) {
        let root = folder();
        fs::create_dir(root.path().join("boot")).unwrap();
        fs::write(root.path().join("boot/vmlinuz-6.1"), "").unwrap();
        let modules = [
            ("lib/modules/6.1/kernel/virtio.ko", ""),
            ("lib/modules/6.1/kernel/virtio_pci.ko", "virtio"),
            ("lib/modules/6.1/kernel/virtio_console.ko", "virtio"),
            ("lib/modules/6.1/kernel/virtio_net.ko", "virtio"),
            ("lib/modules/6.1/kernel/ixgbevf.ko", ""),
        ];
        write_modules(root.path(), &modules);
        let kernel = GuestKernel::find(root.path().to_str()).unwrap();
        (root, kernel)
    }

    /// Name, mode, device and content.
    type Unpacked = (String, u32, (u32, u32), Vec<u8>);

    /// Reads an archive as the kernel does.
    fn unpack(archive: &[u8]) -> Vec<Unpacked> {
        let mut entries = vec![];
        let mut at = 0;
        loop {
            assert_eq!(&archive[at..at + 6], b"070701");
            let number = |index: usize| {
                let digits = &archive[at + 6 + index * 8..][..8];
                u32::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap()
            };
            let (mode, bytes, device, name_bytes) =
                (number(1), number(6) as usize, (number(9), number(10)), number(11) as usize);
            let name = &archive[at + 110..at + 110 + name_bytes];
            assert_eq!(name.last(), Some(&0));
            let name = String::from_utf8(name[..name_bytes - 1].to_vec()).unwrap();
            let start = (at + 110 + name_bytes).next_multiple_of(4);
            if name == "TRAILER!!!" {
                assert!(archive[start..].iter().all(|byte| *byte == 0));
                return entries;
            }
            entries.push((name, mode, device, archive[start..start + bytes].to_vec()));
            at = (start + bytes).next_multiple_of(4);
        }
    }

    #[test]
    fn image_has_the_program_its_libraries_and_the_modules_in_order() {
        let (_root, kernel) = kernel();
        let parts = ImageParts::of_this_program(&kernel).unwrap();
        let image = Image::build(&parts).unwrap();
        assert_eq!(image.modules, ["virtio", "virtio_pci", "virtio_console", "virtio_net"]);
        let own = fs::read("/proc/self/exe").unwrap();
        assert_eq!(image.program_sha256, hexadecimal(&Sha256::digest(&own)));

        let entries = unpack(&image.bytes);
        let content = |name: &str| {
            let found = entries.iter().find(|(entry, ..)| entry == name);
            found.unwrap_or_else(|| panic!("no {name}")).3.clone()
        };
        assert_eq!(content("init"), loadable_part(&own).unwrap());
        assert!(content("m/003-virtio_net.ko").windows(6).any(|part| part == b"virtio"));
        let console = entries.iter().find(|(name, ..)| name == "dev/console").unwrap();
        assert_eq!((console.1, console.2), (0o020_600, (5, 1)));
        if let Some(path) = Elf::new(&own[..]).unwrap().interpreter().unwrap() {
            assert_eq!(content(path.trim_start_matches('/')), fs::read(path).unwrap());
            assert!(entries.iter().any(|(name, ..)| name.ends_with("/libc.so.6")), "glibc");
        }
        // Each folder comes before what is in it, or the kernel would drop the file.
        for (index, (name, ..)) in entries.iter().enumerate() {
            let Some((folder, _)) = name.rsplit_once('/') else { continue };
            let has_folder =
                |(earlier, mode, ..): &Unpacked| earlier == folder && mode & 0o170_000 == 0o040_000;
            assert!(entries[..index].iter().any(has_folder), "{name}");
        }
        let listed: Vec<String> = image.list().iter().map(|entry| entry.path.clone()).collect();
        let packed: Vec<String> = entries.iter().map(|(name, ..)| format!("/{name}")).collect();
        assert_eq!(listed, packed);
        let is_known =
            |path: &&String| path.starts_with("/m/") || path.contains(".so") || *path == "/init";
        let lengths = image.list().iter().filter(|entry| entry.bytes > 0);
        assert!(lengths.map(|entry| &entry.path).all(|path| is_known(&path)));
    }

    #[test]
    fn image_is_the_same_when_built_twice() {
        let (_root, kernel) = kernel();
        let build = || Image::build(&ImageParts::of_this_program(&kernel).unwrap()).unwrap().bytes;
        assert_eq!(Sha256::digest(build()), Sha256::digest(build()));
    }

    #[test]
    fn drivers_are_added_as_far_as_the_kernel_has_them_and_needed_modules_must_be_there() {
        let (_root, kernel) = kernel();
        let parts = ImageParts::of_this_program(&kernel).unwrap().with_pass_through();
        assert_eq!(Image::build(&parts).unwrap().modules.last().unwrap(), "ixgbevf");
        let parts = ImageParts { modules: vec!["igbvf".into()], ..parts };
        let error = Image::build(&parts).unwrap_err().to_string();
        assert!(error.starts_with("kernel module igbvf is neither in "), "{error}");
        let parts = ImageParts { program: "/nothing/of/this/name".into(), ..parts };
        let error = Image::build(&parts).unwrap_err().to_string();
        assert!(error.starts_with("cannot read /nothing/of/this/name for the guests"), "{error}");
        let parts = ImageParts { program: "/proc/self/maps".into(), ..parts };
        let error = Image::build(&parts).unwrap_err().to_string();
        assert!(error.contains("cannot run in a guest"), "{error}");
    }

    #[test]
    fn libraries_of_a_memory_map_are_its_files_with_code() {
        let maps = "\
5566-5577 r--p 00000000 08:01 11 /usr/bin/program
5577-5588 r-xp 00001000 08:01 11 /usr/bin/program
7f10-7f20 r--p 00000000 08:01 22 /usr/lib/locale/locale-archive
7f20-7f30 r-xp 00001000 08:01 33                         /usr/lib/with space/libc.so.6
7f30-7f40 rw-p 00000000 00:00 0
7f40-7f50 r-xp 00000000 00:00 0                          [vdso]
7f50-7f60 r-xp 00001000 08:01 44                         /lib64/ld-linux-x86-64.so.2
";
        let libraries = mapped_libraries(maps, Path::new("/usr/bin/program"));
        let expected = ["/lib64/ld-linux-x86-64.so.2", "/usr/lib/with space/libc.so.6"];
        assert_eq!(libraries, expected.map(PathBuf::from));
    }
}
