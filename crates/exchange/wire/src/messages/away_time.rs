//! A cell keeps in mind that a session's orders are cancelled when it is away.

use nm_book::order::UserId;

use crate::Owner;

crate::message! {
    /// An entry of a cell's log. From now on the leader of the cell cancels the orders of a session
    /// that no gateway has named for so long.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AwayTime;
    head {
        /// The cell.
        cell: u16,
        /// The session.
        session: UserId,
        /// After how long without a link its orders are cancelled, s; 0 for never.
        cancel_after_s: u32,
        /// Whose quota of such sessions it counts for.
        owner: Owner,
    }
    tail {}
}
