//! libFuzzer's program of the target `rendezvous`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nearmetal_fuzz::rendezvous(bytes));
