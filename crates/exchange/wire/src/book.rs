//! Commands and events: their bytes are those of [`nm_book::codec`], described here. A test
//! compares the description with what is read and written there.

use std::fmt::Debug;

use nm_book::codec;
use nm_book::order::{
    CancelReason, Command, Event, OrderType, PostOnly, RejectReason, SelfTrade, Side,
};
use nm_codec::{DecodeError, Put, Random, Reader};

use crate::types::{Alternative, Definition, Field, Types, prose};
use crate::value::Value;

/// A field: name, type and meaning.
type FieldText = (&'static str, &'static str, &'static str);

/// An alternative: code, name, meaning and fields.
type Described = (u8, &'static str, &'static str, &'static [FieldText]);

const ID: FieldText = ("id", "u64", "The order: chosen by its session, unique while it is live.");
const USER: FieldText = ("user", "user", "Session of the order.");
const PRICE: FieldText = ("price", "i64", "Limit price, ticks.");

const NEW_ORDER: &[FieldText] = &[
    ID,
    ("price", "i64", "Limit price, ticks; ignored for market and stop orders."),
    ("stop_price", "i64", "Stop price, ticks; ignored unless it is a stop order."),
    ("quantity", "u64", "Total quantity, lots."),
    ("display", "u64", "Quantity shown at a time; 0 for all of it."),
    ("minimum", "u64", "Least quantity that must trade at once; 0 for none."),
    ("until_ns", "u64", "When it expires, ns since 1970; 0 unless it is `GoodTill`."),
    ("user", "u32", "Session of the order; the exchange puts the session that sends it."),
    ("side", "Side", "Side."),
    ("order_type", "OrderType", "When it can trade, and at which price."),
    ("time_in_force", "TimeInForce", "How long it stays live."),
    ("post_only", "PostOnly", "What happens if it would take liquidity."),
    ("self_trade", "SelfTrade", "What happens if it would trade with an own order."),
    ("is_hidden", "bool", "Whether it is never shown while it rests."),
    ("peg", "Peg", "What its price follows. Then it needs no limit: the order type is `Market`."),
    ("peg_offset", "u16", "Ticks away from the market; 0 unless it follows `Primary`."),
];

const COMMANDS: &[Described] = &[
    (0, "New", "A new order.", NEW_ORDER),
    (
        1,
        "Replace",
        "Changes price and open quantity of an order.",
        &[ID, USER, ("price", "i64", "New limit."), ("quantity", "u64", "New open quantity.")],
    ),
    (2, "Cancel", "Cancels an order.", &[ID, USER]),
    (3, "MassCancel", "Cancels all orders of the session.", &[USER]),
    (
        4,
        "Bands",
        "Sets the price bands; session 0 alone.",
        &[("low", "i64", "Lowest price."), ("high", "i64", "Highest price.")],
    ),
    (5, "Halt", "Halts trading; session 0 alone.", &[]),
    (6, "Resume", "Ends the halt; session 0 alone.", &[]),
    (7, "BeginAuction", "Collects orders for an auction; session 0 alone.", &[]),
    (8, "Uncross", "Ends the auction; session 0 alone.", &[]),
    (9, "EndOfDay", "Cancels the day orders; session 0 alone.", &[]),
    (10, "Tick", "Only time passes.", &[]),
    (
        11,
        "ExpectClosing",
        "Orders for the closing auction are accepted from now on; session 0 alone.",
        &[],
    ),
    (12, "BeginClosing", "Begins the closing auction; session 0 alone.", &[]),
];

const EVENTS: &[Described] = &[
    (0, "Accepted", "The order is accepted.", &[ID, USER]),
    (
        1,
        "Rejected",
        "The order or command is rejected and changes nothing.",
        &[
            ("id", "u64", "The order; 0 for none."),
            ("user", "user", "Its session; 0 for a command of the exchange."),
            ("reason", "RejectReason", "Why."),
            ("most", "u64", "The limit of its firm that it would exceed; 0 for other reasons."),
            ("asked", "u64", "What there would be then; 0 for other reasons."),
        ],
    ),
    (
        2,
        "Traded",
        "Two orders traded.",
        &[
            ("maker", "u64", "The resting order; in an auction, the buyer's."),
            ("taker", "u64", "The incoming order; in an auction, the seller's."),
            ("taker_user", "u32", "The taker's session."),
            ("maker_user", "u32", "The maker's session."),
            ("price", "i64", "Trade price, ticks."),
            ("quantity", "u64", "Traded quantity, lots."),
            ("maker_left", "u64", "Open quantity of the maker after it."),
            ("taker_left", "u64", "Open quantity of the taker after it."),
        ],
    ),
    (
        3,
        "Cancelled",
        "The order was removed without trading its rest.",
        &[ID, USER, ("left", "u64", "Open quantity."), ("reason", "CancelReason", "Why.")],
    ),
    (
        4,
        "Replaced",
        "The order was replaced.",
        &[
            ID,
            USER,
            PRICE,
            ("quantity", "u64", "New open quantity."),
            ("kept_priority", "bool", "Whether it kept its time priority."),
        ],
    ),
    (
        5,
        "Reduced",
        "Self-trade prevention reduced the order.",
        &[ID, USER, ("left", "u64", "Open quantity after it.")],
    ),
    (6, "Slid", "A post-only order was moved to another price.", &[ID, USER, PRICE]),
    (7, "Triggered", "A trade reached the stop price of the order.", &[ID, USER]),
    (
        8,
        "Refreshed",
        "An iceberg shows its next part.",
        &[ID, USER, ("shown", "u64", "Quantity shown.")],
    ),
    (
        9,
        "BandsSet",
        "The price bands are set.",
        &[("low", "i64", "Lowest price."), ("high", "i64", "Highest price.")],
    ),
    (10, "Halted", "Trading is halted.", &[]),
    (11, "Resumed", "No longer halted.", &[]),
    (12, "AuctionBegun", "An auction has begun.", &[]),
    (
        13,
        "Uncrossed",
        "The result of an auction, before its trades.",
        &[
            ("price", "i64", "Auction price; 0 if it has none."),
            ("volume", "u64", "Auction volume."),
            ("has_price", "bool", "Whether anything trades, so that there is a price."),
        ],
    ),
];

/// The values of a code.
fn values<T: Debug>(all: &[T], code: impl Fn(&T) -> u8, docs: &[&str]) -> Definition {
    assert_eq!(all.len(), docs.len(), "each value has a meaning");
    let one = |(value, doc): (&T, &&str)| Alternative {
        code: code(value),
        name: format!("{value:?}"),
        doc: (*doc).to_string(),
        fields: vec![],
    };
    Definition::Choice(all.iter().zip(docs).map(one).collect())
}

const ORDER_TYPES: [&str; 4] = [
    "Trades at its price or better.",
    "Trades at any price; the rest is cancelled.",
    "A market order once a trade reaches its stop price.",
    "A limit order once a trade reaches its stop price.",
];

const TIMES_IN_FORCE: [(&str, &str); 6] = [
    ("Day", "Until the end of the day."),
    ("GoodTillCancelled", "Until it is filled or cancelled."),
    ("GoodTill", "Until `until_ns`."),
    ("ImmediateOrCancel", "Trades at once what it can; the rest is cancelled."),
    ("FillOrKill", "Trades at once in full, or not at all."),
    ("AtClose", "In the closing auction alone; nobody sees it."),
];

const PEGS: [(&str, &str); 3] = [
    ("No", "Nothing: it is no pegged order."),
    ("Primary", "The best displayed price of its side."),
    ("Mid", "The middle between the best displayed prices."),
];

const SELF_TRADES: [&str; 5] = [
    "They trade.",
    "The incoming order is cancelled.",
    "The resting order is cancelled.",
    "Both are cancelled.",
    "The larger one loses the smaller one's quantity, and the smaller one is cancelled.",
];

const REJECT_REASONS: [&str; 31] = [
    "A live order of the session has this id.",
    "No live order of the session has this id.",
    "Quantity 0, or display or minimum larger than the quantity.",
    "Attributes that contradict each other.",
    "Post-only, and it would take liquidity.",
    "The limit lies outside the price bands.",
    "Trading is halted.",
    "Not accepted during an auction.",
    "The command does not fit the state.",
    "It had expired when it arrived.",
    "A command of the exchange, sent by another session than 0.",
    "An iceberg of too many parts.",
    "The instrument has as many live orders as it may have.",
    "The session has as many live orders on the instrument as it may have.",
    "Your quota of live orders on the instrument is full: that of the session's owner.",
    "Your quota of live orders in the instrument's cell is full: that of the session's owner.",
    "The instrument's cell has as many live orders as it may have.",
    "The instrument is not listed any more: its live orders can only be cancelled.",
    "The limit lies outside the prices that the instrument is listed with.",
    "The quantity is above the largest one that the instrument is listed with.",
    "An operator has stopped the session's owner: its live orders can only be cancelled.",
    "Its quantity is above the largest one that orders of its firm may have, lots.",
    "Its value is above the largest one that orders of its firm may have, ticks times lots.",
    "Its firm has as many live orders in the instrument's cell as it may have.",
    "The value of its firm's live orders in the cell would be too large, ticks times lots.",
    "Its firm's position on the instrument could become larger than it may be, lots.",
    "It has no limit price, and its firm has a limit of value.",
    "It is for the closing auction, of which there is none today, or none any more.",
    "A pegged order that is a stop, immediate, on-close, post-only or shows a part.",
    "The instrument has as many pegged orders as it may have.",
    "Your quota of pegged orders on the instrument is full: that of the session's owner.",
];

const CANCEL_REASONS: [&str; 13] = [
    "Its session asked for it.",
    "Its session cancelled all orders.",
    "What an order could not trade at once.",
    "A fill-or-kill order that cannot be filled.",
    "Less than its minimum quantity could trade.",
    "It would have traded with an order of its own session.",
    "Its limit lies outside the price bands.",
    "The day ended.",
    "It expired.",
    "It has made as many trades as it may.",
    "Its session was away for longer than it had asked for.",
    "An operator cancelled all orders of its session or firm.",
    "The closing auction, for which alone it was, has ended.",
];

/// Adds the types of codes that commands and events have.
fn add_codes(types: &mut Types) {
    types.add("Side", "A side of a book.", |_| {
        values(Side::ALL, |it| it.code(), &["Wants to buy.", "Wants to sell."])
    });
    types.add("OrderType", "When an order can trade, and at which price.", |_| {
        values(OrderType::ALL, |it| it.code(), &ORDER_TYPES)
    });
    let named = |all: &[(&str, &str)]| {
        let one = |(code, (name, doc)): (u8, &(&str, &str))| Alternative {
            code,
            name: (*name).to_string(),
            doc: (*doc).to_string(),
            fields: vec![],
        };
        Definition::Choice((0..).zip(all).map(one).collect())
    };
    types.add("TimeInForce", "How long an order stays live.", |_| named(&TIMES_IN_FORCE));
    types.add("Peg", "What the price of an order follows.", |_| named(&PEGS));
    types.add("PostOnly", "What happens to an order that would take liquidity.", |_| {
        let docs = ["It takes it.", "It is rejected.", "It rests one tick away."];
        values(PostOnly::ALL, |it| it.code(), &docs)
    });
    types.add("SelfTrade", "What happens when two orders of a session would trade.", |_| {
        values(SelfTrade::ALL, |it| it.code(), &SELF_TRADES)
    });
    types.add("RejectReason", "Why an order or command was rejected.", |_| {
        values(RejectReason::ALL, |it| it.code(), &REJECT_REASONS)
    });
    types.add("CancelReason", "Why an order was cancelled.", |_| {
        values(CancelReason::ALL, |it| it.code(), &CANCEL_REASONS)
    });
}

/// Bytes of a field of this type.
fn size(type_name: &str) -> usize {
    match type_name {
        "u64" | "i64" | "user" => 8,
        "u32" => 4,
        "u16" => 2,
        _ => 1,
    }
}

/// Adds the type of commands or events.
fn add(types: &mut Types, name: &str, doc: &str, all: &[Described]) {
    add_codes(types);
    let field = |(name, type_name, doc): &FieldText| Field {
        name: (*name).to_string(),
        type_name: (*type_name).to_string(),
        size: Some(size(type_name)),
        doc: (*doc).to_string(),
    };
    let one = |(code, name, doc, fields): &Described| Alternative {
        code: *code,
        name: (*name).to_string(),
        doc: prose(doc),
        fields: fields.iter().map(field).collect(),
    };
    types.add(name, doc, |_| Definition::Choice(all.iter().map(one).collect()));
}

/// Appends some command or event.
fn example(all: &[Described], random: &mut Random, out: &mut Vec<u8>) {
    let mut types = Types::default();
    add_codes(&mut types);
    let (code, _, _, fields) = &all[random.below(all.len() as u64) as usize];
    out.put_u8(*code);
    for (_, type_name, _) in *fields {
        match *type_name {
            "u64" | "i64" => out.put_u64(random.of_any_size()),
            "user" => out.put_u64(random.of_any_size() >> 32),
            "u32" => out.put_u32(random.of_any_size() as u32),
            "u16" => out.put_u16(random.of_any_size() as u16),
            "bool" => out.put_bool(random.below(2) == 1),
            codes => {
                let Some(Definition::Choice(values)) = types.0.get(codes).map(|it| &it.definition)
                else {
                    unreachable!("{codes} is a type of codes");
                };
                out.put_u8(values[random.below(values.len() as u64) as usize].code);
            }
        }
    }
}

impl<'a> Value<'a> for Command {
    const SIZE: Option<usize> = None;

    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        codec::write_command(self, out);
    }

    #[inline]
    fn take(_field: &'static str, reader: &mut Reader<'a>) -> Result<Command, DecodeError> {
        codec::read_command(reader)
    }

    fn describe(types: &mut Types) -> String {
        add(types, "Command", "A command to the book of an instrument.", COMMANDS);
        "Command".to_string()
    }

    fn example(random: &mut Random, out: &mut Vec<u8>) {
        let mut bytes = vec![];
        example(COMMANDS, random, &mut bytes);
        again(&bytes, codec::read_command, codec::write_command, out);
    }
}

impl<'a> Value<'a> for Event {
    const SIZE: Option<usize> = None;

    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        codec::write_event(self, out);
    }

    #[inline]
    fn take(_field: &'static str, reader: &mut Reader<'a>) -> Result<Event, DecodeError> {
        codec::read_event(reader)
    }

    fn describe(types: &mut Types) -> String {
        add(types, "Event", "What happened in the book of an instrument.", EVENTS);
        "Event".to_string()
    }

    fn example(random: &mut Random, out: &mut Vec<u8>) {
        let mut bytes = vec![];
        example(EVENTS, random, &mut bytes);
        again(&bytes, codec::read_event, codec::write_event, out);
    }
}

