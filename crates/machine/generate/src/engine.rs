//! Files for the engines that run programs on many machines, or at many times.
//!
//! Each engine takes checked words and writes [`EngineFile`]s; equal input gives equal bytes.

pub mod ansible;
pub mod kubernetes;
mod node_plan;
pub mod slurm;
pub mod systemd;
mod words;
mod yaml;

pub use node_plan::NodePlan;
pub use words::{AbsolutePath, EngineError, Name, PairsName, Partition, PlanName};

/// A file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineFile {
    /// Its path in the folder.
    pub name: String,
    /// What it holds.
    pub text: String,
    /// Whether it is a program.
    pub is_program: bool,
}
