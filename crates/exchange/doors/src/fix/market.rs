//! What a session asks to know of the market, and what it is sent.
//!
//! A subscription remembers the view that its client has of each symbol. Whenever there is another
//! one, and the client has read enough, it is sent the difference. So a client that reads slowly
//! gets fewer messages, and nothing waits for it. These messages are not sent again.

mod entries;
mod reject;
mod requests;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::message::{Body, Message};
use super::tag;
use crate::limits::MARKET_WAIT_NS;
use crate::market::{Market, View, Views};
use crate::symbols::{Symbol, Symbols};
use entries::Shown;
pub use reject::Report;
use reject::{BANDWIDTH, TRADING_SESSION, Told, VENUE_UNKNOWN, no_status, no_venue, reject};

/// Symbols that all sessions of a firm ask for; of a session without a firm, its own.
pub type FirmUse = Arc<AtomicUsize>;

/// How long a subscription lasts, and what it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// One snapshot.
    Once,
    /// A snapshot for each change.
    Full,
    /// A snapshot, then what changes.
    Incremental,
}

/// A symbol of a subscription, and what the client has of it.
#[derive(Debug)]
struct Item {
    symbol: Symbol,
    sent: Option<Arc<View>>,
}

/// A request for market data, or for the trading status of a symbol or of the venue.
#[derive(Debug)]
struct Subscription {
    route: Body,
    mode: Mode,
    shown: Shown,
    items: BTreeMap<u32, Item>,
    since_ns: u64,
    /// The latest status that the client was sent.
    told: Option<Told>,
}

/// Requests of each kind have names of their own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    /// MDReqID.
    Data(String),
    /// SecurityStatusReqID.
    Status(String),
    /// TradSesReqID.
    Venue(String),
}

/// What one session has asked for.
#[derive(Debug)]
pub struct MarketDesk {
    symbols: Arc<Symbols>,
    subscriptions: BTreeMap<Name, Subscription>,
    firm: FirmUse,
    reports: Vec<Report>,
    now_ns: u64,
}

impl MarketDesk {
    /// That of a session that has asked for nothing.
    pub fn new(symbols: Arc<Symbols>, firm: FirmUse) -> MarketDesk {
        let (subscriptions, reports) = (BTreeMap::new(), vec![]);
        MarketDesk { symbols, subscriptions, firm, reports, now_ns: 0 }
    }

    /// Other symbols are traded now.
    pub fn set_symbols(&mut self, symbols: Arc<Symbols>) {
        self.symbols = symbols;
    }

    /// Handles a request, if it is one of market data.
    pub fn receive(&mut self, message: &Message, now_ns: u64) -> Option<Vec<Report>> {
        self.now_ns = now_ns;
        match message.kind() {
            "V" => self.request(message),
            "e" => self.request_status(message),
            "g" => self.request_venue(message),
            _ => return None,
        }
        Some(std::mem::take(&mut self.reports))
    }

    /// The instruments that are asked for.
    pub fn wanted(&self, to: &mut BTreeSet<u32>) {
        to.extend(self.subscriptions.values().flat_map(|it| it.items.keys()));
    }

    /// Symbols of all requests.
    fn items(&self) -> usize {
        self.subscriptions.values().map(|it| it.items.len()).sum()
    }

    fn insert(&mut self, name: Name, subscription: Subscription) {
        self.firm.fetch_add(subscription.items.len(), Ordering::Relaxed);
        self.subscriptions.insert(name, subscription);
    }

    fn remove(&mut self, name: &Name) -> bool {
        let removed = self.subscriptions.remove(name);
        let items = removed.as_ref().map_or(0, |it| it.items.len());
        self.firm.fetch_sub(items, Ordering::Relaxed);
        removed.is_some()
    }

    /// Ends all subscriptions: the client has gone.
    pub fn clear(&mut self) {
        let items = self.items();
        self.firm.fetch_sub(items, Ordering::Relaxed);
        self.subscriptions.clear();
    }

    /// Ends all subscriptions, and says why.
    pub fn end(&mut self, why: &str) -> Vec<Report> {
        let names: Vec<Name> = self.subscriptions.keys().cloned().collect();
        names.iter().for_each(|name| self.refuse_known(name, Some(BANDWIDTH), why));
        std::mem::take(&mut self.reports)
    }

