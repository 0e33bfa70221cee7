//! Compares executed requests with the requests and replies in the clients' logs.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use nm_book::order::{InstrumentId, UserId};
use nm_codec::FNV1A;
use nm_exchange::network::Durability;
use serde::Serialize;

use crate::load::log::{Answered, Delivered, Record, RequestId};

/// Violations of each kind that are described in full.
const EXAMPLES_MAX: usize = 10;

/// A violation of the exchange's guarantees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Violation {
    /// A client has a reply to a request that no journal has.
    Lost,
    /// A request was executed more than once, or has two different replies.
    Twice,
    /// Requests of a session on an instrument were executed in a different order than they were
    /// sent, or one was skipped.
    OutOfOrder,
    /// A reply differs from the result of the replay.
    WrongResult,
    /// A request was executed that no client sent.
    NotSent,
    /// A gap in the numbers of executed requests on an instrument, or of batches.
    Gap,
    /// States that must be equal are not.
    HashDiffers,
    /// Fewer replicas have an acknowledged request than the durability requires.
    TooFewCopies,
    /// Replicas have different batches at one index, and equal ones after it.
    Diverged,
    /// An event on a session's own order, such as a fill, was never delivered to it.
    NotDelivered,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Violation::Lost => "lost",
            Violation::Twice => "twice",
            Violation::OutOfOrder => "out of order",
            Violation::WrongResult => "wrong result",
            Violation::NotSent => "not sent",
            Violation::Gap => "gap",
            Violation::HashDiffers => "hash differs",
            Violation::TooFewCopies => "too few copies",
            Violation::Diverged => "diverged",
            Violation::NotDelivered => "not delivered",
        })
    }
}

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
    /// Incarnation of the cell: rises when a mediator without durability restarts with empty books.
    pub incarnation: u64,
}

/// What a recording shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Everything was kept.
    Proven,
    /// Nothing wrong was found, and evidence is missing.
    Doubtful,
    /// The recording is not as the run left it, and shows nothing.
    Damaged,
    /// A guarantee was violated.
    Violated,
}

/// Results of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// When requests counted as done.
    pub durability: Durability,
    /// Requests that clients sent.
    pub sent: u64,
    /// Requests with a reply.
    pub answered: u64,
    /// Requests that were executed but have no reply.
    pub unanswered_executed: u64,
    /// Executed requests.
    pub executed: u64,
    /// Batches that were replayed.
    pub batches: u64,
    /// Journals that were read.
    pub journals: u64,
    /// State hashes that were compared.
    pub hashes: u64,
    /// Snapshots from which a replay was continued to the end.
    pub cuts: u64,
    /// Requests known to be executed only because a snapshot includes them.
    pub in_snapshots: u64,
    /// Number of violations by kind.
    pub violations: BTreeMap<Violation, u64>,
    /// Violations that the chosen durability allows, after a mediator without durability died.
    pub not_guaranteed: BTreeMap<Violation, u64>,
    /// How the recording differs from its manifest.
    pub damage: Vec<String>,
    /// Evidence that is missing.
    pub doubts: Vec<String>,
    /// Descriptions of the first violations of each kind.
    pub sentences: Vec<String>,
    /// Additional remarks.
    pub notes: Vec<String>,
    #[serde(skip)]
    described: BTreeMap<Violation, usize>,
}

