//! What clients ask for.

use nm_book::order::{Command, NewOrder, OrderType, Peg, PostOnly, SelfTrade, Side, TimeInForce};

use super::{Desk, Effect};
use crate::decimal::Decimal;
use crate::fix::message::Message;
use crate::fix::order::{ChangeRequest, Order, Status};
use crate::fix::reports::{self, Execution, Refusal};
use crate::fix::{tag, time};
use crate::limits::CLIENT_ID_BYTES_MAX;
use crate::symbols::Symbol;

/// OrdRejReason.
const UNKNOWN_SYMBOL: u32 = 1;
const DUPLICATE: u32 = 6;
const UNSUPPORTED: u32 = 11;
const WRONG_QUANTITY: u32 = 13;
const OTHER: u32 = 99;

/// CxlRejReason.
const TOO_LATE: u32 = 0;
const UNKNOWN_ORDER: u32 = 1;
const CANCEL_PENDING: u32 = 3;
const DUPLICATE_ID: u32 = 6;

/// BusinessRejectReason: the application is not available.
const NOT_AVAILABLE: u32 = 4;

/// Why an order is not taken: OrdRejReason and a sentence.
type No = (u32, String);

fn no<T>(reason: u32, text: impl Into<String>) -> Result<T, No> {
    Err((reason, text.into()))
}

/// What the exchange answers where somebody else has used the session.
pub(super) const FOREIGN: &str =
    "another client has used this session of the exchange: give this one another number";

impl Desk {
    pub(super) fn new_order(&mut self, message: &Message) {
        let client_id = message.get(tag::CL_ORD_ID).unwrap_or_default();
        if let Some(known) = self.by_client_id.get(client_id).copied() {
            return self.repeat(message, known);
        }
        if self.is_full {
            let text = "the store of this session is full: log on with ResetSeqNumFlag";
            return self.refuse(message, NOT_AVAILABLE, text);
        }
        let number = self.next_number();
        let mut order = blank(message, number);
        let wanted = self
            .symbols
            .0
            .get(&order.symbol)
            .cloned()
            .ok_or((UNKNOWN_SYMBOL, format!("no symbol {} is traded here", order.symbol)));
        let id = u64::from(self.exchange.number()) << 32 | number;
        let parsed = wanted.and_then(|symbol| {
            order.instrument = symbol.instrument;
            let parsed = parse(message, &symbol, id, self.exchange.number())?;
            match self.exchange.is_used_by_others(symbol.instrument) {
                true => no(OTHER, FOREIGN),
                false => Ok(parsed),
            }
        });
        match parsed {
            Ok(new) => {
                order.price = new.order_type.has_limit().then_some(new.price);
                let is_stop = matches!(new.order_type, OrderType::Stop | OrderType::StopLimit);
                order.stop = is_stop.then_some(new.stop_price);
                (order.quantity, order.is_hidden) = (new.quantity, new.is_hidden);
                order.peg = peg_fields(new.peg, new.side);
                order.seq = self.submit(order.instrument, Command::New(new));
                self.keep(order);
            }
            Err((reason, text)) => {
                order.status = Status::Rejected;
                let what = Execution {
                    kind: '8',
                    id: format!("R{number}"),
                    reject: Some(reason),
                    text: Some(&text),
                    ..Execution::default()
                };
                self.keep_and_report(order, &what);
            }
        }
    }

    /// An order whose ClOrdID is known: the client sends it again, or has made a mistake.
    fn repeat(&mut self, message: &Message, known: u64) {
        let order = self.orders[&known].clone();
        let client_id = message.get(tag::CL_ORD_ID);
        let is_again = message.is_set(tag::POSS_RESEND);
        let id = self.own_report_id();
        let what = Execution {
            kind: if is_again { 'I' } else { '8' },
            id,
            client_id,
            reject: (!is_again).then_some(DUPLICATE),
            text: (!is_again).then_some("this ClOrdID was used before"),
            ..Execution::default()
        };
        self.report(&order, &what);
    }

