//! Virtual machines that nearmetal starts: what a plan asks of them, and what they ran on.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::environment::EnvironmentKind;
use crate::finding::Finding;
use crate::guest_execution::GuestExecution;
use crate::limits::{self, SpecError};
use crate::named_enum::named_enum;
use crate::probe::Side;

named_enum!(
    /// How guests are to be executed.
    ExecutionChoice, "execution of guests", {
        /// By KVM where its timed test shows that it runs code natively, else by TCG.
        Auto = "auto",
        /// By KVM, or not at all.
        Kvm = "kvm",
        /// By TCG.
        Tcg = "tcg",
    }
);

/// The virtual machines of a plan, its table `[guests]`. Both have the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GuestSpec {
    /// How they are executed.
    pub execution: ExecutionChoice,
    /// Whether they are also started where they would be emulated; if not, their rows are left out
    /// there.
    pub emulation_allowed: bool,
    /// Pairs of them in each environment. The flows of a stream are divided among all pairs; other
    /// probes measure the first one.
    pub pairs: u32,
    /// Virtual CPUs of each; absent for as many as the host has cores for, one or two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Memory of each, MiB.
    pub memory_mib: u32,
    /// Whether their memory is of huge pages where the host has free ones.
    pub huge_pages: bool,
    /// Kernel: an image, or a folder with `boot/` and `lib/modules/`, or a Debian package; absent
    /// for the host's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Network devices of the host whose functions are passed through: one with virtual functions,
    /// or two.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<String>,
}

impl Default for GuestSpec {
    fn default() -> GuestSpec {
        GuestSpec {
            execution: ExecutionChoice::Auto,
            emulation_allowed: true,
            pairs: 1,
            cpus: None,
            memory_mib: 512,
            huge_pages: true,
            kernel: None,
            nics: vec![],
        }
    }
}

impl GuestSpec {
    /// Most pairs of an environment.
    pub const PAIRS_MAX: u32 = 8;
    /// Most virtual CPUs of a guest.
    pub const CPUS_MAX: u32 = 64;
    /// Least memory of a guest, MiB: kernel, program and samples.
    pub const MEMORY_MIB_MIN: u32 = 192;
    /// Most memory of a guest, MiB.
    pub const MEMORY_MIB_MAX: u32 = 65_536;
    /// Most devices that are passed through.
    pub const NICS_MAX: usize = 2;

    /// Checks the ranges.
    ///
    /// # Errors
    /// The field, and its range.
    pub fn check(&self) -> Result<(), SpecError> {
        limits::check("pairs", self.pairs, 1..=GuestSpec::PAIRS_MAX)?;
        if let Some(cpus) = self.cpus {
            limits::check("cpus", cpus, 1..=GuestSpec::CPUS_MAX)?;
        }
        let memory = GuestSpec::MEMORY_MIB_MIN..=GuestSpec::MEMORY_MIB_MAX;
        limits::check("memory_mib", self.memory_mib, memory)?;
        limits::check("nics", self.nics.len() as u32, 0..=GuestSpec::NICS_MAX as u32)
    }
}

impl GuestSpec {
    /// Why guests that would run in this way are not started, as a clause that follows
    /// `not available: `; nothing if they may be.
    pub fn refusal(&self, execution: GuestExecution) -> Option<String> {
        let is_refused = !self.emulation_allowed && execution.is_emulated();
        is_refused.then(|| {
            format!(
                "guests would be emulated here (no usable KVM: {execution}); use `nearmetal lab \
                 run`, which shows such figures without judging them"
            )
        })
    }
}

/// One of the guests of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestId {
    /// Its pair, counted from 0.
    pub pair: u32,
    /// Which end of the pair it is.
    pub side: Side,
}

impl GuestId {
    /// All guests of `pairs` pairs, pair by pair, in each the client first.
    pub fn all(pairs: u32) -> Vec<GuestId> {
        let of_pair = |pair| [Side::Client, Side::Server].map(|side| GuestId { pair, side });
        (0..pairs).flat_map(of_pair).collect()
    }

    /// Its place among [`GuestId::all`].
    pub fn index(self) -> usize {
        2 * self.pair as usize + usize::from(self.side == Side::Server)
    }
}

impl From<Side> for GuestId {
    /// The guest of the first pair.
    fn from(side: Side) -> GuestId {
        GuestId { pair: 0, side }
    }
}

