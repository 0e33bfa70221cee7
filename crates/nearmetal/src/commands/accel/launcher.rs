//! Programs that start another program in a way in which the accelerator's library is lost. They do
//! so by a cleared environment, in another root, or by a service.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Why the program behind a launcher does not get the library, as a clause that follows the
/// launcher's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// It takes `LD_PRELOAD` out of the environment.
    #[error("starts its program without LD_PRELOAD")]
    Environment,
    /// The library's path does not exist in the new root.
    #[error("changes the root to {}, in which the accelerator's library is not at {}",
        .root.display(), .library.display())]
    Root {
        /// The new root.
        root: PathBuf,
        /// Path of the library.
        library: PathBuf,
    },
    /// A service starts the program, with an environment of its own.
    #[error("has its program started by a service, which does not pass the environment on")]
    Service,
}

impl Loss {
    /// What to do.
    pub fn remedy(&self) -> String {
        match self {
            Loss::Environment => {
                "put `nearmetal accel` between it and the program, or keep the variables"
                    .to_string()
            }
            Loss::Root { root, library } => {
                let place = library.strip_prefix("/").unwrap_or(library);
                format!("copy the library to {}", root.join(place).display())
            }
            Loss::Service => {
                "set LD_PRELOAD in the unit or container: see the guide bypass-services.md"
                    .to_string()
            }
        }
    }
}

/// What a launcher does.
#[derive(Debug, PartialEq, Eq)]
pub struct Launch<'a> {
    /// Why the program does not get the library.
    pub loss: Option<Loss>,
    /// The program that it starts, with its arguments; empty if that is not known.
    pub program: &'a [OsString],
}

/// What the command in `words` does if it is a launcher that is known.
pub fn launch<'a>(words: &'a [OsString], library: Option<&Path>) -> Option<Launch<'a>> {
    let (name, arguments) = words.split_first()?;
    let name = Path::new(name).file_name()?.to_str()?;
    let lost = |loss| Some(Launch { loss: Some(loss), program: &[] });
    match name {
        "env" => Some(of_env(arguments)),
        "sudo" | "doas" | "pkexec" => lost(Loss::Environment),
        "docker" | "podman" | "nerdctl" | "kubectl" => lost(Loss::Service),
        "systemd-run" if !arguments.iter().any(|word| word == "--scope") => lost(Loss::Service),
        "chroot" => {
            let root = arguments.iter().find(|word| !word.as_bytes().starts_with(b"-"))?;
            let (root, library) = (PathBuf::from(root), library?.to_path_buf());
            let inside = root.join(library.strip_prefix("/").unwrap_or(&library));
            let loss = (!inside.exists()).then_some(Loss::Root { root, library });
            Some(Launch { loss, program: &[] })
        }
        _ => None,
    }
}

/// `env`: which variables it removes, and the program behind its options.
fn of_env(arguments: &[OsString]) -> Launch<'_> {
    const PRELOAD: &str = "LD_PRELOAD";
    let mut is_lost = false;
    let mut idx = 0;
    while let Some(word) = arguments.get(idx).map(|word| word.to_string_lossy()) {
        let next = || arguments.get(idx + 1).map(OsString::as_os_str);
        let (takes_next, is_last) = match &*word {
            "-" | "-i" | "--ignore-environment" => {
                is_lost = true;
                (false, false)
            }
            "-u" | "--unset" => {
                is_lost |= next() == Some(OsStr::new(PRELOAD));
                (true, false)
            }
            "-C" | "--chdir" => (true, false),
            "--" => (false, true),
            option if option.starts_with('-') => {
                let unset = option.strip_prefix("--unset=").or(option.strip_prefix("-u"));
                is_lost |= unset == Some(PRELOAD);
                (false, false)
            }
            pair if pair.contains('=') => {
                is_lost &= !pair.starts_with("LD_PRELOAD=");
                (false, false)
            }
            _ => break,
        };
        idx += 1 + usize::from(takes_next);
        if is_last {
            break;
        }
    }
    let program = arguments.get(idx..).unwrap_or_default();
    Launch { loss: is_lost.then_some(Loss::Environment), program }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn env_is_read_with_its_options() {
        for (text, is_lost, program) in [
            ("env A=b redis -p 1", false, "redis -p 1"),
            ("/usr/bin/env -i PATH=/bin redis", true, "redis"),
            ("env - redis", true, "redis"),
            ("env -u LD_PRELOAD -- redis", true, "redis"),
            ("env --unset=LD_PRELOAD redis", true, "redis"),
            ("env -u HOME redis -i", false, "redis -i"),
            ("env -i LD_PRELOAD=/x.so redis", false, "redis"),
        ] {
            let words_of_text = words(text);
            let found = launch(&words_of_text, None).unwrap();
            assert_eq!(found.loss.is_some(), is_lost, "{text}");
            assert_eq!(found.program, words(program), "{text}");
        }
    }

    #[test]
    fn other_launchers_are_known_by_name() {
        let root = tempfile::tempdir().unwrap();
        let library = Path::new("/lib/libnm_accel.so");
        let loss = |text: &str| launch(&words(text), Some(library)).map(|found| found.loss);
        assert_eq!(loss("sudo -E redis"), Some(Some(Loss::Environment)));
        assert_eq!(loss("docker run redis"), Some(Some(Loss::Service)));
        assert_eq!(loss("systemd-run --scope redis"), None);
        assert_eq!(loss("redis env -i"), None);
        let chroot = format!("chroot --groups=x {} redis", root.path().display());
        let found = loss(&chroot).unwrap().unwrap();
        assert!(found.to_string().contains("is not at /lib/libnm_accel.so"), "{found}");
        assert!(found.remedy().ends_with("/lib/libnm_accel.so"), "{}", found.remedy());
        std::fs::create_dir(root.path().join("lib")).unwrap();
        std::fs::write(root.path().join("lib/libnm_accel.so"), "").unwrap();
        assert_eq!(loss(&chroot), Some(None));
    }
}
