//! A link is alive.

crate::message! {
    /// The sender is there. Each end of a link sends one in each interval of the session's `Logon`,
    /// whatever else it sends. It ends the link if none came for three intervals.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Heartbeat;
    head {
        /// How many the sender has sent over this link, with this one.
        number: u64,
    }
    tail {}
}
