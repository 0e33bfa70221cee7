//! libFuzzer's program of the target `agent_lines`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nearmetal_fuzz::agent_lines(bytes));
