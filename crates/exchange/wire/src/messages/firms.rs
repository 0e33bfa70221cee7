//! The firms of a network change.

use crate::firm::FirmTable;

crate::message! {
    /// Entry of a cell's log: whose sessions there are from now on, and what each firm may have at
    /// most. It has no effect if the cell knows a later version.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Firms;
    head {
        /// The cell whose log it is.
        cell: u16,
    }
    tail {
        /// All firms.
        table: FirmTable,
    }
}
