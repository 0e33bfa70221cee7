//! The kernel of the guests: the host's own by default, so that both run the same one, or one that
//! the user names.

use std::cmp::Ordering;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use nm_sys::memory_file;
use nm_sys::private_folder::{FolderError, PrivateFolder, remove_abandoned};

/// How to get a kernel.
const REMEDY: &str = "install one (linux-image-cloud-amd64 on Debian, linux-image-virtual on \
                      Ubuntu, kernel-core on Fedora) or name one: an image, a folder with `boot/` \
                      and `lib/modules/`, or a Debian package";

/// Why there is no kernel for guests.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// Nothing was chosen, and the host has none.
    #[error(
        "there is no kernel for guests: neither that of the host (/boot/vmlinuz-{release} with \
         its modules) nor another one in /boot; {REMEDY}"
    )]
    NoneOnHost {
        /// The release that the host runs.
        release: String,
    },
    /// The chosen path is not there or cannot be read.
    #[error("cannot read the guests' kernel {path}: {source}")]
    Read {
        /// The path.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// Only root may read it, as distributions have it that hide the kernel's addresses.
    #[error(
        "the kernel image {path} is readable by root only: run as root, or copy it and name the \
         copy"
    )]
    RootOnly {
        /// The image.
        path: String,
    },
    /// The chosen folder has no image with modules.
    #[error(
        "{folder} has no kernel with its modules: a folder must have `boot/vmlinuz-RELEASE` or \
         `lib/modules/RELEASE/vmlinuz`, and `lib/modules/RELEASE`"
    )]
    NoneInFolder {
        /// The folder.
        folder: String,
    },
    /// The chosen image has no release in its header or its name.
    #[error(
        "{image} does not say which release it is: it is no bzImage, and its name is not \
         `vmlinuz-RELEASE`"
    )]
    NoRelease {
        /// The image.
        image: String,
    },
    /// The chosen image has no modules.
    #[error(
        "the modules of {release}, the release of {image}, are neither in `lib/modules/{release}` \
         beside it nor in /lib/modules/{release}: install the package of that kernel"
    )]
    NoModules {
        /// The image.
        image: String,
        /// Its release.
        release: String,
    },
    /// A package cannot be unpacked.
    #[error("cannot unpack {package} with `dpkg-deb` (package dpkg): {reason}")]
    Unpack {
        /// The package.
        package: String,
        /// What went wrong.
        reason: String,
    },
    /// There is no folder to unpack a package into.
    #[error("cannot make a folder for the content of a package: {0}")]
    Folder(#[from] FolderError),
}

/// A kernel and its modules.
#[derive(Debug, Clone)]
pub struct GuestKernel {
    /// The image that QEMU loads.
    pub image: PathBuf,
    /// The folder of its modules, such as `/lib/modules/6.1.0-1-amd64`.
    pub modules: PathBuf,
    /// Its release, such as `6.1.0-1-amd64`.
    pub release: String,
    /// Where a package was unpacked; removed with the last copy of this value.
    unpacked: Option<Arc<PrivateFolder>>,
    /// The image of a package in memory; it ends with the last copy of this value.
    _in_memory: Option<Arc<OwnedFd>>,
}

impl GuestKernel {
    /// The kernel that the user chose: an image, a folder or a Debian package. Without a choice the
    /// one that this host runs, or else the newest in `/boot` that has modules.
    ///
    /// # Errors
    /// What is missing, and how to get it.
    pub fn find(choice: Option<&str>) -> Result<GuestKernel, KernelError> {
        // Also a run that unpacks nothing removes what a killed one has left.
        remove_abandoned(&std::env::temp_dir(), UNPACKED);
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        match choice {
            None => GuestKernel::of_host(Path::new("/"), &release),
            Some(choice) => GuestKernel::chosen(Path::new(choice)),
        }
    }

    /// The kernel of the host whose files are below `root` and that runs `release`.
    fn of_host(root: &Path, release: &str) -> Result<GuestKernel, KernelError> {
        let mut kernels = kernels_below(root);
        // The one that runs counts as newer than all others.
        kernels.sort_by_key(|kernel| kernel.release == release);
        let none = || KernelError::NoneOnHost { release: release.to_string() };
        kernels.pop().ok_or_else(none)?.readable()
    }

    fn chosen(path: &Path) -> Result<GuestKernel, KernelError> {
        let text = || path.display().to_string();
        let metadata =
            fs::metadata(path).map_err(|source| KernelError::Read { path: text(), source })?;
        if metadata.is_dir() {
            return GuestKernel::in_folder(path, &text());
        }
        if path.extension().is_some_and(|extension| extension == "deb") {
            let folder = unpack(path, &std::env::temp_dir())?;
            let kernel = GuestKernel::in_folder(folder.path(), &text())?;
            return Ok(GuestKernel { unpacked: Some(Arc::new(folder)), ..kernel });
        }
        GuestKernel::of_image(path)
    }

