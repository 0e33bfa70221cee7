//! Commands and events as bytes: the body of requests, replies and journal records.
//!
//! Little-endian: one byte for the kind, then its fields one after another. Any sequence of bytes
//! is decoded without a panic; a [`DecodeError`] says which field is wrong.

use nm_codec::{DecodeError, Put, Reader, codes};

use crate::order::{
    CancelReason, Command, Event, NewOrder, OrderId, OrderType, Peg, PostOnly, Quantity,
    RejectReason, SelfTrade, Side, TimeInForce, UserId,
};

codes!(Side { Buy = 0, Sell = 1 });
codes!(OrderType { Limit = 0, Market = 1, Stop = 2, StopLimit = 3 });
codes!(PostOnly { No = 0, Reject = 1, Slide = 2 });
codes!(SelfTrade { Allow = 0, CancelNewest = 1, CancelOldest = 2, CancelBoth = 3, Decrement = 4 });
codes!(RejectReason {
    DuplicateId = 0,
    UnknownOrder = 1,
    BadQuantity = 2,
    BadCombination = 3,
    WouldTake = 4,
    OutsideBands = 5,
    Halted = 6,
    InAuction = 7,
    WrongState = 8,
    Expired = 9,
    NotAllowed = 10,
    TooManyParts = 11,
    TooManyOrders = 12,
    TooManyOwnOrders = 13,
    TooManyOwnerOrders = 14,
    TooManyOwnerCellOrders = 15,
    TooManyCellOrders = 16,
    NotListed = 17,
    OutsideCollar = 18,
    TooLarge = 19,
    OwnerStopped = 20,
    FirmQuantity = 21,
    FirmOrderValue = 22,
    FirmOrders = 23,
    FirmValue = 24,
    FirmPosition = 25,
    FirmNeedsPrice = 26,
    NoClosing = 27,
    BadPeg = 28,
    TooManyPegs = 29,
    TooManyOwnerPegs = 30,
});
codes!(CancelReason {
    User = 0,
    Mass = 1,
    Unfilled = 2,
    Killed = 3,
    BelowMinimum = 4,
    SelfTrade = 5,
    Bands = 6,
    Day = 7,
    Expired = 8,
    TooManyTrades = 9,
    Disconnected = 10,
    Operator = 11,
    Closed = 12,
});

/// Which command follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CommandKind {
    New,
    Replace,
    Cancel,
    MassCancel,
    Bands,
    Halt,
    Resume,
    BeginAuction,
    Uncross,
    EndOfDay,
    Tick,
    ExpectClosing,
    BeginClosing,
}

codes!(CommandKind {
    New = 0,
    Replace = 1,
    Cancel = 2,
    MassCancel = 3,
    Bands = 4,
    Halt = 5,
    Resume = 6,
    BeginAuction = 7,
    Uncross = 8,
    EndOfDay = 9,
    Tick = 10,
    ExpectClosing = 11,
    BeginClosing = 12,
});

/// Which event follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventKind {
    Accepted,
    Rejected,
    Traded,
    Cancelled,
    Replaced,
    Reduced,
    Slid,
    Triggered,
    Refreshed,
    BandsSet,
    Halted,
    Resumed,
    AuctionBegun,
    Uncrossed,
}

codes!(EventKind {
    Accepted = 0,
    Rejected = 1,
    Traded = 2,
    Cancelled = 3,
    Replaced = 4,
    Reduced = 5,
    Slid = 6,
    Triggered = 7,
    Refreshed = 8,
    BandsSet = 9,
    Halted = 10,
    Resumed = 11,
    AuctionBegun = 12,
    Uncrossed = 13,
});

/// Appends a command.
pub fn write_command(command: &Command, out: &mut Vec<u8>) {
    let mut kind = |kind: CommandKind| out.put_u8(kind.code());
    match *command {
        Command::New(order) => {
            kind(CommandKind::New);
            write_order(&order, out);
        }
        Command::Replace { id, user, price, quantity } => {
            kind(CommandKind::Replace);
            write_order_name(id, user, out);
            out.put_i64(price);
            out.put_u64(quantity);
        }
        Command::Cancel { id, user } => {
            kind(CommandKind::Cancel);
            write_order_name(id, user, out);
        }
        Command::MassCancel { user } => {
            kind(CommandKind::MassCancel);
            out.put_u64(user.into());
        }
        Command::Bands { low, high } => {
            kind(CommandKind::Bands);
            out.put_i64(low);
            out.put_i64(high);
        }
        Command::Halt => kind(CommandKind::Halt),
        Command::Resume => kind(CommandKind::Resume),
        Command::BeginAuction => kind(CommandKind::BeginAuction),
        Command::Uncross => kind(CommandKind::Uncross),
        Command::EndOfDay => kind(CommandKind::EndOfDay),
        Command::Tick => kind(CommandKind::Tick),
        Command::ExpectClosing => kind(CommandKind::ExpectClosing),
        Command::BeginClosing => kind(CommandKind::BeginClosing),
    }
}

