//! Compares executed requests with the requests and replies in the clients' logs.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};

use nm_book::order::{InstrumentId, UserId};
use nm_codec::FNV1A;
use nm_exchange::cell::DESK;
use nm_exchange::moves::MoveId;
use nm_load::log::{Answered, Delivered, Record, RequestId};

use crate::findings::{Findings, Violation};
use crate::ownership::{Owners, Place};

/// A request that the replay executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Executed {
    /// Which request.
    pub name: RequestId,
    /// Its number among all requests executed on the instrument.
    pub output_seq: u64,
    /// Hash of the events that it caused.
    pub events_hash: u64,
    /// Hash of its command.
    pub command_hash: u64,
    /// Index of its batch.
    pub index: u64,
    /// The cell that executed it.
    pub place: Place,
    /// The move by which the cell owned the instrument; zero for none.
    pub epoch: u32,
}

impl Executed {
    /// Whether an operator has directed it: no client has sent it.
    fn is_directed(&self) -> bool {
        self.name.session == DESK
    }

    /// The move by which its cell owned the instrument.
    fn move_id(&self) -> MoveId {
        MoveId { instrument: self.name.instrument, epoch: self.epoch }
    }
}

/// The contents of the clients' logs.
#[derive(Debug, Default)]
pub struct Clients {
    /// Requests by session and instrument in the order sent, with the hash of the command.
    sent: HashMap<(InstrumentId, UserId), Vec<(u64, u64)>>,
    answered: HashMap<RequestId, Vec<Answered>>,
    delivered: Vec<Delivered>,
    count: u64,
    /// By log: the requests as they were sent, and their replies as they came.
    histories: Vec<Vec<(RequestId, Step)>>,
    /// Requests of which the logs of cells have a repetition whose outcome was no longer known.
    expired: HashSet<RequestId>,
    /// Where the replay of an instrument has a hole, by the move after it: the last requests of
    /// sessions before.
    holes: BTreeMap<MoveId, HashMap<UserId, u64>>,
}

/// What a client did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Sent,
    Answered,
}

impl Clients {
    /// Adds the records of one log.
    pub fn add_log(&mut self, records: &[Record]) {
        let mut history = vec![];
        for record in records {
            match record {
                Record::Sent(sent) => {
                    history.push((sent.name, Step::Sent));
                    let RequestId { instrument, session, client_seq } = sent.name;
                    let pair = self.sent.entry((instrument, session)).or_default();
                    pair.push((client_seq, sent.command_hash));
                    self.count += 1;
                }
                Record::Answered(answered) => {
                    history.push((answered.name, Step::Answered));
                    self.answered.entry(answered.name).or_default().push(*answered);
                }
                Record::Delivered(delivered) => self.delivered.push(*delivered),
                // It must not be executed, as if nobody had sent it.
                Record::Refused(name) => {
                    let pair = self.sent.entry((name.instrument, name.session)).or_default();
                    pair.retain(|(client_seq, _)| *client_seq != name.client_seq);
                }
                Record::Unanswered(_) | Record::End(_) => {}
            }
        }
        self.histories.push(history);
    }

    /// Adds requests of which a cell no longer knew the outcome when they were repeated.
    pub fn add_expired(&mut self, names: impl IntoIterator<Item = RequestId>) {
        self.expired.extend(names);
    }

    /// Whether a client has a reply to a request.
    pub fn has_reply(&self, name: &RequestId) -> bool {
        self.answered.contains_key(name)
    }

    /// Instruments with requests.
    pub fn instruments(&self) -> impl Iterator<Item = InstrumentId> {
        self.sent.keys().map(|(instrument, _)| *instrument)
    }

    /// Takes note of requests that are not replayed, because snapshots replace them.
    pub fn skip(&mut self, owners: &Owners) {
        for (id, last_requests) in owners.holes() {
            self.holes.insert(id, last_requests.clone());
        }
        // Events in a hole cannot be replayed, so their hash cannot be compared.
        let with_holes: HashSet<InstrumentId> = self.holes.keys().map(|id| id.instrument).collect();
        self.delivered.retain(|one| !with_holes.contains(&one.instrument));
    }

