//! libFuzzer's program of the target `plan`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nearmetal_fuzz::plan(bytes));
