//! The bytes are untrusted input: they decode to a value or to an error, never to a panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nm_exchange_lab::testing::codec(bytes));
