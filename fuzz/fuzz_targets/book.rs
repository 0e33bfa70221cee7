//! libFuzzer's program of the target `book`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nearmetal_fuzz::book(bytes));
