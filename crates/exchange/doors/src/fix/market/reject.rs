//! Why a request for market data or a status is refused, and what a client was sent of a status.

use crate::fix::message::Body;
use crate::fix::tag;
use crate::market::{InstrumentStatus, VenueStatus};

/// A message, and its type.
pub type Report = (&'static str, Body);

/// MDReqRejReason.
pub const UNKNOWN_SYMBOL: char = '0';
pub const DUPLICATE: char = '1';
pub const BANDWIDTH: char = '2';
pub const DEPTH: char = '5';
pub const UPDATE_TYPE: char = '6';
pub const AGGREGATED: char = '7';
pub const ENTRY_TYPE: char = '8';

/// The only trading session.
pub const TRADING_SESSION: &str = "DAY";

/// SecurityTradingStatus: unknown.
const UNKNOWN: u32 = 20;

/// TradSesStatus: unknown, and that the request is rejected.
pub const VENUE_UNKNOWN: u32 = 0;
pub const VENUE_REJECTED: u32 = 6;

/// The latest status that a client was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// That nobody knows it.
    Unknown,
    /// That of a symbol.
    Symbol(InstrumentStatus),
    /// That of the venue.
    Venue(VenueStatus),
}

/// A MarketDataRequestReject.
pub fn reject(route: Body, id: &str, reason: Option<char>, text: &str) -> Report {
    let mut body = route.with(tag::MD_REQ_ID, id);
    reason.into_iter().for_each(|reason| body.push(tag::MD_REQ_REJ_REASON, reason));
    ("Y", body.with(tag::TEXT, text))
}

/// A SecurityStatus that says why there is none.
pub fn no_status(route: Body, id: &str, symbol: &str, why: &str) -> Report {
    let mut body = route.with(tag::SECURITY_STATUS_REQ_ID, id);
    body.push(tag::SYMBOL, symbol);
    body.push(tag::SECURITY_TRADING_STATUS, UNKNOWN);
    ("f", body.with(tag::TEXT, why))
}

/// A TradingSessionStatus that says why there is none.
pub fn no_venue(route: Body, id: &str, session: &str, code: u32, why: &str) -> Report {
    let mut body = route.with(tag::TRAD_SES_REQ_ID, id);
    body.push(tag::TRADING_SESSION_ID, session);
    body.push(tag::TRAD_SES_STATUS, code);
    ("h", body.with(tag::TEXT, why))
}
