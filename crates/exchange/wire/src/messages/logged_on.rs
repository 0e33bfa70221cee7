//! The answer to a logon.

use nm_book::order::UserId;

crate::message! {
    /// Answer to a `Logon`: what the session has from now on, and which cells it may ask for its
    /// open orders and last numbers (`OrdersRequest`).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct LoggedOn;
    head {
        /// The session.
        session: UserId,
        /// As in the logon.
        heartbeat_ms: u32,
        /// As in the logon.
        cancel_after_s: u32,
        /// The gateway.
        gateway: u16,
    }
    tail {
        /// The cells of the network.
        cells: Vec<u16>,
    }
}
