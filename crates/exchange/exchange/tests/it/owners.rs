//! What owners have of a cell: it goes when an operator removes them.

use nm_book::book::Book;
use nm_book::order::{Command, Side};
use nm_exchange::batch;
use nm_exchange::cell::{Admitted, Cell, Handled};
use nm_exchange::testing;
use nm_test_support::held_bytes;
use nm_wire::{Holdings, Owner, Request, Retire, Retired};

const OWNER: Owner = Owner::of_user(7);

/// An entry of the log removes what the owner has.
fn retire(cell: &mut Cell<Book>, retired: Retired) {
    let mut bytes = vec![];
    batch::begin(0, &mut bytes);
    nm_wire::write(&Retire { cell: 0, retired }, &mut bytes);
    for frame in batch::decode(&bytes).unwrap().1 {
        assert!(matches!(cell.admit(frame.unwrap()), Ok(Admitted::Retired(_))));
    }
}

#[test]
fn memory_comes_back_when_an_owner_is_removed() {
    let mut cell = Cell::<Book>::default();
    let before = held_bytes();
    for instrument in 0..200 {
        for session in 1..20 {
            let order = nm_book::testing::limit(1, session, Side::Buy, 100, 5);
            let request = testing::request(session, instrument, Command::New(order));
            let request = Request { owner: OWNER, client_seq: 1, previous_seq: 0, ..request };
            assert!(matches!(cell.handle(&request, |_| {}), Handled::Executed(_)));
        }
    }
    let full = held_bytes() - before;
    assert!(full > 1 << 20, "{full}");
    let retired = Retired::Owner { owner: OWNER };
    while cell.holdings_of(retired) != Holdings::default() {
        retire(&mut cell, retired);
    }
    // What still counts for a minute is small.
    let counted = held_bytes() - before;
    assert!(counted * 4 < full, "{counted} of {full}");
    cell.begin(1, 61_000_000_000);
    let left = held_bytes() - before;
    assert!(left * 8 < full, "{left} of {full}");
}
