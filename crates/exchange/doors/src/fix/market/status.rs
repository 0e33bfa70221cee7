//! What symbols and the venue do: requests for it, and what is sent whenever it changes.

use super::super::message::Message;
use super::super::tag;
use super::reject::{Report, TRADING_SESSION, Told, VENUE_REJECTED, no_status, no_venue};
use super::{MarketDesk, Mode, Name, Shown, Subscription};
use crate::market::{InstrumentStatus, Market, TradingPhase, VenueStatus};

/// A sentence for what no status expresses.
const DAY_OVER: &str = "the day has ended: day orders are cancelled, and trading goes on";

/// SecurityTradingStatus of a symbol that had another one before, if any: 2 halt, 3 resume, 17
/// ready to trade, 18 not available for trading, 21 pre-open.
fn symbol_code(before: Option<Told>, now: InstrumentStatus) -> u32 {
    let halted = TradingPhase::Halted;
    let was_halted = matches!(before, Some(Told::Symbol(it)) if it.phase == halted);
    match now.phase {
        TradingPhase::Halted if now.is_day_over => 18,
        TradingPhase::Halted => 2,
        TradingPhase::Auction => 21,
        TradingPhase::Continuous if was_halted => 3,
        TradingPhase::Continuous => 17,
    }
}

/// TradSesStatus: 1 halted, 2 open, 3 closed, 4 pre-open, 5 pre-close.
fn venue_code(status: VenueStatus) -> u32 {
    match status {
        VenueStatus::Halted => 1,
        VenueStatus::Open | VenueStatus::OpenAfterDay => 2,
        VenueStatus::Closed => 3,
        VenueStatus::PreOpen => 4,
        VenueStatus::PreClose => 5,
    }
}

impl Subscription {
    /// Tells the status of its symbol, if that is news. If nobody knows it for too long, the client
    /// of a subscription learns that, and hears of the next change.
    pub(super) fn tell_status(
        &mut self,
        id: &str,
        market: &Market,
        is_late: bool,
        to: &mut Vec<Report>,
    ) {
        let Some((instrument, item)) = self.items.first_key_value() else { return };
        let Some(now) = market.status(*instrument) else {
            if is_late && self.told.is_none() && self.mode != Mode::Once {
                let why = "this door sees no books: the next change of the status is reported";
                to.push(no_status(self.route.clone(), id, &item.symbol.name, why));
                self.told = Some(Told::Unknown);
            }
            return;
        };
        if self.told == Some(Told::Symbol(now)) {
            return;
        }
        let mut body = self.route.clone().with(tag::SECURITY_STATUS_REQ_ID, id);
        body.push(tag::SYMBOL, &item.symbol.name);
        if self.told.is_some() {
            body.push(tag::UNSOLICITED_INDICATOR, "Y");
        }
        body.push(tag::SECURITY_TRADING_STATUS, symbol_code(self.told, now));
        if now.is_day_over && now.phase != TradingPhase::Halted {
            body.push(tag::TEXT, DAY_OVER);
        }
        to.push(("f", body));
        self.told = Some(Told::Symbol(now));
    }

    /// Tells the status of the venue, if that is news.
    pub(super) fn tell_venue(&mut self, id: &str, market: &Market, to: &mut Vec<Report>) {
        let now = Told::Venue(market.venue);
        if self.told == Some(now) {
            return;
        }
        let mut body = self.route.clone().with(tag::TRAD_SES_REQ_ID, id);
        body.push(tag::TRADING_SESSION_ID, TRADING_SESSION);
        if self.told.is_some() {
            body.push(tag::UNSOLICITED_INDICATOR, "Y");
        }
        body.push(tag::TRAD_SES_STATUS, venue_code(market.venue));
        if market.venue == VenueStatus::OpenAfterDay {
            body.push(tag::TEXT, DAY_OVER);
        }
        to.push(("h", body));
        self.told = Some(now);
    }
}

impl MarketDesk {
    /// A TradingSessionStatusRequest.
    pub(super) fn request_venue(&mut self, message: &Message) {
        let id = message.get(tag::TRAD_SES_REQ_ID).unwrap_or_default();
        let asked = message.get(tag::TRADING_SESSION_ID).unwrap_or(TRADING_SESSION);
        let name = Name::Venue(id.to_string());
        let mode = match message.get(tag::SUBSCRIPTION_REQUEST_TYPE) {
            Some("2") if self.remove(&name) => return,
            Some("1") => Mode::Incremental,
            _ => Mode::Once,
        };
        let refused = match asked == TRADING_SESSION {
            true if message.get(tag::SUBSCRIPTION_REQUEST_TYPE) == Some("2") => {
                Err(format!("no subscription has TradSesReqID {id}"))
            }
            true => self.check_room(&name, 0).map_err(|(_, text)| text),
            false => Err(format!("the only trading session is {TRADING_SESSION}")),
        };
        if let Err(why) = refused {
            let route = message.route_back();
            return self.reports.push(no_venue(route, id, asked, VENUE_REJECTED, &why));
        }
        let (route, since_ns) = (message.route_back(), self.now_ns);
        let (shown, items, told) = (Shown::default(), [].into(), None);
        self.insert(name, Subscription { route, mode, shown, items, since_ns, told });
    }
}