    /// The same kernel without its modules, if it is one of a package: its image lies in memory,
    /// and what was unpacked is removed, so that a killed process leaves nothing of it.
    ///
    /// # Errors
    /// If the image cannot be read or the memory not be had.
    pub fn without_folder(mut self) -> io::Result<GuestKernel> {
        if self.unpacked.is_none() {
            return Ok(self);
        }
        let file = memory_file::with_contents("nearmetal-kernel", &fs::read(&self.image)?)?;
        // QEMU is another process, which may open what this one has open.
        self.image = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into();
        self._in_memory = Some(Arc::new(file));
        self.unpacked = None;
        Ok(self)
    }

    fn in_folder(folder: &Path, name: &str) -> Result<GuestKernel, KernelError> {
        let none = || KernelError::NoneInFolder { folder: name.to_string() };
        kernels_below(folder).pop().ok_or_else(none)?.readable()
    }

    fn of_image(path: &Path) -> Result<GuestKernel, KernelError> {
        let text = path.display().to_string();
        let image = fs::canonicalize(path);
        let image = image.map_err(|source| KernelError::Read { path: text.clone(), source })?;
        let bytes = fs::read(&image).map_err(|source| unreadable(&image, source))?;
        let by_name = || {
            let name = image.file_name()?.to_str()?;
            name.strip_prefix("vmlinuz-").or_else(|| name.strip_prefix("vmlinux-"))
        };
        let release = release_in(&bytes).or_else(|| by_name().map(str::to_string));
        let release = release.ok_or_else(|| KernelError::NoRelease { image: text.clone() })?;
        let folder = image.parent().unwrap_or(Path::new("/"));
        let beside = folder.parent().unwrap_or(Path::new("/"));
        let modules = [beside, folder, Path::new("/")]
            .into_iter()
            .find_map(|root| modules_below(root, &release))
            // `lib/modules/RELEASE/vmlinuz`, or modules right beside the image.
            .or_else(|| folder.join("kernel").is_dir().then(|| folder.to_path_buf()));
        match modules {
            Some(modules) => {
                Ok(GuestKernel { image, modules, release, unpacked: None, _in_memory: None })
            }
            None => Err(KernelError::NoModules { image: text, release }),
        }
    }

    /// This kernel, if its image can be read.
    fn readable(self) -> Result<GuestKernel, KernelError> {
        match fs::File::open(&self.image) {
            Ok(_) => Ok(self),
            Err(source) => Err(unreadable(&self.image, source)),
        }
    }
}

fn unreadable(image: &Path, source: io::Error) -> KernelError {
    let path = image.display().to_string();
    match source.kind() {
        io::ErrorKind::PermissionDenied => KernelError::RootOnly { path },
        _ => KernelError::Read { path, source },
    }
}

/// All kernels below `root` that have an image and modules, oldest first.
fn kernels_below(root: &Path) -> Vec<GuestKernel> {
    let names = |folder: &str| {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
    };
    let in_boot = names("boot").into_iter().filter_map(|name| {
        let release = name.strip_prefix("vmlinuz-")?.to_string();
        Some((release, root.join("boot").join(name)))
    });
    let beside_modules = MODULE_FOLDERS.into_iter().flat_map(|folder| {
        names(folder).into_iter().map(move |release| {
            let image = root.join(folder).join(&release).join("vmlinuz");
            (release, image)
        })
    });
    let mut kernels: Vec<GuestKernel> = in_boot
        .chain(beside_modules)
        .filter(|(_, image)| image.is_file())
        .filter_map(|(release, image)| {
            let modules = modules_below(root, &release)?;
            Some(GuestKernel { image, modules, release, unpacked: None, _in_memory: None })
        })
        .collect();
    kernels.sort_by(|a, b| compare_releases(&a.release, &b.release));
    kernels
}

/// Where modules are; the second one where `/lib` is not a link to `/usr/lib`.
const MODULE_FOLDERS: [&str; 2] = ["lib/modules", "usr/lib/modules"];

/// The folder of the modules of `release` below `root`, if it has any.
fn modules_below(root: &Path, release: &str) -> Option<PathBuf> {
    let folders = MODULE_FOLDERS.into_iter().map(|folder| root.join(folder).join(release));
    folders.into_iter().find(|folder| folder.join("kernel").is_dir())
}