    /// Sessions of each instrument that have sent requests on it.
    pub fn sessions(&self) -> HashMap<InstrumentId, Vec<UserId>> {
        let mut sessions: HashMap<InstrumentId, Vec<UserId>> = HashMap::new();
        for (instrument, session) in self.sent.keys() {
            sessions.entry(*instrument).or_default().push(*session);
        }
        sessions
    }

    /// Number of the last request of a session that is in a hole, between two moves; zero for none.
    fn last_in_hole(&self, after: MoveId, until: MoveId, session: UserId) -> u64 {
        if self.holes.is_empty() {
            return 0;
        }
        let holes = self.holes.range(after..=until);
        holes.filter_map(|(_, last)| last.get(&session)).max().copied().unwrap_or(0)
    }

    /// Whether the replay of an instrument has a hole.
    fn has_hole(&self, instrument: InstrumentId) -> bool {
        let at = |epoch| MoveId { instrument, epoch };
        self.holes.range(at(0)..=at(u32::MAX)).next().is_some()
    }

    /// Whether a request may be in a hole, as a later state of its instrument includes it.
    fn is_in_hole(&self, name: &RequestId) -> bool {
        let instrument = name.instrument;
        let at = |epoch| MoveId { instrument, epoch };
        name.client_seq <= self.last_in_hole(at(0), at(u32::MAX), name.session)
    }

    fn command_of(&self, name: &RequestId) -> Option<u64> {
        let pair = self.sent.get(&(name.instrument, name.session))?;
        let at = pair.binary_search_by_key(&name.client_seq, |(seq, _)| *seq).ok()?;
        Some(pair[at].1)
    }
}

/// Compares executed requests with the clients' logs. The requests are those of one cell after the
/// other, each cell's in order.
pub fn judge(
    executed: &mut [Executed],
    clients: &Clients,
    owners: &Owners,
    findings: &mut Findings,
) {
    // Each move comes after the one before, so this is the order on each instrument.
    executed.sort_by_key(|one| one.epoch);
    let executed = &*executed;
    let not_guaranteed = |instrument| owners.is_tainted(instrument);
    findings.sent += clients.count;
    findings.answered += clients.answered.len() as u64;
    findings.executed += executed.iter().filter(|one| !one.is_directed()).count() as u64;
    let mut done: HashMap<RequestId, Vec<&Executed>> = HashMap::with_capacity(executed.len());
    // The exchange sends those with number 0 itself, for sessions that are away.
    for one in executed.iter().filter(|one| one.name.client_seq > 0) {
        done.entry(one.name).or_default().push(one);
    }
    numbers(executed, owners, findings);
    order(executed, clients, owners, findings);
    real_time(&done, clients, owners, findings);
    for (name, times) in &done {
        if times.len() > 1 {
            findings.add_if(!not_guaranteed(name.instrument), Violation::Twice, || {
                let places: Vec<String> =
                    times.iter().map(|one| format!("batch {}", one.index)).collect();
                format!("{name} was executed in {}", places.join(" and in "))
            });
        }
        if times[0].is_directed() {
            continue;
        }
        if clients.command_of(name) != Some(times[0].command_hash) {
            findings.add(Violation::NotSent, || {
                format!("batch {} has {name}, which no client sent in this form", times[0].index)
            });
        }
        findings.unanswered_executed += u64::from(!clients.answered.contains_key(name));
    }
    let mut answered: Vec<(&RequestId, &Vec<Answered>)> = clients.answered.iter().collect();
    answered.sort_by_key(|(name, _)| **name);
    for (name, replies) in answered {
        let times = done.get(name).map_or(&[][..], Vec::as_slice);
        if times.is_empty() && clients.is_in_hole(name) {
            findings.in_snapshots += 1;
            continue;
        }
        replied(name, replies, times, !not_guaranteed(name.instrument), findings);
        expired(name, replies, times, clients, !not_guaranteed(name.instrument), findings);
    }
}

