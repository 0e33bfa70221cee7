//! What the messages of live moves are made of.

use std::fmt;

use nm_book::order::InstrumentId;
use nm_codec::{DecodeError, Random, Reader};

use crate::messages::request::Request;
use crate::messages::stop::StopOrder;
use crate::owner::Owner;
use crate::place::Plain;
use crate::series::Block;
use crate::types::Types;
use crate::value::Value;
use crate::{choice, codes, record};

record! {
    /// One change of the owner of an instrument.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct MoveId {
        /// Which instrument.
        instrument: InstrumentId,
        /// Number of the change; rises with each one.
        epoch: u32,
    }
}

/// Identifies one transfer of an instrument's state: two leaders of the source never have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u64);

impl<'a> Value<'a> for Attempt {
    const SIZE: Option<usize> = u64::SIZE;

    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(field: &'static str, reader: &mut Reader<'a>) -> Result<Attempt, DecodeError> {
        u64::take(field, reader).map(Attempt)
    }

    fn describe(types: &mut Types) -> String {
        u64::describe(types)
    }

    fn example(random: &mut Random, out: &mut Vec<u8>) {
        u64::example(random, out);
    }
}

impl Plain for Attempt {
    fn load(bytes: &[u8]) -> Attempt {
        Attempt(u64::load(bytes))
    }

    fn store(self, bytes: &mut [u8]) {
        self.0.store(bytes);
    }
}

codes! {
    /// Why a cell does not take an instrument.
    pub enum MoveRefusal {
        /// The cell has as many instruments as it may have.
        TooManyCellInstruments = 0,
        /// The cell has as many pairs of instrument and session as it may have.
        TooManyCellSessions = 1,
        /// What came is not what the source has; it is sent again.
        Damaged = 2,
    }
}

codes! {
    /// Whether a cell takes one more live order of a session, or a change of one.
    pub enum OrdersLimit {
        /// It does.
        None = 0,
        /// The session's owner has as many as its quota allows.
        OwnerInCell = 1,
        /// All have as many as the cell may have.
        Cell = 2,
        /// An operator has stopped the session's owner: it may replace no order either.
        Stopped = 3,
        /// The quantity is above the largest one of an order of the session's firm.
        FirmQuantity = 4,
        /// The value is above the largest one of an order of the firm.
        FirmOrderValue = 5,
        /// The firm has as many live orders as it may have.
        FirmOrders = 6,
        /// The firm's live orders would have a larger value than they may have.
        FirmValue = 7,
        /// The firm's position could become larger than it may be.
        FirmPosition = 8,
        /// It has no limit price, and the firm has a limit of value.
        FirmNeedsPrice = 9,
    }
}

record! {
    /// What a cell says to one more order, or to a change of one.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LimitCheck {
        /// The limit that was reached.
        limit: OrdersLimit,
        /// Of a limit of the session's firm: the limit; else 0.
        most: u64,
        /// What there would be then; 0 for other limits.
        asked: u64,
    }
}

impl LimitCheck {
    /// No limit was reached.
    pub const NONE: LimitCheck = LimitCheck::of(OrdersLimit::None);

    /// One of a limit that is not a firm's.
    pub const fn of(limit: OrdersLimit) -> LimitCheck {
        LimitCheck { limit, most: 0, asked: 0 }
    }
}

impl fmt::Display for MoveRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MoveRefusal::TooManyCellInstruments => {
                "the new cell has as many instruments as it may have (TooManyCellInstruments)"
            }
            MoveRefusal::TooManyCellSessions => {
                "the new cell has as many sessions as it may have (TooManyCellSessions)"
            }
            MoveRefusal::Damaged => "what came to the new cell is not what the old one has",
        })
    }
}

impl MoveRefusal {
    /// Whether the same move would be refused again.
    pub fn is_lasting(self) -> bool {
        self != MoveRefusal::Damaged
    }
}

record! {
    /// What an instrument was when a copy of it was begun, beside sessions and book.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CopyStart {
        /// Sequence number of the last request that was executed.
        output_seq: u64,
        /// Sequence number of the last broadcast event.
        public_seq: u64,
        /// Hash of the history.
        history: u64,
        /// How many sessions there were.
        sessions: u32,
        /// Whose request made it.
        maker: Owner,
    }
}

choice! {
    /// A part of an instrument that is sent to another cell.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Part<'a> {
        /// First of all: what the instrument was when the copy was begun.
        Start = 0 {
            /// What it was.
            start: CopyStart,
        },
        /// Saved sessions.
        Sessions = 1 {
            /// As in a snapshot of a cell.
            saved: Block<'a>,
        },
        /// The next bytes of the saved book.
        Book = 2 {
            /// As in a snapshot of a cell.
            saved: Block<'a>,
        },
        /// The saved book is complete.
        BookEnd = 3,
        /// A request that was executed after the start.
        Request = 4 {
            /// The time of its batch, ns since 1970.
            now_ns: u64,
            /// The request.
            request: Request,
            /// What the old cell said to it.
            check: LimitCheck,
        },
        /// Last of all: what the instrument was when it was released.
        End = 5 {
            /// Time of the source cell, ns since 1970.
            now_ns: u64,
            /// Sequence number of the last request that was executed.
            output_seq: u64,
            /// Sequence number of the last broadcast event.
            public_seq: u64,
            /// Hash of the history.
            history: u64,
        },
        /// Before the last one: whether the old cell has stopped an owner.
        Stop = 6 {
            /// The decision.
            stop: StopOrder,
        },
        /// Before the last one: what a firm with limits has bought on the instrument less what it
        /// has sold, lots, as a number of 128 bits.
        Position = 48 {
            /// Number of the firm.
            firm: u32,
            /// The lower 64 bits.
            low: u64,
            /// The upper ones; the highest bit is the sign.
            high: u64,
        },
    }
}
