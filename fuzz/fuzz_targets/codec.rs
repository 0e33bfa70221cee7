//! The bytes come from a stranger: each is something or refused, never a panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nm_exchange_lab::testing::codec(bytes));
