//! libFuzzer's program of the target `ledger_view`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nearmetal_fuzz::ledger_view(bytes));
