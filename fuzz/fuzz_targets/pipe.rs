//! libFuzzer's program of the target `pipe`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nearmetal_fuzz::pipe(bytes));