    /// A request to cancel or replace an order.
    pub(super) fn change(&mut self, message: &Message, is_replace: bool) {
        let field = |tag| message.get(tag).unwrap_or_default().to_string();
        let (before, client_id) = (field(tag::ORIG_CL_ORD_ID), field(tag::CL_ORD_ID));
        let mut change = ChangeRequest {
            client_id,
            replace: is_replace.then_some((0, None)),
            seq: 0,
            route: message.route_back().0,
        };
        let number = self.by_client_id.get(&before).copied();
        let known = number.and_then(|number| self.orders.get(&number)).cloned();
        let checked = match &known {
            None => Err(Refusal {
                reason: UNKNOWN_ORDER,
                text: "no order of this session has this OrigClOrdID".to_string(),
            }),
            Some(order) => self.check_change(message, order, &change).and_then(|()| {
                if is_replace {
                    change.replace = Some(self.replacement(message, order)?);
                }
                Ok(())
            }),
        };
        match (known, checked) {
            (Some(mut order), Ok(())) => {
                order.changes.push_back(change);
                self.send_change(&mut order);
                self.keep(order);
            }
            (known, Err(refusal)) => {
                let session = self.exchange.number();
                let order = known.as_ref().map(|order| (order, session));
                let body = reports::cancel_reject(order, &change, &before, &refusal, self.now_ns);
                self.effects.push(Effect::Report("9", body));
            }
            (None, Ok(())) => unreachable!("an unknown order is refused"),
        }
    }

    fn check_change(
        &self,
        message: &Message,
        order: &Order,
        change: &ChangeRequest,
    ) -> Result<(), Refusal> {
        let no = |reason, text: &str| Err(Refusal { reason, text: text.to_string() });
        if self.by_client_id.contains_key(&change.client_id) {
            return no(DUPLICATE_ID, "this ClOrdID was used before");
        }
        if change.client_id.len() > CLIENT_ID_BYTES_MAX {
            return no(OTHER, &format!("a ClOrdID has at most {CLIENT_ID_BYTES_MAX} characters"));
        }
        if !order.status.is_live() {
            return no(TOO_LATE, "the order has ended");
        }
        if message.get(tag::SYMBOL) != Some(&order.symbol) {
            return no(OTHER, "Symbol is not that of the order");
        }
        if message.get(tag::SIDE) != Some(order.side.to_string().as_str()) {
            return no(OTHER, "Side is not that of the order");
        }
        if order.changes.iter().any(|known| known.replace.is_none()) {
            return no(CANCEL_PENDING, "a cancel of this order is on its way");
        }
        Ok(())
    }

    /// Total quantity and price that a replacement asks for.
    fn replacement(&self, message: &Message, order: &Order) -> Result<(u64, Option<i64>), Refusal> {
        let symbol = self.symbol(order);
        let other = |(_, text): No| Refusal { reason: OTHER, text };
        let same = |tag, own: char| message.get(tag).is_none_or(|it| it == own.to_string());
        if !same(tag::ORD_TYPE, order.kind) || !same(tag::TIME_IN_FORCE, order.time_in_force) {
            let text = "OrdType and TimeInForce cannot be replaced";
            return Err(other((OTHER, text.to_string())));
        }
        let stop = ticks(message, tag::STOP_PX, &symbol).map_err(other)?;
        if stop.is_some() && stop != order.stop {
            return Err(other((OTHER, "StopPx cannot be replaced".to_string())));
        }
        refuse_unsupported(message).map_err(other)?;
        let says =
            [tag::DISPLAY_METHOD, tag::MAX_FLOOR].iter().any(|it| message.get(*it).is_some());
        if says && display(message, &symbol).map_err(other)?.1 != order.is_hidden {
            let text = "whether an order is displayed cannot be replaced";
            return Err(other((OTHER, text.to_string())));
        }
        let peg_tags = [tag::PEG_OFFSET_VALUE, tag::PEG_PRICE_TYPE, tag::PEG_OFFSET_TYPE];
        let follows = order.peg.is_some() && message.get(tag::EXEC_INST).is_some();
        if follows || peg_tags.iter().any(|it| message.get(*it).is_some()) {
            let side = if order.side == '1' { Side::Buy } else { Side::Sell };
            let pegged = peg(message, &symbol, side).map_err(other)?;
            if peg_fields(pegged, side) != order.peg {
                let text = "what a pegged order follows cannot be replaced";
                return Err(other((OTHER, text.to_string())));
            }
        }
        let price = ticks(message, tag::PRICE, &symbol).map_err(other)?;
        if price.is_some() && order.price.is_none() {
            return Err(other((OTHER, "this OrdType has no Price".to_string())));
        }
        if order.price.is_none() {
            let text = "an order without a limit cannot be replaced";
            return Err(other((OTHER, text.to_string())));
        }
        Ok((quantity(message, tag::ORDER_QTY, &symbol).map_err(other)?, price.or(order.price)))
    }

