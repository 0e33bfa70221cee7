//! The bytes are commands: the fast book must do what the plain one does, and both must be sound.
#![no_main]

use nm_book::testing::differ;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    differ(bytes.iter().copied(), 48, usize::MAX);
});
