//! A gateway is about to leave.

crate::message! {
    /// A gateway is drained: it takes no more sessions, and clients shall take theirs to another
    /// one. They connect to that one first. Then each session sends nothing new over this link
    /// until what it has sent is answered, and goes on over the other one. As in HTTP/2.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct GoAway;
    head {
        /// The gateway.
        gateway: u16,
    }
    tail {}
}
