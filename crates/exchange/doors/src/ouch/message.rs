//! Layouts: each message is declared once, with its fields in order, and is read and written so.
//!
//! Numbers are big-endian. Texts are of ASCII, with blanks at their end. A price has four decimals
//! that are not written.

use thiserror::Error;

use super::appendage::Appendage;

/// Text of a ClOrdID.
pub type ClientId = [u8; 14];

/// Text of a symbol.
pub type SymbolText = [u8; 8];

/// Text of a firm.
pub type Firm = [u8; 4];

/// Why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Fault {
    /// No message has this type.
    #[error("no message has the type 0x{0:02x}")]
    Type(u8),
    /// It is too short or too long for its type.
    #[error("a message of type {0} has a wrong length")]
    Length(char),
    /// There is nothing.
    #[error("a message has no bytes")]
    Empty,
}

/// Whether options follow behind the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Options {
    /// They never do.
    Never,
    /// Their length may be missing if there are none.
    Maybe,
    /// Their length is always there.
    Always,
}

/// What a field can be.
trait Field: Sized {
    const BYTES: usize;
    fn read(bytes: &[u8]) -> Self;
    fn write(&self, to: &mut Vec<u8>);
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Field for $number {
            const BYTES: usize = size_of::<$number>();

            fn read(bytes: &[u8]) -> Self {
                bytes.iter().fold(0, |number, byte| (number as u64) << 8 | u64::from(*byte)) as _
            }

            fn write(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_be_bytes());
            }
        }
    )*};
}

impl Field for u8 {
    const BYTES: usize = 1;

    fn read(bytes: &[u8]) -> u8 {
        bytes[0]
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.push(*self);
    }
}

impl<const N: usize> Field for [u8; N] {
    const BYTES: usize = N;

    fn read(bytes: &[u8]) -> [u8; N] {
        std::array::from_fn(|at| bytes[at])
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self);
    }
}

/// Options of a message, from the length before them on.
fn read_options(options: Options, bytes: &[u8]) -> Option<Appendage> {
    match (options, bytes.split_first_chunk::<2>()) {
        (Options::Never | Options::Maybe, None) => bytes.is_empty().then(Appendage::default),
        (Options::Maybe | Options::Always, Some((length, rest)))
            if usize::from(u16::from_be_bytes(*length)) == rest.len() =>
        {
            Appendage::read(rest)
        }
        _ => None,
    }
}

fn write_options(options: Options, appendage: &Appendage, to: &mut Vec<u8>) {
    let bytes = appendage.write();
    if options == Options::Always || options == Options::Maybe && !bytes.is_empty() {
        to.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
        to.extend_from_slice(&bytes);
    }
}