/// Checks that a request which was sent after another one had its reply was executed after it, by
/// the order in which each client wrote its log.
fn real_time(
    done: &HashMap<RequestId, Vec<&Executed>>,
    clients: &Clients,
    owners: &Owners,
    findings: &mut Findings,
) {
    for history in &clients.histories {
        // Of each instrument, the last request in its order that has a reply.
        let mut replied: HashMap<InstrumentId, &Executed> = HashMap::new();
        for (name, step) in history {
            let Some(one) = done.get(name).and_then(|times| times.first()) else { continue };
            let before = replied.get(&name.instrument);
            match (step, before) {
                (Step::Answered, before) => {
                    if before.is_none_or(|before| before.output_seq < one.output_seq) {
                        replied.insert(name.instrument, one);
                    }
                }
                (Step::Sent, Some(before)) if one.output_seq < before.output_seq => {
                    findings.add_if(!owners.is_tainted(name.instrument), Violation::RealTime, || {
                        format!(
                            "{name} was sent when {} had its reply, and was executed before it: \
                             as number {}, and that one as number {}",
                            before.name, one.output_seq, before.output_seq
                        )
                    });
                }
                (Step::Sent, _) => {}
            }
        }
    }
}

/// Checks that a reply without an outcome is one to a request whose repetition came too late.
fn expired(
    name: &RequestId,
    replies: &[Answered],
    times: &[&Executed],
    clients: &Clients,
    is_guaranteed: bool,
    findings: &mut Findings,
) {
    for reply in replies.iter().filter(|reply| reply.is_expired) {
        let Answered { output_seq, events_hash, .. } = *reply;
        if (output_seq, events_hash) != (0, 0) {
            findings.add_if(is_guaranteed, Violation::WrongResult, || {
                format!(
                    "the reply to {name} says that its outcome has expired, and has one: number \
                     {output_seq} with events {events_hash:016x}"
                )
            });
        }
        // Where a part of the log is replaced by a snapshot, the repetition may be in that part.
        let is_known = times.is_empty() || clients.has_hole(name.instrument);
        if !is_known && !clients.expired.contains(name) {
            findings.add_if(is_guaranteed, Violation::WrongResult, || {
                format!(
                    "the reply to {name} says that its outcome has expired, and no journal has a \
                     repetition that came so late"
                )
            });
        }
    }
}

/// Compares the replies to one request with its execution.
fn replied(
    name: &RequestId,
    replies: &[Answered],
    times: &[&Executed],
    is_guaranteed: bool,
    findings: &mut Findings,
) {
    if times.is_empty() {
        let at = replies[0].output_seq;
        findings.add_if(is_guaranteed, Violation::Lost, || {
            format!("{name} was answered as number {at} of its instrument, and no journal has it")
        });
    }
    let outcome = |reply: &Answered| (reply.output_seq, reply.events_hash);
    let mut known = replies.iter().filter(|reply| !reply.is_expired);
    let Some(first) = known.next() else { return };
    if let Some(other) = known.clone().find(|reply| outcome(reply) != outcome(first)) {
        findings.add_if(is_guaranteed, Violation::Twice, || {
            format!(
                "{name} was answered as number {} and as number {} of its instrument",
                first.output_seq, other.output_seq
            )
        });
    }
    let is_wrong = |reply: &Answered| {
        !times.iter().any(|one| outcome(reply) == (one.output_seq, one.events_hash))
    };
    if let (Some(one), true) = (times.first(), is_wrong(first) || known.any(is_wrong)) {
        findings.add_if(is_guaranteed, Violation::WrongResult, || {
            format!(
                "{name} was answered as number {} with events {:016x}, and its replay is number {} \
                 with events {:016x}",
                first.output_seq, first.events_hash, one.output_seq, one.events_hash
            )
        });
    }
}

