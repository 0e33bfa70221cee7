//! What a leader executed, by instrument: what policies decide by.

use std::collections::HashMap;

use nm_book::book::Book;
use nm_book::order::InstrumentId;

use crate::cell::{Cell, Handled, Request};
use crate::control::InstrumentWork;

/// Of so many requests, the time of one is measured. A prime number, so that sessions that send in
/// turn are all met.
const SAMPLED_OF: u32 = 17;

/// Longest time that counts, ns: what takes longer was interrupted. The clock of the thread's own
/// time would not count that, but reading it is a system call.
const REQUEST_NS_MAX: u64 = 200_000;

/// Counts of one cell, as far as this node led it.
#[derive(Debug, Default)]
pub struct Workload {
    instruments: HashMap<InstrumentId, Count>,
    /// Requests since the last one that was measured.
    since_sample: u32,
}

/// What was executed on one instrument.
#[derive(Debug, Default)]
struct Count {
    by_gateway: Vec<u64>,
    busy_ns: u64,
}

impl Workload {
    /// A request will be handled: what the clock shows, ns, if its time is to be measured.
    pub fn before(&mut self, clock_ns: fn() -> u64) -> Option<u64> {
        self.since_sample = (self.since_sample + 1) % SAMPLED_OF;
        (self.since_sample == 0).then(clock_ns)
    }

    /// A request was handled; `before` is what [`Workload::before`] returned.
    pub fn count(
        &mut self,
        request: &Request,
        handled: &Handled,
        (before, clock_ns): (Option<u64>, fn() -> u64),
    ) {
        if let Handled::Executed(_) = handled {
            let count = self.instruments.entry(request.instrument).or_default();
            let gateway = usize::from(request.gateway);
            if count.by_gateway.len() <= gateway {
                count.by_gateway.resize(gateway + 1, 0);
            }
            count.by_gateway[gateway] += 1;
            if let Some(before_ns) = before {
                let used_ns = clock_ns().saturating_sub(before_ns);
                count.busy_ns += used_ns.min(REQUEST_NS_MAX) * u64::from(SAMPLED_OF);
            }
        }
    }

    /// What was done on each instrument of the cell.
    pub fn of<'a>(&'a self, cell: &'a Cell<Book>) -> impl Iterator<Item = InstrumentWork> + 'a {
        cell.executed().map(|(instrument, executed)| {
            let count = self.instruments.get(&instrument);
            InstrumentWork {
                instrument,
                cell: cell.number(),
                executed,
                busy_ns: count.map_or(0, |count| count.busy_ns),
                by_gateway: count.map_or_else(Vec::new, |count| count.by_gateway.clone()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::testing::order;
    use nm_sys::clock::monotonic_ns;

    /// Whatever one request costs, an instrument with costly requests has more time.
    #[test]
    fn busy_time_is_counted_for_the_instrument_that_uses_it() {
        let (mut workload, mut cell) = (Workload::default(), Cell::<Book>::new(0, 1));
        let mut work = 0u64;
        for seq in 1..=50 * u64::from(SAMPLED_OF) {
            let instrument = (seq % 2) as u32;
            let client_seq = seq.div_ceil(2);
            let request = order(2, instrument, client_seq, client_seq - 1);
            cell.begin(seq, seq);
            let before = workload.before(monotonic_ns);
            let handled = cell.handle(&request, |_| {});
            for at in 0..if instrument == 0 { 30_000 } else { 0 } {
                work = std::hint::black_box(work.wrapping_mul(at) + 1);
            }
            workload.count(&request, &handled, (before, monotonic_ns));
        }
        let mut found: Vec<InstrumentWork> = workload.of(&cell).collect();
        found.sort_by_key(|work| work.instrument);
        let requests = 25 * u64::from(SAMPLED_OF);
        assert_eq!(found.iter().map(|work| work.executed).collect::<Vec<_>>(), [requests; 2]);
        assert!(found.iter().all(|work| work.by_gateway == [0, 0, requests]), "{found:?}");
        assert!(found[1].busy_ns > 0 && found[0].busy_ns > 3 * found[1].busy_ns, "{found:?}");
    }
}
