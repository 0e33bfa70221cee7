//! Namespaces: starting a program in a network namespace of its own, as root or within a user
//! namespace, and entering the namespaces of a process.
//!
//! The namespaces have no names. They exist as long as a process is in them.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// How a program gets a network namespace of its own.
#[derive(Debug)]
pub enum Isolation {
    /// Directly, which requires `CAP_SYS_ADMIN`.
    Network,
    /// Within a fresh user namespace in which the own user and group are root.
    UserAndNetwork,
    /// Within the user namespace of a running process, so that one helper process may configure
    /// both.
    JoinUser(Namespace),
    /// No namespace of its own: that of a running process, within its user namespace if one is
    /// given.
    Join {
        /// User namespace.
        user: Option<Namespace>,
        /// Network namespace.
        network: Namespace,
    },
}

/// An open namespace.
#[derive(Debug)]
pub struct Namespace {
    file: OwnedFd,
    kind: LinkNameSpaceType,
}

impl Namespace {
    /// The user namespace of process `pid`.
    ///
    /// # Errors
    /// If there is no such process, or it belongs to another user.
    pub fn user_of(pid: u32) -> io::Result<Namespace> {
        Namespace::open(pid, "user", LinkNameSpaceType::User)
    }

    /// The network namespace of process `pid`.
    ///
    /// # Errors
    /// If there is no such process, or it belongs to another user.
    pub fn network_of(pid: u32) -> io::Result<Namespace> {
        Namespace::open(pid, "net", LinkNameSpaceType::Network)
    }

    fn open(pid: u32, name: &str, kind: LinkNameSpaceType) -> io::Result<Namespace> {
        let file = File::open(format!("/proc/{pid}/ns/{name}"))?.into();
        Ok(Namespace { file, kind })
    }

    /// Moves the calling thread into the namespace. `int setns(int fd, int nstype)`, setns(2).
    ///
    /// # Errors
    /// Permission; for a user namespace also if the process has more than one thread.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.file.as_fd(), Some(self.kind))?)
    }
}

impl std::os::fd::AsFd for Namespace {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Whether this process may make network namespaces without a user namespace: the effective
/// capabilities hold `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`, capabilities(7).
pub fn privileged() -> bool {
    use rustix::thread::CapabilitySet;
    let wanted = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(wanted))
}

/// Has the child of `command` enter namespaces before the program starts. If starting the command
/// succeeds, the child is in them.
pub fn isolate(command: &mut Command, isolation: Isolation) {
    // All allocations are made here, before the fork.
    let uid_map = map_line(rustix::process::geteuid().as_raw());
    let gid_map = map_line(rustix::process::getegid().as_raw());
    let deny = CString::from(c"deny");
    let enter = move || match &isolation {
        Isolation::Network => unshare(UnshareFlags::NEWNET),
        Isolation::UserAndNetwork => {
            unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET)?;
            // An ordinary user may write a group map only after giving up setgroups(2):
            // user_namespaces(7).
            write(c"/proc/self/setgroups", &deny)?;
            write(c"/proc/self/uid_map", &uid_map)?;
            write(c"/proc/self/gid_map", &gid_map)
        }
        Isolation::JoinUser(user) => {
            user.enter()?;
            unshare(UnshareFlags::NEWNET)
        }
        Isolation::Join { user, network } => {
            if let Some(user) = user {
                user.enter()?;
            }
            network.enter()
        }
    };
    // SAFETY: between fork and exec the closure makes system calls only and allocates nothing.
    unsafe { command.pre_exec(enter) };
}

/// `int unshare(int flags)`, unshare(2).
fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: unsharing a network or user namespace does not affect the open files or memory of
    // other threads.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

/// A line of a map file: root inside the namespace is `id` outside.
fn map_line(id: u32) -> CString {
    CString::new(format!("0 {id} 1")).unwrap_or_default()
}

/// Writes a file in one call, as the kernel requires for map files.
fn write(path: &std::ffi::CStr, text: &CString) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ChildProcess;
    use std::process::Stdio;

    fn network_inode(pid: &str) -> std::path::PathBuf {
        std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap()
    }

    fn holder(isolation: Isolation) -> io::Result<ChildProcess> {
        let mut command = Command::new("sleep");
        command.arg("1000").stdin(Stdio::null());
        isolate(&mut command, isolation);
        ChildProcess::spawn(command)
    }

    #[test]
    fn new_network_namespace_differs_from_ours() {
        let isolation = if privileged() { Isolation::Network } else { Isolation::UserAndNetwork };
        match holder(isolation) {
            Ok(process) => {
                assert_ne!(network_inode(&process.pid().to_string()), network_inode("self"));
            }
            // A kernel that forbids it must report an error, not start the program in our
            // namespace.
            Err(error) => assert!(
                matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSPC | libc::EACCES)),
                "{error}"
            ),
        }
    }

    #[test]
    fn second_process_shares_the_user_namespace_but_not_the_network() {
        let first = match holder(Isolation::UserAndNetwork) {
            Ok(first) => first,
            Err(error) => {
                assert!(
                    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSPC | libc::EACCES)),
                    "{error}"
                );
                return;
            }
        };
        let user = Namespace::user_of(first.pid()).unwrap();
        let second = holder(Isolation::JoinUser(user)).unwrap();
        let link =
            |pid: u32, kind: &str| std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
        assert_eq!(link(first.pid(), "user"), link(second.pid(), "user"));
        assert_ne!(link(first.pid(), "net"), link(second.pid(), "net"));
        let map = std::fs::read_to_string(format!("/proc/{}/uid_map", second.pid())).unwrap();
        let uid = rustix::process::geteuid().as_raw().to_string();
        assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["0", &uid, "1"]);
    }

    #[test]
    fn process_joins_the_network_of_another_one() {
        let is_root = privileged();
        let own = if is_root { Isolation::Network } else { Isolation::UserAndNetwork };
        // A kernel that forbids namespaces: tested above.
        let Ok(first) = holder(own) else { return };
        let user = (!is_root).then(|| Namespace::user_of(first.pid()).unwrap());
        let network = Namespace::network_of(first.pid()).unwrap();
        let second = holder(Isolation::Join { user, network }).unwrap();
        let inode = |process: &ChildProcess| network_inode(&process.pid().to_string());
        assert_eq!(inode(&first), inode(&second));
        assert_ne!(inode(&first), network_inode("self"));
    }

    #[test]
    fn missing_process_has_no_namespace() {
        assert!(Namespace::network_of(u32::MAX).is_err());
    }
}
