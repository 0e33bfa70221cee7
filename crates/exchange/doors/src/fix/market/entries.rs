//! Entries of market data: what a view shows to a subscription, and what has changed since.

use super::super::message::Body;
use super::super::tag;
use crate::market::{Level, View};
use crate::symbols::Symbol;

/// What a subscription shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shown {
    /// Levels of a side.
    pub depth: usize,
    /// Bids.
    pub bids: bool,
    /// Offers.
    pub offers: bool,
    /// The latest trade.
    pub trades: bool,
    /// The traded quantity.
    pub volume: bool,
}

/// MDUpdateAction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It is new.
    New = 0,
    /// It has another quantity.
    Change = 1,
    /// It is gone.
    Delete = 2,
}

/// One entry; it is found again by its type and, if it is a level, by its price.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// MDEntryType: `0` bid, `1` offer, `2` trade, `B` traded quantity.
    pub kind: char,
    /// Ticks.
    pub price: Option<i64>,
    /// Lots.
    pub quantity: u64,
    /// Orders of a level.
    pub orders: Option<u32>,
}

impl Shown {
    /// All entries of a view.
    pub fn entries(&self, view: &View) -> Vec<Entry> {
        let mut entries = vec![];
        for (kind, is_shown, levels) in
            [('0', self.bids, &view.bids), ('1', self.offers, &view.offers)]
        {
            let shown = levels.iter().take(self.depth).filter(|_| is_shown);
            entries.extend(shown.map(|level| level_entry(kind, level)));
        }
        entries.extend(self.others(view));
        entries
    }

    /// The entries that are no levels.
    fn others(&self, view: &View) -> impl Iterator<Item = Entry> {
        let trade = view.last.filter(|_| self.trades).map(|trade| Entry {
            kind: '2',
            price: Some(trade.price),
            quantity: trade.quantity,
            orders: None,
        });
        let quantity = view.volume;
        let volume =
            self.volume.then_some(Entry { kind: 'B', price: None, quantity, orders: None });
        trade.into_iter().chain(volume)
    }

    /// What makes the entries of one view those of another.
    pub fn changes(&self, before: &View, now: &View) -> Vec<(Action, Entry)> {
        let mut changes = vec![];
        for (kind, is_shown, old, new) in [
            ('0', self.bids, &before.bids, &now.bids),
            ('1', self.offers, &before.offers, &now.offers),
        ] {
            if is_shown {
                self.level_changes(kind, old, new, &mut changes);
            }
        }
        // A trade at the price and of the quantity of the one before shows in the volume alone.
        let is_trade = before.volume != now.volume || before.last != now.last;
        let action = |entry: &Entry| match (entry.kind, is_trade) {
            (_, false) => None,
            ('2', true) => Some(Action::New),
            (_, true) => Some(Action::Change),
        };
        changes.extend(self.others(now).filter_map(|entry| Some((action(&entry)?, entry))));
        changes
    }

    fn level_changes(
        &self,
        kind: char,
        old: &[Level],
        new: &[Level],
        changes: &mut Vec<(Action, Entry)>,
    ) {
        let (old, new) = (&old[..old.len().min(self.depth)], &new[..new.len().min(self.depth)]);
        let found = |levels: &[Level], price| levels.iter().find(|it| it.price == price).copied();
        let gone = old.iter().filter(|level| found(new, level.price).is_none());
        // What leaves comes first: so a side has never more levels than its depth.
        changes.extend(gone.map(|level| (Action::Delete, level_entry(kind, level))));
        for level in new {
            match found(old, level.price) {
                None => changes.push((Action::New, level_entry(kind, level))),
                Some(known) if known != *level => {
                    changes.push((Action::Change, level_entry(kind, level)));
                }
                Some(_) => {}
            }
        }
    }
}

fn level_entry(kind: char, level: &Level) -> Entry {
    let Level { price, quantity, orders } = *level;
    Entry { kind, price: Some(price), quantity, orders: Some(orders) }
}

impl Entry {
    /// Its fields behind its type.
    pub fn write(&self, symbol: &Symbol, body: &mut Body) {
        let price = self.price.map(|ticks| symbol.tick.times(i128::from(ticks)));
        price.into_iter().for_each(|price| body.push(tag::MD_ENTRY_PX, price));
        body.push(tag::MD_ENTRY_SIZE, symbol.lot.times(i128::from(self.quantity)));
        self.orders.into_iter().for_each(|orders| body.push(tag::NUMBER_OF_ORDERS, orders));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::market::Trade;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// A side with prices in order, of which the best is first.
    fn side(is_buy: bool) -> impl Strategy<Value = Vec<Level>> {
        proptest::collection::btree_map(0_i64..12, (1_u64..4, 1_u32..3), 0..10).prop_map(
            move |levels| {
                let level = |(price, (quantity, orders))| Level { price, quantity, orders };
                let mut levels: Vec<Level> = levels.into_iter().map(level).collect();
                if is_buy {
                    levels.reverse();
                }
                levels
            },
        )
    }

    fn view() -> impl Strategy<Value = View> {
        let last = proptest::option::of((0_i64..5, 1_u64..5));
        (side(true), side(false), last, 0_u64..4).prop_map(|(bids, offers, last, volume)| View {
            bids,
            offers,
            last: last.map(|(price, quantity)| Trade { price, quantity }),
            volume,
            ..View::empty()
        })
    }

    /// What a client has: entries by type, and levels by price as well.
    type Client = BTreeMap<(char, Option<i64>), Entry>;

    fn key(entry: &Entry) -> (char, Option<i64>) {
        (entry.kind, entry.price.filter(|_| entry.orders.is_some()))
    }

    proptest! {
        /// A client that applies all changes has what a new subscription would show.
        #[test]
        fn changes_lead_from_each_view_to_the_next(
            views in proptest::collection::vec(view(), 2..8), depth in 1_usize..12,
            bids in any::<bool>(), offers in any::<bool>(),
        ) {
            let shown = Shown { depth, bids, offers, trades: true, volume: true };
            let first = shown.entries(&views[0]);
            let mut client: Client = first.iter().map(|it| (key(it), *it)).collect();
            for pair in views.windows(2) {
                for (action, entry) in shown.changes(&pair[0], &pair[1]) {
                    let known = client.remove(&key(&entry));
                    let is_level = entry.orders.is_some();
                    match action {
                        Action::New => prop_assert!(!is_level || known.is_none()),
                        Action::Change | Action::Delete => prop_assert!(known.is_some()),
                    }
                    if action != Action::Delete {
                        client.insert(key(&entry), entry);
                    }
                    let levels = client.keys().filter(|(kind, _)| *kind == '0').count();
                    prop_assert!(levels <= depth);
                }
                let expected = shown.entries(&pair[1]);
                if pair[1].last.is_none() {
                    client.remove(&('2', None));
                }
                let expected: Client = expected.iter().map(|it| (key(it), *it)).collect();
                prop_assert_eq!(&client, &expected);
            }
        }
    }
}
