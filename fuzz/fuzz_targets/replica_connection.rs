//! libFuzzer's program of the target `replica_connection`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nearmetal_fuzz::replica_connection(bytes));