impl Findings {
    /// Whether no violation was found in a recording that is as the run left it.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty() && self.damage.is_empty()
    }

    /// What they amount to.
    pub fn verdict(&self) -> Verdict {
        match self {
            Findings { damage, .. } if !damage.is_empty() => Verdict::Damaged,
            Findings { violations, .. } if !violations.is_empty() => Verdict::Violated,
            Findings { doubts, .. } if !doubts.is_empty() => Verdict::Doubtful,
            _ => Verdict::Proven,
        }
    }

    /// Number of violations of one kind.
    pub fn count(&self, violation: Violation) -> u64 {
        self.violations.get(&violation).copied().unwrap_or_default()
    }

    /// Adds a violation.
    pub fn add(&mut self, violation: Violation, sentence: impl FnOnce() -> String) {
        *self.violations.entry(violation).or_default() += 1;
        self.describe(violation, sentence);
    }

    fn add_if(
        &mut self,
        is_guaranteed: bool,
        violation: Violation,
        sentence: impl FnOnce() -> String,
    ) {
        if is_guaranteed {
            self.add(violation, sentence);
        } else {
            *self.not_guaranteed.entry(violation).or_default() += 1;
        }
    }

    fn describe(&mut self, violation: Violation, sentence: impl FnOnce() -> String) {
        let described = self.described.entry(violation).or_default();
        *described += 1;
        if *described <= EXAMPLES_MAX {
            self.sentences.push(format!("{violation}: {}", sentence()));
        }
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RequestId { instrument, session, client_seq } = self;
        write!(f, "request {client_seq} of session {session} on instrument {instrument}")
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
    /// Number of the last request that a snapshot includes, for instruments that start from one.
    begun: HashMap<(InstrumentId, UserId), u64>,
}

impl Clients {
    /// Adds the records of one log.
    pub fn add_log(&mut self, records: &[Record]) {
        for record in records {
            match record {
                Record::Sent(sent) => {
                    let RequestId { instrument, session, client_seq } = sent.name;
                    let pair = self.sent.entry((instrument, session)).or_default();
                    pair.push((client_seq, sent.command_hash));
                    self.count += 1;
                }
                Record::Answered(answered) => {
                    self.answered.entry(answered.name).or_default().push(*answered);
                }
                Record::Delivered(delivered) => self.delivered.push(*delivered),
                // It must not be executed, as if nobody had sent it.
                Record::Refused(name) => {
                    let pair = self.sent.entry((name.instrument, name.session)).or_default();
                    pair.retain(|(client_seq, _)| *client_seq != name.client_seq);
                }
            }
        }
    }

    /// Whether a client has a reply to a request.
    pub fn has_reply(&self, name: &RequestId) -> bool {
        self.answered.contains_key(name)
    }

    /// Instruments with requests.
    pub fn instruments(&self) -> impl Iterator<Item = InstrumentId> {
        self.sent.keys().map(|(instrument, _)| *instrument)
    }

    /// Starts the instruments of a cell from a snapshot; `last_request_seq` is the number of a
    /// session's last request in it.
    pub fn restore(
        &mut self,
        is_of_cell: impl Fn(InstrumentId) -> bool,
        last_request_seq: impl Fn(InstrumentId, UserId) -> u64,
    ) {
        // Events before the snapshot cannot be replayed, so their hash cannot be compared.
        self.delivered.retain(|one| !is_of_cell(one.instrument));
        let pairs = self.sent.keys().filter(|(instrument, _)| is_of_cell(*instrument));
        self.begun.extend(pairs.map(|pair| (*pair, last_request_seq(pair.0, pair.1))));
    }

    /// Whether a snapshot includes a request.
    fn is_begun(&self, name: &RequestId) -> bool {
        self.begun
            .get(&(name.instrument, name.session))
            .is_some_and(|last| name.client_seq <= *last)
    }

    fn command_of(&self, name: &RequestId) -> Option<u64> {
        let pair = self.sent.get(&(name.instrument, name.session))?;
        let at = pair.binary_search_by_key(&name.client_seq, |(seq, _)| *seq).ok()?;
        Some(pair[at].1)
    }
}

