//! Requests for market data and trading status, and why they are refused.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::reject::{
    AGGREGATED, BANDWIDTH, DEPTH, DUPLICATE, ENTRY_TYPE, UNKNOWN_SYMBOL, UPDATE_TYPE, no_status,
    reject,
};
use super::{Item, MarketDesk, Mode, Name, Shown, Subscription};
use crate::fix::message::Message;
use crate::fix::tag;
use crate::limits::{
    CLIENT_ID_BYTES_MAX, DEPTH_MAX, FIRM_SYMBOLS_MAX, MARKET_REQUESTS_MAX, MARKET_SYMBOLS_MAX,
};
use crate::symbols::{Symbol, Symbols};

/// Why a request is refused: MDReqRejReason, if one fits, and a sentence.
type No = (Option<char>, String);

impl MarketDesk {
    /// A MarketDataRequest.
    pub(super) fn request(&mut self, message: &Message) {
        let id = message.get(tag::MD_REQ_ID).unwrap_or_default().to_string();
        if let Err((reason, text)) = self.try_request(message, &id) {
            self.reports.push(reject(message.route_back(), &id, reason, &text));
        }
    }

    fn try_request(&mut self, message: &Message, id: &str) -> Result<(), No> {
        let name = Name::Data(id.to_string());
        let mode = match message.get(tag::SUBSCRIPTION_REQUEST_TYPE) {
            Some("2") if self.remove(&name) => return Ok(()),
            Some("2") => return Err((None, format!("no subscription has MDReqID {id}"))),
            Some("0") => Mode::Once,
            _ => match message.get(tag::MD_UPDATE_TYPE) {
                Some("0") => Mode::Full,
                None | Some("1") => Mode::Incremental,
                Some(_) => {
                    let text = "MDUpdateType must be 0 (full) or 1 (incremental)";
                    return Err((Some(UPDATE_TYPE), text.to_string()));
                }
            },
        };
        let shown = shown(message)?;
        let items = self.named(message)?;
        self.check_room(&name, items.len())?;
        let (route, since_ns) = (message.route_back(), self.now_ns);
        self.insert(name, Subscription { route, mode, shown, items, since_ns, told: None });
        Ok(())
    }

    /// The symbols that a request names.
    fn named(&self, message: &Message) -> Result<BTreeMap<u32, Item>, No> {
        let mut items = BTreeMap::new();
        for (_, name) in message.fields().filter(|(tag, _)| *tag == tag::SYMBOL) {
            let name = String::from_utf8_lossy(name);
            let symbol = find(&self.symbols, &name).map_err(|text| (Some(UNKNOWN_SYMBOL), text))?;
            items.insert(symbol.instrument, Item { symbol: symbol.clone(), sent: None });
        }
        match items.is_empty() {
            true => Err((Some(UNKNOWN_SYMBOL), "the request names no Symbol".to_string())),
            false => Ok(items),
        }
    }

    /// Whether there is room for one more request.
    pub(super) fn check_room(&self, name: &Name, symbols: usize) -> Result<(), No> {
        let (Name::Data(id) | Name::Status(id) | Name::Venue(id)) = name;
        let no = |reason, text| Err((Some(reason), text));
        if self.subscriptions.contains_key(name) {
            return no(DUPLICATE, format!("a subscription has the id {id} already"));
        }
        if id.len() > CLIENT_ID_BYTES_MAX {
            let text = format!("the id of a request has at most {CLIENT_ID_BYTES_MAX} characters");
            return Err((None, text));
        }
        if self.subscriptions.len() >= MARKET_REQUESTS_MAX {
            return no(BANDWIDTH, format!("a session has at most {MARKET_REQUESTS_MAX} requests"));
        }
        if self.items() + symbols > MARKET_SYMBOLS_MAX {
            let text = format!("requests of a session have at most {MARKET_SYMBOLS_MAX} symbols");
            return no(BANDWIDTH, text);
        }
        if self.firm.load(Ordering::Relaxed) + symbols > FIRM_SYMBOLS_MAX {
            let text = format!("requests of a firm have at most {FIRM_SYMBOLS_MAX} symbols");
            return no(BANDWIDTH, text);
        }
        Ok(())
    }

    /// A SecurityStatusRequest.
    pub(super) fn request_status(&mut self, message: &Message) {
        let field = |tag| message.get(tag).unwrap_or_default();
        let (id, symbol) = (field(tag::SECURITY_STATUS_REQ_ID), field(tag::SYMBOL));
        let name = Name::Status(id.to_string());
        let refused = match message.get(tag::SUBSCRIPTION_REQUEST_TYPE) {
            Some("2") if self.remove(&name) => return,
            Some("2") => Err(format!("no subscription has SecurityStatusReqID {id}")),
            Some("0") => self.watch(message, name, symbol, Mode::Once),
            _ => self.watch(message, name, symbol, Mode::Incremental),
        };
        if let Err(text) = refused {
            self.reports.push(no_status(message.route_back(), id, symbol, &text));
        }
    }

    fn watch(
        &mut self,
        message: &Message,
        name: Name,
        symbol: &str,
        mode: Mode,
    ) -> Result<(), String> {
        let symbol = find(&self.symbols, symbol)?.clone();
        self.check_room(&name, 1).map_err(|(_, text)| text)?;
        let items = [(symbol.instrument, Item { symbol, sent: None })].into();
        let (route, since_ns) = (message.route_back(), self.now_ns);
        let shown = Shown::default();
        self.insert(name, Subscription { route, mode, shown, items, since_ns, told: None });
        Ok(())
    }
}

fn find<'a>(symbols: &'a Symbols, name: &str) -> Result<&'a Symbol, String> {
    symbols.0.get(name).ok_or_else(|| format!("no symbol {name} is traded here"))
}

/// What a request wants to be shown.
fn shown(message: &Message) -> Result<Shown, No> {
    let no = |reason, text: String| Err((Some(reason), text));
    let depth = match message.number(tag::MARKET_DEPTH) {
        Some(0) => DEPTH_MAX,
        Some(depth) if depth <= DEPTH_MAX as u64 => depth as usize,
        _ => {
            let text = format!("MarketDepth must be 0 to {DEPTH_MAX}; 0 means {DEPTH_MAX}");
            return no(DEPTH, text);
        }
    };
    if message.get(tag::AGGREGATED_BOOK) == Some("N") {
        return no(AGGREGATED, "the book is shown by price: AggregatedBook must be Y".to_string());
    }
    let mut shown = Shown { depth, ..Shown::default() };
    for (_, kind) in message.fields().filter(|(tag, _)| *tag == tag::MD_ENTRY_TYPE) {
        match kind {
            b"0" => shown.bids = true,
            b"1" => shown.offers = true,
            b"2" => shown.trades = true,
            b"B" => shown.volume = true,
            other => {
                let other = String::from_utf8_lossy(other);
                let text = "MDEntryType must be 0 (bid), 1 (offer), 2 (trade) or B (volume)";
                return no(ENTRY_TYPE, format!("{text}, and is {other}"));
            }
        }
    }
    match shown == (Shown { depth, ..Shown::default() }) {
        true => no(ENTRY_TYPE, "the request names no MDEntryType".to_string()),
        false => Ok(shown),
    }
}