    /// Sends the first request to change an order, if it waits.
    pub(super) fn send_change(&mut self, order: &mut Order) {
        let user = self.exchange.number();
        let id = u64::from(user) << 32 | order.number;
        let (traded, price) = (order.traded, order.price.unwrap_or(0));
        let Some(change) = order.changes.front_mut().filter(|change| change.seq == 0) else {
            return;
        };
        let command = match change.replace {
            Some((quantity, new_price)) if quantity > traded => Command::Replace {
                id,
                user,
                price: new_price.unwrap_or(price),
                quantity: quantity - traded,
            },
            // Nothing is left to trade of the new quantity.
            Some(_) | None => Command::Cancel { id, user },
        };
        change.seq = self.submit(order.instrument, command);
    }

    pub(super) fn tell_status(&mut self, message: &Message) {
        let id = self.own_report_id();
        let client_id = message.get(tag::CL_ORD_ID).unwrap_or_default();
        let number = self.by_client_id.get(client_id).copied();
        match number.and_then(|number| self.orders.get(&number)).cloned() {
            Some(order) => {
                let what = Execution {
                    kind: 'I',
                    id,
                    status_request: message.get(tag::ORD_STATUS_REQ_ID),
                    ..Execution::default()
                };
                self.report(&order, &what);
            }
            None => {
                let body = reports::unknown_order(message, &id, self.now_ns);
                self.effects.push(Effect::Report("8", body));
            }
        }
    }

    /// Cancels all orders, or those of one symbol.
    pub(super) fn cancel_all(&mut self, message: &Message) {
        let kind = message.get(tag::MASS_CANCEL_REQUEST_TYPE).unwrap_or_default().to_string();
        let named = message.get(tag::SYMBOL).map(|name| self.symbols.0.get(name).cloned());
        let mut instruments: Vec<u32> = vec![];
        let refused = match (kind.as_str(), named) {
            ("1", Some(Some(symbol))) => {
                instruments.push(symbol.instrument);
                None
            }
            ("1", _) => Some((1, "the Symbol is missing or not traded here")),
            ("7", None) => {
                let live = self.orders.values().filter(|order| order.status.is_live());
                instruments.extend(live.map(|order| order.instrument));
                instruments.sort_unstable();
                instruments.dedup();
                None
            }
            ("7", _) => Some((99, "a cancel of all orders names no Symbol")),
            _ => Some((0, "only orders of one symbol or all orders can be cancelled at once")),
        };
        let id = self.own_report_id();
        let mut body = message.route_back().with(tag::ORDER_ID, &id);
        body.push(tag::CL_ORD_ID, message.get(tag::CL_ORD_ID).unwrap_or_default());
        body.push(tag::MASS_CANCEL_REQUEST_TYPE, &kind);
        body.push(tag::MASS_CANCEL_RESPONSE, if refused.is_some() { "0" } else { &kind });
        if let Some((reason, text)) = refused {
            body.push(tag::MASS_CANCEL_REJECT_REASON, reason);
            body.push(tag::TEXT, text);
        }
        body.push(tag::TRANSACT_TIME, time::format(self.now_ns));
        self.effects.push(Effect::Report("r", body));
        for instrument in instruments {
            let user = self.exchange.number();
            self.submit(instrument, Command::MassCancel { user });
        }
    }