/// Appends what is written of what is read: of two fields that belong together, an example may
/// have values that no order has.
fn again<T>(
    bytes: &[u8],
    read: fn(&mut Reader<'_>) -> Result<T, DecodeError>,
    write: fn(&T, &mut Vec<u8>),
    out: &mut Vec<u8>,
) {
    let mut reader = Reader::new(bytes);
    let value = read(&mut reader).expect("bytes as described are read");
    assert!(reader.is_empty(), "all of the bytes are described");
    write(&value, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each alternative is written as it was read.
    fn assert_described<T>(
        all: &[Described],
        read: fn(&mut Reader<'_>) -> Result<T, DecodeError>,
        write: fn(&T, &mut Vec<u8>),
    ) {
        for code in 0..=u8::MAX {
            let Some((at, (described, name, _, fields))) =
                all.iter().enumerate().find(|(_, it)| it.0 == code)
            else {
                assert!(read(&mut Reader::new(&[code; 100])).is_err(), "{code} is not described");
                continue;
            };
            assert_eq!(at, usize::from(*described), "{name} is at its place");
            let mut bytes = vec![code];
            for (number, (_, type_name, _)) in fields.iter().enumerate() {
                let value = if *type_name == "bool" { 1 } else { number as u8 };
                // Codes are small; what belongs to `GoodTill` alone is 0.
                let value = if number >= 6 && code == 0 { 0 } else { value };
                bytes.push(value);
                bytes.resize(bytes.len() + size(type_name) - 1, 0);
            }
            let mut reader = Reader::new(&bytes);
            let value = read(&mut reader).unwrap();
            assert!(reader.is_empty(), "{name}");
            let mut written = vec![];
            write(&value, &mut written);
            assert_eq!(written, bytes, "{name}");
            assert!(read(&mut Reader::new(&bytes[..bytes.len() - 1])).is_err(), "{name}");
        }
    }

    #[test]
    fn commands_and_events_are_as_described() {
        assert_described(COMMANDS, codec::read_command, codec::write_command);
        assert_described(EVENTS, codec::read_event, codec::write_event);
        let mut bytes = vec![];
        let trade = Event::Traded {
            maker: 1,
            taker: 2,
            maker_user: 3,
            taker_user: 4,
            price: 5,
            quantity: 6,
            maker_left: 7,
            taker_left: 8,
        };
        codec::write_event(&trade, &mut bytes);
        assert_eq!((bytes[17], bytes[21]), (4, 3), "the taker's session comes first");
    }
}
