//! What executes guests here: KVM, if a timed test shows that it runs their code natively, else
//! QEMU's translator (TCG).

use std::sync::OnceLock;
use std::time::Duration;

use nm_model::GuestExecution;
use nm_model::guest::ExecutionChoice;
use nm_sys::kvm::{self, KvmError, KvmTiming};

/// A guest's loop that takes this many times the host's is interpreted: emulated virtualization
/// stays below it, and an interpreter is a hundred times above.
const NATIVE_RATIO_MAX: f64 = 20.0;

/// A pass of the loop takes no less on any processor, ns; a shorter time is one of the clock.
const LOOP_NS_MIN: f64 = 0.2;

/// Longest time of the test.
const TEST_MAX: Duration = Duration::from_millis(900);

/// What KVM on this machine is.
#[derive(Debug, Clone, PartialEq)]
pub struct Kvm {
    /// How it executes guests; absent if it cannot be used.
    pub class: Option<GuestExecution>,
    /// The figures of the test, or why there are none, as a clause.
    pub evidence: String,
}

/// What executes the guests of this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Determined {
    /// What executes them.
    pub execution: GuestExecution,
    /// What showed that, as a clause.
    pub evidence: String,
}

/// Why guests cannot be executed as wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecutionError {
    /// KVM is wanted, and is missing or interprets.
    #[error("KVM cannot execute guests here: {0}; use the execution auto or tcg")]
    Kvm(String),
}

/// KVM on this machine, tested once in each process.
pub fn kvm() -> Kvm {
    static TESTED: OnceLock<Kvm> = OnceLock::new();
    TESTED.get_or_init(|| classify(kvm::timing(TEST_MAX), nm_host::hypervisor())).clone()
}

/// The class of a KVM with these times, on a host below which `outer` runs.
fn classify(timing: Result<KvmTiming, KvmError>, outer: Option<String>) -> Kvm {
    let timing = match timing {
        Ok(timing) => timing,
        Err(error @ KvmError::Late(_)) => {
            return Kvm {
                class: Some(GuestExecution::InterpretedKvm),
                evidence: error.to_string(),
            };
        }
        Err(error) => return Kvm { class: None, evidence: error.to_string() },
    };
    let KvmTiming { guest_loop_ns, host_loop_ns, exit_ns } = timing;
    let times = format!(
        "a loop takes {guest_loop_ns:.2} ns in a guest and {host_loop_ns:.2} ns on the host, \
         leaving the guest {:.1} µs",
        exit_ns / 1e3
    );
    let is_native = guest_loop_ns <= NATIVE_RATIO_MAX * host_loop_ns.max(LOOP_NS_MIN);
    let (class, evidence) = match outer {
        _ if !is_native => (GuestExecution::InterpretedKvm, times),
        Some(outer) => (GuestExecution::NestedKvm, format!("{times}; this host runs on {outer}")),
        None => (GuestExecution::RealKvm, times),
    };
    Kvm { class: Some(class), evidence }
}

/// What executes guests here, as `choice` wants it.
///
/// # Errors
/// If KVM is wanted and cannot be used.
pub fn determine(choice: ExecutionChoice) -> Result<Determined, ExecutionError> {
    match choice {
        ExecutionChoice::Tcg => Ok(Determined {
            execution: GuestExecution::Tcg,
            evidence: "execution tcg was chosen".to_string(),
        }),
        _ => decide(choice, kvm()),
    }
}

fn decide(choice: ExecutionChoice, kvm: Kvm) -> Result<Determined, ExecutionError> {
    match kvm.class {
        Some(execution @ (GuestExecution::RealKvm | GuestExecution::NestedKvm)) => {
            Ok(Determined { execution, evidence: kvm.evidence })
        }
        _ if choice == ExecutionChoice::Kvm => Err(ExecutionError::Kvm(kvm.evidence)),
        class => {
            let what = match class {
                Some(class) => format!("KVM is {class}"),
                None => "no KVM".to_string(),
            };
            let evidence = format!("{what}: {}", kvm.evidence);
            Ok(Determined { execution: GuestExecution::Tcg, evidence })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(guest_loop_ns: f64) -> Result<KvmTiming, KvmError> {
        Ok(KvmTiming { guest_loop_ns, host_loop_ns: 0.27, exit_ns: 1500.0 })
    }

    #[test]
    fn kvm_is_classed_by_its_times_and_by_what_is_below_the_host() {
        let class = |timing, outer: Option<&str>| classify(timing, outer.map(str::to_string)).class;
        assert_eq!(class(timing(0.28), None), Some(GuestExecution::RealKvm));
        assert_eq!(class(timing(4.5), Some("TCG")), Some(GuestExecution::NestedKvm));
        assert_eq!(class(timing(1067.0), Some("KVM")), Some(GuestExecution::InterpretedKvm));
        assert_eq!(class(timing(1067.0), None), Some(GuestExecution::InterpretedKvm));
        let late = KvmError::Late(TEST_MAX);
        assert_eq!(class(Err(late), None), Some(GuestExecution::InterpretedKvm));
        assert_eq!(class(Err(KvmError::Exit(8)), None), None);
    }

    #[test]
    fn only_native_kvm_is_used() {
        let with = |choice, timing| decide(choice, classify(timing, None));
        let auto = |timing| with(ExecutionChoice::Auto, timing).unwrap();
        assert_eq!(auto(timing(0.3)).execution, GuestExecution::RealKvm);
        let interpreted = auto(timing(1067.0));
        assert_eq!(interpreted.execution, GuestExecution::Tcg);
        assert!(
            interpreted.evidence.starts_with("KVM is interpreted-kvm: a loop takes 1067.00 ns")
        );
        let missing = auto(Err(KvmError::Exit(8)));
        assert!(missing.evidence.starts_with("no KVM: its test guest"), "{}", missing.evidence);
        let error = with(ExecutionChoice::Kvm, timing(1067.0)).unwrap_err().to_string();
        assert!(error.ends_with("use the execution auto or tcg"), "{error}");
        let chosen = determine(ExecutionChoice::Tcg).unwrap();
        assert_eq!(chosen.execution, GuestExecution::Tcg);
    }
}