    pub(super) fn list_symbols(&mut self, message: &Message) {
        let id = self.own_report_id();
        let request = message.get(tag::SECURITY_REQ_ID).unwrap_or_default();
        let mut body = message.route_back().with(tag::SECURITY_REQ_ID, request);
        body.push(tag::SECURITY_RESPONSE_ID, id);
        let named = message.get(tag::SYMBOL);
        let names: Vec<&String> = match message.get(tag::SECURITY_LIST_REQUEST_TYPE) {
            Some("4") => self.symbols.0.keys().collect(),
            Some("0") => self.symbols.0.keys().filter(|name| named == Some(name)).collect(),
            _ => {
                return self.refuse(message, 0, "only one symbol or all symbols can be listed");
            }
        };
        // 2: no instrument is meant.
        body.push(tag::SECURITY_REQUEST_RESULT, if names.is_empty() { 2 } else { 0 });
        if !names.is_empty() {
            body.push(tag::NO_RELATED_SYM, names.len());
            names.iter().for_each(|name| body.push(tag::SYMBOL, name));
        }
        self.effects.push(Effect::Report("y", body));
    }
}

/// An order as the client has named it, with nothing that was checked.
fn blank(message: &Message, number: u64) -> Order {
    let code = |tag, default| message.get(tag).and_then(|it| it.chars().next()).unwrap_or(default);
    Order {
        number,
        client_ids: vec![message.get(tag::CL_ORD_ID).unwrap_or_default().to_string()],
        symbol: message.get(tag::SYMBOL).unwrap_or_default().to_string(),
        instrument: 0,
        side: code(tag::SIDE, '1'),
        kind: code(tag::ORD_TYPE, '2'),
        time_in_force: code(tag::TIME_IN_FORCE, '0'),
        account: message.get(tag::ACCOUNT).map(str::to_string),
        price: None,
        stop: None,
        quantity: 0,
        is_hidden: false,
        peg: None,
        traded: 0,
        value: 0,
        status: Status::PendingNew,
        seq: 0,
        changes: [].into(),
        route: message.route_back().0,
    }
}

/// The order of a message.
fn parse(message: &Message, symbol: &Symbol, id: u64, user: u32) -> Result<NewOrder, No> {
    if message.get(tag::CL_ORD_ID).is_some_and(|id| id.len() > CLIENT_ID_BYTES_MAX) {
        return no(OTHER, format!("a ClOrdID has at most {CLIENT_ID_BYTES_MAX} characters"));
    }
    let side = match message.get(tag::SIDE) {
        Some("1") => Side::Buy,
        Some("2") => Side::Sell,
        _ => return no(UNSUPPORTED, "Side must be 1 (buy) or 2 (sell)"),
    };
    let order_type = match message.get(tag::ORD_TYPE) {
        Some("1") => OrderType::Market,
        Some("2") => OrderType::Limit,
        Some("3") => OrderType::Stop,
        Some("4") => OrderType::StopLimit,
        Some("P") if message.get(tag::PRICE).is_some() => OrderType::Limit,
        Some("P") => OrderType::Market,
        _ => return no(UNSUPPORTED, "OrdType must be 1 (market), 2 (limit), 3 (stop), 4 or P"),
    };
    refuse_unsupported(message)?;
    let is_stop = matches!(order_type, OrderType::Stop | OrderType::StopLimit);
    let total = quantity(message, tag::ORDER_QTY, symbol)?;
    let optional = |tag| match message.get(tag) {
        Some(_) => quantity(message, tag, symbol),
        None => Ok(0),
    };
    let (display, is_hidden) = display(message, symbol)?;
    let peg = peg(message, symbol, side)?;
    Ok(NewOrder {
        id,
        user,
        side,
        order_type,
        time_in_force: time_in_force(message)?,
        price: price(message, tag::PRICE, "Price", symbol, order_type.has_limit())?,
        stop_price: price(message, tag::STOP_PX, "StopPx", symbol, is_stop)?,
        quantity: total,
        display,
        minimum: optional(tag::MIN_QTY)?,
        is_hidden,
        peg,
        post_only: match message.get(tag::EXEC_INST) {
            None => PostOnly::No,
            Some("R" | "M") if peg != Peg::No => PostOnly::No,
            Some("6") => PostOnly::Reject,
            Some(_) => return no(UNSUPPORTED, "ExecInst must be 6 (participate, do not initiate)"),
        },
        self_trade: SelfTrade::Allow,
    })
}