/// Checks that all events on a session's orders were delivered to it, once and in order. A log
/// without a record of deliveries is not checked.
pub fn check_deliveries(
    replayed: &HashMap<(InstrumentId, UserId), (u64, u64)>,
    clients: &Clients,
    owners: &Owners,
    findings: &mut Findings,
) {
    for one in &clients.delivered {
        let Delivered { session, instrument, events, events_hash, has_gap } = *one;
        let (there, hash) = replayed.get(&(instrument, session)).copied().unwrap_or((0, FNV1A));
        let violation = match events.cmp(&there) {
            _ if has_gap => Violation::NotDelivered,
            Ordering::Less => Violation::NotDelivered,
            Ordering::Equal if events_hash == hash => continue,
            _ => Violation::WrongResult,
        };
        findings.add_if(!owners.is_tainted(instrument), violation, || {
            format!(
                "session {session} received {events} events on instrument {instrument} with hash \
                 {events_hash:016x}, and its replay has {there} with {hash:016x}"
            )
        });
    }
}

/// Checks that a cell executes only what it owns, and numbers it without gaps from what the
/// instrument was when it came.
fn numbers(executed: &[Executed], owners: &Owners, findings: &mut Findings) {
    let mut last: HashMap<(MoveId, Place), u64> = HashMap::new();
    for one in executed {
        let Executed { name, output_seq, place, index, .. } = *one;
        let id = one.move_id();
        let last = last.entry((id, place)).or_insert_with(|| {
            if !owners.owned(id, place) {
                let is_guaranteed = !owners.is_tainted(name.instrument);
                findings.add_if(is_guaranteed, Violation::WrongOwner, || {
                    let cell = place.cell;
                    format!("cell {cell} executed {name} in batch {index} without owning it")
                });
            }
            owners.begins_after(id, place)
        });
        if output_seq != *last + 1 {
            let after = *last;
            findings.add(Violation::Gap, || {
                let instrument = name.instrument;
                format!("instrument {instrument} has number {output_seq} after number {after}")
            });
        }
        *last = output_seq;
    }
}

