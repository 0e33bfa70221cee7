//! Judges a trial by what its clients saw, and by nothing else: a reference book executes their
//! requests anew. No code of a cell, a log or a role takes part.

use std::collections::{BTreeMap, BTreeSet};

use nm_book::codec::write_event;
use nm_book::order::{CancelReason, Command, Event, InstrumentId, Matching, Side, UserId};
use nm_book::reference::ReferenceBook;
use nm_codec::fnv1a;

use crate::cell::{Best, DESK};

/// What a client knows of one of its requests.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Its number within its session.
    pub client_seq: u64,
    /// What was asked.
    pub command: Command,
    /// When it was sent first, ns.
    pub sent_ns: u64,
    /// The first reply.
    pub answer: Option<Answer>,
}

/// A reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// When it came, ns.
    pub at_ns: u64,
    /// The number of the request among all on the instrument.
    pub output_seq: u64,
    /// Hash of all of its events.
    pub events_hash: u64,
}

/// What a session knows of an instrument: its requests in the order sent, and its events.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// The requests.
    pub requests: Vec<Request>,
    /// The events, each once, in the order of their numbers.
    pub events: Vec<Event>,
    /// Broadcasts of the best prices: the number of the request among all on the instrument, and
    /// what it has made of them. Those of a client are with one of its sessions.
    pub best: Vec<(u64, Best)>,
}

/// Of all sessions.
pub type Histories<'a> = BTreeMap<(InstrumentId, UserId), &'a Seen>;

/// What operators had done on an instrument: the command, and its number with the hash of its
/// events.
pub type Directed = Vec<(Command, u64, u64)>;

/// On all instruments.
pub type AllDirected = BTreeMap<InstrumentId, Directed>;

/// What is wrong with the histories, if anything is. All requests have to be answered.
///
/// - Each request was executed once: the numbers of the replies, and of what operators directed,
///   are all numbers from 1 on.
/// - Those of a session on an instrument were executed in the order sent.
/// - A request that was sent after another one was answered was executed after it.
/// - Each reply has the hash of the events that the reference book has for it, and each session got
///   those that concern it, all of them, in order.
/// - Each broadcast of the best prices is of a request that has changed them, and says what they
///   are then. Some may be lost.
pub fn fault_of(histories: &Histories<'_>, directed: &AllDirected) -> Option<String> {
    let instruments: BTreeSet<InstrumentId> = histories.keys().map(|(it, _)| *it).collect();
    instruments.into_iter().find_map(|instrument| {
        let of_it = histories.range((instrument, 0)..=(instrument, UserId::MAX));
        let sessions: BTreeMap<UserId, &Seen> = of_it.map(|((_, at), seen)| (*at, *seen)).collect();
        let directed = directed.get(&instrument).map_or(&[][..], Vec::as_slice);
        let fault = fault_of_instrument(&sessions, directed).err()?;
        Some(format!("instrument {instrument}: {fault}"))
    })
}

fn fault_of_instrument(
    sessions: &BTreeMap<UserId, &Seen>,
    directed: &[(Command, u64, u64)],
) -> Result<(), String> {
    let mut executed: Vec<(Answer, UserId, Request)> = vec![];
    for (session, seen) in sessions {
        let mut last = 0;
        for request in &seen.requests {
            let name = format!("request {} of session {session}", request.client_seq);
            let answer = request.answer.ok_or_else(|| format!("{name} has no reply"))?;
            if answer.output_seq <= last {
                return Err(format!("{name} was executed before one that was sent before it"));
            }
            last = answer.output_seq;
            executed.push((answer, *session, *request));
        }
    }
    for (command, output_seq, events_hash) in directed {
        // Nobody knows when it was asked for.
        let answer = Answer { at_ns: u64::MAX, output_seq: *output_seq, events_hash: *events_hash };
        let request =
            Request { client_seq: 0, command: *command, sent_ns: 0, answer: Some(answer) };
        executed.push((answer, DESK, request));
    }
    executed.sort_by_key(|(answer, _, _)| answer.output_seq);
    for ((answer, session, request), number) in executed.iter().zip(1..) {
        if answer.output_seq != number {
            return Err(format!(
                "request {} of session {session} has number {}, and would be the {number}th: one \
                 is missing or was executed twice",
                request.client_seq, answer.output_seq
            ));
        }
    }
    check_real_time(&executed)?;
    check_events(&executed, sessions)
}

fn check_real_time(executed: &[(Answer, UserId, Request)]) -> Result<(), String> {
    let mut later_ns = u64::MAX;
    for (answer, session, request) in executed.iter().rev() {
        if later_ns < request.sent_ns {
            return Err(format!(
                "request {} of session {session} was executed before one that had been answered \
                 when it was sent",
                request.client_seq
            ));
        }
        later_ns = later_ns.min(answer.at_ns);
    }
    Ok(())
}

