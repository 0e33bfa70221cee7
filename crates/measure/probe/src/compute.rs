//! The compute probe: how fast the processor does a job, alone and beside others.
//!
//! A [`kernel`] is the work of one job with a check of its result, [`layout_cpus`] says on which
//! CPUs the threads of a layout run. [`threads`] has them start each job together, and [`round`]
//! makes the report. [`pairs`] uses the same threads to find CPUs that share a core.

pub mod alu;
pub mod bc;
pub mod error;
pub mod gate;
pub mod kernel;
pub mod layout_cpus;
pub mod machine;
pub mod memory;
pub mod pairs;
pub mod pi;
pub mod round;
pub mod threads;
