//! Threads of agents and of their handles.

use nm_model::{Failure, FailureKind};

/// Starts a thread that ends by itself.
///
/// # Errors
/// If the process has no threads left.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = std::thread::Builder::new().name(name.to_string()).spawn(work);
    started.map(|_| ()).map_err(|error| {
        Failure::new(FailureKind::System, format!("cannot start a thread for {name}: {error}"))
    })
}