/// Reads a command.
///
/// # Errors
/// The field that is missing or has no valid value.
pub fn read_command(from: &mut Reader<'_>) -> Result<Command, DecodeError> {
    Ok(match CommandKind::from_code("command", from.u8("command")?)? {
        CommandKind::New => Command::New(read_order(from)?),
        CommandKind::Replace => {
            let (id, user) = read_order_name(from)?;
            let price = from.i64("price")?;
            Command::Replace { id, user, price, quantity: from.u64("quantity")? }
        }
        CommandKind::Cancel => {
            let (id, user) = read_order_name(from)?;
            Command::Cancel { id, user }
        }
        CommandKind::MassCancel => Command::MassCancel { user: read_user(from)? },
        CommandKind::Bands => {
            Command::Bands { low: from.i64("lowest price")?, high: from.i64("highest price")? }
        }
        CommandKind::Halt => Command::Halt,
        CommandKind::Resume => Command::Resume,
        CommandKind::BeginAuction => Command::BeginAuction,
        CommandKind::Uncross => Command::Uncross,
        CommandKind::EndOfDay => Command::EndOfDay,
        CommandKind::Tick => Command::Tick,
        CommandKind::ExpectClosing => Command::ExpectClosing,
        CommandKind::BeginClosing => Command::BeginClosing,
    })
}

/// Bytes of an order.
pub const ORDER_BYTES: usize = 7 * 8 + 4 + 7 + 2;

/// Appends an order.
pub fn write_order(order: &NewOrder, out: &mut Vec<u8>) {
    let (time_in_force, until_ns) = match order.time_in_force {
        TimeInForce::Day => (0, 0),
        TimeInForce::GoodTillCancelled => (1, 0),
        TimeInForce::GoodTill(until_ns) => (2, until_ns),
        TimeInForce::ImmediateOrCancel => (3, 0),
        TimeInForce::FillOrKill => (4, 0),
        TimeInForce::AtClose => (5, 0),
    };
    let (peg, offset) = match order.peg {
        Peg::No => (0, 0),
        Peg::Primary { offset } => (1, offset),
        Peg::Mid => (2, 0),
    };
    out.put_u64(order.id);
    out.put_i64(order.price);
    out.put_i64(order.stop_price);
    out.put_u64(order.quantity);
    out.put_u64(order.display);
    out.put_u64(order.minimum);
    out.put_u64(until_ns);
    out.put_u32(order.user);
    out.put(&[
        order.side.code(),
        order.order_type.code(),
        time_in_force,
        order.post_only.code(),
        order.self_trade.code(),
        order.is_hidden.into(),
        peg,
    ]);
    out.put(&offset.to_le_bytes());
}

/// Reads an order.
///
/// # Errors
/// The field that is missing or has no valid value.
pub fn read_order(from: &mut Reader<'_>) -> Result<NewOrder, DecodeError> {
    let id = from.u64("order id")?;
    let (price, stop_price) = (from.i64("price")?, from.i64("stop price")?);
    let quantity = from.u64("quantity")?;
    let (display, minimum) = (from.u64("display quantity")?, from.u64("minimum quantity")?);
    let until_ns = from.u64("expiry time")?;
    let user = from.u32("user")?;
    let side = Side::from_code("side", from.u8("side")?)?;
    let order_type = OrderType::from_code("order type", from.u8("order type")?)?;
    let time_in_force = match from.u8("time in force")? {
        0 => TimeInForce::Day,
        1 => TimeInForce::GoodTillCancelled,
        2 => TimeInForce::GoodTill(until_ns),
        3 => TimeInForce::ImmediateOrCancel,
        4 => TimeInForce::FillOrKill,
        5 => TimeInForce::AtClose,
        code => return Err(DecodeError::unknown_code("time in force", code.into())),
    };
    let post_only = PostOnly::from_code("post-only", from.u8("post-only")?)?;
    let self_trade = SelfTrade::from_code("self-trade", from.u8("self-trade")?)?;
    let is_hidden = from.bool("is hidden")?;
    let (peg, offset) = (from.u8("peg")?, u16::from_le_bytes(from.array("peg offset")?));
    let peg = match peg {
        0 => Peg::No,
        1 => Peg::Primary { offset },
        2 => Peg::Mid,
        code => return Err(DecodeError::unknown_code("peg", code.into())),
    };
    Ok(NewOrder {
        id,
        user,
        side,
        order_type,
        time_in_force,
        price,
        stop_price,
        quantity,
        display,
        minimum,
        is_hidden,
        peg,
        post_only,
        self_trade,
    })
}