    /// Ends a subscription with a reason.
    fn refuse_known(&mut self, name: &Name, reason: Option<char>, why: &str) {
        let route = self.subscriptions.get(name).map(|it| it.route.clone()).unwrap_or_default();
        self.remove(name);
        self.reports.push(match name {
            Name::Data(id) => reject(route, id, reason, why),
            Name::Status(id) => no_status(route, id, "[N/A]", why),
            Name::Venue(id) => no_venue(route, id, TRADING_SESSION, VENUE_UNKNOWN, why),
        });
    }

    /// What is to be notified now. Only the given instruments have changed, if any are given.
    pub fn tell(&mut self, market: &Market, changed: Option<&Views>, now_ns: u64) -> Vec<Report> {
        self.now_ns = now_ns;
        let (mut over, mut late) = (vec![], vec![]);
        for (name, subscription) in &mut self.subscriptions {
            let is_late = now_ns.saturating_sub(subscription.since_ns) >= MARKET_WAIT_NS;
            let is_known = match name {
                Name::Data(id) => {
                    subscription.tell_all(id, market, changed, &mut self.reports);
                    subscription.items.values().all(|item| item.sent.is_some())
                }
                Name::Status(id) => {
                    subscription.tell_status(id, market, is_late, &mut self.reports);
                    subscription.told.is_some()
                }
                Name::Venue(id) => {
                    subscription.tell_venue(id, market, &mut self.reports);
                    true
                }
            };
            if is_known && subscription.mode == Mode::Once {
                over.push(name.clone());
            } else if !is_known && is_late {
                late.push(name.clone());
            }
        }
        for name in &over {
            self.remove(name);
        }
        let why = "the exchange does not say what its books have: ask again";
        late.iter().for_each(|name| self.refuse_known(name, None, why));
        std::mem::take(&mut self.reports)
    }
}

impl Drop for MarketDesk {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Subscription {
    /// Tells of all instruments, or of those that have changed.
    fn tell_all(
        &mut self,
        id: &str,
        market: &Market,
        changed: Option<&Views>,
        to: &mut Vec<Report>,
    ) {
        if let Some(changed) = changed {
            for (instrument, view) in changed {
                self.tell(id, *instrument, view, to);
            }
            return;
        }
        let wanted: Vec<u32> = self.items.keys().copied().collect();
        for (instrument, view) in wanted.iter().filter_map(|it| Some((it, market.views.get(it)?))) {
            self.tell(id, *instrument, view, to);
        }
    }

    /// Tells of one instrument, if it is one of its own and the client has not that view.
    fn tell(&mut self, id: &str, instrument: u32, view: &Arc<View>, to: &mut Vec<Report>) {
        let Subscription { route, mode, shown, items, .. } = self;
        let Some(item) = items.get_mut(&instrument) else { return };
        let before = item.sent.replace(Arc::clone(view));
        let symbol = &item.symbol;
        let changes = match &before {
            Some(before) if Arc::ptr_eq(before, view) => return,
            Some(before) => shown.changes(before, view),
            None => vec![],
        };
        if before.is_some() && changes.is_empty() {
            return;
        }
        let mut body = route.clone().with(tag::MD_REQ_ID, id);
        if before.is_none() || *mode == Mode::Full {
            body.push(tag::SYMBOL, &symbol.name);
            let entries = shown.entries(view);
            body.push(tag::NO_MD_ENTRIES, entries.len());
            for entry in entries {
                body.push(tag::MD_ENTRY_TYPE, entry.kind);
                entry.write(symbol, &mut body);
            }
            return to.push(("W", body));
        }
        body.push(tag::NO_MD_ENTRIES, changes.len());
        for (action, entry) in changes {
            body.push(tag::MD_UPDATE_ACTION, action as u32);
            body.push(tag::MD_ENTRY_TYPE, entry.kind);
            body.push(tag::SYMBOL, &symbol.name);
            entry.write(symbol, &mut body);
        }
        to.push(("X", body));
    }
}
