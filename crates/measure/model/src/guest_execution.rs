//! What executes the instructions of a virtual machine.

use crate::named_enum::named_enum;

named_enum!(
    /// What executes the instructions of a guest. Only figures of [`GuestExecution::RealKvm`] are
    /// judged or compared.
    GuestExecution, "guest execution", {
        /// KVM on the processor's own virtualization.
        RealKvm = "real-kvm",
        /// KVM within a virtual machine, on virtualization that an outer hypervisor provides.
        NestedKvm = "nested-kvm",
        /// KVM whose timed test shows that it interprets the guest's code.
        InterpretedKvm = "interpreted-kvm",
        /// QEMU's translator (TCG): emulation without KVM.
        Tcg = "tcg",
    }
);

impl GuestExecution {
    /// Whether figures of such a guest say nothing about virtualization on this machine.
    pub fn is_emulated(self) -> bool {
        self != GuestExecution::RealKvm
    }

    /// `EMULATED by tcg`, which stands beside each figure of such a guest; nothing for a real one.
    pub fn mark(self) -> Option<String> {
        self.is_emulated().then(|| format!("EMULATED by {self}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_kvm_is_not_emulated() {
        let real: Vec<_> = GuestExecution::ALL.iter().filter(|one| !one.is_emulated()).collect();
        assert_eq!(real, [&GuestExecution::RealKvm]);
        assert_eq!(GuestExecution::RealKvm.mark(), None);
        assert_eq!(GuestExecution::Tcg.mark().as_deref(), Some("EMULATED by tcg"));
    }
}
