//! Programs that refuse to run as root: they and their clients run as nobody then, from copies of
//! our files that nobody may read.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::Way;

/// Debian's user and group of least rights.
const NOBODY: u32 = 65534;

/// Whether this test runs as root.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// The user of programs that refuse root: none where the test's own user will do.
#[derive(Clone, Copy, Debug)]
pub struct User(Option<u32>);

impl User {
    pub fn not_root() -> User {
        User(is_root().then_some(NOBODY))
    }

    /// `command` as this user, in `folder`.
    pub fn of<'a>(self, command: &'a mut Command, folder: &Path) -> &'a mut Command {
        if let User(Some(user)) = self {
            command.uid(user).gid(user);
        }
        command.current_dir(folder)
    }

    /// Gives a folder to this user; others may read it.
    pub fn own(self, folder: &Path) {
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).unwrap();
        if let User(Some(user)) = self {
            chown(folder, Some(user), Some(user)).unwrap();
        }
    }
}

impl Way {
    /// As [`Way::server`], from copies of our own files in `folder`, which others may read.
    pub fn server_from(self, program: &Path, folder: &Path) -> Command {
        readable(self.server(program), folder)
    }

    /// As [`Way::client`], from such copies.
    pub fn client_from(self, program: &Path, folder: &Path) -> Command {
        readable(self.client(program), folder)
    }
}

/// The same command with our binary, if it is that, and its library copied into `folder`.
fn readable(command: Command, folder: &Path) -> Command {
    let own = Path::new(crate::support::BINARY);
    if command.get_program() != own.as_os_str() {
        return command;
    }
    let copy = |name: &std::ffi::OsStr| {
        let to = folder.join(name);
        if !to.exists() {
            crate::support::copy_program(own.with_file_name(name), &to);
        }
        to
    };
    copy("libnm_accel.so".as_ref());
    let mut moved = Command::new(copy(own.file_name().unwrap()));
    moved.args(command.get_args());
    moved
}
