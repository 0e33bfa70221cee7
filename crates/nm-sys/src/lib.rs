//! Safe wrappers of system calls and kernel files, one family a file.

pub mod bpf;
pub mod clock;
pub mod counters;
pub mod cpu;
pub mod cpu_counters;
pub mod cpu_list;
pub mod ethtool;
pub mod futex;
pub mod hostfiles;
pub mod init;
pub mod kernel_clock;
pub mod measured_child;
pub mod memory;
pub mod namespace;
pub mod poll;
pub mod private_folder;
pub mod process;
pub mod random;
pub mod rseq;
pub mod shared_memory;
pub mod signal;
pub mod socket;
pub mod unix;
pub mod xdp;
