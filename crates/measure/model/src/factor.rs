//! Factors: conditions that a plan switches on for a trial, to show what they do. Each round runs a
//! row without and with the factor, so slow changes of the machine affect both alike.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::named_enum::named_enum;
use crate::probe::ProbeKind;
use crate::selector::Selector;
use crate::stack::{Launcher, Mode, Protocol, StackPair};

named_enum!(
    /// What a factor is when it is on.
    FactorKind, "factor", {
        /// The kernel is held to idle states without exit latency, by an open descriptor of
        /// `/dev/cpu_dma_latency`.
        IdleStatesHeld = "idle-states-held",
        /// Receivers that block poll the device's queue first, by `SO_BUSY_POLL` on their sockets.
        BusyPoll = "busy-poll",
        /// The measuring threads may move; without the factor they are pinned.
        Unpinned = "unpinned",
        /// A thread spins on the other thread of the client's core, or on the client's CPU where
        /// the core has no other.
        BusyNeighbour = "busy-neighbour",
        /// The stack runs under the accelerator.
        Accelerator = "accelerator",
        /// A step of `nearmetal tune` is applied for the trial, and undone after it.
        TuneStep = "tune-step",
    }
);

impl FactorKind {
    /// The factor in words, as a condition: `with …`.
    pub fn title(self) -> &'static str {
        match self {
            FactorKind::IdleStatesHeld => "idle states held",
            FactorKind::BusyPoll => "busy polling",
            FactorKind::Unpinned => "threads not pinned",
            FactorKind::BusyNeighbour => "a busy neighbour",
            FactorKind::Accelerator => "the accelerator",
            FactorKind::TuneStep => "a tuning step",
        }
    }

    /// The stacks of a row with the factor on; none if it has no meaning for these stacks.
    pub fn stacks(self, of_row: &StackPair) -> Option<StackPair> {
        let mut stacks = *of_row;
        let ends = [&mut stacks.client, &mut stacks.server];
        match self {
            FactorKind::IdleStatesHeld
            | FactorKind::Unpinned
            | FactorKind::BusyNeighbour
            | FactorKind::TuneStep => {}
            FactorKind::BusyPoll => {
                for end in ends {
                    let is_kernel = matches!(end.protocol, Protocol::Tcp | Protocol::Udp);
                    if !is_kernel || end.mode != Mode::Blocking || end.launcher.is_some() {
                        return None;
                    }
                    end.mode = Mode::BusyPoll;
                }
            }
            FactorKind::Accelerator => {
                for end in ends {
                    if end.protocol != Protocol::Tcp || end.launcher.is_some() {
                        return None;
                    }
                    end.launcher = Some(Launcher::Accel);
                }
            }
        }
        Some(stacks)
    }
}

/// A factor of a plan and the rows that it is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Factor {
    /// Name of the factor in the report.
    pub name: String,
    /// What it is.
    pub kind: FactorKind,
    /// The rows: `ENVIRONMENT/STACK` or a part of it, `*` for any. The stack is the one without
    /// the factor.
    #[serde(default = "Selector::any")]
    pub on: Selector,
    /// Only rows of this probe.
    #[serde(default)]
    pub probe: Option<ProbeKind>,
    /// The step of `nearmetal tune`, for a factor that is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks(kind: FactorKind, text: &str) -> Option<String> {
        kind.stacks(&text.parse().unwrap()).map(|pair| pair.to_string())
    }

    #[test]
    fn a_factor_changes_the_stack_where_it_is_one() {
        use FactorKind::{Accelerator, BusyPoll, IdleStatesHeld};
        assert_eq!(stacks(BusyPoll, "tcp-blocking").as_deref(), Some("tcp-busy-poll"));
        assert_eq!(stacks(Accelerator, "tcp-spin").as_deref(), Some("accel+tcp-spin"));
        assert_eq!(stacks(IdleStatesHeld, "shm-spin").as_deref(), Some("shm-spin"));
        for (kind, text) in [
            (BusyPoll, "tcp-spin"),
            (BusyPoll, "unix-blocking"),
            (BusyPoll, "accel+tcp-blocking"),
            (Accelerator, "udp-spin"),
            (Accelerator, "accel+tcp-spin"),
        ] {
            assert_eq!(stacks(kind, text), None, "{kind} {text}");
        }
    }
}
