//! Firms: whose sessions there are, and what a firm may have at most.

use crate::record;

record! {
    /// What a firm may have at most in each cell; no limit where there is none. The value of an
    /// order is its limit price without its sign, times its quantity.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct FirmLimits {
        /// Largest quantity of an order, lots.
        order_quantity: Option<u64>,
        /// Largest value of an order, ticks times lots.
        order_value: Option<u64>,
        /// Most live orders in a cell.
        orders: Option<u64>,
        /// Largest value of all live orders in a cell, ticks times lots.
        value: Option<u64>,
        /// Largest position on an instrument, long or short, lots: what was bought less what was
        /// sold, and what live orders could add.
        position: Option<u64>,
    }
}

impl FirmLimits {
    /// Whether there is any.
    pub fn is_any(&self) -> bool {
        *self != FirmLimits::default()
    }
}

record! {
    /// Sessions with numbers that follow each other.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SessionRange {
        /// The first one.
        first: u32,
        /// The last one.
        last: u32,
    }
}

record! {
    /// A firm.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FirmRecord {
        /// Its number, by which owners are known.
        number: u32,
        /// Its name.
        name: String,
        /// Its sessions.
        sessions: Vec<SessionRange>,
        /// What it may have at most.
        limits: FirmLimits,
    }
}

record! {
    /// All firms of a network.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct FirmTable {
        /// Rises with each change; 0 if there never was a firm.
        version: u64,
        /// The firms.
        firms: Vec<FirmRecord>,
    }
}

record! {
    /// What a firm with limits has in a cell.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FirmUse {
        /// Number of the firm.
        number: u32,
        /// Its live orders.
        orders: u64,
        /// Their value, ticks times lots; no more than 2^64 - 1 is shown.
        value: u64,
        /// The instrument on which its position could become largest; 0 if it has none.
        instrument: u32,
        /// How large it could become there, lots.
        position: u64,
        /// Whether it would be short then.
        is_short: bool,
    }
}
