//! libFuzzer's program of the target `importers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nearmetal_fuzz::importers(bytes));