/// Appends an event.
pub fn write_event(event: &Event, out: &mut Vec<u8>) {
    let mut kind = |kind: EventKind| out.put_u8(kind.code());
    match *event {
        Event::Accepted { id, user } => {
            kind(EventKind::Accepted);
            write_order_name(id, user, out);
        }
        Event::Rejected { id, user, reason, most, asked } => {
            kind(EventKind::Rejected);
            write_order_name(id, user, out);
            out.put_u8(reason.code());
            out.put_u64(most);
            out.put_u64(asked);
        }
        Event::Traded { .. } => {
            kind(EventKind::Traded);
            write_trade(event, out);
        }
        Event::Cancelled { id, user, left, reason } => {
            kind(EventKind::Cancelled);
            write_order_name(id, user, out);
            out.put_u64(left);
            out.put_u8(reason.code());
        }
        Event::Replaced { id, user, price, quantity, kept_priority } => {
            kind(EventKind::Replaced);
            write_order_name(id, user, out);
            out.put_i64(price);
            out.put_u64(quantity);
            out.put_bool(kept_priority);
        }
        Event::Reduced { id, user, left } => {
            kind(EventKind::Reduced);
            write_order_name(id, user, out);
            out.put_u64(left);
        }
        Event::Slid { id, user, price } => {
            kind(EventKind::Slid);
            write_order_name(id, user, out);
            out.put_i64(price);
        }
        Event::Triggered { id, user } => {
            kind(EventKind::Triggered);
            write_order_name(id, user, out);
        }
        Event::Refreshed { id, user, shown } => {
            kind(EventKind::Refreshed);
            write_order_name(id, user, out);
            out.put_u64(shown);
        }
        Event::BandsSet { low, high } => {
            kind(EventKind::BandsSet);
            out.put_i64(low);
            out.put_i64(high);
        }
        Event::Halted => kind(EventKind::Halted),
        Event::Resumed => kind(EventKind::Resumed),
        Event::AuctionBegun => kind(EventKind::AuctionBegun),
        Event::Uncrossed { price, volume } => {
            kind(EventKind::Uncrossed);
            out.put_i64(price.unwrap_or_default());
            out.put_u64(volume);
            out.put_bool(price.is_some());
        }
    }
}

/// Reads an event.
///
/// # Errors
/// The field that is missing or has no valid value.
pub fn read_event(from: &mut Reader<'_>) -> Result<Event, DecodeError> {
    let kind = EventKind::from_code("event", from.u8("event")?)?;
    match kind {
        EventKind::Traded => return read_trade(from),
        EventKind::BandsSet => {
            let low = from.i64("lowest price")?;
            return Ok(Event::BandsSet { low, high: from.i64("highest price")? });
        }
        EventKind::Halted => return Ok(Event::Halted),
        EventKind::Resumed => return Ok(Event::Resumed),
        EventKind::AuctionBegun => return Ok(Event::AuctionBegun),
        EventKind::Uncrossed => {
            let (price, volume) = (from.i64("price")?, from.u64("volume")?);
            let has_price = from.bool("has a price")?;
            return Ok(Event::Uncrossed { price: has_price.then_some(price), volume });
        }
        EventKind::Accepted
        | EventKind::Rejected
        | EventKind::Cancelled
        | EventKind::Replaced
        | EventKind::Reduced
        | EventKind::Slid
        | EventKind::Triggered
        | EventKind::Refreshed => {}
    }
    read_order_event(kind, from)
}

/// Reads an event about one order.
fn read_order_event(kind: EventKind, from: &mut Reader<'_>) -> Result<Event, DecodeError> {
    let (id, user) = read_order_name(from)?;
    Ok(match kind {
        EventKind::Accepted => Event::Accepted { id, user },
        EventKind::Rejected => {
            let reason = RejectReason::from_code("reject reason", from.u8("reject reason")?)?;
            let (most, asked) = (from.u64("limit")?, from.u64("asked")?);
            Event::Rejected { id, user, reason, most, asked }
        }
        EventKind::Cancelled => {
            let left = read_open_quantity(from)?;
            let reason = CancelReason::from_code("cancel reason", from.u8("cancel reason")?)?;
            Event::Cancelled { id, user, left, reason }
        }
        EventKind::Replaced => {
            let (price, quantity) = (from.i64("price")?, from.u64("quantity")?);
            let kept_priority = from.bool("kept its priority")?;
            Event::Replaced { id, user, price, quantity, kept_priority }
        }
        EventKind::Reduced => Event::Reduced { id, user, left: read_open_quantity(from)? },
        EventKind::Slid => Event::Slid { id, user, price: from.i64("price")? },
        EventKind::Triggered => Event::Triggered { id, user },
        EventKind::Refreshed => Event::Refreshed { id, user, shown: from.u64("shown quantity")? },
        EventKind::Traded
        | EventKind::BandsSet
        | EventKind::Halted
        | EventKind::Resumed
        | EventKind::AuctionBegun
        | EventKind::Uncrossed => unreachable!("{kind:?} is not about one order"),
    })
}

