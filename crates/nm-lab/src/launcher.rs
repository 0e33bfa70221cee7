//! Programs that are put in front of an agent and replace its sockets.

use std::path::{Path, PathBuf};
use std::process::Command;

use nm_model::{Failure, FailureKind, Launcher};

use crate::accelerator;

/// Preloading names of libvma and of XLIO, its successor.
const VMA_LIBRARIES: &[&str] = &["libvma.so", "libxlio.so"];

/// Where packages put libraries.
const LIBRARY_FOLDERS: &[&str] = &[
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];

/// The command that starts `program` under `launcher`, arguments to follow. Accelerated agents of
/// different namespaces meet in the folder `share`.
///
/// # Errors
/// If the launcher is not there.
pub fn command(
    launcher: Launcher,
    program: &Path,
    share: Option<&Path>,
) -> Result<Command, Failure> {
    if let Some(reason) = obstacle(launcher) {
        return Err(Failure::new(FailureKind::NotAvailable, reason));
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
            let share = share.map(Path::to_path_buf);
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

/// Why a launcher cannot be used here, if so.
pub fn obstacle(launcher: Launcher) -> Option<String> {
    let (found, name, get) = match launcher {
        Launcher::Accel => return accelerator_obstacle(),
        Launcher::Onload => {
            (in_path("onload").is_some(), "onload", "it comes with OpenOnload and AMD's adapters")
        }
        Launcher::Smc => (in_path("smc_run").is_some(), "smc_run", "install the package smc-tools"),
        Launcher::Vma => (vma_library().is_some(), "libvma", "install the package libvma, or XLIO"),
    };
    (!found).then(|| format!("{name} is not installed; {get}"))
}

/// Why agents of this very program cannot be accelerated.
fn accelerator_obstacle() -> Option<String> {
    if cfg!(any(target_env = "musl", target_feature = "crt-static")) {
        let reason = "this nearmetal is linked statically, so nothing can be put in front of it; \
                      build it with `cargo build --release`";
        return Some(reason.to_string());
    }
    let program = std::env::current_exe().ok()?;
    accelerator::library(&program).err().map(|failure| match failure.hint {
        Some(hint) => format!("{}; {hint}", failure.message),
        None => failure.message,
    })
}

/// The first executable file `name` on the search path.
fn in_path(name: &str) -> Option<PathBuf> {
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
    fn a_launcher_that_is_missing_says_so() {
        for &launcher in Launcher::ALL {
            match obstacle(launcher) {
                None => {
                    let program = std::env::current_exe().unwrap();
                    assert!(command(launcher, &program, None).is_ok());
                }
                Some(reason) => {
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
    fn programs_are_found_on_the_path() {
        assert!(in_path("sh").is_some());
        assert_eq!(in_path("no-program-of-this-name"), None);
    }
}
