//! The log of a client as its history: whether a client can have written it, and its operations
//! for the checkers of others.
//!
//! A client writes what it does as it does it. So an answer comes behind its request, times do not
//! go back, and a session counts its requests without a gap. A client that ends writes what each
//! session was delivered, which requests have no answer, and how many records there are.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::path::Path;

use nm_book::order::{InstrumentId, UserId};
use nm_load::log::{self, Answered, Delivered, End, Record, RequestId, Sent};
use nm_model::{Failure, FailureKind};
use nm_sys::text_file;
use serde::Serialize;

use crate::client_logs::{CLIENT_LOG_BYTES_MAX, client_logs, unreadable};
use crate::findings::{Findings, Violation};

/// What a log has said of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Sent,
    Answered,
    Refused,
    Unanswered,
}

/// What a log has said so far.
#[derive(Debug)]
struct Reading<'a> {
    /// Name of the log.
    log: &'a str,
    requests: HashMap<RequestId, State>,
    /// By session: the number of its last request.
    last_seqs: HashMap<UserId, u64>,
    delivered: HashSet<(UserId, InstrumentId)>,
    /// The latest time that it names, ns.
    latest_ns: u64,
    count: End,
    end: Option<End>,
}

/// Checks that a log is one that a client can have written. One without an end is doubted.
pub fn check(log: &str, records: &[Record], findings: &mut Findings) {
    let mut reading = Reading {
        log,
        requests: HashMap::new(),
        last_seqs: HashMap::new(),
        delivered: HashSet::new(),
        latest_ns: 0,
        count: End::default(),
        end: None,
    };
    for record in records {
        reading.record(record, findings);
    }
    reading.finish(findings);
}

impl Reading<'_> {
    fn record(&mut self, record: &Record, findings: &mut Findings) {
        let log = self.log;
        if self.end.is_some() {
            findings.add(Violation::ClientLog, || format!("{log} has records behind its end"));
        }
        self.count.count(record);
        match record {
            Record::Sent(sent) => self.sent(sent, findings),
            Record::Answered(answered) => self.answered(answered, findings),
            Record::Delivered(one) => self.delivered(one, findings),
            Record::Refused(name) => self.ended(*name, State::Refused, findings),
            Record::Unanswered(name) => self.ended(*name, State::Unanswered, findings),
            Record::End(end) => self.end = Some(*end),
        }
    }

    fn sent(&mut self, sent: &Sent, findings: &mut Findings) {
        let (log, Sent { name, intended_ns, .. }) = (self.log, *sent);
        let last = self.last_seqs.insert(name.session, name.client_seq).unwrap_or(0);
        if name.client_seq != last + 1 {
            findings.add(Violation::ClientLog, || {
                format!("{log} has {name} behind request {last} of that session")
            });
        }
        self.latest_ns = self.latest_ns.max(intended_ns);
        // One that is there twice has no number that is due.
        self.requests.entry(name).or_insert(State::Sent);
    }

    fn answered(&mut self, answered: &Answered, findings: &mut Findings) {
        let (log, Answered { name, at_ns, is_surplus, .. }) = (self.log, *answered);
        if at_ns < self.latest_ns {
            let latest_ns = self.latest_ns;
            findings.add(Violation::ClientLog, || {
                format!(
                    "{log} has the answer to {name} at {at_ns} ns, behind what was done at \
                     {latest_ns} ns"
                )
            });
        }
        self.latest_ns = self.latest_ns.max(at_ns);
        match self.requests.get_mut(&name) {
            None => findings.add(Violation::ClientLog, || {
                format!("{log} has an answer to {name}, and does not have that it was sent before")
            }),
            Some(_) if is_surplus => {}
            Some(State::Answered) => findings.add(Violation::Twice, || {
                format!("{log} has two answers to {name}, and its client had waited for one")
            }),
            Some(state) => *state = State::Answered,
        }
    }

    /// A request that has no answer and gets none.
    fn ended(&mut self, name: RequestId, state: State, findings: &mut Findings) {
        let log = self.log;
        let word = if state == State::Refused { "refused" } else { "not answered" };
        match self.requests.insert(name, state) {
            Some(State::Sent) => {}
            None => findings.add(Violation::ClientLog, || {
                format!("{log} has that {name} was {word}, and not that it was sent")
            }),
            Some(_) => findings.add(Violation::ClientLog, || {
                format!("{log} has that {name} was {word}, and also how it ended")
            }),
        }
    }

    fn delivered(&mut self, one: &Delivered, findings: &mut Findings) {
        let (log, Delivered { session, instrument, .. }) = (self.log, *one);
        if !self.delivered.insert((session, instrument)) {
            findings.add(Violation::ClientLog, || {
                format!(
                    "{log} has twice what session {session} received on instrument {instrument}"
                )
            });
        }
    }

    /// Checks what a client writes at its end.
    fn finish(self, findings: &mut Findings) {
        let log = self.log;
        let Some(end) = self.end else {
            findings.doubts.push(format!(
                "{log} does not have that its client had ended: requests, answers and events may \
                 be missing in it"
            ));
            return;
        };
        if end != self.count {
            findings.add(Violation::ClientLog, || {
                format!("{log} should have {}, and has {}", counts(&end), counts(&self.count))
            });
        }
        let open = self.requests.iter().filter(|(_, state)| **state == State::Sent);
        let mut open: Vec<&RequestId> = open.map(|(name, _)| name).collect();
        open.sort_unstable();
        for name in open {
            findings.add(Violation::ClientLog, || {
                format!("{log} has no answer to {name}, and not that none had come at its end")
            });
        }
        let traded = self.requests.iter().filter(|(_, state)| **state != State::Refused);
        let traded: HashSet<(UserId, InstrumentId)> =
            traded.map(|(name, _)| (name.session, name.instrument)).collect();
        let mut missing: Vec<&(UserId, InstrumentId)> =
            traded.difference(&self.delivered).collect();
        missing.sort_unstable();
        for (session, instrument) in missing {
            findings.add(Violation::NotDelivered, || {
                format!(
                    "{log} does not have which events session {session} received on instrument \
                     {instrument}"
                )
            });
        }
    }
}