/// Appends the fields of a trade; both users share 64 bits, the maker's in the upper half.
fn write_trade(event: &Event, out: &mut Vec<u8>) {
    let Event::Traded {
        maker,
        taker,
        maker_user,
        taker_user,
        price,
        quantity,
        maker_left,
        taker_left,
    } = *event
    else {
        unreachable!("{event:?} is no trade");
    };
    out.put_u64(maker);
    out.put_u64(taker);
    out.put_u64(u64::from(maker_user) << 32 | u64::from(taker_user));
    out.put_i64(price);
    out.put_u64(quantity);
    out.put_u64(maker_left);
    out.put_u64(taker_left);
}

fn read_trade(from: &mut Reader<'_>) -> Result<Event, DecodeError> {
    let (maker, taker) = (from.u64("maker's order id")?, from.u64("taker's order id")?);
    let users = from.u64("users")?;
    Ok(Event::Traded {
        maker,
        taker,
        maker_user: (users >> 32) as UserId,
        taker_user: users as UserId,
        price: from.i64("price")?,
        quantity: from.u64("quantity")?,
        maker_left: from.u64("maker's open quantity")?,
        taker_left: from.u64("taker's open quantity")?,
    })
}

/// Appends what names an order: its id and its user, in 64 bits each.
fn write_order_name(id: OrderId, user: UserId, out: &mut Vec<u8>) {
    out.put_u64(id);
    out.put_u64(user.into());
}

fn read_order_name(from: &mut Reader<'_>) -> Result<(OrderId, UserId), DecodeError> {
    Ok((from.u64("order id")?, read_user(from)?))
}

fn read_user(from: &mut Reader<'_>) -> Result<UserId, DecodeError> {
    let user = from.u64("user")?;
    UserId::try_from(user).map_err(|_| DecodeError::invalid("user", "is larger than any user"))
}

fn read_open_quantity(from: &mut Reader<'_>) -> Result<Quantity, DecodeError> {
    from.u64("open quantity")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any bytes are decoded or refused without a panic; what is decoded encodes to bytes of
        /// the same length that decode to the same value. The first byte runs over all kinds.
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..120),
                                            kind in 0u8..16) {
            let mut bytes = bytes;
            bytes.insert(0, kind);
            let mut reader = Reader::new(&bytes);
            if let Ok(command) = read_command(&mut reader) {
                let mut again = vec![];
                write_command(&command, &mut again);
                prop_assert_eq!(read_command(&mut Reader::new(&again)), Ok(command));
                prop_assert_eq!(again.len(), bytes.len() - reader.rest().len());
            }
            let mut reader = Reader::new(&bytes);
            if let Ok(event) = read_event(&mut reader) {
                let mut again = vec![];
                write_event(&event, &mut again);
                prop_assert_eq!(read_event(&mut Reader::new(&again)), Ok(event));
                prop_assert_eq!(again.len(), bytes.len() - reader.rest().len());
            }
        }
    }

    #[test]
    fn every_kind_of_command_and_event_survives_a_round_trip() {
        let zeros = [0u8; 80];
        for kind in CommandKind::ALL {
            let bytes = [&[kind.code()][..], &zeros].concat();
            let command = read_command(&mut Reader::new(&bytes)).unwrap();
            let mut again = vec![];
            write_command(&command, &mut again);
            assert_eq!(again[..], bytes[..again.len()], "{kind:?}");
        }
        for kind in EventKind::ALL {
            let bytes = [&[kind.code()][..], &zeros].concat();
            let event = read_event(&mut Reader::new(&bytes)).unwrap();
            let mut again = vec![];
            write_event(&event, &mut again);
            assert_eq!(again[..], bytes[..again.len()], "{kind:?}");
        }
    }

    #[test]
    fn an_error_names_the_field() {
        let unknown = read_command(&mut Reader::new(&[99])).unwrap_err();
        assert_eq!(unknown, DecodeError::unknown_code("command", 99));
        let cut = read_event(&mut Reader::new(&[EventKind::Reduced.code(), 1, 2])).unwrap_err();
        assert_eq!(cut, DecodeError::truncated("order id"));
    }
}
