//! Launchers: programs and preloaded libraries that replace the sockets of an agent.

use std::path::{Path, PathBuf};
use std::process::Command;

use nm_model::{Failure, FailureKind, Launcher};

use crate::accelerator::{self, LibraryError};

/// Libraries to preload: libvma, and XLIO, its successor.
const VMA_LIBRARIES: &[&str] = &["libvma.so", "libxlio.so"];

/// Folders into which packages install libraries.
const LIBRARY_FOLDERS: &[&str] = &[
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];

/// Why a launcher cannot be used here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LauncherUnavailable {
    /// It is not installed.
    #[error("{name} is not installed; {remedy}")]
    NotInstalled {
        /// Name of the launcher's program or library.
        name: &'static str,
        /// How to get it, as a clause.
        remedy: &'static str,
    },
    /// Nothing can be preloaded into agents of this program.
    #[error(
        "this nearmetal is linked statically, so no library can be preloaded into it; build it \
         with `cargo build --release`"
    )]
    StaticProgram,
    /// The accelerator's library cannot be preloaded.
    #[error("{_0}; {remedy}", remedy = _0.remedy())]
    Library(#[from] LibraryError),
}

impl From<LauncherUnavailable> for Failure {
    fn from(reason: LauncherUnavailable) -> Failure {
        Failure::new(FailureKind::NotAvailable, reason.to_string())
    }
}

/// The command that starts `program` under `launcher`, without arguments. Accelerated agents in
/// different namespaces use `shared_folder` for their handshakes.
///
/// # Errors
/// If the launcher is not available.
pub fn command(
    launcher: Launcher,
    program: &Path,
    shared_folder: Option<&Path>,
) -> Result<Command, Failure> {
    if let Some(reason) = unavailable_reason(launcher) {
        return Err(reason.into());
    }
    let mut command = match launcher {
        Launcher::Onload => {
            let mut command = Command::new("onload");
            command.arg("--profile=latency").arg(program);
            command
        }
        Launcher::Smc => {
            let mut command = Command::new("smc_run");
            command.arg(program);
            command
        }
        Launcher::Vma | Launcher::Accel => Command::new(program),
    };
    match launcher {
        Launcher::Accel => {
            let share = shared_folder.map(Path::to_path_buf);
            let settings = accelerator::Settings { share, ..accelerator::Settings::default() };
            settings.apply(&mut command, &accelerator::library(program)?);
        }
        Launcher::Vma => {
            if let Some(library) = vma_library() {
                command.env("LD_PRELOAD", library);
            }
        }
        Launcher::Onload | Launcher::Smc => {}
    }
    Ok(command)
}

/// Why a launcher cannot be used here; none if it can.
pub fn unavailable_reason(launcher: Launcher) -> Option<LauncherUnavailable> {
    let (is_installed, name, remedy) = match launcher {
        Launcher::Accel => return accelerator_unavailable_reason(),
        Launcher::Onload => {
            (in_path("onload").is_some(), "onload", "it comes with OpenOnload and AMD's adapters")
        }
        Launcher::Smc => (in_path("smc_run").is_some(), "smc_run", "install the package smc-tools"),
        Launcher::Vma => (vma_library().is_some(), "libvma", "install the package libvma, or XLIO"),
    };
    (!is_installed).then_some(LauncherUnavailable::NotInstalled { name, remedy })
}

/// Why agents of this program cannot be accelerated.
fn accelerator_unavailable_reason() -> Option<LauncherUnavailable> {
    if cfg!(any(target_env = "musl", target_feature = "crt-static")) {
        return Some(LauncherUnavailable::StaticProgram);
    }
    let program = nm_sys::process::own_program().ok()?;
    accelerator::library(&program).err().map(LauncherUnavailable::Library)
}

/// The first executable file `name` in the folders of `PATH`.
pub(crate) fn in_path(name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| {
        file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    })
}

fn vma_library() -> Option<PathBuf> {
    LIBRARY_FOLDERS
        .iter()
        .flat_map(|folder| VMA_LIBRARIES.iter().map(move |name| Path::new(folder).join(name)))
        .find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_launcher_is_reported() {
        for &launcher in Launcher::ALL {
            match unavailable_reason(launcher) {
                None => {
                    let program = std::env::current_exe().unwrap();
                    assert!(command(launcher, &program, None).is_ok());
                }
                Some(reason) => {
                    let reason = reason.to_string();
                    assert!(
                        reason.contains("is not installed") || reason.contains("libnm_accel.so"),
                        "{reason}"
                    );
                    let failure = command(launcher, Path::new("/bin/true"), None).unwrap_err();
                    assert_eq!(failure.kind, FailureKind::NotAvailable);
                }
            }
        }
    }

    #[test]
    fn programs_are_found_in_path() {
        assert!(in_path("sh").is_some());
        assert_eq!(in_path("no-program-of-this-name"), None);
    }
}
