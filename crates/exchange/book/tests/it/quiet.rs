//! After the largest book has existed once, the fast book allocates nothing, whatever the commands.

use nm_book::book::Book;
use nm_book::order::{Command, Matching, NewOrder, OrderType, SelfTrade, Side, TimeInForce};
use nm_book::testing::limit;
use nm_test_support::allocations;

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
                3 => NewOrder { order_type: OrderType::Stop, stop_price: 1000, ..plain },
                4 if round % 2 == 0 => NewOrder { is_hidden: true, ..plain },
                4 => NewOrder { display: 2, ..plain },
                5 => NewOrder {
                    time_in_force: TimeInForce::GoodTill(first_ns + round * 50 + 500),
                    ..plain
                },
                6 => NewOrder { time_in_force: TimeInForce::FillOrKill, price: 1003, ..plain },
                7 => NewOrder { order_type: OrderType::Market, quantity: 3, ..plain },
                8 => NewOrder {
                    time_in_force: TimeInForce::Day,
                    self_trade: SelfTrade::Decrement,
                    ..plain
                },
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
    let before = allocations();
    let second = a_day(&mut book, 1 << 40);
    assert_eq!(allocations() - before, 0);
    assert!(first > 10_000 && second > 10_000);
    assert!(before > 0, "allocations of the first day are counted");
}
