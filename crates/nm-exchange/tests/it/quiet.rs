//! After the largest book was there once, the fast book allocates nothing, whatever it is told.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use nm_exchange::book::Book;
use nm_exchange::order::{Command, Kind, Life, Matching, NewOrder, SelfTrade, Side};

use crate::book::limit;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static WATCHED: Cell<Option<&'static AtomicU64>> = const { Cell::new(None) };
}

/// From now on the allocations and releases of this thread are counted there, too, for others to
/// see.
pub fn watch(count: &'static AtomicU64) {
    WATCHED.set(Some(count));
}

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    if let Some(watched) = WATCHED.get() {
        watched.fetch_add(1, Ordering::Relaxed);
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches only plain cells
// and numbers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// A day of everything: orders of all kinds, far prices, stops, expiry, auctions, mass cancels.
fn a_day(book: &mut Book, first_ns: u64) -> u64 {
    let mut events = 0;
    let mut now_ns = first_ns;
    let mut apply = |book: &mut Book, command: Command| {
        now_ns += 1;
        book.apply(&command, now_ns, &mut |_| events += 1);
    };
    for round in 0..200u64 {
        for number in 0..40u64 {
            let id = round * 1000 + number;
            let side = if number % 2 == 0 { Side::Buy } else { Side::Sell };
            let price = match side {
                Side::Buy => 1000 - (number as i64 % 9) * if number % 8 == 0 { 5000 } else { 1 },
                Side::Sell => 1001 + (number as i64 % 7) * if number % 5 == 0 { 5000 } else { 1 },
            };
            let plain = limit(id, number as u32 % 4, side, price, 1 + number);
            let order = match number % 10 {
                3 => NewOrder { kind: Kind::Stop, stop_price: 1000, ..plain },
                4 => NewOrder { display: 2, ..plain },
                5 => NewOrder { life: Life::GoodTill(first_ns + round * 50 + 500), ..plain },
                6 => NewOrder { life: Life::FillOrKill, price: 1003, ..plain },
                7 => NewOrder { kind: Kind::Market, quantity: 3, ..plain },
                8 => NewOrder { life: Life::Day, self_trade: SelfTrade::Decrement, ..plain },
                _ => plain,
            };
            apply(book, Command::New(order));
            apply(
                book,
                Command::Replace {
                    id: id.wrapping_sub(3),
                    user: (number as u32).wrapping_sub(3) % 4,
                    price: 1000 + number as i64 % 5,
                    quantity: 7,
                },
            );
        }
        match round % 4 {
            0 => apply(book, Command::BeginAuction),
            1 => apply(book, Command::Uncross),
            2 => apply(book, Command::MassCancel { user: (round % 3) as u32 }),
            _ => apply(book, Command::EndOfDay),
        }
    }
    for user in 0..4 {
        apply(book, Command::MassCancel { user });
    }
    events
}

#[test]
fn nothing_is_allocated_after_the_first_day() {
    let mut book = Book::new();
    let first = a_day(&mut book, 0);
    let before = ALLOCATIONS.get();
    let second = a_day(&mut book, 1 << 40);
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(first > 10_000 && second > 10_000);
    assert!(before > 0, "the first day is counted");
}
