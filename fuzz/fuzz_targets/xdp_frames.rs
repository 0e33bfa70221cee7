//! libFuzzer's program of the target `xdp_frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nearmetal_fuzz::xdp_frames(bytes));