/// Compares executed requests, cell by cell and in order, with the clients' logs. `not_guaranteed`:
/// whether an instrument's mediator lost its books, which its durability allows.
pub fn judge(
    executed: &[Executed],
    clients: &Clients,
    not_guaranteed: impl Fn(InstrumentId) -> bool,
    findings: &mut Findings,
) {
    findings.sent += clients.count;
    findings.answered += clients.answered.len() as u64;
    findings.executed += executed.len() as u64;
    let mut done: HashMap<RequestId, Vec<&Executed>> = HashMap::with_capacity(executed.len());
    for one in executed {
        done.entry(one.name).or_default().push(one);
    }
    numbers(executed, clients, findings);
    order(executed, clients, &not_guaranteed, findings);
    for (name, times) in &done {
        if times.len() > 1 {
            findings.add_if(!not_guaranteed(name.instrument), Violation::Twice, || {
                let places: Vec<String> =
                    times.iter().map(|one| format!("batch {}", one.index)).collect();
                format!("{name} was executed in {}", places.join(" and in "))
            });
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
        if times.is_empty() && clients.is_begun(name) {
            findings.in_snapshots += 1;
            continue;
        }
        replied(name, replies, times, !not_guaranteed(name.instrument), findings);
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
    not_guaranteed: impl Fn(InstrumentId) -> bool,
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
        findings.add_if(!not_guaranteed(instrument), violation, || {
            format!(
                "session {session} received {events} events on instrument {instrument} with hash \
                 {events_hash:016x}, and its replay has {there} with {hash:016x}"
            )
        });
    }
}

/// Checks that executed requests of an instrument are numbered without gaps, from its snapshot if
/// it starts from one.
fn numbers(executed: &[Executed], clients: &Clients, findings: &mut Findings) {
    let mut last: HashMap<(InstrumentId, u64), u64> = HashMap::new();
    let begun = clients.begun.iter().filter(|(_, last)| **last > 0);
    let begun: HashSet<InstrumentId> = begun.map(|((instrument, _), _)| *instrument).collect();
    for one in executed {
        let Executed { name, output_seq, incarnation, .. } = *one;
        let is_begun = incarnation == 1 && begun.contains(&name.instrument);
        let before = if is_begun { output_seq.saturating_sub(1) } else { 0 };
        let last = last.entry((name.instrument, incarnation)).or_insert(before);
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
/// gap.
fn order(
    executed: &[Executed],
    clients: &Clients,
    not_guaranteed: &impl Fn(InstrumentId) -> bool,
    findings: &mut Findings,
) {
    let mut places: HashMap<(InstrumentId, UserId), usize> = HashMap::new();
    for one in executed {
        let name = one.name;
        let Some(sent) = clients.sent.get(&(name.instrument, name.session)) else { continue };
        let place = places.entry((name.instrument, name.session)).or_insert_with(|| {
            let begun = clients.begun.get(&(name.instrument, name.session)).copied();
            sent.partition_point(|(seq, _)| *seq <= begun.unwrap_or(0))
        });
        let Ok(found) = sent.binary_search_by_key(&name.client_seq, |(seq, _)| *seq) else {
            continue;
        };
        if found != *place {
            let expected = sent.get(*place).map_or(0, |(seq, _)| *seq);
            findings.add_if(!not_guaranteed(name.instrument), Violation::OutOfOrder, || {
                format!("batch {} has {name} where request {expected} is due", one.index)
            });
        }
        *place = found + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::log::Sent;

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
            let (index, incarnation) = (number / 5, 1);
            executed.push(Executed {
                name,
                output_seq,
                events_hash,
                command_hash,
                index,
                incarnation,
            });
            records.push(Record::Sent(Sent { name, intended_ns: number, command_hash }));
            records.push(Record::Answered(Answered {
                name,
                at_ns: number,
                output_seq,
                events_hash,
                is_repeated: false,
                is_expired: false,
            }));
        }
        (executed, records)
    }

    fn judged(executed: &[Executed], records: &[Record]) -> Findings {
        let (mut clients, mut findings) = (Clients::default(), Findings::default());
        clients.add_log(records);
        judge(executed, &clients, |_| false, &mut findings);
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
        answer(&mut again).output_seq = 0;
        records.push(again);
        let findings = judged(&executed, &records);
        assert!(findings.is_clean(), "{findings:?}");
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
            judge(&executed, &clients, |_| false, &mut findings);
            check_deliveries(&replayed, &clients, |_| is_guaranteed_not, &mut findings);
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
        executed.iter_mut().filter(|one| one.name.instrument == 0).for_each(|one| {
            (one.output_seq, one.incarnation) = (one.output_seq - 30, 2);
        });
        let (mut clients, mut findings) = (Clients::default(), Findings::default());
        clients.add_log(&records);
        judge(&executed, &clients, |instrument| instrument == 0, &mut findings);
        assert!(findings.is_clean(), "{findings:?}");
        assert_eq!(findings.not_guaranteed[&Violation::Lost], 30);
        assert!(!judged(&executed, &records).is_clean());
    }
}
