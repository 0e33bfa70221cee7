//! Why virtual machines cannot be started.

use nm_vm::execution::ExecutionError;
use nm_vm::kernel::KernelError;
use nm_vm::network::NetworkUnavailable;
use nm_vm::qemu::QemuError;

/// Why virtual machines cannot be started here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuestsUnavailable {
    /// There is no QEMU.
    #[error(transparent)]
    Qemu(#[from] QemuError),
    /// There is no kernel for them.
    #[error("{0}")]
    Kernel(String),
    /// Their image cannot be built.
    #[error("{0}")]
    Image(String),
    /// They cannot be executed as wanted.
    #[error(transparent)]
    Execution(#[from] ExecutionError),
    /// They cannot be connected.
    #[error(transparent)]
    Network(#[from] NetworkUnavailable),
    /// No function of a physical device is prepared for them.
    #[error(
        "no function of a network device is prepared for pass-through; see `nearmetal lab plan`"
    )]
    PassThrough,
}

impl From<KernelError> for GuestsUnavailable {
    fn from(error: KernelError) -> GuestsUnavailable {
        GuestsUnavailable::Kernel(error.to_string())
    }
}
