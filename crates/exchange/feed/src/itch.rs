//! Messages of ITCH 5.0: each is declared once, with its fields in order, and is read and written
//! so.
//!
//! Numbers are big-endian. Texts are of ASCII, with blanks at their end. A price has four decimals
//! that are not written, of MWCB levels eight. Each message begins with its type, the locate of its
//! stock, a tracking number and a time of 48 bits.

use thiserror::Error;

/// Bytes of the longest message.
pub const MESSAGE_BYTES_MAX: usize = 50;

/// Bytes before the fields of a type: type, locate, tracking number, time.
pub const HEADER_BYTES: usize = 11;

/// Symbol of a stock.
pub type Stock = [u8; 8];

/// Why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Fault {
    /// No message has this type.
    #[error("no message has the type 0x{0:02x}")]
    Type(u8),
    /// It is too short or too long for its type.
    #[error("a message of type {kind} has {found} bytes instead of {bytes}")]
    Length {
        /// Its type.
        kind: char,
        /// Bytes that messages of this type have.
        bytes: usize,
        /// Bytes that it has.
        found: usize,
    },
    /// There is nothing.
    #[error("a message has no bytes")]
    Empty,
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Locate of the stock; 0 if it is about none.
    pub locate: u16,
    /// A number of the venue; 0 here.
    pub tracking: u16,
    /// ns since midnight, UTC; 48 bits are written.
    pub time_ns: u64,
    /// Its type, and what it says.
    pub body: Body,
}

/// What a field can be.
trait Field: Sized {
    const BYTES: usize;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, to: &mut [u8]);
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Field for $number {
            const BYTES: usize = size_of::<$number>();

            #[inline]
            fn read(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$number>()];
                own.copy_from_slice(bytes);
                <$number>::from_be_bytes(own)
            }

            #[inline]
            fn write(self, to: &mut [u8]) {
                to.copy_from_slice(&self.to_be_bytes());
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64);

impl<const N: usize> Field for [u8; N] {
    const BYTES: usize = N;

    #[inline]
    fn read(bytes: &[u8]) -> [u8; N] {
        let mut own = [0; N];
        own.copy_from_slice(bytes);
        own
    }

    #[inline]
    fn write(self, to: &mut [u8]) {
        to.copy_from_slice(&self);
    }
}

