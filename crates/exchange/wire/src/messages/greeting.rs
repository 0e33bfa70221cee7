//! A message that only the version that comes next has (`next-format`).

use crate::message;

message! {
    /// A node greets another one that knows this message. It means nothing.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Greeting;
    head {
        /// Number of the start of the sender's process.
        start: u64,
    }
    tail {}
}
