//! Factors of a plan: switched on for one trial, shown to be in force, switched off again.
//!
//! [`InForce`] is a guard. Dropping it, in whatever way the trial ended, switches the factor off. A
//! factor needs nothing to be written back. The kernel ends a held idle state with its descriptor,
//! a busy neighbour is a thread of this process. The others are properties of the trial's own
//! sockets and threads. So nothing remains after `kill -9` either.

mod idle_states;
mod neighbour;

use nm_model::plan::EnvironmentKind;
use nm_model::{DoubtKind, Factor, FactorCheck, FactorEvidence, FactorKind, RowId, StackPair};
use nm_sys::hostfiles::HostFiles;

use self::idle_states::{HeldIdleStates, HoldError};
use self::neighbour::{BusyNeighbour, NeighbourError};
use crate::affinity::Affinity;
use crate::pair::Pair;
use crate::trial::accelerated::KERNEL_SHARE_MAX;
use crate::trial::{Measured, Options};

/// Why a factor cannot be switched on here, as a clause that follows `not available: `.
#[derive(Debug, thiserror::Error)]
pub enum FactorUnavailable {
    /// Idle states cannot be held.
    #[error(transparent)]
    IdleStates(#[from] HoldError),
    /// The neighbour cannot run.
    #[error(transparent)]
    Neighbour(#[from] NeighbourError),
    /// Loopback has no queue.
    #[error("loopback has no device whose queue a receiver could poll; use netns or bridge")]
    BusyPollOnLoopback,
    /// Other hosts have settings and processors of their own.
    #[error("{0} is switched on and shown on this machine, and these ends run on other hosts")]
    OtherHosts(FactorKind),
    /// The stack has no such variant.
    #[error("{kind} has no meaning for {stacks}")]
    OtherStack {
        /// The factor.
        kind: FactorKind,
        /// The row's stacks.
        stacks: Box<StackPair>,
    },
}

/// A factor while it is on.
pub struct InForce {
    /// The stacks that the trial must use.
    pub stacks: StackPair,
    kind: FactorKind,
    affinity: Option<Affinity>,
    hold: Hold,
}

/// What keeps a factor on, or was read when it was switched on.
enum Hold {
    Nothing,
    IdleStates(HeldIdleStates),
    Neighbour(BusyNeighbour),
    /// Packets that busy polling had received at each end.
    BusyPolled(Vec<Option<u64>>),
}

/// What a trial with a factor showed.
pub struct Shown {
    /// Whether it was in force.
    pub check: FactorCheck,
    /// What limits the finding on this machine, if something does.
    pub note: Option<String>,
}

/// Why a factor cannot be switched on in an environment, as far as that is known beforehand.
pub fn unavailable_reason(
    factor: &Factor,
    environment: EnvironmentKind,
    stacks: &StackPair,
) -> Option<FactorUnavailable> {
    let is_loopback = environment == EnvironmentKind::Loopback;
    match factor.kind {
        kind if kind.stacks(stacks).is_none() => {
            Some(FactorUnavailable::OtherStack { kind, stacks: Box::new(*stacks) })
        }
        FactorKind::IdleStatesHeld
        | FactorKind::BusyNeighbour
        | FactorKind::BusyPoll
        | FactorKind::TuneStep
            if environment == EnvironmentKind::Ssh =>
        {
            Some(FactorUnavailable::OtherHosts(factor.kind))
        }
        FactorKind::BusyPoll if is_loopback => Some(FactorUnavailable::BusyPollOnLoopback),
        _ => None,
    }
}

impl InForce {
    /// Switches a factor on for a trial over the row's `stacks` between the agents of `pair`.
    ///
    /// # Errors
    /// Why that cannot be done here.
    pub fn begin(
        factor: &Factor,
        stacks: &StackPair,
        pair: &Pair,
        options: &Options,
    ) -> Result<InForce, FactorUnavailable> {
        let kind = factor.kind;
        let Some(of_factor) = kind.stacks(stacks) else {
            return Err(FactorUnavailable::OtherStack { kind, stacks: Box::new(*stacks) });
        };
        let mut affinity = options.affinity.clone();
        let hold = match kind {
            FactorKind::IdleStatesHeld => {
                Hold::IdleStates(HeldIdleStates::begin(&HostFiles::default())?)
            }
            FactorKind::BusyNeighbour => {
                let chosen = affinity
                    .unwrap_or_else(|| Affinity::choose(&pair.client_facts, &pair.server_facts, 1));
                let siblings = &pair.client_facts.cpu.siblings;
                let neighbour = BusyNeighbour::begin(&chosen, siblings)?;
                affinity = Some(chosen);
                Hold::Neighbour(neighbour)
            }
            FactorKind::Unpinned => {
                affinity = Some(Affinity::default());
                Hold::Nothing
            }
            FactorKind::BusyPoll => Hold::BusyPolled(busy_polled(pair)),
            // The step itself is the caller's, who has the journal.
            FactorKind::Accelerator | FactorKind::TuneStep => Hold::Nothing,
        };
        Ok(InForce { stacks: of_factor, kind, affinity, hold })
    }

    /// The options of the trial. Its samples are not kept one by one.
    pub fn options(&self, options: &Options) -> Options {
        Options { affinity: self.affinity.clone(), raw_samples: false, ..options.clone() }
    }

    /// Switches the factor off and says what showed that it was on.
    pub fn finish(self, row: RowId, pair: &Pair, measured: &[Measured]) -> Shown {
        let (is_in_force, evidence) = match self.hold {
            Hold::IdleStates(held) => held.finish(),
            Hold::Neighbour(neighbour) => neighbour.finish(),
            Hold::BusyPolled(before) => busy_poll_evidence(&before, &busy_polled(pair)),
            Hold::Nothing if self.kind == FactorKind::Accelerator => accelerated(measured),
            Hold::Nothing if self.kind == FactorKind::TuneStep => (None, vec![]),
            Hold::Nothing => unpinned(measured),
        };
        let hypervisor = pair.client_facts.virtualization.hypervisor.as_deref();
        let note = hypervisor.filter(|_| self.kind == FactorKind::IdleStatesHeld).map(|name| {
            format!(
                "this is a virtual machine ({name}): the idle states of its own kernel are held, \
                 those of the host are out of reach"
            )
        });
        Shown { check: FactorCheck { row, is_in_force, evidence }, note }
    }
}

type Evidence = (Option<bool>, Vec<FactorEvidence>);

/// `BusyPollRxPackets` of the namespaces of both agents.
fn busy_polled(pair: &Pair) -> Vec<Option<u64>> {
    let files = HostFiles::default();
    let of = |pid: u32| busy_polled_packets(&files.text(&format!("/proc/{pid}/net/netstat"))?);
    vec![of(pair.client.pid()), of(pair.server.pid())]
}

/// The counter in the text of `/proc/net/netstat`: a line of names, then one of values.
fn busy_polled_packets(netstat: &str) -> Option<u64> {
    let mut lines = netstat.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|name| name == "BusyPollRxPackets")?;
    values.split_whitespace().nth(at)?.parse().ok()
}

fn busy_poll_evidence(before: &[Option<u64>], after: &[Option<u64>]) -> Evidence {
    let mut known = vec![];
    let mut evidence = vec![];
    for ((end, before), after) in ["client", "server"].into_iter().zip(before).zip(after) {
        let Some((before, after)) = before.zip(*after) else { continue };
        let packets = after.saturating_sub(before);
        known.push(packets);
        let source = format!("BusyPollRxPackets of the {end}");
        evidence.push(FactorEvidence::new(source, format!("{packets} packets")));
    }
    ((!known.is_empty()).then(|| known.iter().any(|packets| *packets > 0)), evidence)
}

/// A trial fails if one of its connections stayed on the kernel, so what is left to ask is the
/// share of the kernel.
fn accelerated(measured: &[Measured]) -> Evidence {
    let all = measured.iter().flat_map(|one| &one.round.doubts);
    let partly = all.into_iter().find(|doubt| doubt.kind == DoubtKind::NotAccelerated);
    let percent = KERNEL_SHARE_MAX * 100.0;
    let value = match partly {
        Some(doubt) => doubt.detail.clone(),
        None => format!("shared memory, at most {percent:.0} % of the calls by the kernel"),
    };
    let evidence = FactorEvidence::new("ledgers of the connections", value);
    (Some(partly.is_none() && !measured.is_empty()), vec![evidence])
}

fn unpinned(measured: &[Measured]) -> Evidence {
    let placements: Vec<_> = measured.iter().flat_map(|one| &one.round.placements).collect();
    let n_pinned = placements.iter().filter(|one| one.pinned_cpu.is_some()).count();
    let moves: Option<u64> = placements.iter().map(|one| one.migrations).sum();
    let moves = moves.map_or("moves not counted".to_string(), |moves| format!("{moves} moves"));
    let value = format!("{n_pinned} of {} pinned, {moves} between CPUs", placements.len());
    let is_in_force = (!placements.is_empty()).then_some(n_pinned == 0);
    (is_in_force, vec![FactorEvidence::new("measuring threads", value)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_is_found_by_its_name() {
        let text = "TcpExt: SyncookiesSent BusyPollRxPackets X\nTcpExt: 3 17 4\nIpExt: A\nIpExt: 1";
        assert_eq!(busy_polled_packets(text), Some(17));
        assert_eq!(busy_polled_packets("TcpExt: A\nTcpExt: 1"), None);
        assert_eq!(busy_polled_packets(""), None);
    }

    #[test]
    fn busy_polling_is_shown_by_packets_only() {
        let (shown, evidence) = busy_poll_evidence(&[Some(5), Some(2)], &[Some(9), Some(2)]);
        assert_eq!((shown, evidence[0].value.as_str()), (Some(true), "4 packets"));
        assert_eq!(busy_poll_evidence(&[Some(5), Some(2)], &[Some(5), Some(2)]).0, Some(false));
        assert_eq!(busy_poll_evidence(&[None, None], &[Some(5), None]), (None, vec![]));
    }

    #[test]
    fn factors_of_this_machine_have_no_meaning_on_other_hosts() {
        let stacks = "tcp-blocking".parse().unwrap();
        let reason = |kind: FactorKind| {
            let (name, on) = ("x".to_string(), nm_model::Selector::any());
            let factor = Factor { name, kind, on, probe: None, step: None };
            unavailable_reason(&factor, EnvironmentKind::Ssh, &stacks).map(|why| why.to_string())
        };
        for kind in [FactorKind::IdleStatesHeld, FactorKind::BusyNeighbour, FactorKind::BusyPoll] {
            let why = reason(kind).unwrap();
            assert!(why.ends_with("and these ends run on other hosts"), "{why}");
        }
        assert_eq!(reason(FactorKind::Unpinned), None);
    }

    #[test]
    fn no_figures_show_nothing() {
        assert_eq!(unpinned(&[]).0, None);
        assert_eq!(accelerated(&[]).0, Some(false));
    }
}