macro_rules! bodies {
    ($(
        $(#[$about:meta])*
        $name:ident = $kind:literal { $($(#[$field_about:meta])* $field:ident: $type:ty,)* }
    )*) => {
        /// What a message says, by its type.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Body {
            $($(#[$about])* $name { $($(#[$field_about])* $field: $type,)* },)*
        }

        /// Types and bytes of all messages.
        pub const LENGTHS: &[(u8, usize)] =
            &[$(($kind, HEADER_BYTES $(+ <$type as Field>::BYTES)*),)*];

        impl Body {
            /// Its type.
            #[inline]
            pub fn kind(&self) -> u8 {
                match self {
                    $(Body::$name { .. } => $kind,)*
                }
            }

            /// Reads the fields of a type. `bytes` have the length of that type.
            #[inline]
            fn read(kind: u8, bytes: &[u8]) -> Option<Body> {
                match kind {
                    $($kind => {
                        let rest = bytes;
                        $(
                            let (field, rest) = rest.split_at(<$type as Field>::BYTES);
                            let $field = <$type as Field>::read(field);
                        )*
                        debug_assert!(rest.is_empty());
                        Some(Body::$name { $($field,)* })
                    })*
                    _ => None,
                }
            }

            /// Writes the fields; how many bytes they have.
            #[inline]
            fn write(self, to: &mut [u8]) -> usize {
                match self {
                    $(Body::$name { $($field,)* } => {
                        let bytes = 0 $(+ <$type as Field>::BYTES)*;
                        let rest = &mut to[..bytes];
                        $(
                            let (place, rest) = rest.split_at_mut(<$type as Field>::BYTES);
                            <$type as Field>::write($field, place);
                        )*
                        debug_assert!(rest.is_empty());
                        bytes
                    })*
                }
            }
        }
    };
}

bodies! {
    /// A day or its trading begins or ends.
    SystemEvent = b'S' {
        /// Which: `O` `S` `Q` `M` `E` `C`.
        event: u8,
    }
    /// A stock that can be traded.
    StockDirectory = b'R' {
        /// Its symbol.
        stock: Stock,
        /// Its market.
        market: u8,
        /// Whether its issuer meets the rules.
        financial_status: u8,
        /// Shares of a round lot.
        round_lot: u32,
        /// Whether orders must be of round lots: `Y` or `N`.
        round_lots_only: u8,
        /// Class of the issue.
        class: u8,
        /// Class within it.
        sub_type: [u8; 2],
        /// `P` live, `T` test.
        authenticity: u8,
        /// Whether the short sale threshold holds.
        short_sale: u8,
        /// Whether it is new.
        ipo: u8,
        /// Tier of its price bands.
        luld_tier: u8,
        /// Whether it is an exchange traded product.
        etp: u8,
        /// Its leverage.
        etp_leverage: u32,
        /// Whether it is inverse.
        inverse: u8,
    }
    /// The state of trading in a stock.
    TradingAction = b'H' {
        /// Its symbol.
        stock: Stock,
        /// `H` halted, `P` paused, `Q` quotation only, `T` trading.
        state: u8,
        /// Nothing.
        reserved: u8,
        /// Why.
        reason: [u8; 4],
    }
    /// Restriction of short sales.
    RegSho = b'Y' {
        /// Symbol.
        stock: Stock,
        /// `0` none, `1` in effect, `2` remains.
        action: u8,
    }
    /// State of a market participant.
    ParticipantPosition = b'L' {
        /// Who.
        participant: [u8; 4],
        /// Symbol.
        stock: Stock,
        /// Whether it is a primary market maker.
        primary: u8,
        /// Its mode.
        mode: u8,
        /// Its state.
        state: u8,
    }
    /// Levels of the market-wide circuit breaker.
    DeclineLevels = b'V' {
        /// First level, 8 decimals.
        first: u64,
        /// Second level.
        second: u64,
        /// Third level.
        third: u64,
    }
    /// The market-wide circuit breaker has acted.
    DeclineStatus = b'W' {
        /// Level: `1` `2` `3`.
        level: u8,
    }
    /// Quoting of a new stock.
    IpoQuoting = b'K' {
        /// Symbol.
        stock: Stock,
        /// When it is released, s since midnight.
        release_s: u32,
        /// `A` anticipated, `C` cancelled.
        qualifier: u8,
        /// Price.
        price: u32,
    }
    /// Collar of an auction after a limit state.
    LuldCollar = b'J' {
        /// Symbol.
        stock: Stock,
        /// Reference price.
        reference: u32,
        /// Upper price.
        upper: u32,
        /// Lower price.
        lower: u32,
        /// How often it was extended.
        extension: u32,
    }
    /// Halt at one market.
    OperationalHalt = b'h' {
        /// Symbol.
        stock: Stock,
        /// `Q` `B` `X`.
        market: u8,
        /// `H` halted, `T` resumed.
        action: u8,
    }
    /// An order rests, and is shown.
    AddOrder = b'A' {
        /// Its number in the feed.
        reference: u64,
        /// `B` or `S`.
        side: u8,
        /// Shares that are shown.
        shares: u32,
        /// Symbol.
        stock: Stock,
        /// Price.
        price: u32,
    }
    /// An order rests, and shows whose it is.
    AddAttributed = b'F' {
        /// Its number in the feed.
        reference: u64,
        /// `B` or `S`.
        side: u8,
        /// Shares that are shown.
        shares: u32,
        /// Symbol.
        stock: Stock,
        /// Price.
        price: u32,
        /// Whose.
        attribution: [u8; 4],
    }
    /// An order traded at its price.
    Executed = b'E' {
        /// Which order.
        reference: u64,
        /// Shares.
        shares: u32,
        /// Number of the trade.
        match_number: u64,
    }
    /// An order traded at another price.
    ExecutedAtPrice = b'C' {
        /// Which order.
        reference: u64,
        /// Shares.
        shares: u32,
        /// Number of the trade.
        match_number: u64,
        /// `N` if the shares are in a cross as well.
        printable: u8,
        /// Price.
        price: u32,
    }
    /// An order has less shares.
    Cancel = b'X' {
        /// Which order.
        reference: u64,
        /// Shares that are gone.
        shares: u32,
    }
    /// An order is gone.
    Delete = b'D' {
        /// Which order.
        reference: u64,
    }
    /// An order has another number, price and quantity, behind the others.
    Replace = b'U' {
        /// Its number before.
        original: u64,
        /// Its number from now on.
        reference: u64,
        /// Shares that are shown.
        shares: u32,
        /// Price.
        price: u32,
    }
    /// A trade with an order that is not shown.
    Trade = b'P' {
        /// Number of that order, which no other message has.
        reference: u64,
        /// Always `B`.
        side: u8,
        /// Shares.
        shares: u32,
        /// Symbol.
        stock: Stock,
        /// Price.
        price: u32,
        /// Number of the trade.
        match_number: u64,
    }
    /// All trades of an auction together.
    Cross = b'Q' {
        /// Shares.
        shares: u64,
        /// Symbol.
        stock: Stock,
        /// Price; 0 if nothing traded.
        price: u32,
        /// Number of the cross.
        match_number: u64,
        /// `O` opening, `C` closing, `H` halt or IPO, `A` after an extended pause.
        cross: u8,
    }
    /// A trade is void.
    BrokenTrade = b'B' {
        /// Number of the trade.
        match_number: u64,
    }
    /// What an auction would trade now.
    Imbalance = b'I' {
        /// Shares that would trade.
        paired: u64,
        /// Shares that would not, at the reference price.
        imbalance: u64,
        /// `B` or `S`: the side that has more; `N` neither, `O` nothing would trade.
        direction: u8,
        /// Symbol.
        stock: Stock,
        /// Price at which auction orders alone would trade.
        far: u32,
        /// Price at which all orders would trade.
        near: u32,
        /// Price for which the numbers hold.
        reference: u32,
        /// As in [`Body::Cross`].
        cross: u8,
        /// How far the near price is from the reference price.
        variation: u8,
    }
    /// Retail interest.
    RetailInterest = b'N' {
        /// Symbol.
        stock: Stock,
        /// `A` both sides, `B`, `S`, `N` none.
        interest: u8,
    }
    /// Price discovery of a direct listing.
    DirectListing = b'O' {
        /// Symbol.
        stock: Stock,
        /// Whether it may be released.
        eligible: u8,
        /// Lowest price.
        min: u32,
        /// Highest price.
        max: u32,
        /// Near price.
        near: u32,
        /// When that was.
        near_time: u64,
        /// Lower collar.
        lower: u32,
        /// Upper collar.
        upper: u32,
    }
}

/// Bytes of a message of this type; none if there is none.
#[inline]
pub fn length(kind: u8) -> Option<usize> {
    const BY_KIND: [u8; 256] = {
        let (mut by_kind, mut at) = ([0; 256], 0);
        while at < LENGTHS.len() {
            by_kind[LENGTHS[at].0 as usize] = LENGTHS[at].1 as u8;
            at += 1;
        }
        by_kind
    };
    match BY_KIND[usize::from(kind)] {
        0 => None,
        bytes => Some(usize::from(bytes)),
    }
}

impl Message {
    /// Reads a message.
    ///
    /// # Errors
    /// If the bytes are none, or more or less than one.
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<Message, Fault> {
        let kind = *bytes.first().ok_or(Fault::Empty)?;
        let expected = length(kind).ok_or(Fault::Type(kind))?;
        if bytes.len() != expected {
            let kind = char::from(kind);
            return Err(Fault::Length { kind, bytes: expected, found: bytes.len() });
        }
        let time = bytes[5..HEADER_BYTES].iter();
        let body = Body::read(kind, &bytes[HEADER_BYTES..]).ok_or(Fault::Type(kind))?;
        Ok(Message {
            locate: u16::read(&bytes[1..3]),
            tracking: u16::read(&bytes[3..5]),
            time_ns: time.fold(0, |time, byte| time << 8 | u64::from(*byte)),
            body,
        })
    }

    /// Writes the message; how many bytes it has.
    #[inline]
    pub fn write(&self, to: &mut [u8; MESSAGE_BYTES_MAX]) -> usize {
        to[0] = self.body.kind();
        self.locate.write(&mut to[1..3]);
        self.tracking.write(&mut to[3..5]);
        to[5..HEADER_BYTES].copy_from_slice(&self.time_ns.to_be_bytes()[2..]);
        HEADER_BYTES + self.body.write(&mut to[HEADER_BYTES..])
    }
}
