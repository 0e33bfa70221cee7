//! A message from one session to another.

use nm_wire::Rest;

nm_wire::message! {
    /// A session tells another one something.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Whisper<'a>;
    head {
        /// The session that gets it.
        to: u32,
    }
    tail {
        /// What it gets.
        text: Rest<'a>,
    }
}
