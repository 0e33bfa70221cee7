//! The installed QEMU: its program, version and features.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::features::Features;

/// Names of its program: by its own name, and where distributions of the Red Hat family put it.
const PROGRAMS: &[&str] = &["qemu-system-x86_64", "/usr/libexec/qemu-kvm"];

/// Options of a QEMU that may call neither obsolete nor privileged system calls nor start programs,
/// should its guest take it over.
pub const CONFINED: [&str; 2] =
    ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"];

/// An installed QEMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qemu {
    /// Its program.
    pub program: PathBuf,
    /// Its version, such as `7.2.22`.
    pub version: String,
    /// What it can do.
    pub features: Features,
    /// Whether it was built with filters of system calls ([`CONFINED`]).
    pub has_sandbox: bool,
}

/// Why there is no QEMU to use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QemuError {
    /// No folder of `PATH` has it.
    #[error("QEMU is not installed; install qemu-system-x86 (Debian, Ubuntu) or qemu-kvm")]
    NotInstalled,
    /// It does not start, or ends with an error.
    #[error("{program} {option} failed: {reason}")]
    Failed {
        /// The program.
        program: String,
        /// What it was asked.
        option: &'static str,
        /// Its error output, or why it did not start.
        reason: String,
    },
}

impl Qemu {
    /// The QEMU of this machine, which is looked for once in each process.
    ///
    /// # Errors
    /// If it is not installed or does not work.
    pub fn find() -> Result<Qemu, QemuError> {
        static FOUND: OnceLock<Result<Qemu, QemuError>> = OnceLock::new();
        FOUND.get_or_init(|| Qemu::at(&program().ok_or(QemuError::NotInstalled)?)).clone()
    }

    /// The QEMU with this program.
    ///
    /// # Errors
    /// If it does not work.
    pub fn at(program: &Path) -> Result<Qemu, QemuError> {
        let confined = [&CONFINED[..], &["-accel", "help"]].concat();
        let asked = [
            &["--version"][..],
            &["-netdev", "help"],
            &["-device", "help"],
            &["-accel", "help"],
            &confined,
        ];
        // All at once, as each start takes a while.
        let started = asked.map(|options| {
            let mut command = Command::new(program);
            command.args(options).stdin(Stdio::null());
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            (options, command.spawn())
        });
        let mut answers = started.map(|(options, child)| {
            let failed = |reason: String| QemuError::Failed {
                program: program.display().to_string(),
                option: options[0],
                reason,
            };
            let output = child.and_then(|child| child.wait_with_output());
            let output = output.map_err(|error: io::Error| failed(error.to_string()))?;
            match output.status.success() {
                true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
                false => Err(failed(last_line(&output.stderr))),
            }
        });
        let mut next = |at: usize| std::mem::replace(&mut answers[at], Ok(String::new()));
        let version = version(&next(0)?);
        let features = Features::parse(&next(1)?, &next(2)?, &next(3)?);
        let has_sandbox = next(4).is_ok();
        Ok(Qemu { program: program.to_path_buf(), version, features, has_sandbox })
    }
}

fn last_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim().lines().last().unwrap_or("without an error message").to_string()
}

/// The first program of [`PROGRAMS`] that exists.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    // An absolute name stays as it is when it is joined to a folder.
    let candidates = PROGRAMS.iter().flat_map(|name| folders.iter().map(move |f| f.join(name)));
    candidates.into_iter().find(|path| path.is_file())
}

/// The version in `QEMU emulator version 7.2.22 (Debian …)`.
fn version(text: &str) -> String {
    let mut words = text.split_whitespace().skip_while(|word| *word != "version");
    words.nth(1).unwrap_or("unknown").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_the_word_after_version() {
        assert_eq!(version("QEMU emulator version 7.2.22 (Debian 1:7.2)\nCopyright"), "7.2.22");
        assert_eq!(version("something else"), "unknown");
    }

    #[test]
    fn program_that_does_not_work_is_named() {
        let error = Qemu::at(Path::new("/nothing/of/this/name")).unwrap_err();
        assert!(error.to_string().starts_with("/nothing/of/this/name --version failed"), "{error}");
        let error = Qemu::at(Path::new("false")).unwrap_err();
        assert!(error.to_string().ends_with("without an error message"), "{error}");
    }

    #[test]
    fn installed_qemu_has_the_devices_of_guests() {
        match Qemu::find() {
            Ok(qemu) => {
                assert!(qemu.features.has_device("virtio-net-pci"), "{qemu:?}");
                assert!(qemu.features.has_netdev("tap"), "{qemu:?}");
                assert!(qemu.has_sandbox, "Debian builds it with libseccomp: {qemu:?}");
                assert!(qemu.version.starts_with(|c: char| c.is_ascii_digit()), "{qemu:?}");
            }
            Err(error) => assert_eq!(error, QemuError::NotInstalled),
        }
    }
}
