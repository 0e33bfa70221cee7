//! What a session wants of its link.

use nm_book::order::UserId;

crate::message! {
    /// A session logs on, behind its hello: what it wants. It may do so again at any time; the last
    /// one counts. A session without a logon has neither.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Logon;
    head {
        /// The session.
        session: UserId,
        /// How often both ends of the link send a `Heartbeat`, ms: 500 to 60000; 0 for never.
        heartbeat_ms: u32,
        /// After how long without a link its live orders are cancelled, s: 2 to 3600, and then
        /// `heartbeat_ms` is not 0; 0 for never.
        cancel_after_s: u32,
    }
    tail {}
}
