//! The socket accelerator as seen from outside: where its library is, and what a command needs to
//! be started under it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use nm_model::{Failure, FailureKind};

/// File name of the accelerator's library.
pub const LIBRARY: &str = "libnm_accel.so";

/// Longest name of a folder to meet in, bytes: a socket's path has room for 107, and `/` and 32
/// digits follow.
pub const SHARE_BYTES_MAX: usize = 74;

/// Where it may lie, seen from the folder of the executable: beside it (a build), and in the usual
/// library folders of a package.
const BESIDE: &[&str] = &["", "../lib", "../lib/nearmetal", "../lib64", "../lib64/nearmetal"];

/// Where else packages put it.
const FOLDERS: &[&str] = &["/usr/lib/nearmetal", "/usr/local/lib/nearmetal"];

/// The accelerator's library for the executable `program`.
///
/// # Errors
/// If it is nowhere, or where the loader does not find it.
pub fn library(program: &Path) -> Result<PathBuf, Failure> {
    let folder = program.parent().unwrap_or(Path::new("."));
    let beside = BESIDE.iter().map(|place| folder.join(place));
    let found = beside
        .chain(FOLDERS.iter().map(PathBuf::from))
        .map(|place| place.join(LIBRARY))
        .find(|path| path.is_file());
    let Some(found) = found else {
        let message =
            format!("{LIBRARY} is neither beside {} nor in a library folder", program.display());
        return Err(Failure::new(FailureKind::NotAvailable, message)
            .hint("`cargo build --release` makes it; keep it in the folder of the executable"));
    };
    let path = found.canonicalize().unwrap_or(found);
    // ld.so(8): the names in LD_PRELOAD are separated by blanks and colons, and nothing escapes
    // them.
    if path.to_string_lossy().contains([' ', ':']) {
        let message = format!("the loader cannot preload {}", path.display());
        return Err(Failure::new(FailureKind::NotAvailable, message)
            .hint("put it into a folder without blanks and colons in its name"));
    }
    Ok(path)
}

/// What a program is accelerated with. What is absent is as the library has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Longest spin before a sleep, µs.
    pub spin_us: Option<u32>,
    /// Folder through which ends in different network namespaces meet: of this user alone.
    pub share: Option<PathBuf>,
    /// Number of a group whose members may share memory.
    pub group: Option<u32>,
    /// Socket that takes the program's ledgers.
    pub report: Option<PathBuf>,
    /// Rules in the library's compact form.
    pub policy: Option<String>,
}

impl Settings {
    /// Has `command` start under the accelerator. What is preloaded already stays, after it.
    pub fn apply(&self, command: &mut Command, library: &Path) {
        command.env("LD_PRELOAD", preload(library, std::env::var_os("LD_PRELOAD").as_deref()));
        let number = |value: Option<u32>| value.map(|value| OsString::from(value.to_string()));
        let path = |value: &Option<PathBuf>| value.clone().map(PathBuf::into_os_string);
        let variables = [
            ("NEARMETAL_ACCEL_SPIN_US", number(self.spin_us)),
            ("NEARMETAL_ACCEL_SHARE", path(&self.share)),
            ("NEARMETAL_ACCEL_GROUP", number(self.group)),
            ("NEARMETAL_ACCEL_REPORT", path(&self.report)),
            ("NEARMETAL_ACCEL_POLICY", self.policy.clone().map(OsString::from)),
        ];
        for (name, value) in variables {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
    }
}

/// The value of `LD_PRELOAD` with `library` in front, once.
fn preload(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_os_string();
    let before = before.map(OsStr::to_string_lossy).unwrap_or_default();
    for name in before.split([' ', ':']).filter(|name| !name.is_empty()) {
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
    fn the_library_is_found_beside_the_program_and_in_the_folders_of_a_package() {
        let root = std::env::temp_dir().join(format!("nm-lab-library-{}", std::process::id()));
        for (place, name) in [("bin", LIBRARY), ("lib/nearmetal", LIBRARY), ("a b", LIBRARY)] {
            std::fs::create_dir_all(root.join("bin")).unwrap();
            std::fs::create_dir_all(root.join(place)).unwrap();
            std::fs::write(root.join(place).join(name), "").unwrap();
            let program = match place {
                "a b" => root.join("a b/nearmetal"),
                _ => root.join("bin/nearmetal"),
            };
            match library(&program) {
                Ok(found) => assert_eq!(found, root.join(place).join(name)),
                Err(failure) => {
                    assert_eq!(place, "a b");
                    assert!(failure.message.contains("cannot preload"), "{failure}");
                }
            }
            std::fs::remove_dir_all(&root).unwrap();
        }
        let failure = library(Path::new("/nothing/of/this/name/nearmetal")).unwrap_err();
        assert!(failure.message.contains("libnm_accel.so is neither"), "{failure}");
        assert_eq!(failure.kind, FailureKind::NotAvailable);
    }

    #[test]
    fn what_was_preloaded_stays_behind_the_library() {
        let library = Path::new("/usr/lib/nearmetal/libnm_accel.so");
        let text = |before: Option<&str>| preload(library, before.map(OsStr::new));
        assert_eq!(text(None), "/usr/lib/nearmetal/libnm_accel.so");
        assert_eq!(text(Some("a.so b.so")), "/usr/lib/nearmetal/libnm_accel.so:a.so:b.so");
        let again = "x.so:/usr/lib/nearmetal/libnm_accel.so";
        assert_eq!(text(Some(again)), "/usr/lib/nearmetal/libnm_accel.so:x.so");
    }

    #[test]
    fn only_what_is_set_goes_into_the_environment() {
        let mut command = Command::new("true");
        let settings = Settings { spin_us: Some(0), ..Settings::default() };
        settings.apply(&mut command, Path::new("/lib/x.so"));
        let names: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
        assert_eq!(names, ["LD_PRELOAD", "NEARMETAL_ACCEL_SPIN_US"]);
    }
}
