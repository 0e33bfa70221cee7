//! Which sessions are at a gateway.

use nm_book::order::UserId;

use crate::{Owner, message, record};

record! {
    /// A session that is at a gateway.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Present {
        /// The session.
        session: UserId,
        /// After how long without a link its orders are cancelled, s; 0 for never.
        cancel_after_s: u32,
        /// Whose quota of such sessions it counts for.
        owner: Owner,
    }
}

message! {
    /// A gateway tells the leader of a cell, again and again, which sessions are linked to it whose
    /// orders are cancelled when they are away. A session that no gateway names is away.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Presence;
    head {
        /// The cell.
        cell: u16,
        /// The gateway.
        gateway: u16,
    }
    tail {
        /// These sessions.
        sessions: Vec<Present>,
    }
}
