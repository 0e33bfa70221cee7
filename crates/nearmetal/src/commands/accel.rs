//! `nearmetal accel`: runs a program under the socket accelerator, and tells what became of its
//! connections.

mod collector;
mod policy;
mod program;
mod status;
mod supervise;
mod view;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use nm_lab::accelerator::{self, SHARE_BYTES_MAX, Settings};

use self::program::Obstacle;
use crate::cli::{AccelArgs, AccelCommand, AccelRunArgs};
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(args: &AccelArgs) -> Result<Exit> {
    match &args.command {
        Some(AccelCommand::Status(format)) => status::run(format.format),
        None => start(&args.run),
    }
}

/// Becomes the program, or stays in front of it for the report.
fn start(args: &AccelRunArgs) -> Result<Exit> {
    let Some((name, words)) = args.program.split_first() else {
        return Err(Stop::usage("name a program; see --help"));
    };
    let library = accelerator::library(&std::env::current_exe()?)?;
    let settings = settings(args)?;
    let path = program::find(name).map_err(|error| not_started(name, &error))?;
    let obstacle = program::obstacle(&path);
    if let Some(obstacle) = obstacle {
        let name = name.to_string_lossy();
        output::say(&format!("nearmetal: {name} {}: it runs on the kernel", obstacle.words()));
    }
    let mut command = Command::new(&path);
    command.arg0(name).args(words);
    // Another loader would refuse to start the program with a library that it cannot link. In all
    // other cases programs that this one starts may still be accelerated.
    let is_preloaded = obstacle != Some(Obstacle::OtherLoader);
    if args.stats {
        return supervise::run(command, settings, &library, is_preloaded, args.format.format);
    }
    if is_preloaded {
        settings.apply(&mut command, &library);
    }
    Err(not_started(name, &command.exec()))
}

/// That a program could not be started, with the exit code that a shell gives.
fn not_started(name: &OsStr, error: &io::Error) -> anyhow::Error {
    let name = name.to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound => {
            Stop::with(Exit::NOT_FOUND, format!("there is no program `{name}`"))
        }
        _ => Stop::with(Exit::NOT_EXECUTABLE, format!("cannot execute {name}: {error}")),
    }
}

fn settings(args: &AccelRunArgs) -> Result<Settings> {
    let group = args.group.as_deref().map(group).transpose()?;
    Ok(Settings {
        spin_us: args.spin_us,
        share: args.share.as_deref().map(|folder| share(folder, group)).transpose()?,
        group,
        policy: args.policy.as_deref().map(policy::load).transpose()?,
        ..Settings::default()
    })
}

/// A folder of this user alone, or of the group's members, made if it is not there, as a whole
/// path.
fn share(folder: &Path, group: Option<u32>) -> Result<PathBuf> {
    let shown = folder.display();
    let wrong = |what: String| Stop::usage(format!("--share {shown}: {what}"));
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(wrong(format!("cannot make it: {error}")));
        }
        _ => {}
    }
    let meta = fs::metadata(folder).map_err(|error| wrong(error.to_string()))?;
    if !meta.is_dir() {
        return Err(wrong("is no folder".to_string()));
    }
    let (is_groups, others) = match group == Some(meta.gid()) && meta.mode() & 0o070 == 0o070 {
        true => (true, 0o007),
        false => (false, 0o077),
    };
    if !is_groups && meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(wrong("belongs to another user".to_string()));
    }
    if meta.mode() & others != 0 {
        return Err(wrong(format!("is open to others; say `chmod 700 {shown}`")));
    }
    let path = folder.canonicalize().map_err(|error| wrong(error.to_string()))?;
    if path.as_os_str().len() > SHARE_BYTES_MAX {
        return Err(wrong(format!("is longer than {SHARE_BYTES_MAX} bytes as a whole path")));
    }
    Ok(path)
}

/// The number of a group, by name or number.
fn group(name: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let found = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    found.ok_or_else(|| {
        Stop::usage(format!("there is no group `{name}` in /etc/group; its number will do as well"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_share_is_private() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("share");
        assert_eq!(share(&folder, None).unwrap(), folder.canonicalize().unwrap());
        assert_eq!(share(&folder, None).unwrap(), folder.canonicalize().unwrap(), "again");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o750)).unwrap();
        assert!(share(&folder, None).unwrap_err().to_string().contains("chmod 700"));
        let own = fs::metadata(&folder).unwrap().gid();
        assert!(share(&folder, Some(own)).is_err(), "the group may not write");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(share(&folder, Some(own)).is_ok());
        assert!(share(&folder, Some(own + 1)).is_err());
        let long = root.path().join("l".repeat(80));
        assert!(share(&long, None).unwrap_err().to_string().contains("longer than"));
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(share(&file, None).unwrap_err().to_string().contains("no folder"));
        assert!(
            share(&root.path().join("a/b"), None).unwrap_err().to_string().contains("cannot make")
        );
    }

    #[test]
    fn groups_have_names_and_numbers() {
        assert_eq!(group("4711").unwrap(), 4711);
        assert_eq!(group("root").unwrap(), 0);
        let error = group("no-group-of-this-name").unwrap_err().to_string();
        assert!(error.contains("no-group-of-this-name"), "{error}");
    }
}
