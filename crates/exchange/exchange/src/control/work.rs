//! What a node has done, as it reports it to an observer.

use nm_codec::DecodeError;
use nm_replica::MEMBERS_MAX;
use nm_wire::{AdminResponse, FRAME_BYTES_MAX, InstrumentWork, Value, Work};

use crate::network::NODES_MAX;

/// Pauses in one answer.
pub const PAUSES_MAX: usize = 8_192;

/// Links of one answer: a node is linked to those of two classes at most.
pub const WORK_LINKS_MAX: usize = 2 * NODES_MAX;

/// Bytes of one answer up to which it gets more instruments: it has to fit a frame.
const WORK_BYTES_MAX: usize = FRAME_BYTES_MAX - (64 << 10);

/// Nothing executed, until this time, ns; the process has used so much CPU time, ns.
pub fn work_until(at_ns: u64, cpu_ns: u64) -> Work {
    Work { at_ns, cpu_ns, ..Work::default() }
}

/// The answer that has this work: of more than fits a frame, what was done on the busiest
/// instruments.
pub fn work_response(mut work: Work) -> AdminResponse {
    work.pauses_ns.truncate(PAUSES_MAX);
    work.links.truncate(WORK_LINKS_MAX);
    let mut instruments = std::mem::take(&mut work.instruments);
    instruments.sort_by_key(|one| std::cmp::Reverse(one.executed));
    let mut bytes = nm_wire::encode(&work);
    let fits = |one: &InstrumentWork| {
        one.put(&mut bytes);
        bytes.len() <= WORK_BYTES_MAX
    };
    work.instruments = instruments.into_iter().take_while(fits).collect();
    AdminResponse::Work { work }
}

/// Checks that an answer has no more than a node has.
///
/// # Errors
/// If it does.
pub fn check_response(response: &AdminResponse) -> Result<(), DecodeError> {
    match response {
        AdminResponse::Work { work } if work.pauses_ns.len() > PAUSES_MAX => {
            Err(DecodeError::invalid("pauses", "are more than an answer has"))
        }
        AdminResponse::Work { work } if work.links.len() > WORK_LINKS_MAX => {
            Err(DecodeError::invalid("links", "are more than an answer has"))
        }
        AdminResponse::Replicas { replicas } if replicas.voters.len() > MEMBERS_MAX => {
            Err(DecodeError::invalid("voters", "are more than a group has"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use nm_wire::{LinkLatency, Role, overhead_bytes};

    use super::*;
    use crate::limits::CELL_INSTRUMENTS_MAX;

    #[test]
    fn work_on_more_instruments_than_fit_a_frame_is_that_on_the_busiest() {
        let one = |instrument: u32| InstrumentWork {
            instrument,
            executed: u64::from(instrument),
            by_gateway: vec![1; 64],
            ..InstrumentWork::default()
        };
        let instruments = (0..CELL_INSTRUMENTS_MAX as u32).map(one).collect();
        let bytes = nm_wire::encode(&work_response(Work { instruments, ..Work::default() }));
        assert!(bytes.len() + overhead_bytes(false) <= FRAME_BYTES_MAX, "{}", bytes.len());
        let AdminResponse::Work { work } = nm_wire::decode(&bytes).unwrap() else { panic!() };
        assert_eq!(work.instruments[0].instrument as usize, CELL_INSTRUMENTS_MAX - 1);
        assert!(work.instruments.len() > 1_000, "{}", work.instruments.len());
    }

    #[test]
    fn an_answer_has_a_limited_number_of_links() {
        let one = LinkLatency { peer: Role::Router.node(1), latency_ns: 2 };
        let links = vec![one; WORK_LINKS_MAX + 1];
        let AdminResponse::Work { mut work } = work_response(Work { links, ..Work::default() })
        else {
            panic!()
        };
        assert_eq!(work.links.len(), WORK_LINKS_MAX);
        work.links.push(one);
        assert_eq!(check_response(&AdminResponse::Work { work }).unwrap_err().field, "links");
        let page = include_str!("../../../../../docs/limits.md");
        assert!(page.contains(&format!("| links | {WORK_LINKS_MAX} |")));
    }
}
