//! Safe calls onto the kernel, one family a file.

pub mod bpf;
pub mod clock;
pub mod counters;
pub mod cpu;
pub mod ethtool;
pub mod hostfiles;
pub mod memory;
pub mod namespace;
pub mod poll;
pub mod process;
pub mod socket;
pub mod xdp;
