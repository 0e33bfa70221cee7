//! CPUs that a user names, and that a machine must have.

use anyhow::Result;
use nm_sys::hostfiles::HostFiles;
use nm_sys::{cpu, cpu_list};

use crate::exit::Stop;

/// Refuses `--cpus` with a CPU that is not `online`; what cannot be read refuses nothing.
pub fn not_online(cpus: &[u32], online: Option<&[u32]>) -> Result<()> {
    let Some(online) = online else { return Ok(()) };
    match cpus.iter().find(|cpu| !online.contains(cpu)) {
        None => Ok(()),
        Some(cpu) => Err(Stop::usage(format!(
            "--cpus: CPU {cpu} is not online; the machine has CPUs {}",
            cpu_list::list(online)
        ))),
    }
}

/// Refuses `--cpus` with a CPU that this machine does not have, or that this process may not use.
///
/// # Errors
/// Usage, with the CPUs that there are.
pub fn not_usable(cpus: &[u32]) -> Result<()> {
    not_online(cpus, HostFiles::default().list("/sys/devices/system/cpu/online").as_deref())?;
    let allowed = cpu::allowed();
    match cpus.iter().find(|cpu| !allowed.is_empty() && !allowed.contains(cpu)) {
        None => Ok(()),
        Some(cpu) => Err(Stop::usage(format!(
            "--cpus: CPU {cpu} may not be used by this process; it may use CPUs {}",
            cpu_list::list(&allowed)
        ))),
    }
}
