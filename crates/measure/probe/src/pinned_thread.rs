//! The threads that measure: each pinned to its CPU and watched.

use std::thread;

use nm_model::agent::Task;
use nm_model::probe::Side;
use nm_sys::cpu;

use crate::error::ProbeError;
use crate::placement::PlacementWatch;

/// A measuring thread and its CPU.
#[derive(Debug, Clone)]
pub struct PinnedThread {
    /// Which end.
    pub side: Side,
    /// Which thread: `pinger`, `ponger`, `sender 0`, …
    pub name: String,
    /// CPU that it is pinned to; free to move if absent.
    pub cpu: Option<u32>,
}

impl PinnedThread {
    /// The measuring thread with this index: CPUs are assigned round robin in the task's order.
    pub fn of(task: &Task, side: Side, name: impl Into<String>, index: usize) -> PinnedThread {
        let cpu = match task.cpus.len() {
            0 => None,
            count => Some(task.cpus[index % count]),
        };
        PinnedThread { side, name: name.into(), cpu }
    }

    /// Pins the current thread to the CPU.
    ///
    /// # Errors
    /// [`ProbeError::PinThread`] if the process may not use it.
    pub fn pin_current(&self) -> Result<(), ProbeError> {
        let Some(cpu) = self.cpu else { return Ok(()) };
        cpu::pin_current_thread(cpu).map_err(|source| ProbeError::PinThread {
            side: self.side,
            thread: self.name.clone(),
            cpu,
            allowed: cpu::allowed(),
            source,
        })
    }

    /// Begins to watch the current thread, which is this one.
    pub fn watch(&self) -> PlacementWatch {
        PlacementWatch::start(self.side, self.name.clone(), self.cpu)
    }

    /// Runs `work` on a new pinned thread, so that the caller's thread keeps its CPUs.
    ///
    /// # Errors
    /// Those of `work`, of pinning, and of starting a thread.
    pub fn run<R: Send>(
        &self,
        work: impl FnOnce() -> Result<R, ProbeError> + Send,
    ) -> Result<R, ProbeError> {
        thread::scope(|scope| {
            let handle = thread::Builder::new()
                .name(self.name.clone())
                .spawn_scoped(scope, || {
                    self.pin_current()?;
                    work()
                })
                .map_err(ProbeError::SpawnThread)?;
            handle.join().unwrap_or_else(|_| Err(ProbeError::Panicked(self.name.clone())))
        })
    }
}