fn check_events(
    executed: &[(Answer, UserId, Request)],
    sessions: &BTreeMap<UserId, &Seen>,
) -> Result<(), String> {
    use CancelReason::{Mass, Operator};
    let mut book = ReferenceBook::new();
    let mut expected: BTreeMap<UserId, Vec<Event>> = BTreeMap::new();
    let best = |book: &ReferenceBook| [Side::Buy, Side::Sell].map(|side| book.best_price(side));
    let mut changes: BTreeMap<u64, Best> = BTreeMap::new();
    for (answer, session, request) in executed {
        let mut bytes = vec![];
        let before = best(&book);
        // No command of the clients depends on the time.
        book.apply(&request.command, 1, &mut |event| {
            let event = match event {
                // Of all orders at once: by the operator, if the desk has done it.
                Event::Cancelled { id, user, left, reason: Mass } if *session == DESK => {
                    Event::Cancelled { id, user, left, reason: Operator }
                }
                event => event,
            };
            write_event(&event, &mut bytes);
            let owners = event.users().into_iter().flatten();
            owners.for_each(|owner| expected.entry(owner).or_default().push(event));
        });
        let after = best(&book);
        changes.extend((before != after).then_some((answer.output_seq, after)));
        if fnv1a(&bytes) != answer.events_hash {
            return Err(format!(
                "the reply to request {} of session {session} is another one than the reference \
                 book's",
                request.client_seq
            ));
        }
    }
    for (number, told) in sessions.values().flat_map(|seen| &seen.best) {
        if changes.get(number) != Some(told) {
            return Err(format!(
                "the best prices after request {number} are broadcast as {told:?}, and changed to \
                 {:?}",
                changes.get(number)
            ));
        }
    }
    for (session, seen) in sessions {
        let expected = expected.remove(session).unwrap_or_default();
        if seen.events == expected {
            continue;
        }
        let at = seen.events.iter().zip(&expected).take_while(|(one, other)| one == other).count();
        return Err(format!(
            "session {session} has {} events and should have {}; number {} is {:?}, and should be \
             {:?}",
            seen.events.len(),
            expected.len(),
            at + 1,
            seen.events.get(at),
            expected.get(at)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::clients::order;
    use super::*;
    use nm_book::testing::Random;

    /// Two sessions that send in turn, each after the reply to the other.
    fn good() -> BTreeMap<(InstrumentId, UserId), Seen> {
        let (mut random, mut book) = (Random::new(3), ReferenceBook::new());
        let mut sessions: BTreeMap<_, Seen> =
            [((7, 1), Seen::default()), ((7, 2), Seen::default())].into();
        for number in 1..=60u64 {
            let (session, client_seq) = (1 + (number % 2) as u32, number.div_ceil(2));
            let command = order(session, client_seq, &mut random);
            let mut bytes = vec![];
            book.apply(&command, 1, &mut |event| {
                write_event(&event, &mut bytes);
                let owners = event.users().into_iter().flatten();
                owners.for_each(|it| sessions.get_mut(&(7, it)).unwrap().events.push(event));
            });
            let (sent_ns, at_ns, events_hash) = (number * 10, number * 10 + 9, fnv1a(&bytes));
            let answer = Some(Answer { at_ns, output_seq: number, events_hash });
            let request = Request { client_seq, command, sent_ns, answer };
            sessions.get_mut(&(7, session)).unwrap().requests.push(request);
        }
        sessions
    }

    fn found(change: impl FnOnce(&mut BTreeMap<(InstrumentId, UserId), Seen>)) -> String {
        let mut histories = good();
        change(&mut histories);
        let histories = histories.iter().map(|(key, seen)| (*key, seen)).collect();
        fault_of(&histories, &AllDirected::new()).unwrap_or_default()
    }

    #[test]
    fn the_oracle_names_what_is_wrong_with_a_history() {
        assert_eq!(found(|_| {}), "");
        let answer = |at: usize, change: fn(&mut Answer)| {
            found(|it| change(it.get_mut(&(7, 1)).unwrap().requests[at].answer.as_mut().unwrap()))
        };
        assert!(answer(9, |it| it.output_seq += 1).contains("executed twice"));
        assert!(answer(9, |it| it.output_seq = 1).contains("before one that was sent before"));
        assert!(answer(9, |it| it.events_hash += 1).contains("another one than the reference"));
        let swapped = found(|it| {
            // The second one was sent after the reply to the first one.
            let [one, two] = [1, 2].map(|at| it[&(7, at)].requests[9].answer.unwrap());
            let answer_of = |it: &mut BTreeMap<_, Seen>, session, answer| {
                it.get_mut(&(7, session)).unwrap().requests[9].answer = Some(answer);
            };
            answer_of(it, 1, Answer { at_ns: one.at_ns, ..two });
            answer_of(it, 2, Answer { at_ns: two.at_ns, ..one });
        });
        assert!(swapped.contains("had been answered when it was sent"), "{swapped}");
        let lost = found(|it| it.get_mut(&(7, 1)).unwrap().requests[9].answer = None);
        assert!(lost.contains("has no reply"), "{lost}");
        let events = |change: fn(&mut Vec<Event>)| {
            found(|it| change(&mut it.get_mut(&(7, 2)).unwrap().events))
        };
        let missed = events(|it| it.truncate(5));
        assert!(missed.contains("number 6 is None"), "{missed}");
        let swapped = events(|it| it.swap(5, 6));
        assert!(swapped.contains("number 6 is Some"), "{swapped}");
    }
}
