//! What clients learn of their orders.

use super::message::{Body, Message};
use super::order::{ChangeRequest, Order};
use super::{tag, time};
use crate::symbols::Symbol;

/// Places behind the point of an average price, beyond those of the tick.
const AVERAGE_DIGITS: u32 = 6;

/// What an ExecutionReport tells, beside the order.
#[derive(Debug, Default)]
pub struct Execution<'a> {
    /// Field 150.
    pub kind: char,
    /// Field 17.
    pub id: String,
    /// Quantity, lots, and price, ticks, of a trade.
    pub trade: Option<(u64, i64)>,
    /// ClOrdID before this report.
    pub before: Option<&'a str>,
    /// ClOrdID, if it is not that of the order.
    pub client_id: Option<&'a str>,
    /// Field 103.
    pub reject: Option<u32>,
    /// Field 378.
    pub restated: Option<u32>,
    /// Field 39, if it is not that of the order.
    pub status: Option<char>,
    /// Field 790.
    pub status_request: Option<&'a str>,
    /// Field 58.
    pub text: Option<&'a str>,
}

/// An ExecutionReport.
pub fn execution(
    order: &Order,
    symbol: &Symbol,
    session: u32,
    what: &Execution<'_>,
    now_ns: u64,
) -> Body {
    let quantity = |lots: u64| symbol.lot.times(i128::from(lots));
    let price = |ticks: i64| symbol.tick.times(i128::from(ticks));
    let mut body = Body(order.route.clone());
    body.push(tag::ORDER_ID, order.order_id(session));
    body.push(tag::CL_ORD_ID, what.client_id.unwrap_or(order.client_id()));
    what.before.into_iter().for_each(|id| body.push(tag::ORIG_CL_ORD_ID, id));
    body.push(tag::EXEC_ID, &what.id);
    body.push(tag::EXEC_TYPE, what.kind);
    body.push(tag::ORD_STATUS, what.status.unwrap_or(order.status.code()));
    order.account.iter().for_each(|account| body.push(tag::ACCOUNT, account));
    body.push(tag::SYMBOL, &order.symbol);
    body.push(tag::SIDE, order.side);
    body.push(tag::ORDER_QTY, quantity(order.quantity));
    body.push(tag::ORD_TYPE, order.kind);
    order.price.into_iter().for_each(|ticks| body.push(tag::PRICE, price(ticks)));
    if let Some((follows, offset)) = order.peg {
        body.push(tag::EXEC_INST, follows);
        body.push(tag::PEG_OFFSET_VALUE, price(offset));
    }
    order.stop.into_iter().for_each(|ticks| body.push(tag::STOP_PX, price(ticks)));
    body.push(tag::TIME_IN_FORCE, order.time_in_force);
    if let Some((lots, ticks)) = what.trade {
        body.push(tag::LAST_QTY, quantity(lots));
        body.push(tag::LAST_PX, price(ticks));
    }
    body.push(tag::LEAVES_QTY, quantity(order.open()));
    body.push(tag::CUM_QTY, quantity(order.traded));
    let average = symbol.tick.times(order.value).divided(order.traded, AVERAGE_DIGITS);
    body.push(tag::AVG_PX, average);
    body.push(tag::TRANSACT_TIME, time::format(now_ns));
    what.reject.into_iter().for_each(|reason| body.push(tag::ORD_REJ_REASON, reason));
    what.restated.into_iter().for_each(|why| body.push(tag::EXEC_RESTATEMENT_REASON, why));
    what.status_request.into_iter().for_each(|id| body.push(tag::ORD_STATUS_REQ_ID, id));
    what.text.into_iter().for_each(|text| body.push(tag::TEXT, text));
    body
}

/// Why a request to change an order is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Field 102.
    pub reason: u32,
    /// Field 58.
    pub text: String,
}

/// An OrderCancelReject; of no order, if it is unknown.
pub fn cancel_reject(
    order: Option<(&Order, u32)>,
    change: &ChangeRequest,
    before: &str,
    refusal: &Refusal,
    now_ns: u64,
) -> Body {
    let (id, status) = match order {
        Some((order, session)) => (order.order_id(session), order.status.code()),
        None => ("NONE".to_string(), '8'),
    };
    let mut body = Body(change.route.clone());
    body.push(tag::ORDER_ID, id);
    body.push(tag::CL_ORD_ID, &change.client_id);
    body.push(tag::ORIG_CL_ORD_ID, before);
    body.push(tag::ORD_STATUS, status);
    body.push(tag::CXL_REJ_RESPONSE_TO, if change.replace.is_some() { 2 } else { 1 });
    body.push(tag::CXL_REJ_REASON, refusal.reason);
    body.push(tag::TRANSACT_TIME, time::format(now_ns));
    body.push(tag::TEXT, &refusal.text);
    body
}

/// The answer to a status request for an order that nobody knows.
pub fn unknown_order(message: &Message, id: &str, now_ns: u64) -> Body {
    let field = |tag| message.get(tag).unwrap_or_default();
    let mut body = message.route_back().with(tag::ORDER_ID, "NONE");
    body.push(tag::CL_ORD_ID, field(tag::CL_ORD_ID));
    body.push(tag::EXEC_ID, id);
    body.push(tag::EXEC_TYPE, 'I');
    body.push(tag::ORD_STATUS, '8');
    body.push(tag::SYMBOL, field(tag::SYMBOL));
    body.push(tag::SIDE, field(tag::SIDE));
    body.push(tag::LEAVES_QTY, 0);
    body.push(tag::CUM_QTY, 0);
    body.push(tag::AVG_PX, 0);
    body.push(tag::TRANSACT_TIME, time::format(now_ns));
    body.push(tag::ORD_REJ_REASON, 5);
    if let Some(id) = message.get(tag::ORD_STATUS_REQ_ID) {
        body.push(tag::ORD_STATUS_REQ_ID, id);
    }
    body.with(tag::TEXT, "no order of this session has this ClOrdID")
}