/// Compares releases by their numbers: 6.12 is newer than 6.1.
fn compare_releases(a: &str, b: &str) -> Ordering {
    let parts = |text: &str| -> Vec<(u64, String)> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        words.map(|word| (word.parse().unwrap_or(0), word.to_string())).collect()
    };
    parts(a).cmp(&parts(b))
}

/// The release in the header of a bzImage (Documentation/arch/x86/boot.rst): its start is 0x200
/// plus the number at 0x20e, and it ends at a space.
fn release_in(image: &[u8]) -> Option<String> {
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let offset = image.get(0x20e..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))?;
    let text = image.get(0x200 + usize::from(offset)..)?;
    let end = text.iter().take(256).position(|byte| *byte == b' ' || *byte == 0)?;
    let release = std::str::from_utf8(&text[..end]).ok()?;
    let is_release = release.starts_with(|c: char| c.is_ascii_digit()) && !release.contains('/');
    is_release.then(|| release.to_string())
}

/// How the names of folders with the content of a package begin.
const UNPACKED: &str = "nearmetal-kernel-";

/// The content of a package, in a folder of its own below `temporary`. What killed processes have
/// left there goes.
fn unpack(package: &Path, temporary: &Path) -> Result<PrivateFolder, KernelError> {
    let failed = |reason: String| {
        let package = package.display().to_string();
        KernelError::Unpack { package, reason }
    };
    remove_abandoned(temporary, UNPACKED);
    let folder = PrivateFolder::create(temporary, UNPACKED)?;
    let mut command = Command::new("dpkg-deb");
    command.arg("-x").arg(package).arg(folder.path()).stdin(Stdio::null());
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(folder),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::tests::{folder, write_modules};
    use proptest::prelude::*;
    use std::fs::DirBuilder;
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

    /// An image at `path` below `root`; with a release, it has the header of a bzImage.
    fn write_image(root: &Path, path: &str, release: Option<&str>) {
        let mut bytes = vec![0; 0x800];
        if let Some(release) = release {
            bytes[0x202..0x206].copy_from_slice(b"HdrS");
            bytes[0x20e..0x210].copy_from_slice(&0x300u16.to_le_bytes());
            let text = format!("{release} (build@host) #1 SMP");
            bytes[0x500..0x500 + text.len()].copy_from_slice(text.as_bytes());
        }
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn found(kernel: Result<GuestKernel, KernelError>, root: &Path) -> (String, String, String) {
        let kernel = kernel.unwrap();
        let root = fs::canonicalize(root).unwrap();
        let within = |path: &Path| {
            let path = fs::canonicalize(path).unwrap();
            path.strip_prefix(&root).unwrap().display().to_string()
        };
        (kernel.release.clone(), within(&kernel.image), within(&kernel.modules))
    }

    #[test]
    fn own_kernel_of_the_host_comes_before_newer_ones() {
        let root = folder();
        let root = root.path();
        for release in ["6.1.0-9-amd64", "6.1.0-10-amd64", "6.12.1-amd64"] {
            write_image(root, &format!("boot/vmlinuz-{release}"), None);
        }
        write_modules(root, &[("lib/modules/6.1.0-9-amd64/kernel/a.ko", "")]);
        write_modules(root, &[("lib/modules/6.1.0-10-amd64/kernel/a.ko", "")]);
        let newest = found(GuestKernel::of_host(root, "6.18.0"), root);
        assert_eq!(newest.0, "6.1.0-10-amd64", "6.12.1 has no modules");
        let own = found(GuestKernel::of_host(root, "6.1.0-9-amd64"), root);
        assert_eq!(own.1, "boot/vmlinuz-6.1.0-9-amd64");
        assert_eq!(own.2, "lib/modules/6.1.0-9-amd64");
    }

    #[test]
    fn kernel_beside_its_modules_is_found() {
        let root = folder();
        let image = "usr/lib/modules/7.2.13+deb14-cloud-amd64/vmlinuz";
        write_image(root.path(), image, None);
        write_modules(root.path(), &[("usr/lib/modules/7.2.13+deb14-cloud-amd64/kernel/a.ko", "")]);
        let choice = root.path().to_str().unwrap();
        let (release, at, modules) = found(GuestKernel::find(Some(choice)), root.path());
        assert_eq!(release, "7.2.13+deb14-cloud-amd64");
        assert_eq!((at.as_str(), modules.as_str()), (image, image.trim_end_matches("/vmlinuz")));
    }

    #[test]
    fn release_of_a_chosen_image_is_in_its_header() {
        let root = folder();
        write_image(root.path(), "boot/bzImage", Some("6.6.1-own"));
        write_modules(root.path(), &[("lib/modules/6.6.1-own/kernel/a.ko", "")]);
        let image = root.path().join("boot/bzImage");
        let kernel = GuestKernel::find(image.to_str());
        assert_eq!(found(kernel, root.path()).2, "lib/modules/6.6.1-own");
        write_image(root.path(), "boot/bzImage", Some("6.6.2-own"));
        let error = GuestKernel::find(image.to_str()).unwrap_err().to_string();
        assert!(error.contains("6.6.2-own") && error.contains("/lib/modules/6.6.2-own"), "{error}");
        write_image(root.path(), "boot/bzImage", None);
        let error = GuestKernel::find(image.to_str()).unwrap_err().to_string();
        assert!(error.contains("does not say which release"), "{error}");
    }

    #[test]
    fn what_is_missing_is_named_with_its_remedy() {
        let root = folder();
        let error = GuestKernel::of_host(root.path(), "6.18.44").unwrap_err().to_string();
        assert!(error.contains("/boot/vmlinuz-6.18.44") && error.contains("install"), "{error}");
        let choice = root.path().to_str().unwrap();
        let error = GuestKernel::find(Some(choice)).unwrap_err().to_string();
        assert!(error.contains("has no kernel with its modules"), "{error}");
        let error = GuestKernel::find(Some("/nothing/of/this/name")).unwrap_err().to_string();
        assert!(error.contains("cannot read the guests' kernel /nothing"), "{error}");
        let package = root.path().join("linux.deb");
        fs::write(&package, "no package").unwrap();
        let error = GuestKernel::find(package.to_str()).unwrap_err().to_string();
        assert!(error.contains("cannot unpack") && error.contains("dpkg-deb"), "{error}");
    }

    #[test]
    fn the_kernel_of_a_package_outlives_its_folder() {
        let temporary = folder();
        let unpacked = PrivateFolder::create(temporary.path(), UNPACKED).unwrap();
        let path = unpacked.path().to_path_buf();
        fs::create_dir_all(path.join("boot")).unwrap();
        fs::write(path.join("boot/vmlinuz-6.1"), "image").unwrap();
        write_modules(&path, &[("lib/modules/6.1/kernel/a.ko", "")]);
        let mut kernel = GuestKernel::in_folder(&path, "x.deb").unwrap();
        kernel.unpacked = Some(Arc::new(unpacked));
        let kernel = kernel.without_folder().unwrap();
        assert!(!path.exists(), "a kill from now on leaves nothing");
        assert_eq!(fs::read_to_string(&kernel.image).unwrap(), "image");
        assert_eq!(kernel.release, "6.1");
        // Another process, such as QEMU, opens it by the same path.
        let cat = Command::new("cat").arg(&kernel.image).output().unwrap();
        assert_eq!(cat.stdout, b"image");
    }

    #[test]
    fn next_package_removes_what_a_killed_process_has_left() {
        let root = folder();
        let left = root.path().join(format!("{UNPACKED}{}", "0a".repeat(8)));
        DirBuilder::new().mode(0o700).create(&left).unwrap();
        fs::create_dir(left.join("boot")).unwrap();
        fs::write(left.join("boot/vmlinuz"), "content").unwrap();
        let in_use = PrivateFolder::create(root.path(), UNPACKED).unwrap();
        assert!(unpack(&root.path().join("none.deb"), root.path()).is_err());
        assert!(!left.exists(), "nobody holds it");
        assert!(in_use.path().exists(), "another process may still read it");
    }

    #[test]
    fn hidden_image_is_refused_for_all_but_root() {
        let root = folder();
        write_image(root.path(), "boot/vmlinuz-6.1", None);
        write_modules(root.path(), &[("lib/modules/6.1/kernel/a.ko", "")]);
        let image = root.path().join("boot/vmlinuz-6.1");
        fs::set_permissions(&image, fs::Permissions::from_mode(0o000)).unwrap();
        let kernel = GuestKernel::find(root.path().to_str());
        match fs::File::open(&image) {
            Ok(_) => assert!(kernel.is_ok(), "this is root"),
            Err(_) => assert!(kernel.unwrap_err().to_string().contains("root only")),
        }
    }

    #[test]
    fn releases_are_compared_by_their_numbers() {
        let mut releases = ["6.12.1", "6.2.0", "6.1.0-10-amd64", "6.1.0-9-amd64", "10.0"];
        releases.sort_by(|a, b| compare_releases(a, b));
        assert_eq!(releases, ["6.1.0-9-amd64", "6.1.0-10-amd64", "6.2.0", "6.12.1", "10.0"]);
    }

    proptest! {
        #[test]
        fn arbitrary_images_never_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..2_000),
            has_header in any::<bool>(),
        ) {
            if has_header && bytes.len() > 0x210 {
                bytes[0x202..0x206].copy_from_slice(b"HdrS");
            }
            let _ = release_in(&bytes);
        }
    }
}
