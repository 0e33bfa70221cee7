//! Requests and instruments for tests.

use std::task::Poll;

use nm_book::book::Book;
use nm_book::order::{
    Command, InstrumentId, NewOrder, OrderType, Peg, PostOnly, SelfTrade, Side, TimeInForce, UserId,
};
use nm_wire::{Block, Owner, Part, Request, Value};

use super::{Cell, CopyPiece};

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
        owner: Owner::NOBODY,
        map_version: 0,
        cell: 0,
        attempt: 0,
        client_seq,
        previous_seq,
        intended_ns: 0,
        acknowledged: 0,
        is_previous_answered: false,
        breach: 0,
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
            is_hidden: false,
            peg: Peg::No,
            post_only: PostOnly::No,
            self_trade: SelfTrade::CancelNewest,
        }),
    }
}

/// The instrument of the cell with a large book.
pub const INSTRUMENT: InstrumentId = 7;

/// A cell with an instrument whose book other threads save and load.
pub fn cell_with_large_book() -> Cell<Book> {
    let mut cell = Cell::new(1, 2);
    cell.begin(1, 5);
    for seq in 1..=2_500 {
        for session in [2, 4] {
            cell.handle(&order(session, INSTRUMENT, seq, seq - 1), |_| {});
        }
    }
    cell
}

/// The parts of a copy of its instrument, by frames; all but the end of the transfer.
pub fn copied_parts(cell: &mut Cell<Book>) -> Vec<Vec<u8>> {
    let mut start = vec![];
    Part::Start { start: cell.begin_copy(INSTRUMENT) }.put(&mut start);
    let (mut frames, mut waited) = (vec![start], 0);
    loop {
        let mut frame = vec![];
        match cell.next_piece(INSTRUMENT, 100_000) {
            Poll::Ready(Some(CopyPiece::Sessions(bytes))) => {
                Part::Sessions { saved: Block(&bytes) }.put(&mut frame);
            }
            Poll::Ready(Some(CopyPiece::Book(bytes))) => {
                Part::Book { saved: Block(&bytes) }.put(&mut frame);
            }
            Poll::Ready(None) => {
                Part::BookEnd.put(&mut frame);
                frames.push(frame);
                return frames;
            }
            // What is executed meanwhile is not in the copy.
            Poll::Pending => {
                waited += 1;
                let seq = 2_500 + waited;
                if seq < 2_600 {
                    cell.handle(&order(2, INSTRUMENT, seq, seq - 1), |_| {});
                }
                continue;
            }
        }
        frames.push(frame);
    }
}
