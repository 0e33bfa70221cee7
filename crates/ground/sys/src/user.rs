//! Another user for this process: looked up in the files of `/etc`, and taken for good.

use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use thiserror::Error;

use crate::text_file;

/// Bytes of a file of users or groups.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// A user, with the groups that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    name: String,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// Why no user is found.
#[derive(Debug, Error)]
pub enum UserError {
    /// A file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is none of this name.
    #[error("there is no user `{0}` in /etc/passwd")]
    Unknown(String),
    /// It is root.
    #[error("`{0}` has all rights of root: name a user without")]
    IsRoot(String),
}

impl User {
    /// Looks for a user of this machine.
    ///
    /// # Errors
    /// If there is none of this name, or it is root.
    pub fn named(name: &str) -> Result<User, UserError> {
        let read = |path: &'static str| {
            let path = Path::new(path);
            text_file::read(path, FILE_BYTES_MAX)
                .map_err(|source| UserError::Read { path: path.to_path_buf(), source })
        };
        let user = found(name, &read("/etc/passwd")?, &read("/etc/group")?);
        let user = user.ok_or_else(|| UserError::Unknown(name.to_string()))?;
        if user.uid == 0 { Err(UserError::IsRoot(name.to_string())) } else { Ok(user) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether this process may become this user: it is root, or this user already.
    pub fn is_possible(&self) -> bool {
        geteuid().is_root() || geteuid().as_raw() == self.uid
    }

    /// Makes a folder of this user, with those above it, if it is not there. One that is there
    /// stays whose it is: what others may replace by a link is not given away.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn make_folder(&self, folder: &Path) -> io::Result<()> {
        if folder.is_dir() {
            return Ok(());
        }
        if let Some(above) = folder.parent() {
            std::fs::create_dir_all(above)?;
        }
        std::fs::create_dir(folder)?;
        std::os::unix::fs::lchown(folder, Some(self.uid), Some(self.gid))
    }

    /// Makes this process run as the user and in its groups, without capabilities and without a way
    /// to get any: no_new_privs. Its children inherit that. To be called before the process has
    /// another thread, because the kernel keeps all this for each thread.
    ///
    /// # Errors
    /// Those of the system calls. The process must not go on then.
    pub fn become_it(&self) -> io::Result<()> {
        if geteuid().is_root() {
            let groups: Vec<Gid> = self.groups.iter().map(|group| Gid::from_raw(*group)).collect();
            let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
            forget_bounding_set()?;
            rustix::thread::set_thread_groups(&groups)?;
            rustix::thread::set_thread_res_gid(gid, gid, gid)?;
            rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        }
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        // What is not in the permitted and the inheritable set leaves the ambient set.
        rustix::thread::set_capabilities(None, sets)?;
        Ok(rustix::thread::set_no_new_privs(true)?)
    }
}

/// Those that the kernel knows, of which there may be more than this program knows.
fn forget_bounding_set() -> io::Result<()> {
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The user of this name in a file of users, with its groups in a file of groups.
fn found(name: &str, users: &str, groups: &str) -> Option<User> {
    let fields = |line: &'_ str| line.split(':').map(str::to_string).collect::<Vec<String>>();
    let is_named = |fields: &Vec<String>| fields.len() >= 4 && fields[0] == name;
    let user = users.lines().map(fields).find(is_named)?;
    let (uid, gid) = (user[2].parse().ok()?, user[3].parse().ok()?);
    let has_it = |members: &str| members.split(',').any(|member| member.trim() == name);
    let group = |line: &str| {
        let fields = fields(line);
        fields.get(3).is_some_and(|members| has_it(members)).then(|| fields[2].parse().ok())?
    };
    let mut groups: Vec<u32> = groups.lines().filter_map(group).collect();
    groups.push(gid);
    groups.sort_unstable();
    groups.dedup();
    Some(User { name: name.to_string(), uid, gid, groups })
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0:root:/root:/bin/sh\n# note\ndesk:x:1200:1300::/:/bin/false\n\
                         broken:x:many:1::/:\n";
    const GROUPS: &str = "root:x:0:\nmarket:x:1301:other,desk\ndesk:x:1300:\nfew:x:1302:desks\n";

    #[test]
    fn a_user_is_found_with_its_groups() {
        let user = found("desk", USERS, GROUPS).unwrap();
        assert_eq!((user.uid, user.gid, user.groups), (1200, 1300, vec![1300, 1301]));
        for name in ["des", "", "# note", "broken", "market"] {
            assert_eq!(found(name, USERS, GROUPS), None, "{name}");
        }
    }

    #[test]
    fn nobody_becomes_root_or_one_that_is_not_there() {
        let why = |name| User::named(name).unwrap_err().to_string();
        assert_eq!(why("root"), "`root` has all rights of root: name a user without");
        assert_eq!(why("no such"), "there is no user `no such` in /etc/passwd");
    }
}
