//! How many requests a leader executed, by instrument and gateway: what policies decide by.

use std::collections::HashMap;

use nm_book::book::Book;
use nm_book::order::InstrumentId;

use crate::cell::{Cell, Handled, Request};
use crate::control::InstrumentWork;

/// Counts of one cell, as far as this node led it.
#[derive(Debug, Default)]
pub struct Workload(HashMap<InstrumentId, Vec<u64>>);

impl Workload {
    /// A request was handled.
    pub fn count(&mut self, request: &Request, handled: &Handled) {
        if let Handled::Executed(_) = handled {
            let by_gateway = self.0.entry(request.instrument).or_default();
            let gateway = usize::from(request.gateway);
            if by_gateway.len() <= gateway {
                by_gateway.resize(gateway + 1, 0);
            }
            by_gateway[gateway] += 1;
        }
    }

    /// What was done on each instrument of the cell.
    pub fn of<'a>(&'a self, cell: &'a Cell<Book>) -> impl Iterator<Item = InstrumentWork> + 'a {
        cell.executed().map(|(instrument, executed)| InstrumentWork {
            instrument,
            cell: cell.number(),
            executed,
            by_gateway: self.0.get(&instrument).cloned().unwrap_or_default(),
        })
    }
}
