//! CPUs that a user names, and that a machine must have.

use anyhow::Result;
use nm_sys::cpu_list;

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
