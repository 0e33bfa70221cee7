//! `nearmetal accel`: runs a program under the socket accelerator, and reports how its connections
//! were carried.

mod collector;
mod explain;
mod history;
mod launcher;
mod namespaces;
mod policy;
mod profiles;
mod program;
mod row;
mod status;
mod summary;
mod supervise;
mod view;

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use nm_lab::accelerator::{self, Settings};
use nm_model::Failure;
use nm_ring::variables::{AFTER, MAX, Profile, SHARE_BYTES_MAX, SPIN_US};

pub use self::history::History;
pub use self::profiles::Profiles;
use self::program::NotAccelerated;
pub use self::status::Status;
pub use self::view::Report;
use crate::cli::accel::{AccelArgs, AccelCommand, AccelRunArgs};
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(args: &AccelArgs) -> Result<Exit> {
    match &args.command {
        Some(AccelCommand::Status(args)) => status::run(args),
        Some(AccelCommand::Explain(args)) => explain::run(args),
        Some(AccelCommand::Profiles(format)) => profiles::run(format.format),
        None => start(&args.run),
    }
}

/// Replaces this process by the program, or, for the report, stays its parent.
fn start(args: &AccelRunArgs) -> Result<Exit> {
    let Some((name, arguments)) = args.program.split_first() else {
        return Err(Stop::usage("name a program; see --help"));
    };
    let library = accelerator::library(&std::env::current_exe()?).map_err(Failure::from)?;
    profiles::check_environment().map_err(|mistake| Stop::usage(mistake.to_string()))?;
    let settings = settings(args)?;
    let path = program::find(name).map_err(|error| program::not_started(name, &error))?;
    let reason = program::not_accelerated(&path);
    if let Some(reason) = reason {
        let name = name.to_string_lossy();
        output::message(&format!("nearmetal: {name} {reason}: it runs on the kernel"));
    }
    let loss = launcher::launch(&args.program, Some(&library)).and_then(|launch| launch.loss);
    let cause = loss.map(|loss| format!("{} {loss}; {}", name.to_string_lossy(), loss.remedy()));
    if let Some(cause) = &cause {
        output::message(&format!("nearmetal: {cause}"));
    }
    let mut command = Command::new(&path);
    command.arg0(name).args(arguments);
    let is_preloaded = !reason.is_some_and(NotAccelerated::refuses_library);
    if args.stats {
        let preloaded = is_preloaded.then_some(&*library);
        return supervise::run(command, settings, preloaded, cause, args.format.format);
    }
    if is_preloaded {
        settings.apply(&mut command, &library);
    }
    Err(program::not_started(name, &command.exec()))
}

fn settings(args: &AccelRunArgs) -> Result<Settings> {
    let group = args.group.as_deref().map(group_id).transpose()?;
    let profile = args.profile.as_deref().and_then(Profile::named);
    Ok(Settings {
        spin_us: args.spin_us.or_else(|| profiles::value(profile, &SPIN_US)),
        after_calls: profiles::value(profile, &AFTER),
        connections_max: args.connections_max.or_else(|| profiles::value(profile, &MAX)),
        share: args.share.as_deref().map(|folder| private_folder(folder, group)).transpose()?,
        group,
        policy: args.policy.as_deref().map(policy::load).transpose()?,
        ..Settings::default()
    })
}

/// The absolute path of the folder for `--share`. It is created if it does not exist, and must be
/// accessible to this user only, or to the members of `group` only.
fn private_folder(folder: &Path, group: Option<u32>) -> Result<PathBuf> {
    let shown = folder.display();
    let invalid = |what: String| Stop::usage(format!("--share {shown}: {what}"));
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(invalid(format!("cannot create it: {error}")));
        }
        _ => {}
    }
    // Not through a link: where all users may write, another one may have put it there.
    let meta = fs::symlink_metadata(folder).map_err(|error| invalid(error.to_string()))?;
    if !meta.is_dir() {
        return Err(invalid("it is not a folder itself".to_string()));
    }
    let (is_of_group, others) = match group == Some(meta.gid()) && meta.mode() & 0o070 == 0o070 {
        true => (true, 0o007),
        false => (false, 0o077),
    };
    if !is_of_group && meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(invalid("it belongs to another user".to_string()));
    }
    if meta.mode() & others != 0 {
        return Err(invalid(format!("others can access it; run `chmod 700 {shown}`")));
    }
    let path = folder.canonicalize().map_err(|error| invalid(error.to_string()))?;
    if path.as_os_str().len() > SHARE_BYTES_MAX {
        return Err(invalid(format!("its absolute path is longer than {SHARE_BYTES_MAX} bytes")));
    }
    Ok(path)
}

/// The id of a group that is given by name or by id.
fn group_id(name: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let found = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    found.ok_or_else(|| {
        Stop::usage(format!(
            "/etc/group has no group `{name}`; give an existing name or a group id"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn shared_folder_must_be_private() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("share");
        assert_eq!(private_folder(&folder, None).unwrap(), folder.canonicalize().unwrap());
        assert_eq!(private_folder(&folder, None).unwrap(), folder.canonicalize().unwrap(), "again");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o750)).unwrap();
        assert!(private_folder(&folder, None).unwrap_err().to_string().contains("chmod 700"));
        let own = fs::metadata(&folder).unwrap().gid();
        assert!(private_folder(&folder, Some(own)).is_err(), "the group has no write permission");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(private_folder(&folder, Some(own)).is_ok());
        assert!(private_folder(&folder, Some(own + 1)).is_err());
        let long = root.path().join("l".repeat(80));
        assert!(private_folder(&long, None).unwrap_err().to_string().contains("longer than"));
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        for other in [file, link] {
            let error = private_folder(&other, None).unwrap_err().to_string();
            assert!(error.contains("not a folder itself"), "{error}");
        }
        assert!(
            private_folder(&root.path().join("a/b"), None)
                .unwrap_err()
                .to_string()
                .contains("cannot create")
        );
    }

    #[test]
    fn groups_are_given_by_name_or_id() {
        assert_eq!(group_id("4711").unwrap(), 4711);
        assert_eq!(group_id("root").unwrap(), 0);
        let error = group_id("no-group-of-this-name").unwrap_err().to_string();
        assert!(error.contains("no-group-of-this-name"), "{error}");
    }
}
