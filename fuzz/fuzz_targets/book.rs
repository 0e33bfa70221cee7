//! The bytes are commands: the fast book must behave as the reference book, and both must stay
//! consistent.
#![no_main]

use nm_book::testing::differ;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    differ(bytes.iter().copied(), 48, usize::MAX);
});
