//! The error of a system call, with what was being done.

use std::fmt::Display;
use std::io;

/// A system call failed.
#[derive(Debug, thiserror::Error)]
#[error("{action} failed")]
pub struct SystemError {
    /// What was being done, such as `connecting to 127.0.0.1:4000`.
    pub action: String,
    /// The error of the call.
    pub source: io::Error,
}

impl SystemError {
    /// An error while doing `action`.
    pub fn new(action: impl Display, source: io::Error) -> SystemError {
        SystemError { action: action.to_string(), source }
    }

    /// [`SystemError::new`] for `map_err`.
    pub fn during(action: impl Display) -> impl Fn(io::Error) -> SystemError {
        move |source| SystemError::new(&action, source)
    }
}
