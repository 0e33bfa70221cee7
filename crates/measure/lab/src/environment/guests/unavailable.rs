//! Why virtual machines cannot be started.

use nm_vm::execution::ExecutionError;
use nm_vm::kernel::KernelError;
use nm_vm::network::NetworkUnavailable;
use nm_vm::qemu::QemuError;
use nm_vm::refusal::Refusal;

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
    /// They would be emulated, and the plan does not want that.
    #[error("{0}")]
    Emulated(String),
    /// The host has too little memory for all of them.
    #[error("{0}")]
    Memory(String),
    /// No device is named whose functions could be passed through.
    #[error(
        "no network device is named for pass-through: name one with virtual functions, or two \
         (`nics` in [guests], `lab run --nic`); `nearmetal lab plan` shows which can be used"
    )]
    NoDevice,
    /// Without KVM, QEMU cannot pass devices through.
    #[error("{}", nm_vm::preconditions::NEEDS_KVM)]
    PassThroughNeedsKvm,
    /// The named devices cannot be passed through.
    #[error("{0}")]
    PassThrough(String),
}

impl From<Refusal> for GuestsUnavailable {
    fn from(refusal: Refusal) -> GuestsUnavailable {
        GuestsUnavailable::PassThrough(refusal.to_string())
    }
}

impl From<KernelError> for GuestsUnavailable {
    fn from(error: KernelError) -> GuestsUnavailable {
        GuestsUnavailable::Kernel(error.to_string())
    }
}
