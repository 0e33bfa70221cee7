//! Commands and events as bytes: what requests, replies and journals carry.
//!
//! Little-endian, one byte for what it is, then its fields one after another. Every sequence of
//! bytes is read without a panic; those that mean nothing are an error.

use nm_codec::{Fields, Meaningless};

use crate::order::{
    Command, Ending, Event, Kind, Life, NewOrder, PostOnly, Reason, SelfTrade, Side, UserId,
};

/// Names with codes 0, 1, 2 … in this order, both ways.
macro_rules! coded {
    ($code:ident, $value:ident, $kind:ty, [$($variant:ident),+ $(,)?]) => {
        fn $code(value: $kind) -> u8 {
            const ALL: &[$kind] = &[$(<$kind>::$variant),+];
            ALL.iter().position(|known| *known == value).unwrap_or_default() as u8
        }

        fn $value(code: u8) -> Result<$kind, Meaningless> {
            const ALL: &[$kind] = &[$(<$kind>::$variant),+];
            ALL.get(usize::from(code)).copied().ok_or(Meaningless)
        }
    };
}

coded!(side_code, side, Side, [Buy, Sell]);
coded!(kind_code, kind, Kind, [Limit, Market, Stop, StopLimit]);
coded!(post_only_code, post_only, PostOnly, [No, Reject, Slide]);
coded!(
    self_trade_code,
    self_trade,
    SelfTrade,
    [Allow, CancelNewest, CancelOldest, CancelBoth, Decrement]
);
coded!(
    reason_code,
    reason,
    Reason,
    [
        DuplicateId,
        UnknownOrder,
        BadQuantity,
        BadCombination,
        WouldTake,
        OutsideBands,
        Halted,
        InAuction,
        WrongState,
        Expired,
        NotAllowed,
    ]
);
coded!(
    ending_code,
    ending,
    Ending,
    [User, Mass, Unfilled, Killed, BelowMinimum, SelfTrade, Bands, Day, Expired]
);

/// Appends a command.
pub fn write_command(command: &Command, out: &mut Vec<u8>) {
    match *command {
        Command::New(order) => {
            out.push(0);
            write_order(&order, out);
        }
        Command::Replace { id, user, price, quantity } => {
            out.push(1);
            put(out, &[id, u64::from(user), price as u64, quantity]);
        }
        Command::Cancel { id, user } => {
            out.push(2);
            put(out, &[id, u64::from(user)]);
        }
        Command::MassCancel { user } => {
            out.push(3);
            put(out, &[u64::from(user)]);
        }
        Command::Bands { low, high } => {
            out.push(4);
            put(out, &[low as u64, high as u64]);
        }
        Command::Halt => out.push(5),
        Command::Resume => out.push(6),
        Command::BeginAuction => out.push(7),
        Command::Uncross => out.push(8),
        Command::EndOfDay => out.push(9),
        Command::Tick => out.push(10),
    }
}

/// Reads a command from the front.
///
/// # Errors
/// If the bytes are none.
pub fn read_command(fields: &mut Fields<'_>) -> Result<Command, Meaningless> {
    Ok(match fields.u8()? {
        0 => Command::New(read_order(fields)?),
        1 => Command::Replace {
            id: fields.u64()?,
            user: user(fields)?,
            price: fields.i64()?,
            quantity: fields.u64()?,
        },
        2 => Command::Cancel { id: fields.u64()?, user: user(fields)? },
        3 => Command::MassCancel { user: user(fields)? },
        4 => Command::Bands { low: fields.i64()?, high: fields.i64()? },
        5 => Command::Halt,
        6 => Command::Resume,
        7 => Command::BeginAuction,
        8 => Command::Uncross,
        9 => Command::EndOfDay,
        10 => Command::Tick,
        _ => return Err(Meaningless),
    })
}

/// Bytes of an order.
pub const ORDER_BYTES: usize = 7 * 8 + 4 + 5;

/// Appends an order.
pub fn write_order(order: &NewOrder, out: &mut Vec<u8>) {
    let (life, until_ns) = match order.life {
        Life::Day => (0, 0),
        Life::GoodTillCancelled => (1, 0),
        Life::GoodTill(until_ns) => (2, until_ns),
        Life::ImmediateOrCancel => (3, 0),
        Life::FillOrKill => (4, 0),
    };
    let (price, stop_price) = (order.price as u64, order.stop_price as u64);
    let quantities = [order.quantity, order.display, order.minimum];
    put(out, &[order.id, price, stop_price]);
    put(out, &quantities);
    put(out, &[until_ns]);
    out.extend_from_slice(&order.user.to_le_bytes());
    out.extend_from_slice(&[
        side_code(order.side),
        kind_code(order.kind),
        life,
        post_only_code(order.post_only),
        self_trade_code(order.self_trade),
    ]);
}

/// Reads an order from the front.
///
/// # Errors
/// If the bytes are none.
pub fn read_order(fields: &mut Fields<'_>) -> Result<NewOrder, Meaningless> {
    let id = fields.u64()?;
    let (price, stop_price) = (fields.i64()?, fields.i64()?);
    let (quantity, display, minimum) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let until_ns = fields.u64()?;
    let user = fields.u32()?;
    Ok(NewOrder {
        id,
        user,
        side: side(fields.u8()?)?,
        kind: kind(fields.u8()?)?,
        life: match fields.u8()? {
            0 => Life::Day,
            1 => Life::GoodTillCancelled,
            2 => Life::GoodTill(until_ns),
            3 => Life::ImmediateOrCancel,
            4 => Life::FillOrKill,
            _ => return Err(Meaningless),
        },
        price,
        stop_price,
        quantity,
        display,
        minimum,
        post_only: post_only(fields.u8()?)?,
        self_trade: self_trade(fields.u8()?)?,
    })
}

