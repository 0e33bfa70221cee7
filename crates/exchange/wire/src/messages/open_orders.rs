//! The answer to a session that asks for its open orders.

use nm_book::order::{InstrumentId, OrderId, Price, Quantity, UserId};

use crate::{message, record};

record! {
    /// A live order of a session.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LiveOrder {
        /// Its id.
        id: OrderId,
        /// Whether it buys; otherwise it sells.
        is_buy: bool,
        /// Limit price, ticks.
        price: Price,
        /// Open quantity, lots.
        left: Quantity,
        /// Whether it is a stop that no trade has triggered yet.
        is_pending_stop: bool,
    }
}

record! {
    /// Where a session stands on an instrument.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SessionPosition {
        /// The instrument.
        instrument: InstrumentId,
        /// Sequence number of the session's last request that was executed there: its next one
        /// names it as its predecessor.
        executed_seq: u64,
        /// Sequence number of the session's last event there.
        last_event: u64,
        /// How many live orders it has there.
        live_orders: u32,
        /// Those among them that this part has, by their ids.
        orders: Vec<LiveOrder>,
    }
}

record! {
    /// Where the next part begins.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct NextPart {
        /// Instrument.
        instrument: InstrumentId,
        /// Order.
        id: OrderId,
    }
}

message! {
    /// Answer to an `OrdersRequest`: a part of what the session has in the cell. The parts are not
    /// of one moment. What happens between them comes as events, and an instrument that moves to
    /// another cell meanwhile may be in none or in both.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct OpenOrders;
    head {
        /// The session.
        session: UserId,
        /// The cell.
        cell: u16,
        /// Gateway that the session is connected to.
        gateway: u16,
    }
    tail {
        /// Instruments, in order.
        positions: Vec<SessionPosition>,
        /// Where the next part begins; none if this is the last one.
        next: Option<NextPart>,
    }
}