/// What a pegged order follows.
fn peg(message: &Message, symbol: &Symbol, side: Side) -> Result<Peg, No> {
    let fields = [tag::PEG_OFFSET_VALUE, tag::PEG_OFFSET_TYPE, tag::PEG_PRICE_TYPE];
    if message.get(tag::ORD_TYPE) != Some("P") {
        return match fields.iter().any(|it| message.get(*it).is_some()) {
            true => no(UNSUPPORTED, "fields of a peg are only for OrdType P (pegged)"),
            false => Ok(Peg::No),
        };
    }
    if message.get(tag::PEG_OFFSET_TYPE).is_some_and(|it| it != "0") {
        return no(UNSUPPORTED, "PegOffsetType must be 0 (price)");
    }
    let offset = i128::from(ticks(message, tag::PEG_OFFSET_VALUE, symbol)?.unwrap_or(0));
    let away = if side == Side::Buy { -offset } else { offset };
    match (message.get(tag::EXEC_INST), message.get(tag::PEG_PRICE_TYPE)) {
        (Some("R"), None | Some("5")) | (None, Some("5")) => match u16::try_from(away) {
            Ok(offset) => Ok(Peg::Primary { offset }),
            Err(_) => no(
                UNSUPPORTED,
                "PegOffsetValue must be negative for a buyer and positive for a seller, and at \
                 most 65535 ticks",
            ),
        },
        (Some("M"), None | Some("2")) | (None, Some("2")) if offset == 0 => Ok(Peg::Mid),
        (Some("M"), None | Some("2")) | (None, Some("2")) => {
            no(UNSUPPORTED, "a peg to the middle has no PegOffsetValue")
        }
        _ => no(
            UNSUPPORTED,
            "OrdType P needs ExecInst R or PegPriceType 5 (primary), or M or 2 (middle)",
        ),
    }
}

/// ExecInst and PegOffsetValue, ticks, of a pegged order.
fn peg_fields(peg: Peg, side: Side) -> Option<(char, i64)> {
    match peg {
        Peg::No => None,
        Peg::Primary { offset } if side == Side::Buy => Some(('R', -i64::from(offset))),
        Peg::Primary { offset } => Some(('R', offset.into())),
        Peg::Mid => Some(('M', 0)),
    }
}

/// The quantity that is shown, 0 for all; and whether nothing is.
fn display(message: &Message, symbol: &Symbol) -> Result<(u64, bool), No> {
    let floor = message.get(tag::MAX_FLOOR);
    let is_zero = floor.and_then(Decimal::parse) == Decimal::parse("0") && floor.is_some();
    match (message.get(tag::DISPLAY_METHOD), floor) {
        (None | Some("4"), _) if is_zero => Ok((0, true)),
        (Some("4"), None) => Ok((0, true)),
        (Some("4"), Some(_)) => {
            no(UNSUPPORTED, "DisplayMethod 4 shows nothing: MaxFloor must be 0")
        }
        (Some(_), _) => no(UNSUPPORTED, "DisplayMethod must be 4 (undisclosed)"),
        (None, Some(_)) => Ok((quantity(message, tag::MAX_FLOOR, symbol)?, false)),
        (None, None) => Ok((0, false)),
    }
}

