//! libFuzzer's program of the target `codec`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nearmetal_fuzz::codec(bytes));