/// Appends an event.
pub fn write_event(event: &Event, out: &mut Vec<u8>) {
    match *event {
        Event::Accepted { id, user } => tagged(out, 0, &[id, u64::from(user)]),
        Event::Rejected { id, user, reason } => {
            tagged(out, 1, &[id, u64::from(user)]);
            out.push(reason_code(reason));
        }
        Event::Traded {
            maker,
            taker,
            maker_user,
            taker_user,
            price,
            quantity,
            maker_left,
            taker_left,
        } => {
            tagged(out, 2, &[maker, taker, u64::from(maker_user) << 32 | u64::from(taker_user)]);
            put(out, &[price as u64, quantity, maker_left, taker_left]);
        }
        Event::Cancelled { id, user, left, ending } => {
            tagged(out, 3, &[id, u64::from(user), left]);
            out.push(ending_code(ending));
        }
        Event::Replaced { id, user, price, quantity, kept_place } => {
            tagged(out, 4, &[id, u64::from(user), price as u64, quantity]);
            out.push(u8::from(kept_place));
        }
        Event::Reduced { id, user, left } => tagged(out, 5, &[id, u64::from(user), left]),
        Event::Slid { id, user, price } => tagged(out, 6, &[id, u64::from(user), price as u64]),
        Event::Triggered { id, user } => tagged(out, 7, &[id, u64::from(user)]),
        Event::Refreshed { id, user, shown } => tagged(out, 8, &[id, u64::from(user), shown]),
        Event::BandsSet { low, high } => tagged(out, 9, &[low as u64, high as u64]),
        Event::Halted => out.push(10),
        Event::Resumed => out.push(11),
        Event::AuctionBegun => out.push(12),
        Event::Uncrossed { price, volume } => {
            tagged(out, 13, &[price.unwrap_or_default() as u64, volume]);
            out.push(u8::from(price.is_some()));
        }
    }
}

/// Reads an event from the front.
///
/// # Errors
/// If the bytes are none.
pub fn read_event(fields: &mut Fields<'_>) -> Result<Event, Meaningless> {
    Ok(match fields.u8()? {
        0 => Event::Accepted { id: fields.u64()?, user: user(fields)? },
        1 => Event::Rejected {
            id: fields.u64()?,
            user: user(fields)?,
            reason: reason(fields.u8()?)?,
        },
        2 => {
            let (maker, taker, users) = (fields.u64()?, fields.u64()?, fields.u64()?);
            Event::Traded {
                maker,
                taker,
                maker_user: (users >> 32) as UserId,
                taker_user: users as UserId,
                price: fields.i64()?,
                quantity: fields.u64()?,
                maker_left: fields.u64()?,
                taker_left: fields.u64()?,
            }
        }
        3 => Event::Cancelled {
            id: fields.u64()?,
            user: user(fields)?,
            left: fields.u64()?,
            ending: ending(fields.u8()?)?,
        },
        4 => Event::Replaced {
            id: fields.u64()?,
            user: user(fields)?,
            price: fields.i64()?,
            quantity: fields.u64()?,
            kept_place: fields.u8()? != 0,
        },
        5 => Event::Reduced { id: fields.u64()?, user: user(fields)?, left: fields.u64()? },
        6 => Event::Slid { id: fields.u64()?, user: user(fields)?, price: fields.i64()? },
        7 => Event::Triggered { id: fields.u64()?, user: user(fields)? },
        8 => Event::Refreshed { id: fields.u64()?, user: user(fields)?, shown: fields.u64()? },
        9 => Event::BandsSet { low: fields.i64()?, high: fields.i64()? },
        10 => Event::Halted,
        11 => Event::Resumed,
        12 => Event::AuctionBegun,
        13 => {
            let (price, volume) = (fields.i64()?, fields.u64()?);
            Event::Uncrossed { price: (fields.u8()? != 0).then_some(price), volume }
        }
        _ => return Err(Meaningless),
    })
}

fn user(fields: &mut Fields<'_>) -> Result<UserId, Meaningless> {
    UserId::try_from(fields.u64()?).map_err(|_| Meaningless)
}

fn tagged(out: &mut Vec<u8>, tag: u8, numbers: &[u64]) {
    out.push(tag);
    put(out, numbers);
}

/// Appends 64-bit numbers.
pub fn put(out: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever bytes come: no panic, and what is read is written as it was.
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..120),
                                         tag in 0u8..16) {
            let mut bytes = bytes;
            bytes.insert(0, tag);
            let mut fields = Fields(&bytes);
            if let Ok(command) = read_command(&mut fields) {
                let mut again = vec![];
                write_command(&command, &mut again);
                let length = bytes.len() - fields.0.len();
                prop_assert_eq!(read_command(&mut Fields(&again)), Ok(command));
                prop_assert_eq!(again.len(), length);
            }
            let mut fields = Fields(&bytes);
            if let Ok(event) = read_event(&mut fields) {
                let mut again = vec![];
                write_event(&event, &mut again);
                prop_assert_eq!(read_event(&mut Fields(&again)), Ok(event));
                prop_assert_eq!(again.len(), bytes.len() - fields.0.len());
            }
        }
    }
}
