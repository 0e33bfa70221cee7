//! Requests for tests.

use nm_book::order::{
    Command, InstrumentId, NewOrder, OrderType, PostOnly, SelfTrade, Side, TimeInForce, UserId,
};

use super::Request;

/// An order of a session on an instrument; even sessions buy, odd ones sell.
pub fn order(
    session: UserId,
    instrument: InstrumentId,
    client_seq: u64,
    previous_seq: u64,
) -> Request {
    let side = if session.is_multiple_of(2) { Side::Buy } else { Side::Sell };
    Request {
        session,
        gateway: session as u16 % 3,
        instrument,
        map_version: 0,
        client_seq,
        previous_seq,
        intended_ns: 0,
        acknowledged: 0,
        is_public: false,
        is_previous_answered: false,
        command: Command::New(NewOrder {
            id: u64::from(session) << 32 | client_seq,
            user: 77,
            side,
            order_type: OrderType::Limit,
            time_in_force: TimeInForce::GoodTillCancelled,
            price: 100,
            stop_price: 0,
            quantity: 3 + client_seq,
            display: 0,
            minimum: 0,
            post_only: PostOnly::No,
            self_trade: SelfTrade::CancelNewest,
        }),
    }
}
