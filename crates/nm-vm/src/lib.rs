//! Virtual machines: what a guest is made of, how QEMU runs it, and what the host must be like.

#![forbid(unsafe_code)]

pub mod boot;
pub mod cpio;
pub mod elf;
pub mod image;
pub mod kernel;
pub mod modules;
