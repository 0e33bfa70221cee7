//! Compares the broadcasts that clients got with those that the executed requests must have caused.
//!
//! A broadcast is not sent again, so one may be lost with a link or a node. Clients record where
//! that is possible; everywhere else each gateway must have passed on all of them.

use std::collections::{BTreeMap, HashMap};

use nm_book::order::InstrumentId;
use nm_load::log::Broadcast;

use crate::findings::{Findings, Violation};
use crate::judge::Clients;
use crate::ownership::Owners;

/// How long before the end of the run a broadcast must have been made to have arrived for certain,
/// ns.
const ARRIVED_NS: u64 = 1_000_000_000;

/// A broadcast that an executed request must have caused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Instrument.
    pub instrument: InstrumentId,
    /// Number of its last event among the broadcast ones of the instrument.
    pub number: u64,
    /// Number of the request among all that were executed on the instrument.
    pub output_seq: u64,
    /// Hash of what it says.
    pub content_hash: u64,
    /// Time of the request's batch, ns since 1970.
    pub time_ns: u64,
}

/// Those of one instrument, by number.
type DueOf = BTreeMap<u64, Due>;

/// Finds broadcasts that are missing, or that no request has caused, or that say something else.
pub fn check(due: &[Due], clients: &Clients, owners: &Owners, findings: &mut Findings) {
    let mut all: HashMap<InstrumentId, DueOf> = HashMap::new();
    for one in due {
        all.entry(one.instrument).or_default().insert(one.number, *one);
    }
    findings.broadcasts += due.len() as u64;
    // What each client has of each gateway and instrument.
    let mut last: HashMap<(usize, u32, InstrumentId), u64> = HashMap::new();
    let mut reached: HashMap<InstrumentId, u64> = HashMap::new();
    let nothing = DueOf::new();
    let mut is_quiet = true;
    for (log, one) in clients.broadcasts() {
        let Broadcast { gateway, instrument, number, may_lack, .. } = *one;
        let due = all.get(&instrument).unwrap_or(&nothing);
        compare(one, due, owners, findings);
        let before = last.insert((log, gateway, instrument), number);
        if let Some(before) = before.filter(|before| !may_lack && *before < number) {
            for missing in due.range(before + 1..number).map(|(_, due)| due) {
                miss(missing, Some(gateway), owners, findings);
            }
        }
        is_quiet &= before.is_none() || !may_lack;
        let reached = reached.entry(instrument).or_default();
        *reached = number.max(*reached);
    }
    // The last ones may have been on their way when the clients left.
    let end_ns = due.iter().map(|due| due.time_ns).max().unwrap_or_default();
    for instrument in clients.instruments_once().filter(|_| is_quiet && !clients.has_repeats()) {
        let reached = reached.get(&instrument).copied().unwrap_or_default();
        let due = all.get(&instrument).unwrap_or(&nothing);
        let behind = due.range(reached + 1..).map(|(_, due)| due);
        for missing in behind.filter(|due| due.time_ns + ARRIVED_NS < end_ns) {
            miss(missing, None, owners, findings);
        }
    }
}

/// A gateway has left out a broadcast, or none has passed it on.
fn miss(due: &Due, gateway: Option<u32>, owners: &Owners, findings: &mut Findings) {
    let Due { instrument, number, output_seq, .. } = *due;
    findings.add_if(!owners.is_tainted(instrument), Violation::NotBroadcast, || {
        let what =
            format!("broadcast {number} of instrument {instrument}, of request {output_seq}");
        match gateway {
            Some(gateway) => format!("gateway {gateway} did not pass on {what}"),
            None => format!("no gateway passed on {what}"),
        }
    });
}

/// Compares a broadcast with what it must say.
fn compare(one: &Broadcast, due: &DueOf, owners: &Owners, findings: &mut Findings) {
    let Broadcast { gateway, instrument, number, output_seq, content_hash, .. } = *one;
    let what = match due.get(&number) {
        Some(due) if (due.output_seq, due.content_hash) == (output_seq, content_hash) => return,
        Some(_) => "says something else than its replay",
        None => "has no request in the replay that causes it",
    };
    findings.add_if(!owners.is_tainted(instrument), Violation::WrongBroadcast, || {
        format!("broadcast {number} of instrument {instrument}, by gateway {gateway}, {what}")
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_load::log::{Record, RequestId, Sent};

    const INSTRUMENT: InstrumentId = 3;

    /// A run of 20 s that has one broadcast each second.
    fn due() -> Vec<Due> {
        let due = |number: u64| Due {
            instrument: INSTRUMENT,
            number: 100 + number,
            output_seq: number * 3,
            content_hash: number * 7,
            time_ns: number * 1_000_000_000,
        };
        (1..=20).map(due).collect()
    }

    fn got(due: &Due) -> Broadcast {
        let Due { instrument, number, output_seq, content_hash, .. } = *due;
        let (gateway, may_lack) = (0, false);
        Broadcast { gateway, instrument, number, output_seq, content_hash, may_lack }
    }

    fn found(due: &[Due], broadcasts: &[Broadcast]) -> BTreeMap<Violation, u64> {
        let (mut clients, mut findings) = (Clients::default(), Findings::default());
        let name = RequestId { instrument: INSTRUMENT, session: 1, client_seq: 1 };
        let sent = Record::Sent(Sent { name, intended_ns: 0, command_hash: 0 });
        let all = broadcasts.iter().map(|one| Record::Broadcast(*one));
        clients.add_log(&std::iter::once(sent).chain(all).collect::<Vec<_>>());
        check(due, &clients, &Owners::of_cells(1), &mut findings);
        assert_eq!(findings.broadcasts, due.len() as u64);
        findings.violations
    }

    #[test]
    fn a_missing_an_extra_and_a_wrong_broadcast_are_found() {
        let due = due();
        let all: Vec<Broadcast> = due.iter().map(got).collect();
        assert_eq!(found(&due, &all), BTreeMap::new());
        // A client that came late, and left while the last one was on its way.
        assert_eq!(found(&due, &all[5..19]), BTreeMap::new());
        let missing = |count| BTreeMap::from([(Violation::NotBroadcast, count)]);
        let wrong = |count| BTreeMap::from([(Violation::WrongBroadcast, count)]);
        assert_eq!(found(&due, &[&all[..7], &all[9..]].concat()), missing(2));
        assert_eq!(found(&due, &all[..10]), missing(8), "the others came a second before the end");
        assert_eq!(found(&due, &[]), missing(18));
        assert_eq!(found(&[&due[..7], &due[8..]].concat(), &all), wrong(1), "an extra one");
        let change = |change: &dyn Fn(&mut Broadcast)| {
            let mut all = all.clone();
            change(&mut all[4]);
            found(&due, &all)
        };
        assert_eq!(change(&|one| one.content_hash += 1), wrong(1));
        assert_eq!(change(&|one| one.output_seq += 1), wrong(1));
    }

    /// Where the network has said that events may be lost, or a link was made again.
    #[test]
    fn what_was_lost_with_a_link_is_not_missing() {
        let due = due();
        let mut all: Vec<Broadcast> = due.iter().map(got).collect();
        all.drain(7..9);
        all[7].may_lack = true;
        assert_eq!(found(&due, &all), BTreeMap::new());
        all.remove(12);
        assert_eq!(found(&due, &all), BTreeMap::from([(Violation::NotBroadcast, 1)]));
        all.truncate(10);
        assert_eq!(found(&due, &all), BTreeMap::new(), "the link may have ended for good");
    }
}
