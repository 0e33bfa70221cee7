//! Other hosts, reached by ssh. This is the command that has a host execute a script, words quoted
//! for its shell, and why a host cannot be used.
//!
//! ssh never asks the user anything, and reads the user's own configuration: names, keys, jump
//! hosts.

#![forbid(unsafe_code)]

mod command;
mod host_error;

pub use command::{CONNECT_LIMIT, Patience, SSH, command, quoted};
pub use host_error::{HostError, Started, VERSION};
