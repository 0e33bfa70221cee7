//! Why a request for market data is refused.

use crate::fix::message::Body;
use crate::fix::tag;

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

/// SecurityTradingStatus: unknown.
pub const UNKNOWN_STATUS: u32 = 20;

/// A MarketDataRequestReject.
pub fn reject(route: Body, id: &str, reason: Option<char>, text: &str) -> Report {
    let mut body = route.with(tag::MD_REQ_ID, id);
    reason.into_iter().for_each(|reason| body.push(tag::MD_REQ_REJ_REASON, reason));
    ("Y", body.with(tag::TEXT, text))
}
