//! When the best prices of which stock are sent.

use std::collections::{BTreeMap, BTreeSet};

use nm_book::order::InstrumentId;

use crate::follow::Books;
use crate::top::Top;

/// How often a stock is sent that has not changed, ns: a receiver that has just begun knows all of
/// them after that time.
pub const REPEAT_NS: u64 = 2_000_000_000;

/// When which stock was sent.
#[derive(Debug)]
pub struct Conflation {
    interval_ns: u64,
    changed: BTreeSet<InstrumentId>,
    sent: BTreeMap<InstrumentId, (u64, Top)>,
    /// When those were looked for that are to be repeated, ns.
    looked_ns: u64,
}

impl Conflation {
    /// At most one message of a stock in this interval, ns.
    pub fn new(interval_ns: u64) -> Conflation {
        let (changed, sent) = (BTreeSet::new(), BTreeMap::new());
        Conflation { interval_ns, changed, sent, looked_ns: 0 }
    }

    /// The messages that are to be sent now.
    pub fn due(&mut self, books: &mut Books, now_ns: u64) -> Vec<Top> {
        self.changed.extend(books.take_changed());
        if now_ns.saturating_sub(self.looked_ns) >= REPEAT_NS / 10 {
            self.looked_ns = now_ns;
            let is_old = |at: &u64| now_ns.saturating_sub(*at) >= REPEAT_NS;
            let old = self.sent.iter().filter(|(_, (at, _))| is_old(at)).map(|(it, _)| *it);
            self.changed.extend(old);
        }
        let mut due = vec![];
        let (interval_ns, sent) = (self.interval_ns, &mut self.sent);
        self.changed.retain(|instrument| {
            let before = sent.get(instrument).copied();
            if before.is_some_and(|(at, _)| now_ns.saturating_sub(at) < interval_ns) {
                return true;
            }
            let Some(top) = books.top(*instrument) else { return true };
            let is_old = |at: u64| now_ns.saturating_sub(at) >= REPEAT_NS;
            if before.is_none_or(|(at, known)| known != top || is_old(at)) {
                sent.insert(*instrument, (now_ns, top));
                due.push(top);
            }
            false
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MISSING_NS;
    use crate::top::Best;
    use nm_book::order::{
        Command, NewOrder, OrderType, Peg, PostOnly, SelfTrade, Side, TimeInForce,
    };
    use nm_wire::{BookPosition, BookUpdate};

    const MS: u64 = 1_000_000;

    /// A book that gets one buyer after another, and the updates that it sends.
    struct Cell(u64);

    impl Cell {
        fn buy(&mut self, books: &mut Books, price: i64) {
            self.0 += 1;
            let order = NewOrder {
                id: self.0,
                user: 1,
                side: Side::Buy,
                order_type: OrderType::Limit,
                time_in_force: TimeInForce::Day,
                price,
                stop_price: 0,
                quantity: 5,
                display: 0,
                minimum: 0,
                is_hidden: false,
                peg: Peg::No,
                post_only: PostOnly::No,
                self_trade: SelfTrade::Allow,
            };
            let update = BookUpdate {
                instrument: 3,
                cell: 0,
                output_seq: self.0,
                now_ns: self.0,
                received_ns: 0,
                previous_history: self.0 - 1,
                history: self.0,
                is_retirement: false,
                command: Some(Command::New(order)),
            };
            books.on_update(0, update, 0, &mut vec![]);
        }
    }

    #[test]
    fn a_stock_has_one_message_in_an_interval_with_the_latest_of_it() {
        let (mut books, mut cell) = (Books::new(None), Cell(0));
        let mut conflation = Conflation::new(100 * MS);
        let bid = |due: Vec<Top>| due.iter().map(|top| top.bid).collect::<Vec<Best>>();
        cell.buy(&mut books, 10);
        assert_eq!(bid(conflation.due(&mut books, 1_000 * MS)), [Some((1_000, 5))]);
        for at in 1..100 {
            cell.buy(&mut books, 10 + at);
            assert!(conflation.due(&mut books, (1_000 + at as u64) * MS).is_empty(), "{at}");
        }
        assert_eq!(bid(conflation.due(&mut books, 1_100 * MS)), [Some((10_900, 5))]);
        assert!(conflation.due(&mut books, 1_200 * MS).is_empty(), "nothing has changed");
        let again = bid(conflation.due(&mut books, 3_100 * MS));
        assert_eq!(again, [Some((10_900, 5))], "who came later learns of it");
    }

    #[test]
    fn a_book_that_is_not_known_is_not_sent() {
        let (mut books, mut cell) = (Books::new(None), Cell(5));
        let mut conflation = Conflation::new(MS);
        books.on_position(
            0,
            BookPosition { instrument: 3, output_seq: 5, history: 5 },
            0,
            &mut vec![],
        );
        cell.buy(&mut books, 10);
        assert!(conflation.due(&mut books, MISSING_NS).is_empty());
    }
}
