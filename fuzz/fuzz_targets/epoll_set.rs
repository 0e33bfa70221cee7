//! libFuzzer's program of the target `epoll_set`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nearmetal_fuzz::epoll_set(bytes));
