//! Virtual machines: what a guest is made of, how QEMU runs it, and what the host must be like.

#![forbid(unsafe_code)]

pub mod boot;
pub mod budget;
pub mod checks;
pub mod cpio;
pub mod elf;
pub mod execution;
pub mod features;
pub mod function_address;
pub mod image;
pub mod join;
pub mod kernel;
pub mod machine;
pub mod memory;
pub mod modules;
pub mod network;
pub mod nic;
pub mod preconditions;
pub mod qemu;
pub mod refusal;
pub mod sriov;
pub mod threads;
pub mod vfio;
