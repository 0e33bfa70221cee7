//! Why the compute probe failed.

use nm_model::compute::Workload;
use nm_model::{Failure, FailureKind};

use super::bc::BcError;
use super::layout_cpus::LayoutError;
use super::memory::TooSmall;

/// Why the compute probe failed.
#[derive(Debug, thiserror::Error)]
pub enum ComputeError {
    /// The installed `bc` cannot be used.
    #[error("the workload bc cannot run")]
    Bc(#[from] BcError),
    /// The memory is too small for the workload.
    #[error("the workload memory cannot run")]
    Memory(#[from] TooSmall),
    /// The machine does not have the layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A job's result is wrong.
    #[error("a job of the workload {workload} gave a wrong result on CPU {cpu}")]
    WrongResult {
        /// The workload.
        workload: Workload,
        /// The CPU that computed it.
        cpu: u32,
    },
}

impl From<ComputeError> for Failure {
    fn from(error: ComputeError) -> Failure {
        let text = error.to_string();
        match error {
            ComputeError::Bc(BcError::NotInstalled) => {
                Failure::new(FailureKind::NotAvailable, "bc is not installed")
                    .hint("install it, or use the workload pi")
            }
            ComputeError::Bc(error) => {
                let cause = std::error::Error::source(&error);
                let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
                let kind = match error {
                    BcError::UnknownVersion { .. } | BcError::Run { .. } => {
                        FailureKind::NotAvailable
                    }
                    _ => FailureKind::System,
                };
                Failure::new(kind, format!("{error}{cause}"))
                    .hint("put another bc first in the PATH, or use the workload pi")
            }
            ComputeError::Memory(error) => {
                Failure::new(FailureKind::NotAvailable, error.to_string())
                    .hint("free memory, or raise the limit of the control group")
            }
            ComputeError::Layout(LayoutError::CpuNotAllowed { .. }) => {
                Failure::new(FailureKind::BadRequest, text)
                    .hint("see the CPUs of this process with `nearmetal doctor`")
            }
            ComputeError::Layout(_) => Failure::new(FailureKind::NotAvailable, text),
            ComputeError::WrongResult { .. } => Failure::new(FailureKind::System, text)
                .hint("the processor or the memory is faulty, or bc is not a true bc"),
        }
    }
}