fn time_in_force(message: &Message) -> Result<TimeInForce, No> {
    let until = message.get(tag::EXPIRE_TIME).and_then(time::parse);
    match (message.get(tag::TIME_IN_FORCE), until) {
        (Some("6"), Some(until_ns)) => Ok(TimeInForce::GoodTill(until_ns)),
        (Some("6"), None) => no(UNSUPPORTED, "an order until a time needs ExpireTime"),
        (_, Some(_)) => no(UNSUPPORTED, "ExpireTime is only for TimeInForce 6"),
        (None | Some("0"), None) => Ok(TimeInForce::Day),
        (Some("1"), None) => Ok(TimeInForce::GoodTillCancelled),
        (Some("3"), None) => Ok(TimeInForce::ImmediateOrCancel),
        (Some("4"), None) => Ok(TimeInForce::FillOrKill),
        (Some("7"), None) => Ok(TimeInForce::AtClose),
        _ => no(UNSUPPORTED, "TimeInForce must be 0, 1, 3, 4, 6 or 7"),
    }
}

/// Fields with instructions that the exchange cannot follow.
fn refuse_unsupported(message: &Message) -> Result<(), No> {
    const FIELDS: [(u32, &str, &str); 7] = [
        (152, "", "CashOrderQty is not supported: use OrderQty"),
        (423, "2", "PriceType must be 2 (per unit)"),
        (432, "", "ExpireDate is not supported: use ExpireTime"),
        (168, "", "EffectiveTime is not supported"),
        (210, "", "MaxShow is not supported: use MaxFloor"),
        (1138, "", "DisplayQty is not supported: use MaxFloor"),
        (386, "", "trading sessions are not supported"),
    ];
    for (tag, only, text) in FIELDS {
        if message.get(tag).is_some_and(|value| value != only) {
            return no(UNSUPPORTED, text);
        }
    }
    Ok(())
}

fn quantity(message: &Message, tag: u32, symbol: &Symbol) -> Result<u64, No> {
    let name = match tag {
        tag::MIN_QTY => "MinQty",
        tag::MAX_FLOOR => "MaxFloor",
        _ => "OrderQty",
    };
    let Some(text) = message.get(tag) else {
        return no(WRONG_QUANTITY, format!("{name} is missing"));
    };
    let lots = Decimal::parse(text).filter(|it| it.is_positive());
    match lots.and_then(|it| it.in_units(symbol.lot)) {
        Some(lots) => Ok(lots as u64),
        None => no(WRONG_QUANTITY, format!("{name} must be a multiple of {}", symbol.lot)),
    }
}

fn ticks(message: &Message, tag: u32, symbol: &Symbol) -> Result<Option<i64>, No> {
    let Some(text) = message.get(tag) else { return Ok(None) };
    match Decimal::parse(text).and_then(|it| it.in_units(symbol.tick)) {
        Some(ticks) => Ok(Some(ticks)),
        None => no(OTHER, format!("the price {text} is not a multiple of {}", symbol.tick)),
    }
}

/// A price that the type of the order must have, or must not.
fn price(
    message: &Message,
    tag: u32,
    name: &str,
    symbol: &Symbol,
    is_needed: bool,
) -> Result<i64, No> {
    match (ticks(message, tag, symbol)?, is_needed) {
        (Some(ticks), true) => Ok(ticks),
        (None, false) => Ok(0),
        (None, true) => no(OTHER, format!("{name} is missing")),
        (Some(_), false) => no(OTHER, format!("an order of this OrdType has no {name}")),
    }
}
