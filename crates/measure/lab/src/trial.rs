//! One trial: every case of a probe between two agents, merged into rounds of series.

pub(crate) mod accelerated;
mod case;
pub(crate) mod merge;
pub(crate) mod types;

use std::sync::atomic::AtomicBool;

use nm_model::probe::{SIZE_BYTES_MAX, UDP_SIZE_BYTES_MAX, XDP_SIZE_BYTES_MAX};
use nm_model::stack::Protocol;
use nm_model::{Case, Failure, FailureKind, ProbeKind, ProbeSpec, StackPair};
use nm_sys::process::Signal;

use nm_sys::clock::Moment;
pub use types::{Interrupted, Measured, Options, Outcome, Progress};

use crate::pair::Pair;
use crate::resolve::distance_unavailable_reason;
use case::CaseRun;

/// Runs every case of `probe` over `stacks` between the agents of `pair`.
///
/// `cancel` is checked at least every 100 ms: both ends then cancel their tasks, and the failure is
/// of kind cancelled. After any failure the agents that still run are ready for the next trial.
///
/// # Errors
/// The first failure, with the cases completed before it.
pub fn run(
    pair: &mut Pair,
    stacks: &StackPair,
    probe: &ProbeSpec,
    round: u32,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
    cancel: &AtomicBool,
) -> Result<Outcome, Box<Interrupted>> {
    let mut outcome = Outcome::default();
    if let Some(reason) = distance_unavailable_reason(stacks, pair.is_on_one_host()) {
        let failure = Failure::new(FailureKind::NotAvailable, reason.to_string());
        return Err(Box::new(Interrupted { completed: outcome, case: None, failure }));
    }
    // A stopped guest takes no CPU time from the one that is measured.
    let is_divided = probe.kind() == ProbeKind::Stream;
    pair.signal_beside(if is_divided { Signal::CONT } else { Signal::STOP });
    let in_use = &pair.stacks_in_use(stacks);
    let cases = probe.cases();
    for (index, &case) in cases.iter().enumerate() {
        let undivided = || case::share(&case, pair.count_for(&case)).err();
        if let Some(reason) = unavailable_case(stacks, &case).or_else(undivided) {
            outcome.skipped.push((case, reason));
            continue;
        }
        let mut show = |statistic, value| {
            progress(Progress { case, index, cases: cases.len(), statistic, value });
        };
        let run = CaseRun { stacks, in_use, probe, case, round, options, cancel };
        match case::run(pair, &run, &mut show) {
            Ok(measured) => {
                outcome.first_result.get_or_insert_with(Moment::now);
                outcome.measured.extend(measured);
            }
            // What the machine cannot do in one case says nothing about the others.
            Err(failure)
                if failure.kind == FailureKind::NotAvailable && !probe.kind().uses_network() =>
            {
                outcome.skipped.push((case, failure.to_string()));
            }
            Err(failure) => {
                let case = Some(case);
                return Err(Box::new(Interrupted { completed: outcome, case, failure }));
            }
        }
    }
    Ok(outcome)
}

/// Why a case cannot be measured over these stacks, as a clause; none if it can.
pub fn unavailable_case(stacks: &StackPair, case: &Case) -> Option<String> {
    let protocols = stacks.protocols();
    protocols.into_iter().find_map(|protocol| case_unavailable_reason(protocol, case))
}

/// Why a case cannot be measured over a protocol; none if it can.
fn case_unavailable_reason(protocol: Protocol, case: &Case) -> Option<String> {
    if let (Protocol::XdpTcp, Case::Flows { pattern, .. }) = (protocol, case)
        && pattern.flows > 1
    {
        return Some("xdp-tcp carries one flow: a link's queue has one endpoint".to_string());
    }
    let largest = match protocol {
        Protocol::Udp | Protocol::Multicast => UDP_SIZE_BYTES_MAX,
        Protocol::Xdp => XDP_SIZE_BYTES_MAX,
        _ => SIZE_BYTES_MAX,
    };
    let size = match case {
        Case::Message { size_bytes } | Case::Paced { size_bytes, .. } => *size_bytes,
        Case::Request { size, .. } => size.request_bytes.max(size.response_bytes),
        Case::Flows { .. } | Case::Layout { .. } | Case::Total => return None,
    };
    (size > largest).then(|| format!("messages over {protocol} have at most {largest} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::probe::RrSize;

    #[test]
    fn unavailable_case_has_a_reason() {
        let large = Case::Message { size_bytes: 65536 };
        assert_eq!(case_unavailable_reason(Protocol::Tcp, &large), None);
        assert_eq!(
            case_unavailable_reason(Protocol::Udp, &large).as_deref(),
            Some("messages over udp have at most 32768 bytes")
        );
        assert_eq!(
            case_unavailable_reason(Protocol::Xdp, &Case::Message { size_bytes: 2048 }).as_deref(),
            Some("messages over xdp have at most 1472 bytes")
        );
        let flows =
            |pattern: &str| Case::Flows { pattern: pattern.parse().unwrap(), write_bytes: 1 << 17 };
        assert_eq!(case_unavailable_reason(Protocol::XdpTcp, &flows("1-uni-1")), None);
        assert!(case_unavailable_reason(Protocol::XdpTcp, &flows("2-bi-2")).is_some());
        assert_eq!(case_unavailable_reason(Protocol::XdpTcp, &large), None);
        let size = RrSize { request_bytes: 1, response_bytes: 40_000 };
        let request = Case::Request { size, rate_per_s: None };
        assert!(case_unavailable_reason(Protocol::Multicast, &request).is_some());
    }
}
