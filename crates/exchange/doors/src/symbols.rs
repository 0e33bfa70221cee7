//! What the sessions file says of instruments.

use std::collections::BTreeMap;

use crate::decimal::Decimal;

/// What can be traded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Its name, as clients write it.
    pub name: String,
    /// Number of the instrument on the exchange.
    pub instrument: u32,
    /// Price of a tick.
    pub tick: Decimal,
    /// Quantity of a lot.
    pub lot: Decimal,
}

/// All that can be traded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Symbols(pub BTreeMap<String, Symbol>);

impl Symbols {
    /// The symbol of an instrument.
    pub fn of(&self, instrument: u32) -> Option<&Symbol> {
        self.0.values().find(|symbol| symbol.instrument == instrument)
    }
}
