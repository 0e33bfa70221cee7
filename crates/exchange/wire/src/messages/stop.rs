//! An operator stops an owner, or lets it trade again.

use crate::owner::Owner;
use crate::record;

record! {
    /// Whether an owner may send orders, as an operator has decided.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct StopOrder {
        /// Who.
        owner: Owner,
        /// Number of the decision: that with the highest one holds. 0: none was made.
        version: u64,
        /// Whether new orders and replacements of the owner are rejected.
        is_stopped: bool,
    }
}

crate::message! {
    /// Entry of a cell's log: an operator stops an owner, or lets it send orders again. It has no
    /// effect if the cell knows a later decision on that owner.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Stop;
    head {
        /// The cell whose log it is.
        cell: u16,
    }
    tail {
        /// The decision.
        order: StopOrder,
    }
}
