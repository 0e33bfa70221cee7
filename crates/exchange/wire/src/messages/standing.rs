//! Whether a session may send orders.

use nm_book::order::UserId;

use crate::owner::Owner;

crate::message! {
    /// An operator has stopped the session's owner, or lets it trade again. Each session of that
    /// owner gets it once for each change that its gateway hears of, whether it has orders or not.
    /// It is not sent again: an order that is rejected with `OwnerStopped` says it as well.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Standing;
    head {
        /// The session; 0 on the way to its gateway.
        session: UserId,
        /// Whose sessions it is about; 0 to a client.
        owner: Owner,
        /// The cell that says it.
        cell: u16,
        /// Whether new orders and replacements are rejected.
        is_stopped: bool,
    }
    tail {}
}
