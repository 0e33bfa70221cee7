//! What was carried out, held against what clients sent and were told.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use nm_book::order::{InstrumentId, UserId};
use nm_codec::FNV1A;
use nm_exchange::network::Durability;
use serde::Serialize;

use crate::load::log::{Answered, Delivered, Record, RequestId};

/// Violations that are told in full, of each kind.
const EXAMPLES_MAX: usize = 10;

/// A way in which a network breaks its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Violation {
    /// A client was told an outcome of what no journal has.
    Lost,
    /// A request was carried out more than once, or told two different outcomes.
    Twice,
    /// Requests of a session on an instrument were carried out in another order than they were
    /// sent in, or one was left out.
    OutOfOrder,
    /// A client was told another outcome than a replay has.
    WrongResult,
    /// Something was carried out that no client sent.
    NotSent,
    /// The numbers of what was handled on an instrument, or of batches, leave one out.
    Gap,
    /// States that must be equal are not.
    HashDiffers,
    /// Fewer replicas than promised have what a client was told.
    TooFewCopies,
    /// Replicas have different batches at one place, and agree again after it.
    Diverged,
    /// A session was never told something that happened to its own orders, such as a fill.
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

/// A request that a replay carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Executed {
    /// Which.
    pub name: RequestId,
    /// Its number among all that were handled on the instrument.
    pub output_seq: u64,
    /// Hash of the events that it caused.
    pub events_hash: u64,
    /// Hash of its command.
    pub command_hash: u64,
    /// Index of its batch.
    pub index: u64,
    /// Whose life it was: rises when a mediator that keeps nothing begins with empty books.
    pub life: u64,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// When requests counted as done.
    pub durability: Durability,
    /// Requests that clients sent.
    pub sent: u64,
    /// Requests to which clients have a reply.
    pub answered: u64,
    /// Requests without reply that were carried out all the same.
    pub unanswered_executed: u64,
    /// Requests that were carried out.
    pub executed: u64,
    /// Batches that were replayed.
    pub batches: u64,
    /// Journals that were read.
    pub journals: u64,
    /// StateHashes of whole states that were compared.
    pub hashes: u64,
    /// Snapshots from which a replay was carried on to the end.
    pub cuts: u64,
    /// Requests that are known to be carried out only because a snapshot has them.
    pub in_snapshots: u64,
    /// How many of each kind.
    pub violations: BTreeMap<Violation, u64>,
    /// Violations that the chosen durability does not exclude: a mediator died that kept nothing.
    pub not_guaranteed: BTreeMap<Violation, u64>,
    /// Some of them in words.
    pub sentences: Vec<String>,
    /// What is to be known beside.
    pub notes: Vec<String>,
    #[serde(skip)]
    told: BTreeMap<Violation, usize>,
}

impl Findings {
    /// Whether the network kept its word.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// How many of a kind.
    pub fn count(&self, violation: Violation) -> u64 {
        self.violations.get(&violation).copied().unwrap_or_default()
    }

    /// Adds one.
    pub fn add(&mut self, violation: Violation, sentence: impl FnOnce() -> String) {
        *self.violations.entry(violation).or_default() += 1;
        self.tell(violation, sentence);
    }

    fn add_if(&mut self, is_guaranteed: bool, violation: Violation, say: impl FnOnce() -> String) {
        if is_guaranteed {
            self.add(violation, say);
        } else {
            *self.not_guaranteed.entry(violation).or_default() += 1;
        }
    }

