//! A session asks for its open orders.

use nm_book::order::{InstrumentId, OrderId, UserId};

crate::message! {
    /// A session asks a cell for its open orders and last numbers. A further one may be sent when
    /// the answer has come, or after a second.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct OrdersRequest;
    head {
        /// The session.
        session: UserId,
        /// The cell: one that `LoggedOn` has.
        cell: u16,
        /// Gateway that the session is connected to; 0 from a client.
        gateway: u16,
        /// First instrument of interest: 0, or `next` of the answer before.
        instrument: InstrumentId,
        /// First order of interest on that instrument: 0, or `next` of the answer before.
        id: OrderId,
    }
    tail {}
}
