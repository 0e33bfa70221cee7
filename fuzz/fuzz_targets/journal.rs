//! libFuzzer's program of the target `journal`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nearmetal_fuzz::journal(bytes));