/// Checks that a session's requests on an instrument were executed in the order sent, without a
/// gap, in whichever cells.
fn order(executed: &[Executed], clients: &Clients, owners: &Owners, findings: &mut Findings) {
    // The place of the next request, and the move after which the last one was executed.
    let mut places: HashMap<(InstrumentId, UserId), (usize, MoveId)> = HashMap::new();
    for one in executed {
        let RequestId { instrument, session, client_seq } = one.name;
        let Some(sent) = clients.sent.get(&(instrument, session)) else { continue };
        let (id, first) = (one.move_id(), MoveId { instrument, epoch: 0 });
        let is_new = !places.contains_key(&(instrument, session));
        let (place, last_id) = places.entry((instrument, session)).or_insert((0, first));
        if is_new || *last_id != id {
            let skipped = clients.last_in_hole(*last_id, id, session);
            *place = sent.partition_point(|(seq, _)| *seq <= skipped).max(*place);
            *last_id = id;
        }
        let Ok(found) = sent.binary_search_by_key(&client_seq, |(seq, _)| *seq) else {
            continue;
        };
        if found != *place {
            let expected = sent.get(*place).map_or(0, |(seq, _)| *seq);
            findings.add_if(!owners.is_tainted(instrument), Violation::OutOfOrder, || {
                format!("batch {} has {} where request {expected} is due", one.index, one.name)
            });
        }
        *place = found + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::EXAMPLES_MAX;
    use crate::ownership::{Begin, InstrumentState, Origin};
    use nm_load::log::Sent;

    /// Three sessions on two instruments, in turn, all requests executed and answered.
    fn world() -> (Vec<Executed>, Vec<Record>) {
        let (mut executed, mut records) = (vec![], vec![]);
        let mut output_seqs = [0; 2];
        for number in 0..120u64 {
            let (session, instrument) = (1 + (number % 3) as u32, (number / 3 % 2) as u32);
            let name = RequestId { instrument, session, client_seq: number / 3 + 1 };
            output_seqs[instrument as usize] += 1;
            let output_seq = output_seqs[instrument as usize];
            let (events_hash, command_hash) = (number * 31, number * 17);
            let (index, place) = (number / 5, Place { cell: 0, incarnation: 1 });
            executed.push(Executed {
                name,
                output_seq,
                events_hash,
                command_hash,
                index,
                place,
                epoch: 0,
            });
            records.push(Record::Sent(Sent { name, intended_ns: number, command_hash }));
            records.push(Record::Answered(Answered {
                name,
                at_ns: number,
                output_seq,
                events_hash,
                is_repeated: false,
                is_expired: false,
                is_surplus: false,
            }));
        }
        (executed, records)
    }

    fn judged(executed: &[Executed], records: &[Record]) -> Findings {
        judged_with(executed, records, &Owners::of_cells(1))
    }

    fn judged_with(executed: &[Executed], records: &[Record], owners: &Owners) -> Findings {
        let (mut clients, mut findings) = (Clients::default(), Findings::default());
        clients.add_log(records);
        clients.skip(owners);
        judge(&mut executed.to_vec(), &clients, owners, &mut findings);
        findings
    }

    fn answer(record: &mut Record) -> &mut Answered {
        match record {
            Record::Answered(answered) => answered,
            _ => panic!("another one"),
        }
    }

    #[test]
    fn a_correct_run_is_clean() {
        let (mut executed, mut records) = world();
        let findings = judged(&executed, &records);
        assert!(findings.is_clean(), "{findings:?}");
        assert_eq!((findings.sent, findings.answered, findings.executed), (120, 120, 120));
        // The last requests may be without a reply, executed or not.
        records.truncate(records.len() - 1);
        assert_eq!(judged(&executed, &records).unanswered_executed, 1);
        executed.pop();
        assert!(judged(&executed, &records).is_clean());
        // A repeated outcome is the same.
        let mut again = records[1];
        answer(&mut again).is_repeated = true;
        records.push(again);
        answer(&mut again).is_expired = true;
        (answer(&mut again).output_seq, answer(&mut again).events_hash) = (0, 0);
        records.push(again);
        let (mut clients, mut findings) = (Clients::default(), Findings::default());
        clients.add_log(&records);
        let name = answer(&mut again).name;
        clients.add_expired([name]);
        judge(&mut executed.clone(), &clients, &Owners::of_cells(1), &mut findings);
        assert!(findings.is_clean(), "{findings:?}");
    }

    #[test]
    fn an_outcome_has_expired_only_where_a_journal_has_a_late_repetition() {
        let (executed, mut records) = world();
        let reply = answer(&mut records[11]);
        (reply.is_expired, reply.output_seq, reply.events_hash) = (true, 0, 0);
        let findings = judged(&executed, &records);
        assert_eq!(findings.violations, BTreeMap::from([(Violation::WrongResult, 1)]));
        assert!(findings.sentences[0].contains("no journal has a repetition"), "{findings:?}");
        // With a hash, it contradicts itself as well.
        answer(&mut records[11]).events_hash = 9;
        let findings = judged(&executed, &records);
        assert_eq!(findings.violations, BTreeMap::from([(Violation::WrongResult, 2)]));
        assert!(findings.sentences[0].contains("has expired, and has one"), "{findings:?}");
    }

    #[test]
    fn a_request_sent_after_a_reply_is_executed_after_it() {
        let (executed, mut records) = world();
        // The reply to the seventh request on instrument 0 comes before the sixth is sent.
        let reply = records.remove(2 * 12 + 1);
        records.insert(2 * 8, reply);
        let findings = judged(&executed, &records);
        assert_eq!(findings.violations, BTreeMap::from([(Violation::RealTime, 1)]), "{findings:?}");
        assert!(
            findings.sentences[0].contains(
                "request 3 of session 3 on instrument 0 was sent when request 5 of session 1"
            ),
            "{findings:?}"
        );
    }

    #[test]
    fn lost_requests_are_found() {
        let (mut executed, records) = world();
        executed.truncate(100);
        let findings = judged(&executed, &records);
        assert_eq!(findings.violations, BTreeMap::from([(Violation::Lost, 20)]));
        assert_eq!(findings.sentences.len(), EXAMPLES_MAX);
        assert!(
            findings.sentences[0].starts_with("lost: request 35 of session 1 on instrument 0"),
            "{:?}",
            findings.sentences
        );
    }

    /// One that was not executed is neither lost nor a gap in the order of its session.
    #[test]
    fn a_refused_request_must_not_be_executed() {
        let (mut executed, mut records) = world();
        let Record::Sent(Sent { name, .. }) = records[records.len() - 2] else { panic!("sent") };
        // Without its reply.
        records.pop();
        records.push(Record::Refused(name));
        let findings = judged(&executed, &records);
        assert_eq!(findings.violations, BTreeMap::from([(Violation::NotSent, 1)]));
        executed.pop();
        let findings = judged(&executed, &records);
        assert!(findings.is_clean(), "{findings:?}");
        assert_eq!(findings.sent, 120);
    }

    #[test]
    fn requests_executed_twice_are_found() {
        let (mut executed, mut records) = world();
        let mut second = executed[60];
        second.output_seq = 61;
        executed.push(second);
        let findings = judged(&executed, &records);
        assert_eq!(findings.count(Violation::Twice), 1, "{findings:?}");
        executed.pop();
        // The same, from the client's side.
        let mut other = records[1];
        answer(&mut other).output_seq = 40;
        records.push(other);
        let findings = judged(&executed, &records);
        assert_eq!(
            (findings.count(Violation::Twice), findings.count(Violation::WrongResult)),
            (1, 1)
        );
    }

    #[test]
    fn requests_executed_out_of_order_are_found() {
        let (mut executed, records) = world();
        // Two requests of session 1 on instrument 0 are swapped.
        let (a, b) = (executed[0], executed[6]);
        executed[0] = Executed { output_seq: a.output_seq, ..b };
        executed[6] = Executed { output_seq: b.output_seq, ..a };
        let findings = judged(&executed, &records);
        assert!(findings.count(Violation::OutOfOrder) >= 2, "{findings:?}");
        let (mut executed, mut records) = world();
        // One is skipped, and its client has no reply.
        records.remove(1);
        let name = executed.remove(0).name;
        executed.iter_mut().filter(|one| one.name.instrument == name.instrument).for_each(|one| {
            one.output_seq -= 1;
        });
        let findings = judged(&executed, &records);
        assert_eq!(findings.count(Violation::OutOfOrder), 1, "{findings:?}");
    }

    #[test]
    fn wrong_results_gaps_and_inventions_are_found() {
        let (executed, mut records) = world();
        answer(&mut records[7]).events_hash ^= 1;
        answer(&mut records[9]).output_seq += 1;
        let findings = judged(&executed, &records);
        assert_eq!(findings.violations, BTreeMap::from([(Violation::WrongResult, 2)]));

        let (mut executed, records) = world();
        executed[119].output_seq += 1;
        assert_eq!(judged(&executed, &records).count(Violation::Gap), 1);

        let (mut executed, records) = world();
        executed[50].command_hash ^= 1;
        let findings = judged(&executed, &records);
        assert_eq!(findings.violations, BTreeMap::from([(Violation::NotSent, 1)]));
        executed[50].command_hash ^= 1;
        let name = RequestId { instrument: 5, session: 5, client_seq: 1 };
        executed.push(Executed { name, output_seq: 1, ..executed[0] });
        let findings = judged(&executed, &records);
        assert_eq!(findings.violations, BTreeMap::from([(Violation::NotSent, 1)]));
    }

    /// Those of a session come once each time that it is away.
    #[test]
    fn cancellations_by_the_exchange_need_no_client_that_sent_them() {
        let (mut executed, records) = world();
        let name = RequestId { instrument: 5, session: 5, client_seq: 0 };
        for output_seq in 1..=2 {
            executed.push(Executed { name, output_seq, ..executed[0] });
        }
        assert_eq!(judged(&executed, &records).violations, BTreeMap::new());
        executed.pop();
        executed.push(Executed { name, output_seq: 3, ..executed[0] });
        assert_eq!(judged(&executed, &records).violations, BTreeMap::from([(Violation::Gap, 1)]));
    }

    #[test]
    fn undelivered_events_are_found() {
        let (executed, mut records) = world();
        let replayed = HashMap::from([((0, 1), (5, 55)), ((1, 1), (7, 77))]);
        let record = |instrument, events, events_hash, has_gap| {
            Record::Delivered(Delivered { session: 1, instrument, events, events_hash, has_gap })
        };
        let judged = |records: &[Record], is_guaranteed_not: bool| {
            let (mut clients, mut findings) = (Clients::default(), Findings::default());
            clients.add_log(records);
            let mut owners = Owners::of_cells(1);
            judge(&mut executed.clone(), &clients, &owners, &mut findings);
            if is_guaranteed_not {
                owners.lost_books(0);
            }
            check_deliveries(&replayed, &clients, &owners, &mut findings);
            findings
        };
        records.extend([
            record(0, 5, 55, false),
            record(1, 7, 77, false),
            record(2, 0, FNV1A, false),
        ]);
        assert!(judged(&records, false).is_clean());
        for (record, violation) in [
            (record(0, 4, 55, false), Violation::NotDelivered),
            (record(0, 5, 55, true), Violation::NotDelivered),
            (record(0, 6, 55, false), Violation::WrongResult),
            (record(0, 5, 56, false), Violation::WrongResult),
        ] {
            let all = [&records[..], &[record]].concat();
            let findings = judged(&all, false);
            assert_eq!(findings.violations, BTreeMap::from([(violation, 1)]));
            assert!(findings.sentences[0].contains("session 1 received"), "{findings:?}");
            let findings = judged(&all, true);
            assert_eq!(findings.not_guaranteed, BTreeMap::from([(violation, 1)]));
        }
    }

    #[test]
    fn violations_that_are_not_guaranteed_against_are_listed_apart() {
        let (mut executed, records) = world();
        executed.retain(|one| one.name.instrument == 1 || one.name.client_seq > 20);
        executed.iter_mut().for_each(|one| one.place.cell = one.name.instrument as u16);
        executed.iter_mut().filter(|one| one.name.instrument == 0).for_each(|one| {
            (one.output_seq, one.place.incarnation) = (one.output_seq - 30, 2);
        });
        let mut owners = Owners::of_cells(2);
        owners.lost_books(0);
        let findings = judged_with(&executed, &records, &owners);
        assert!(findings.is_clean(), "{findings:?}");
        assert_eq!(findings.not_guaranteed[&Violation::Lost], 30);
        assert!(!judged_with(&executed, &records, &Owners::of_cells(2)).is_clean());
    }

    /// The last 30 requests on instrument 0, by another cell to which it moved.
    fn moved() -> (Vec<Executed>, Vec<Record>) {
        let (executed, records) = world();
        let is_moved = |one: &Executed| one.name.instrument == 0 && one.output_seq > 30;
        let (mut other, mut all): (Vec<Executed>, Vec<Executed>) =
            executed.into_iter().partition(is_moved);
        other.iter_mut().for_each(|one| (one.place.cell, one.epoch) = (1, 4));
        // Its log is read first.
        other.append(&mut all);
        (other, records)
    }

    fn begin(cell: u16, origin: Origin, output_seq: u64) -> Begin {
        let place = Place { cell, incarnation: 1 };
        let state = InstrumentState { output_seq, hash: Some(output_seq) };
        Begin { place, index: 7, origin, state, last_requests: HashMap::new() }
    }

    const MOVE: MoveId = MoveId { instrument: 0, epoch: 4 };

    #[test]
    fn requests_are_in_order_across_the_cells_of_an_instrument() {
        let (mut executed, records) = moved();
        let mut owners = Owners::of_cells(1);
        owners.begun(MOVE, begin(1, Origin::Moved(0), 30));
        let findings = judged_with(&executed, &records, &owners);
        assert!(findings.is_clean(), "{findings:?}");
        // The first request in the other cell is missing there.
        let name = executed.remove(0).name;
        let findings = judged_with(&executed, &records, &owners);
        assert_eq!(
            findings.violations,
            BTreeMap::from([(Violation::Lost, 1), (Violation::OutOfOrder, 1), (Violation::Gap, 1)])
        );
        assert!(findings.sentences.iter().any(|it| it.contains(&name.to_string())));
        // Both cells have executed the request before.
        let (mut executed, records) = moved();
        let last = *executed.iter().rfind(|one| one.name.instrument == 0).unwrap();
        let twice = Executed { place: executed[0].place, epoch: 4, ..last };
        executed.insert(0, twice);
        let mut owners = Owners::of_cells(1);
        owners.begun(MOVE, begin(1, Origin::Moved(0), 29));
        let findings = judged_with(&executed, &records, &owners);
        assert_eq!(findings.count(Violation::Twice), 1, "{findings:?}");
        assert_eq!(findings.count(Violation::OutOfOrder), 1, "{findings:?}");
    }

    #[test]
    fn requests_executed_by_a_cell_that_does_not_own_the_instrument_are_found() {
        let (mut executed, records) = moved();
        let findings = judged_with(&executed, &records, &Owners::of_cells(1));
        assert_eq!(findings.count(Violation::WrongOwner), 1, "{findings:?}");
        let names_cell = "wrong owner: cell 1 executed request 21 of session 1 on instrument 0";
        assert!(findings.sentences.iter().any(|it| it.starts_with(names_cell)), "{findings:?}");
        // A third cell, as the same move.
        let mut owners = Owners::of_cells(1);
        owners.begun(MOVE, begin(1, Origin::Moved(0), 30));
        executed[29].place.cell = 2;
        let findings = judged_with(&executed, &records, &owners);
        assert_eq!(findings.count(Violation::WrongOwner), 1, "{findings:?}");
    }

    /// The log of the first cell begins with a snapshot, from which the instrument had moved.
    #[test]
    fn requests_that_a_snapshot_replaces_are_neither_lost_nor_a_gap() {
        let (mut executed, mut records) = moved();
        executed.retain(|one| one.epoch == 4 || one.name.instrument == 1);
        let (session, instrument, has_gap) = (1, 0, false);
        let delivered = Delivered { session, instrument, events: 9, events_hash: 9, has_gap };
        records.push(Record::Delivered(delivered));
        let mut owners = Owners::of_cells(1);
        owners.restored(0, HashMap::from([(0, 4)]));
        let last_requests = (1..=3).map(|session| (session, 19)).collect();
        owners.begun(MOVE, Begin { last_requests, ..begin(1, Origin::Moved(0), 30) });
        let findings = judged_with(&executed, &records, &owners);
        assert!(findings.is_clean(), "{findings:?}");
        assert_eq!(findings.in_snapshots, 30);
        // One after the move is not excused.
        let last = executed.iter().position(|one| one.output_seq == 60 && one.epoch == 4);
        executed.remove(last.unwrap());
        let findings = judged_with(&executed, &records, &owners);
        assert_eq!(findings.violations, BTreeMap::from([(Violation::Lost, 1)]), "{findings:?}");
    }
}