/// `client`, and `client-2` for that of the second pair.
impl fmt::Display for GuestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pair {
            0 => write!(f, "{}", self.side),
            pair => write!(f, "{}-{}", self.side, pair + 1),
        }
    }
}

/// What the guests of one environment were, and ran on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GuestRecord {
    /// The environment.
    pub environment: EnvironmentKind,
    /// What executed their code.
    pub execution: GuestExecution,
    /// What showed that, with its figures.
    pub evidence: String,
    /// Version of QEMU.
    pub qemu_version: String,
    /// Machine type of QEMU, such as `q35`.
    pub machine: String,
    /// CPU model, such as `host`.
    pub cpu_model: String,
    /// Pairs of guests.
    #[serde(default = "one")]
    pub pairs: u32,
    /// Virtual CPUs of each guest.
    pub cpus: u32,
    /// Memory of each guest, MiB.
    pub memory_mib: u32,
    /// Size of the pages behind that memory, KiB.
    pub page_kib: u32,
    /// Whether that memory is locked.
    pub is_memory_locked: bool,
    /// Release of the guests' kernel.
    pub kernel: String,
    /// SHA-256 of the program that ran in the guests, which is that of the host.
    pub program_sha256: String,
    /// From the start of QEMU until the agent of the slower guest answered, ms.
    pub boot_ms: u64,
    /// From the start of QEMU until the first measured result of the guests was there, ms; absent
    /// if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_result_ms: Option<u64>,
    /// CPUs of the host on which each guest's virtual CPUs and other threads run.
    pub placement: Vec<GuestPlacement>,
    /// Further choices that change latency, such as halt polling, in sentences.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What only host and guest together show.
    #[serde(default)]
    pub findings: Vec<Finding>,
}

fn one() -> u32 {
    1
}

/// Where the threads of one guest run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuestPlacement {
    /// Which end of its pair; absent if all are placed alike.
    #[serde(default)]
    pub side: Option<Side>,
    /// Its pair, counted from 1; absent if there is one only, or all are placed alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<u32>,
    /// CPU of the host for each virtual CPU, in order; empty if they are not pinned.
    pub virtual_cpus: Vec<u32>,
    /// CPUs of the host for QEMU's other threads; empty if they are not pinned.
    pub other_threads: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_beyond_the_limits_are_refused_with_their_field() {
        let field = |spec: GuestSpec| spec.check().unwrap_err().field();
        let default = GuestSpec::default();
        assert_eq!(default.check(), Ok(()));
        assert_eq!(field(GuestSpec { pairs: 0, ..default.clone() }), "pairs");
        assert_eq!(field(GuestSpec { pairs: 9, ..default.clone() }), "pairs");
        assert_eq!(field(GuestSpec { cpus: Some(0), ..default.clone() }), "cpus");
        assert_eq!(field(GuestSpec { cpus: Some(65), ..default.clone() }), "cpus");
        assert_eq!(field(GuestSpec { memory_mib: 191, ..default.clone() }), "memory_mib");
        assert_eq!(field(GuestSpec { memory_mib: 65_537, ..default.clone() }), "memory_mib");
        assert_eq!(field(GuestSpec { nics: vec![String::new(); 3], ..default }), "nics");
    }

    #[test]
    fn guests_are_counted_pair_by_pair() {
        let all = GuestId::all(2);
        let names: Vec<String> = all.iter().map(GuestId::to_string).collect();
        assert_eq!(names, ["client", "server", "client-2", "server-2"]);
        assert!(all.iter().enumerate().all(|(index, guest)| guest.index() == index));
        assert_eq!(GuestId::from(Side::Server), all[1]);
    }

    #[test]
    fn emulated_guests_are_refused_only_where_a_plan_does_not_allow_them() {
        let default = GuestSpec::default();
        let strict = GuestSpec { emulation_allowed: false, ..default.clone() };
        for &execution in GuestExecution::ALL {
            assert_eq!(default.refusal(execution), None);
            assert_eq!(strict.refusal(execution).is_some(), execution.is_emulated());
        }
        let sentence = strict.refusal(GuestExecution::Tcg).unwrap();
        assert!(sentence.starts_with("guests would be emulated here (no usable KVM: tcg); use "));
    }
}
