//! The fast book beside the reference one: same commands, same events, same state after each.
//!
//! The properties that must hold for any input are in [`nm_book::testing`]; seeded streams,
//! property tests and fuzzers use it.

use std::collections::BTreeMap;

use nm_book::book::Book;
use nm_book::order::{Command, Matching, Side, TradingPhase};
use nm_book::reference;
use nm_book::testing::{self, Stream, differ, limit, seeded};
use proptest::prelude::*;

/// Steps of the long comparison: a million where the code is fast.
const STEPS: usize = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };

#[test]
fn both_books_do_the_same_for_a_long_time() {
    let mut seen: BTreeMap<testing::What, u64> = BTreeMap::new();
    for seed in 0..10 {
        let (count, happened) = differ(seeded(seed), 48, STEPS / 10);
        assert_eq!(count, STEPS / 10);
        for (what, times) in happened {
            *seen.entry(what).or_default() += times;
        }
    }
    // Ten events, two with two outcomes each, thirteen reject reasons and ten cancel reasons.
    assert_eq!(seen.len(), 10 + 2 + 2 + 13 + 10, "{seen:#?}");
    assert!(seen.values().all(|times| *times >= 20), "{seen:#?}");
}

#[test]
fn both_books_do_the_same_with_thousands_of_orders() {
    assert_eq!(differ(seeded(11), 5_000, STEPS / 10).0, STEPS / 10);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn both_books_do_the_same_for_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
        let count = bytes.len();
        prop_assert!(differ(bytes.into_iter(), 48, usize::MAX).0 <= count);
    }

    #[test]
    fn a_saved_book_goes_on_as_if_nothing_had_been(seed in any::<u64>(), cut in 0usize..600) {
        let mut stream = Stream::new(seeded(seed), 48);
        let mut through = Book::new();
        let mut cut_here = Book::new();
        for step in 0..700 {
            let command = stream.command().unwrap();
            let (mut expected, mut events) = (vec![], vec![]);
            through.apply(&command, stream.now_ns, &mut |event| expected.push(event));
            cut_here.apply(&command, stream.now_ns, &mut |event| events.push(event));
            prop_assert_eq!(&events, &expected);
            if step == cut {
                let mut bytes = vec![];
                cut_here.save(&mut bytes);
                cut_here = Book::load(&bytes).unwrap();
            }
        }
        prop_assert_eq!(cut_here.hash(), through.hash());
    }

    #[test]
    fn hostile_bytes_are_no_book_or_a_sound_one(
        seed in any::<u64>(), at in any::<prop::sample::Index>(), value in any::<u8>(),
    ) {
        let mut stream = Stream::new(seeded(seed), 48);
        let mut book = Book::new();
        let mut apply = |book: &mut Book| {
            let command = stream.command().unwrap();
            book.apply(&command, stream.now_ns, &mut |_| {});
        };
        (0..60).for_each(|_| apply(&mut book));
        let mut bytes = vec![];
        book.save(&mut bytes);
        let at = at.index(bytes.len());
        bytes[at] = value;
        if let Ok(mut loaded) = Book::load(&bytes) {
            loaded.audit().map_err(TestCaseError::fail)?;
            (0..200).for_each(|_| apply(&mut loaded));
            loaded.audit().map_err(TestCaseError::fail)?;
        }
        prop_assert!(Book::load(&bytes[..at]).is_err());
    }
}

#[test]
fn levels_far_from_the_market_and_a_market_that_wanders_keep_their_order() {
    let (mut reference, mut fast) = (reference::ReferenceBook::new(), Book::new());
    let mut random = seeded(7);
    for step in 0..6_000u64 {
        let byte = i64::from(random.next().unwrap());
        // The market rises by 40 000 ticks and returns, with levels on both sides of it.
        let middle = if step < 3_000 { step as i64 * 13 } else { (6_000 - step as i64) * 13 };
        let side = if byte % 2 == 0 { Side::Buy } else { Side::Sell };
        let away = byte * if byte % 7 == 0 { 100 } else { 1 } + 1;
        let price = if side == Side::Buy { middle - away } else { middle + away };
        let order = limit(step, 1, side, price, 5);
        let commands =
            [Command::New(order), Command::Cancel { id: step.wrapping_sub(150), user: 1 }];
        for command in commands {
            let (mut expected, mut events) = (vec![], vec![]);
            reference.apply(&command, 0, &mut |event| expected.push(event));
            fast.apply(&command, 0, &mut |event| events.push(event));
            assert_eq!(events, expected);
        }
        if step % 16 == 0 {
            assert_eq!(fast.hash(), reference.hash());
            fast.audit().unwrap();
        }
    }
    assert_eq!(fast.phase(), TradingPhase::Continuous);
}