    fn tell(&mut self, violation: Violation, sentence: impl FnOnce() -> String) {
        let told = self.told.entry(violation).or_default();
        *told += 1;
        if *told <= EXAMPLES_MAX {
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

/// What clients know.
#[derive(Debug, Default)]
pub struct Clients {
    /// Requests by session and instrument in the order sent, with the hash of the command.
    sent: HashMap<(InstrumentId, UserId), Vec<(u64, u64)>>,
    answered: HashMap<RequestId, Vec<Answered>>,
    told: Vec<Delivered>,
    count: u64,
    /// Number of the last request that a snapshot has, of instruments that begin with one.
    begun: HashMap<(InstrumentId, UserId), u64>,
}

impl Clients {
    /// Takes the records of one log.
    pub fn take(&mut self, records: &[Record]) {
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
                Record::Delivered(told) => self.told.push(*told),
            }
        }
    }

    /// Whether a client has a reply to a request.
    pub fn knows(&self, name: &RequestId) -> bool {
        self.answered.contains_key(name)
    }

    /// Instruments that clients sent something to.
    pub fn instruments(&self) -> impl Iterator<Item = InstrumentId> {
        self.sent.keys().map(|(instrument, _)| *instrument)
    }

    /// Instruments of a cell begin with a snapshot, in which `last_request_seq` is the number of a session's
    /// last request.
    pub fn restore(
        &mut self,
        is_of_cell: impl Fn(InstrumentId) -> bool,
        last_request_seq: impl Fn(InstrumentId, UserId) -> u64,
    ) {
        // What was told before the snapshot cannot be replayed, nor the hash of all of it.
        self.told.retain(|told| !is_of_cell(told.instrument));
        let pairs = self.sent.keys().filter(|(instrument, _)| is_of_cell(*instrument));
        self.begun.extend(pairs.map(|pair| (*pair, last_request_seq(pair.0, pair.1))));
    }

    /// Whether a snapshot stands for a request.
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

/// Holds what was carried out, cell by cell and in order, against what clients know. `not_guaranteed`:
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
                format!("{name} was carried out in {}", places.join(" and in "))
            });
        }
        if clients.command_of(name) != Some(times[0].command_hash) {
            findings.add(Violation::NotSent, || {
                format!("batch {} has {name}, which no client sent like this", times[0].index)
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

/// The replies to one request beside what was carried out of it.
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
    let told = |reply: &Answered| (reply.output_seq, reply.events_hash);
    let mut known = replies.iter().filter(|reply| !reply.is_forgotten);
    let Some(first) = known.next() else { return };
    if let Some(other) = known.clone().find(|reply| told(reply) != told(first)) {
        findings.add_if(is_guaranteed, Violation::Twice, || {
            format!(
                "{name} was answered as number {} and as number {} of its instrument",
                first.output_seq, other.output_seq
            )
        });
    }
    let is_wrong = |reply: &Answered| {
        !times.iter().any(|one| told(reply) == (one.output_seq, one.events_hash))
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

/// Each session was told all that happened to its orders and came of its requests, once and in
/// order. A log that ends before it says what was told proves nothing of it.
pub fn told(
    replayed: &HashMap<(InstrumentId, UserId), (u64, u64)>,
    clients: &Clients,
    not_guaranteed: impl Fn(InstrumentId) -> bool,
    findings: &mut Findings,
) {
    for told in &clients.told {
        let Delivered { session, instrument, events, events_hash, has_gap } = *told;
        let (there, hash) = replayed.get(&(instrument, session)).copied().unwrap_or((0, FNV1A));
        let violation = match events.cmp(&there) {
            _ if has_gap => Violation::NotDelivered,
            Ordering::Less => Violation::NotDelivered,
            Ordering::Equal if events_hash == hash => continue,
            _ => Violation::WrongResult,
        };
        findings.add_if(!not_guaranteed(instrument), violation, || {
            format!(
                "session {session} was told {events} events on instrument {instrument} with hash \
                 {events_hash:016x}, and its replay has {there} with {hash:016x}"
            )
        });
    }
}

/// What is handled on an instrument is numbered without gaps, from a snapshot on if it begins with
/// one.
fn numbers(executed: &[Executed], clients: &Clients, findings: &mut Findings) {
    let mut last: HashMap<(InstrumentId, u64), u64> = HashMap::new();
    let begun = clients.begun.iter().filter(|(_, last)| **last > 0);
    let begun: HashSet<InstrumentId> = begun.map(|((instrument, _), _)| *instrument).collect();
    for one in executed {
        let Executed { name, output_seq, life, .. } = *one;
        let is_begun = life == 1 && begun.contains(&name.instrument);
        let before = if is_begun { output_seq.saturating_sub(1) } else { 0 };
        let last = last.entry((name.instrument, life)).or_insert(before);
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

/// What a session requests on an instrument is carried out in the order in which it was sent, without
/// leaving any out.
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

    /// Three sessions on two instruments, in turn, all of it carried out and answered.
    fn world() -> (Vec<Executed>, Vec<Record>) {
        let (mut executed, mut records) = (vec![], vec![]);
        let mut output_seqs = [0; 2];
        for number in 0..120u64 {
            let (session, instrument) = (1 + (number % 3) as u32, (number / 3 % 2) as u32);
            let name = RequestId { instrument, session, client_seq: number / 3 + 1 };
            output_seqs[instrument as usize] += 1;
            let output_seq = output_seqs[instrument as usize];
            let (events_hash, command_hash) = (number * 31, number * 17);
            let (index, life) = (number / 5, 1);
            executed.push(Executed { name, output_seq, events_hash, command_hash, index, life });
            records.push(Record::Sent(Sent { name, intended_ns: number, command_hash }));
            records.push(Record::Answered(Answered {
                name,
                at_ns: number,
                output_seq,
                events_hash,
                is_repeated: false,
                is_forgotten: false,
            }));
        }
        (executed, records)
    }

    fn judged(executed: &[Executed], records: &[Record]) -> Findings {
        let (mut clients, mut findings) = (Clients::default(), Findings::default());
        clients.take(records);
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
    fn a_network_that_keeps_its_word_is_clean() {
        let (mut executed, mut records) = world();
        let findings = judged(&executed, &records);
        assert!(findings.is_clean(), "{findings:?}");
        assert_eq!((findings.sent, findings.answered, findings.executed), (120, 120, 120));
        // The last ones may be without reply, and may be carried out or not.
        records.truncate(records.len() - 1);
        assert_eq!(judged(&executed, &records).unanswered_executed, 1);
        executed.pop();
        assert!(judged(&executed, &records).is_clean());
        // An outcome that is told again is the same.
        let mut again = records[1];
        answer(&mut again).is_repeated = true;
        records.push(again);
        answer(&mut again).is_forgotten = true;
        answer(&mut again).output_seq = 0;
        records.push(again);
        let findings = judged(&executed, &records);
        assert!(findings.is_clean(), "{findings:?}");
    }

    #[test]
    fn what_is_lost_is_found() {
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

    #[test]
    fn what_was_carried_out_twice_is_found() {
        let (mut executed, mut records) = world();
        let mut second = executed[60];
        second.output_seq = 61;
        executed.push(second);
        let findings = judged(&executed, &records);
        assert_eq!(findings.count(Violation::Twice), 1, "{findings:?}");
        executed.pop();
        // The same, as a client sees it.
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
    fn what_was_carried_out_in_another_order_is_found() {
        let (mut executed, records) = world();
        // Two requests of session 1 on instrument 0 change places.
        let (a, b) = (executed[0], executed[6]);
        executed[0] = Executed { output_seq: a.output_seq, ..b };
        executed[6] = Executed { output_seq: b.output_seq, ..a };
        let findings = judged(&executed, &records);
        assert!(findings.count(Violation::OutOfOrder) >= 2, "{findings:?}");
        let (mut executed, mut records) = world();
        // One is left out, and its client heard nothing.
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
    fn a_session_that_was_not_told_is_found() {
        let (executed, mut records) = world();
        let replayed = HashMap::from([((0, 1), (5, 55)), ((1, 1), (7, 77))]);
        let say = |instrument, events, events_hash, has_gap| {
            Record::Delivered(Delivered { session: 1, instrument, events, events_hash, has_gap })
        };
        let judged = |records: &[Record], is_guaranteed_not: bool| {
            let (mut clients, mut findings) = (Clients::default(), Findings::default());
            clients.take(records);
            judge(&executed, &clients, |_| false, &mut findings);
            told(&replayed, &clients, |_| is_guaranteed_not, &mut findings);
            findings
        };
        records.extend([say(0, 5, 55, false), say(1, 7, 77, false), say(2, 0, FNV1A, false)]);
        assert!(judged(&records, false).is_clean());
        for (record, violation) in [
            (say(0, 4, 55, false), Violation::NotDelivered),
            (say(0, 5, 55, true), Violation::NotDelivered),
            (say(0, 6, 55, false), Violation::WrongResult),
            (say(0, 5, 56, false), Violation::WrongResult),
        ] {
            let all = [&records[..], &[record]].concat();
            let findings = judged(&all, false);
            assert_eq!(findings.violations, BTreeMap::from([(violation, 1)]));
            assert!(findings.sentences[0].contains("session 1 was told"), "{findings:?}");
            let findings = judged(&all, true);
            assert_eq!(findings.not_guaranteed, BTreeMap::from([(violation, 1)]));
        }
    }

    #[test]
    fn what_was_not_promised_is_told_apart() {
        let (mut executed, records) = world();
        executed.retain(|one| one.name.instrument == 1 || one.name.client_seq > 20);
        executed.iter_mut().filter(|one| one.name.instrument == 0).for_each(|one| {
            (one.output_seq, one.life) = (one.output_seq - 30, 2);
        });
        let (mut clients, mut findings) = (Clients::default(), Findings::default());
        clients.take(&records);
        judge(&executed, &clients, |instrument| instrument == 0, &mut findings);
        assert!(findings.is_clean(), "{findings:?}");
        assert_eq!(findings.not_guaranteed[&Violation::Lost], 30);
        assert!(!judged(&executed, &records).is_clean());
    }
}
