//! Hot threads: each on its CPU, each with an account of what happened to it.

use std::thread;

use nm_model::agent::Task;
use nm_model::doubt::Doubt;
use nm_model::probe::Side;
use nm_model::result::Placement;
use nm_model::{Failure, FailureKind};
use nm_sys::cpu;

use crate::placement::PlacementWatch;

/// Where one hot thread sits.
#[derive(Debug, Clone)]
pub struct Seat {
    /// Which end.
    pub side: Side,
    /// Which thread: `pinger`, `ponger`, `sender 0`, …
    pub name: String,
    /// CPU that it is tied to; free if absent.
    pub cpu: Option<u32>,
}

/// A placement and what it gives reason to doubt.
pub type Account = (Placement, Vec<Doubt>);

impl Seat {
    /// The seat of the hot thread with this index: CPUs go round in the task's order.
    pub fn of(task: &Task, side: Side, name: impl Into<String>, index: usize) -> Seat {
        let cpu = match task.cpus.len() {
            0 => None,
            count => Some(task.cpus[index % count]),
        };
        Seat { side, name: name.into(), cpu }
    }

    /// Ties the current thread to the seat's CPU.
    ///
    /// # Errors
    /// [`FailureKind::BadRequest`] if the process may not use it.
    pub fn sit(&self) -> Result<(), Failure> {
        let Some(number) = self.cpu else { return Ok(()) };
        cpu::pin_current_thread(number).map_err(|error| {
            let what =
                format!("pinning the {}'s {} to CPU {number}: {error}", self.side, self.name);
            let allowed: Vec<String> = cpu::allowed().iter().map(u32::to_string).collect();
            Failure::new(FailureKind::BadRequest, what)
                .hint(format!("this process may use CPUs {}", allowed.join(",")))
        })
    }

    /// Begins to watch the current thread, which sits here.
    pub fn watch(&self) -> PlacementWatch {
        PlacementWatch::start(self.side, self.name.clone(), self.cpu)
    }
}

/// Runs `work` on a thread of its own that sits on `seat`, so that the caller's thread stays as
/// free as it was.
///
/// # Errors
/// Those of `work`, of pinning, and of starting a thread.
pub fn run<R: Send>(
    seat: &Seat,
    work: impl FnOnce() -> Result<R, Failure> + Send,
) -> Result<R, Failure> {
    thread::scope(|scope| {
        let handle = thread::Builder::new()
            .name(seat.name.clone())
            .spawn_scoped(scope, || {
                seat.sit()?;
                work()
            })
            .map_err(|error| no_thread(&error))?;
        handle.join().unwrap_or_else(|_| Err(panicked(&seat.name)))
    })
}

/// The failure to start a thread.
pub fn no_thread(error: &std::io::Error) -> Failure {
    Failure::new(FailureKind::System, format!("starting a thread: {error}"))
        .hint("look at the limits of processes and memory (`ulimit -a`, pids.max)")
}

/// The failure of a thread that ended by a mistake of ours.
pub fn panicked(name: &str) -> Failure {
    Failure::new(FailureKind::System, format!("the thread `{name}` ended by an internal error"))
        .hint("this is a defect of nearmetal; please report it with the log")
}
