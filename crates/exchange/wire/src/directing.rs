//! What an operator directs on instruments, and what came of it.

use crate::messages::retire::Retired;
use crate::{choice, record};

choice! {
    /// What an operator directs. The leader of the cell compares it with the phase of trading and
    /// has done in its log what is missing. So it can be repeated.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Direction {
        /// No trades and no new orders; orders can be cancelled.
        Halt = 0,
        /// The phase before the halt.
        Resume = 1,
        /// From continuous trading to an auction: orders are collected, and do not trade.
        Auction = 2,
        /// The trades of the auction, then continuous trading.
        Uncross = 3,
        /// The day orders are cancelled, in any phase.
        EndOfDay = 4,
        /// From any phase to an auction, also from a halt: the day begins.
        PreOpen = 5,
        /// The trades of the auction, if there is one, then the end of the day, then a halt.
        Close = 6,
        /// All live orders of a session or an owner are cancelled.
        Cancel = 7 {
            /// Whose.
            whose: Retired,
        },
        /// Orders for the closing auction are accepted from now on, in any phase.
        ExpectClosing = 8,
        /// From continuous trading, or from another auction, to the closing auction.
        ClosingAuction = 9,
    }
}

record! {
    /// What came of a direction in a cell.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Directed {
        /// Instruments that it was for.
        instruments: u64,
        /// Those of them on which something was done; the others were as directed before.
        changed: u64,
        /// Those that do not allow it in their phase, such as an auction during a halt.
        unfit: u64,
        /// Those that went to another cell meanwhile, or are not in this one.
        elsewhere: u64,
        /// Those on which it was not done, because the cell is full or others were faster.
        failed: u64,
        /// Sessions that it was for, counted once on each instrument.
        sessions: u64,
        /// Orders that it has cancelled.
        orders: u64,
    }
}
