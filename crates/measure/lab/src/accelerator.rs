//! Starting programs under the socket accelerator: where its library is, and the environment
//! variables that it reads.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use nm_model::{Failure, FailureKind};
use nm_ring::variables;

/// File name of the accelerator's library.
pub const LIBRARY: &str = "libnm_accel.so";

/// Folders that may contain it, relative to the folder of the executable: the same one (a build),
/// and the usual library folders of a package.
const BESIDE: &[&str] = &["", "../lib", "../lib/nearmetal", "../lib64", "../lib64/nearmetal"];

/// Further folders into which packages install it.
const FOLDERS: &[&str] = &["/usr/lib/nearmetal", "/usr/local/lib/nearmetal"];

/// Why the accelerator's library cannot be preloaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// None of these folders has it.
    #[error("the accelerator's library {LIBRARY} is in none of the folders {}", listed(.0))]
    NotFound(Vec<PathBuf>),
    /// The loader cannot read its path in `LD_PRELOAD`.
    #[error("the loader cannot preload {}", .0.display())]
    NotPreloadable(PathBuf),
}

/// Folders in a sentence.
fn listed(folders: &[PathBuf]) -> String {
    let shown: Vec<String> = folders.iter().map(|path| path.display().to_string()).collect();
    shown.join(", ")
}

impl LibraryError {
    /// What to do.
    pub fn remedy(&self) -> &'static str {
        match self {
            LibraryError::NotFound(_) => {
                "install nearmetal's package, which has it, or build it by `cargo build --release \
                 -p nm-accel` and copy it into the first of them"
            }
            LibraryError::NotPreloadable(_) => {
                "move it to a folder without spaces and colons in its path"
            }
        }
    }
}

impl From<LibraryError> for Failure {
    fn from(error: LibraryError) -> Failure {
        Failure::new(FailureKind::NotAvailable, error.to_string()).hint(error.remedy())
    }
}

/// The folders that are searched, in order.
fn folders(program: &Path) -> Vec<PathBuf> {
    let folder = program.parent().unwrap_or(Path::new("."));
    let beside = |relative: &&str| match relative.strip_prefix("../") {
        // Shown as a person would write it.
        Some(rest) => folder.parent().unwrap_or(&folder.join("..")).join(rest),
        None => folder.to_path_buf(),
    };
    BESIDE.iter().map(beside).chain(FOLDERS.iter().map(PathBuf::from)).collect()
}

/// The accelerator's library for the executable `program`.
///
/// # Errors
/// If it is not found, or is in a folder from which the loader cannot preload it.
pub fn library(program: &Path) -> Result<PathBuf, LibraryError> {
    let folders = folders(program);
    let found = folders.iter().map(|folder| folder.join(LIBRARY)).find(|path| path.is_file());
    let Some(found) = found else { return Err(LibraryError::NotFound(folders)) };
    let path = found.canonicalize().unwrap_or(found);
    // ld.so(8): the paths in LD_PRELOAD are separated by spaces and colons, which cannot be
    // escaped.
    match path.to_string_lossy().contains([' ', ':']) {
        true => Err(LibraryError::NotPreloadable(path)),
        false => Ok(path),
    }
}

/// Settings of the accelerator for one program. For those that are absent the library has defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Longest spin before a sleep, µs.
    pub spin_us: Option<u32>,
    /// Data calls of a connection before its ends look for each other.
    pub after_calls: Option<u32>,
    /// Folder for the handshakes of ends in different network namespaces, accessible to this user
    /// only.
    pub share: Option<PathBuf>,
    /// Id of a group whose members may share memory.
    pub group: Option<u32>,
    /// Socket that receives the program's ledgers.
    pub report: Option<PathBuf>,
    /// Most connections of a process in shared memory.
    pub connections_max: Option<u32>,
    /// Rules in the library's compact form.
    pub policy: Option<String>,
}

impl Settings {
    /// Makes `command` start under the accelerator. Libraries that are preloaded already are kept,
    /// after it.
    pub fn apply(&self, command: &mut Command, library: &Path) {
        command.env("LD_PRELOAD", preload(library, std::env::var_os("LD_PRELOAD").as_deref()));
        let number = |value: Option<u32>| value.map(|value| OsString::from(value.to_string()));
        let path = |value: &Option<PathBuf>| value.clone().map(PathBuf::into_os_string);
        let values = [
            (&variables::SPIN_US, number(self.spin_us)),
            (&variables::AFTER, number(self.after_calls)),
            (&variables::MAX, number(self.connections_max)),
            (&variables::SHARE, path(&self.share)),
            (&variables::GROUP, number(self.group)),
            (&variables::REPORT, path(&self.report)),
            (&variables::POLICY, self.policy.clone().map(OsString::from)),
        ];
        for (variable, value) in values {
            if let Some(value) = value {
                command.env(variable.name(), value);
            }
        }
    }
}

/// The value of `LD_PRELOAD` with `library` in front, once.
fn preload(library: &Path, previous: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_os_string();
    let previous = previous.map(OsStr::to_string_lossy).unwrap_or_default();
    for name in previous.split([' ', ':']).filter(|name| !name.is_empty()) {
        if Path::new(name) != library {
            value.push(":");
            value.push(name);
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_is_found_beside_program_and_in_package_folders() {
        let root = std::env::temp_dir().join(format!("nm-lab-library-{}", std::process::id()));
        for (folder, name) in [("bin", LIBRARY), ("lib/nearmetal", LIBRARY), ("a b", LIBRARY)] {
            std::fs::create_dir_all(root.join("bin")).unwrap();
            std::fs::create_dir_all(root.join(folder)).unwrap();
            std::fs::write(root.join(folder).join(name), "").unwrap();
            let program = match folder {
                "a b" => root.join("a b/nearmetal"),
                _ => root.join("bin/nearmetal"),
            };
            match library(&program) {
                Ok(found) => assert_eq!(found, root.join(folder).join(name)),
                Err(error) => {
                    assert_eq!(folder, "a b");
                    assert!(error.to_string().contains("cannot preload"), "{error}");
                }
            }
            std::fs::remove_dir_all(&root).unwrap();
        }
        let error = library(Path::new("/nothing/of/this/name/nearmetal")).unwrap_err();
        let failure = Failure::from(error);
        let places = "libnm_accel.so is in none of the folders /nothing/of/this/name, \
                      /nothing/of/this/lib, ";
        assert!(failure.message.contains(places), "{failure}");
        assert_eq!(failure.kind, FailureKind::NotAvailable);
    }

    #[test]
    fn preloaded_libraries_are_kept_after_the_accelerator() {
        let library = Path::new("/usr/lib/nearmetal/libnm_accel.so");
        let text = |previous: Option<&str>| preload(library, previous.map(OsStr::new));
        assert_eq!(text(None), "/usr/lib/nearmetal/libnm_accel.so");
        assert_eq!(text(Some("a.so b.so")), "/usr/lib/nearmetal/libnm_accel.so:a.so:b.so");
        let repeated = "x.so:/usr/lib/nearmetal/libnm_accel.so";
        assert_eq!(text(Some(repeated)), "/usr/lib/nearmetal/libnm_accel.so:x.so");
    }

    #[test]
    fn only_given_settings_become_variables() {
        let mut command = Command::new("true");
        let settings = Settings { spin_us: Some(0), ..Settings::default() };
        settings.apply(&mut command, Path::new("/lib/x.so"));
        let names: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
        assert_eq!(names, ["LD_PRELOAD", "NEARMETAL_ACCEL_SPIN_US"]);
    }
}