fn counts(end: &End) -> String {
    let End { sent, answered, delivered, refused, unanswered } = end;
    format!(
        "{sent} requests, {answered} answers, {refused} refusals, {unanswered} requests without \
         either, and {delivered} records of deliveries"
    )
}

/// A request as an operation of a history.
#[derive(Debug, Serialize)]
struct Operation {
    /// Number of the log, whose clock its times are of.
    log: usize,
    /// The session.
    client: UserId,
    /// When it was to be sent, ns.
    call: u64,
    /// When its first answer came, ns; null if none came.
    #[serde(rename = "return")]
    returned: Option<u64>,
    input: Input,
    /// What the answer says; null if none came, or it came when the outcome had expired.
    output: Option<Output>,
}

#[derive(Debug, Serialize)]
struct Input {
    instrument: InstrumentId,
    request: u64,
    command_hash: String,
}

#[derive(Debug, Serialize)]
struct Output {
    /// Number of the request among all that were executed on the instrument, from 1 on.
    number: u64,
    events_hash: String,
}

/// Writes the requests of a recording as operations, a JSON object a line, in the order in which
/// they were sent. Refused ones are left out: they are not executed.
///
/// # Errors
/// If a client's log cannot be read, or `out` takes no more.
pub fn write_history(folder: &Path, out: &mut dyn Write) -> Result<u64, Failure> {
    let mut written = 0;
    let unwritable = |error: io::Error| {
        Failure::new(FailureKind::System, format!("the history cannot be written: {error}"))
    };
    for (number, path) in client_logs(folder)?.iter().enumerate() {
        let bytes = text_file::read_bytes(path, CLIENT_LOG_BYTES_MAX)
            .map_err(|error| unreadable(path, error))?;
        let records = log::parse(&bytes).map_err(|why| unreadable(path, why))?;
        for operation in operations(number, &records) {
            serde_json::to_writer(&mut *out, &operation)
                .map_err(io::Error::from)
                .and_then(|()| out.write_all(b"\n"))
                .map_err(unwritable)?;
            written += 1;
        }
    }
    out.flush().map_err(unwritable)?;
    Ok(written)
}

fn operations(log: usize, records: &[Record]) -> impl Iterator<Item = Operation> {
    let (mut answers, mut refused) = (HashMap::new(), HashSet::new());
    for record in records {
        match record {
            Record::Answered(answered) => {
                answers.entry(answered.name).or_insert(*answered);
            }
            Record::Refused(name) => {
                refused.insert(*name);
            }
            _ => {}
        }
    }
    records.iter().filter_map(move |record| {
        let Record::Sent(Sent { name, intended_ns, command_hash }) = *record else { return None };
        let answer: Option<&Answered> = answers.get(&name);
        let outcome = answer.filter(|answer| !answer.is_expired);
        (!refused.contains(&name)).then(|| Operation {
            log,
            client: name.session,
            call: intended_ns,
            returned: answer.map(|answer| answer.at_ns),
            input: Input {
                instrument: name.instrument,
                request: name.client_seq,
                command_hash: format!("{command_hash:016x}"),
            },
            output: outcome.map(|answer| Output {
                number: answer.output_seq,
                events_hash: format!("{:016x}", answer.events_hash),
            }),
        })
    })
}
