//! libFuzzer's program of the target `result`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nearmetal_fuzz::result(bytes));
