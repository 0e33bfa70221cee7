//! The Debian packages of the emulated host: a QEMU that emulates an SR-IOV NIC, a kernel with its
//! drivers, and a shell. They are unpacked into the build folder; nothing is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// The first version of QEMU with the NIC (`igb`).
const QEMU_MAJOR_MIN: u32 = 8;

/// Unpacked packages.
pub struct Packages {
    root: PathBuf,
}

impl Packages {
    /// Downloads and unpacks the packages below `folder`, unless that was done before.
    pub fn fetch(folder: &Path) -> Result<Packages> {
        let (root, done) = (folder.join("root"), folder.join("unpacked"));
        if !done.exists() {
            let _ = fs::remove_dir_all(&root);
            fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
            let apt = Apt::begin(&folder.join("apt"))?;
            let kernel = apt.kernel()?;
            let wanted = ["qemu-system-x86", "qemu-system-data", "qemu-system-common", "seabios"];
            for name in wanted.into_iter().chain([&kernel[..], "busybox-static"]) {
                apt.unpack(name, &root)?;
            }
            fs::write(&done, "")?;
        }
        Ok(Packages { root })
    }

    /// A file of a package.
    pub fn file(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// QEMU; fails if it is too old to emulate the host.
    pub fn qemu(&self) -> Result<PathBuf> {
        let program = self.file("usr/bin/qemu-system-x86_64");
        let (text, ok) = shell::output(&format!("{} -version", program.display()))?;
        let version = text.split("version ").nth(1).unwrap_or_default();
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if !ok || major.is_none_or(|major| major < QEMU_MAJOR_MIN) {
            bail!(
                "the emulated host needs QEMU {QEMU_MAJOR_MIN} or later and its libraries \
                 (`cargo xtask setup`), and has: {}",
                text.trim()
            );
        }
        Ok(program)
    }

    /// The release of the kernel.
    pub fn kernel_release(&self) -> Result<String> {
        let boot = self.file("boot");
        let names =
            fs::read_dir(&boot)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let release = names.filter_map(|name| Some(name.strip_prefix("vmlinuz-")?.to_string()));
        release.max().with_context(|| format!("{} has no kernel", boot.display()))
    }
}

/// apt with lists and sources of its own: those of the machine, and the backports of its release.
struct Apt {
    settings: PathBuf,
    folder: PathBuf,
    /// The name of the backports, such as `bookworm-backports`.
    backports: String,
}

impl Apt {
    fn begin(folder: &Path) -> Result<Apt> {
        for name in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let codename = codename()?;
        let backports = format!("{codename}-backports");
        let mirror = mirror(&codename)?;
        let sources = format!("deb {mirror} {codename} main\ndeb {mirror} {backports} main\n");
        fs::write(folder.join("sources.list"), sources)?;
        let at = folder.display();
        let settings = format!(
            "Dir::Etc::SourceList \"{at}/sources.list\";\nDir::Etc::SourceParts \"-\";\n\
             Dir::State::Lists \"{at}/lists\";\nDir::Cache::Archives \"{at}/archives\";\n\
             Dir::Cache::pkgcache \"\";\nDir::Cache::srcpkgcache \"\";\n\
             APT::Sandbox::User \"root\";\n"
        );
        fs::write(folder.join("apt.conf"), settings)?;
        let apt =
            Apt { settings: folder.join("apt.conf"), folder: folder.to_path_buf(), backports };
        apt.run("apt-get", &["update", "-qq"])?;
        Ok(apt)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let output = Command::new(program)
            .args(arguments)
            .env("APT_CONFIG", &self.settings)
            .current_dir(&self.folder)
            .output()
            .with_context(|| format!("cannot start {program}"))?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            bail!("`{program} {}` failed: {}", arguments.join(" "), errors.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The package of the newest kernel with the drivers of physical machines.
    fn kernel(&self) -> Result<String> {
        let meta = format!("linux-image-amd64/{}", self.backports);
        let text = self.run("apt-cache", &["depends", &meta])?;
        let name = text.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
        name.map(str::to_string).context("linux-image-amd64 depends on no kernel")
    }

    /// Downloads a package, of the backports if they have it, and unpacks it into `root`.
    fn unpack(&self, name: &str, root: &Path) -> Result<()> {
        eprintln!("  {name}");
        let newest = format!("{name}/{}", self.backports);
        if self.run("apt-get", &["download", "-qq", &newest]).is_err() {
            self.run("apt-get", &["download", "-qq", name])?;
        }
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                let line = format!("dpkg-deb -x {} {}", path.display(), root.display());
                let (text, ok) = shell::output(&line)?;
                fs::remove_file(&path)?;
                if !ok {
                    bail!("cannot unpack {name}: {}", text.trim());
                }
            }
        }
        Ok(())
    }
}

/// The name of this machine's release of Debian.
fn codename() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.map(|name| name.trim_matches('"').to_string()).context("this is no Debian release")
}

/// Where this machine gets the packages of its release.
fn mirror(codename: &str) -> Result<String> {
    let line = "apt-get indextargets --format $(REPO_URI)|$(RELEASE)";
    let (text, _) = shell::output(line)?;
    let of_release = text.lines().filter_map(|line| line.split_once('|'));
    let mut found = of_release.filter(|(_, release)| *release == codename);
    let mirror = found.next().map(|(mirror, _)| mirror.to_string());
    mirror.with_context(|| format!("apt has no source of {codename}; run `apt-get update`"))
}
