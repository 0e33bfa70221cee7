//! What the first process of a virtual machine does: mounts, kernel modules, host name, power.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::mount::MountFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::system::RebootCommand;

/// `int mount(...)`, mount(2)—Mounts a file system of the kernel, such as `proc`, on `target`,
/// which is made if it is not there. One that is mounted there already is left as it is.
///
/// # Errors
/// Those of the system call, such as that the kernel has no such file system.
pub fn mount(kind: &str, target: &Path) -> io::Result<()> {
    fs::create_dir_all(target)?;
    match rustix::mount::mount(kind, target, kind, MountFlags::empty(), None::<&CStr>) {
        Ok(()) | Err(rustix::io::Errno::BUSY) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// `int finit_module(int fd, const char *args, int flags)`, finit_module(2)—Loads the module in
/// `file`. One that the kernel has already is left as it is.
///
/// # Errors
/// Those of the system call: `ENOENT` for a symbol that no loaded module has, `ENOEXEC` for a
/// module of another kernel.
pub fn load_module(file: &File) -> io::Result<()> {
    match rustix::system::finit_module(file, c"", 0) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Names the machine, sethostname(2).
///
/// # Errors
/// Without `CAP_SYS_ADMIN`.
pub fn set_host_name(name: &str) -> io::Result<()> {
    Ok(rustix::system::sethostname(name.as_bytes())?)
}

/// Allows this process as many open files as the kernel allows any, and any amount of locked
/// memory.
///
/// # Errors
/// Without `CAP_SYS_RESOURCE`.
pub fn raise_limits() -> io::Result<()> {
    let unlimited = Rlimit { current: None, maximum: None };
    setrlimit(Resource::Memlock, unlimited)?;
    let files = getrlimit(Resource::Nofile);
    let most = fs::read_to_string("/proc/sys/fs/nr_open").ok();
    let most = most.and_then(|text| text.trim().parse().ok()).or(files.maximum);
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })?;
    Ok(())
}

/// Switches the machine off, reboot(2). Returns only if the kernel refuses.
pub fn power_off() -> io::Error {
    rustix::fs::sync();
    match rustix::system::reboot(RebootCommand::PowerOff) {
        Ok(()) => io::Error::other("the machine is still on"),
        Err(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_no_module() {
        // Without the capability it is EPERM, with it ENOEXEC; never success.
        let error = load_module(&File::open("/proc/self/exe").unwrap()).unwrap_err();
        assert!(error.raw_os_error().is_some(), "{error}");
    }

    #[test]
    fn unknown_file_system_is_an_error_and_leaves_its_folder() {
        let target = std::env::temp_dir().join(format!("nm-sys-mount-{}", std::process::id()));
        assert!(mount("nearmetal-none", &target).is_err());
        assert!(target.is_dir());
        fs::remove_dir(&target).unwrap();
    }
}
