//! What a session or an owner has in a cell goes.

use nm_book::order::UserId;

use crate::choice;
use crate::owner::Owner;

choice! {
    /// Whose instruments, sessions and orders are removed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Retired {
        /// What a session has.
        Session = 0 {
            /// Which.
            session: UserId,
        },
        /// What an owner has made.
        Owner = 1 {
            /// Who: 0 for nobody; otherwise the upper 16 bits say the kind. 1: who has the key of
            /// the session in the lower 32; 2: the IPv4 address there; 3: the user there, by
            /// number; 4: the firm there, by number; anything else: all 64 bits are the first ones
            /// of an IPv6 address.
            owner: Owner,
        },
    }
}

crate::message! {
    /// Entry of a cell's log: an operator removes what a session or an owner has there. It does a
    /// part of that; further entries do the rest.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Retire;
    head {
        /// The cell whose log it is.
        cell: u16,
    }
    tail {
        /// Whose.
        retired: Retired,
    }
}