/// Declares the messages of a direction: type, bytes without options, whether options follow, and
/// the fields behind the type.
macro_rules! messages {
    (
        $(#[$about_all:meta])* $all:ident
        $($(#[$about:meta])* $code:literal $name:ident $bytes:literal $options:ident {
            $($(#[$about_field:meta])* $field:ident: $type:ty),*
        })*
    ) => {
        $(
            $(#[$about])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub struct $name {
                $($(#[$about_field])* pub $field: $type),*
            }

            const _: () = assert!($bytes == 1 $(+ <$type as Field>::BYTES)*);

            impl From<$name> for $all {
                fn from(message: $name) -> $all {
                    $all::$name(message)
                }
            }
        )*

        $(#[$about_all])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $all {
            $($(#[$about])* $name($name)),*
        }

        impl $all {
            /// The message of these bytes, and its options.
            ///
            /// # Errors
            /// If they are none.
            pub fn read(bytes: &[u8]) -> Result<($all, Appendage), Fault> {
                let (code, rest) = bytes.split_first().ok_or(Fault::Empty)?;
                match code {
                    $($code => {
                        let wrong = Fault::Length(char::from($code));
                        let split = rest.split_at_checked($bytes - 1);
                        let (_fields, behind) = split.ok_or(wrong)?;
                        let appendage = read_options(Options::$options, behind).ok_or(wrong)?;
                        let mut _at = 0;
                        $(
                            let end = _at + <$type as Field>::BYTES;
                            let $field = <$type as Field>::read(&_fields[_at..end]);
                            _at = end;
                        )*
                        Ok(($name { $($field),* }.into(), appendage))
                    })*
                    code => Err(Fault::Type(*code)),
                }
            }

            /// Its bytes, with these options.
            pub fn write(&self, appendage: &Appendage) -> Vec<u8> {
                let mut to = vec![];
                match self {
                    $($all::$name($name { $($field),* }) => {
                        to.push($code);
                        $(<$type as Field>::write($field, &mut to);)*
                        write_options(Options::$options, appendage, &mut to);
                    })*
                }
                to
            }
        }
    };
}

numbers!(u16, u32, u64);

messages! {
    /// What clients send.
    Inbound
    /// A new order.
    b'O' EnterOrder 45 Always {
        /// Its number.
        user_ref: u32,
        /// B, S, T or E.
        side: u8,
        /// Shares.
        quantity: u32,
        /// Its symbol.
        symbol: SymbolText,
        /// Limit.
        price: u64,
        /// Time in force.
        time_in_force: u8,
        /// Whether others see it.
        display: u8,
        /// For whom it is.
        capacity: u8,
        /// Intermarket sweep.
        sweep: u8,
        /// Cross.
        cross: u8,
        /// Text of the client.
        client_id: ClientId
    }
    /// An order in place of another.
    b'U' ReplaceOrder 38 Always {
        /// The order before.
        original: u32,
        /// Its number from now on.
        user_ref: u32,
        /// Shares of the whole chain, executed ones included.
        quantity: u32,
        /// Limit.
        price: u64,
        /// Time in force.
        time_in_force: u8,
        /// Whether others see it.
        display: u8,
        /// Intermarket sweep.
        sweep: u8,
        /// Text of the client.
        client_id: ClientId
    }
    /// Cancels an order, or a part of it.
    b'X' CancelOrder 9 Maybe {
        /// The order.
        user_ref: u32,
        /// Shares of the whole chain that it is to have; 0 to end it.
        quantity: u32
    }
    /// Changes how a sale is marked, and may reduce it.
    b'M' ModifyOrder 10 Maybe {
        /// The order.
        user_ref: u32,
        /// S, T or E.
        side: u8,
        /// As in [`CancelOrder`].
        quantity: u32
    }
    /// Cancels all orders, or those of a symbol.
    b'C' MassCancel 17 Always {
        /// Its number.
        user_ref: u32,
        /// Of which firm.
        firm: Firm,
        /// Blanks for all symbols.
        symbol: SymbolText
    }
    /// No new orders from now on.
    b'D' DisableEntry 9 Always {
        /// Its number.
        user_ref: u32,
        /// Of which firm.
        firm: Firm
    }
    /// New orders again.
    b'E' EnableEntry 9 Always {
        /// Its number.
        user_ref: u32,
        /// Of which firm.
        firm: Firm
    }
    /// Which number is the next one?
    b'Q' AccountQuery 1 Maybe {}
}

messages! {
    /// What the door sends. `at` is in ns since midnight, UTC.
    Outbound
    /// A day begins.
    b'S' SystemEvent 10 Never {
        /// When.
        at: u64,
        /// S.
        event: u8
    }
    /// An order is live.
    b'A' Accepted 62 Always {
        /// When.
        at: u64,
        /// As in the order.
        user_ref: u32,
        /// As in the order.
        side: u8,
        /// Shares.
        quantity: u32,
        /// As in the order.
        symbol: SymbolText,
        /// Limit.
        price: u64,
        /// As in the order.
        time_in_force: u8,
        /// As in the order.
        display: u8,
        /// Number of the order on the exchange.
        order_ref: u64,
        /// As in the order.
        capacity: u8,
        /// As in the order.
        sweep: u8,
        /// As in the order.
        cross: u8,
        /// L.
        state: u8,
        /// As in the order.
        client_id: ClientId
    }
    /// An order is live in place of another.
    b'U' Replaced 66 Always {
        /// When.
        at: u64,
        /// The order before.
        original: u32,
        /// Its number.
        user_ref: u32,
        /// As in the order.
        side: u8,
        /// Open shares.
        quantity: u32,
        /// As in the order.
        symbol: SymbolText,
        /// Limit.
        price: u64,
        /// As in the order.
        time_in_force: u8,
        /// As in the order.
        display: u8,
        /// Number of the order on the exchange.
        order_ref: u64,
        /// As in the order.
        capacity: u8,
        /// As in the order.
        sweep: u8,
        /// As in the order.
        cross: u8,
        /// L.
        state: u8,
        /// Text of the client.
        client_id: ClientId
    }
    /// An order has lost shares, and ends if none are left.
    b'C' Canceled 18 Maybe {
        /// When.
        at: u64,
        /// The order.
        user_ref: u32,
        /// Shares that it has lost.
        quantity: u32,
        /// Why.
        reason: u8
    }
    /// An order has traded.
    b'E' Executed 34 Always {
        /// When.
        at: u64,
        /// The order.
        user_ref: u32,
        /// Shares.
        quantity: u32,
        /// At which price.
        price: u64,
        /// A: it rested. R: it came.
        liquidity: u8,
        /// The same on both sides.
        match_number: u64
    }
    /// A request is not carried out.
    b'J' Rejected 29 Maybe {
        /// When.
        at: u64,
        /// Number of the request.
        user_ref: u32,
        /// Why.
        reason: u16,
        /// Text of the client.
        client_id: ClientId
    }
    /// An order was modified.
    b'M' Modified 18 Maybe {
        /// When.
        at: u64,
        /// The order.
        user_ref: u32,
        /// S, T or E.
        side: u8,
        /// Open shares.
        quantity: u32
    }
    /// The answer to a query.
    b'Q' AccountQueryResponse 13 Maybe {
        /// When.
        at: u64,
        /// The next number that is free.
        next: u32
    }
    /// Orders are being cancelled.
    b'X' MassCancelResponse 25 Always {
        /// When.
        at: u64,
        /// Number of the request.
        user_ref: u32,
        /// As in the request.
        firm: Firm,
        /// As in the request.
        symbol: SymbolText
    }
    /// New orders are rejected from now on.
    b'G' DisableResponse 17 Always {
        /// When.
        at: u64,
        /// Number of the request.
        user_ref: u32,
        /// As in the request.
        firm: Firm
    }
    /// New orders are taken again.
    b'K' EnableResponse 17 Always {
        /// When.
        at: u64,
        /// Number of the request.
        user_ref: u32,
        /// As in the request.
        firm: Firm
    }
}

#[cfg(test)]
mod tests {
    use super::super::appendage::tag;
    use super::*;
    use proptest::prelude::*;

    /// Bytes of a message, and its fields at their offsets.
    type Layout<'a> = (usize, &'a [(usize, &'a [u8])]);

    /// Bytes at offsets, as the published tables have them.
    fn at(bytes: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
        let mut all = vec![0; bytes];
        for (offset, field) in fields {
            all[*offset..offset + field.len()].copy_from_slice(field);
        }
        all
    }

    #[test]
    fn an_order_has_the_offsets_of_the_published_table() {
        let bytes = at(
            47 + 6,
            &[
                (0, b"O"),
                (1, &7_u32.to_be_bytes()),
                (5, b"B"),
                (6, &100_u32.to_be_bytes()),
                (10, b"ACME    "),
                (18, &102_500_u64.to_be_bytes()),
                (26, b"0YANN"),
                (31, b"first         "),
                (45, &[0, 6, 5, 3, 0, 0, 0, 40]),
            ],
        );
        let mut appendage = Appendage::default();
        appendage.push(tag::MIN_QTY, &40_u32.to_be_bytes());
        let order = Inbound::from(EnterOrder {
            user_ref: 7,
            side: b'B',
            quantity: 100,
            symbol: *b"ACME    ",
            price: 102_500,
            time_in_force: b'0',
            display: b'Y',
            capacity: b'A',
            sweep: b'N',
            cross: b'N',
            client_id: *b"first         ",
        });
        assert_eq!(Inbound::read(&bytes), Ok((order, appendage.clone())));
        assert_eq!(order.write(&appendage), bytes);
        for wrong in [&bytes[..46], &bytes[..52], &[&bytes[..], b"0"].concat(), b"", b"Z"] {
            assert!(Inbound::read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn requests_have_the_offsets_of_the_published_tables() {
        let (one, two) = (1_u32.to_be_bytes(), 2_u32.to_be_bytes());
        let number = 3_u32.to_be_bytes();
        let price = 4_u64.to_be_bytes();
        let replace: &[(usize, &[u8])] = &[
            (0, b"U"),
            (1, &one),
            (5, &two),
            (9, &number),
            (13, &price),
            (21, b"3YNclient-id-1234"),
        ];
        let all: [Layout<'_>; 7] = [
            (40, replace),
            (9, &[(0, b"X"), (1, &one), (5, &number)]),
            (10, &[(0, b"M"), (1, &one), (5, b"T"), (6, &number)]),
            (19, &[(0, b"C"), (1, &one), (5, b"FIRMACME    ")]),
            (11, &[(0, b"D"), (1, &one), (5, b"FIRM")]),
            (11, &[(0, b"E"), (1, &one), (5, b"FIRM")]),
            (1, &[(0, b"Q")]),
        ];
        for (bytes, fields) in all {
            let bytes = at(bytes, fields);
            let (message, appendage) = Inbound::read(&bytes).unwrap();
            assert_eq!(message.write(&appendage), bytes);
        }
        let (read, _) = Inbound::read(&at(40, replace)).unwrap();
        let Inbound::ReplaceOrder(read) = read else { panic!("{read:?}") };
        assert_eq!((read.original, read.user_ref, read.quantity, read.price), (1, 2, 3, 4));
        assert_eq!((read.time_in_force, read.display, read.sweep), (b'3', b'Y', b'N'));
        assert_eq!(&read.client_id, b"client-id-1234");
        // An empty appendage of a message that may lack it.
        let cancel = at(11, &[(0, b"X"), (1, &one), (5, &number)]);
        let (read, _) = Inbound::read(&cancel).unwrap();
        assert_eq!(read, CancelOrder { user_ref: 1, quantity: 3 }.into());
    }

    #[test]
    fn answers_have_the_offsets_of_the_published_tables() {
        let (when, one, two) = (9_u64.to_be_bytes(), 1_u32.to_be_bytes(), 2_u32.to_be_bytes());
        let (number, price) = (3_u32.to_be_bytes(), 4_u64.to_be_bytes());
        let reference = 5_u64.to_be_bytes();
        let all: [Layout<'_>; 11] = [
            (10, &[(0, b"S"), (1, &when), (9, b"S")]),
            (
                64,
                &[
                    (0, b"A"),
                    (1, &when),
                    (9, &one),
                    (13, b"B"),
                    (14, &number),
                    (18, b"ACME    "),
                    (26, &price),
                    (34, b"0Y"),
                    (36, &reference),
                    (44, b"ANNLclient-id-1234"),
                ],
            ),
            (
                68,
                &[
                    (0, b"U"),
                    (1, &when),
                    (9, &one),
                    (13, &two),
                    (17, b"B"),
                    (18, &number),
                    (22, b"ACME    "),
                    (30, &price),
                    (38, b"0Y"),
                    (40, &reference),
                    (48, b"ANNLclient-id-1234"),
                ],
            ),
            (18, &[(0, b"C"), (1, &when), (9, &one), (13, &number), (17, b"U")]),
            (
                36,
                &[
                    (0, b"E"),
                    (1, &when),
                    (9, &one),
                    (13, &number),
                    (17, &price),
                    (25, b"A"),
                    (26, &reference),
                ],
            ),
            (29, &[(0, b"J"), (1, &when), (9, &one), (13, &[0, 0x17]), (15, b"client-id-1234")]),
            (18, &[(0, b"M"), (1, &when), (9, &one), (13, b"T"), (14, &number)]),
            (13, &[(0, b"Q"), (1, &when), (9, &one)]),
            (27, &[(0, b"X"), (1, &when), (9, &one), (13, b"FIRMACME    ")]),
            (19, &[(0, b"G"), (1, &when), (9, &one), (13, b"FIRM")]),
            (19, &[(0, b"K"), (1, &when), (9, &one), (13, b"FIRM")]),
        ];
        for (bytes, fields) in all {
            let bytes = at(bytes, fields);
            let (message, appendage) = Outbound::read(&bytes).unwrap();
            assert_eq!(message.write(&appendage), bytes);
        }
    }

    #[test]
    fn a_fill_has_its_numbers_where_the_published_table_has_them() {
        let bytes = at(
            36,
            &[
                (0, b"E"),
                (1, &9_u64.to_be_bytes()),
                (9, &1_u32.to_be_bytes()),
                (13, &3_u32.to_be_bytes()),
                (17, &4_u64.to_be_bytes()),
                (25, b"A"),
                (26, &5_u64.to_be_bytes()),
            ],
        );
        let (user_ref, quantity, price) = (1, 3, 4);
        let executed =
            Executed { at: 9, user_ref, quantity, price, liquidity: b'A', match_number: 5 };
        assert_eq!(Outbound::from(executed).write(&Appendage::default()), bytes);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_that_is_written_so_or_none(
            code in prop::sample::select(b"OUXMCDEQ".to_vec()),
            rest in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let bytes = [&[code], &rest[..]].concat();
            if let Ok((message, appendage)) = Inbound::read(&bytes) {
                let again = message.write(&appendage);
                prop_assert_eq!(Inbound::read(&again), Ok((message, appendage)));
            }
        }
    }
}
