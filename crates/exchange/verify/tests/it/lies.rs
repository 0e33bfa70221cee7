//! Lies planted in a recording that is true otherwise: each is found, with a sentence that names
//! it. Who plants them knows the formats: the client's log has an end that fits what it has.

use std::fs;
use std::path::PathBuf;

use nm_book::order::{Command, NewOrder, Peg, TimeInForce};
use nm_exchange::batch;
use nm_exchange::network::{Durability, Role};
use nm_load::log::{Answered, Delivered, Record, RequestId, Sent, command_hash};
use nm_verify::{Cuts, Findings, Verdict, Violation, folder, folder_cut, write_history};
use nm_wire::{Kind, Request, Shape};

use super::folders::Run;

fn answer(record: &Record) -> Option<&Answered> {
    if let Record::Answered(answered) = record { Some(answered) } else { None }
}

/// Position of the `number`th first answer to a request.
fn nth_answer(run: &Run, number: usize) -> usize {
    let mut all = run.records.iter().enumerate();
    let first = |record: &Record| answer(record).is_some_and(|it| !it.is_surplus);
    all.by_ref().filter(|(_, record)| first(record)).nth(number).unwrap().0
}

fn answer_at(run: &mut Run, at: usize) -> &mut Answered {
    let Record::Answered(answered) = &mut run.records[at] else { panic!("no answer") };
    answered
}

fn deliveries(run: &Run) -> impl Iterator<Item = usize> {
    let at = |(at, record): (usize, &Record)| matches!(record, Record::Delivered(_)).then_some(at);
    run.records.iter().enumerate().filter_map(at).collect::<Vec<_>>().into_iter()
}

/// What is found after one change of the clients' log.
fn planted(plant: impl FnOnce(&mut Run)) -> Findings {
    let mut run = Run::new(Durability::MemoryQuorum);
    plant(&mut run);
    run.check()
}

fn assert_found(what: &str, findings: &Findings, violation: Violation, sentence: &str) {
    assert_eq!(findings.verdict(), Verdict::Violated, "{what}: {findings:?}");
    assert!(findings.count(violation) > 0, "{what}: {findings:?}");
    let start = format!("{violation}: ");
    let names = |it: &&String| it.starts_with(&start) && it.contains(sentence);
    assert!(findings.sentences.iter().any(|it| names(&it)), "{what}: {findings:?}");
}

/// Positions of two requests of different sessions on one instrument, sent one after the other
/// before either had its answer; neither session sends another one in between.
fn concurrent(run: &Run) -> (usize, usize) {
    for (first, record) in run.records.iter().enumerate().skip(1_000) {
        let Record::Sent(one) = record else { continue };
        let mut between = vec![one.name.session];
        for (second, record) in run.records.iter().enumerate().skip(first + 1) {
            let Record::Sent(other) = record else { break };
            let is_new = !between.contains(&other.name.session);
            if is_new && other.name.instrument == one.name.instrument {
                return (first, second);
            }
            between.push(other.name.session);
        }
    }
    panic!("no two requests are under way at once");
}

#[test]
fn an_answer_that_was_moved_in_time_is_found() {
    // The answer to the second one now comes before the first one, which was executed before it,
    // is sent. Times fit as well.
    let findings = planted(|run| {
        let (first, second) = concurrent(run);
        let Record::Sent(Sent { name, .. }) = run.records[second] else { panic!() };
        let is_reply = |it: &Record| answer(it).is_some_and(|it| it.name == name);
        let at = run.records.iter().position(is_reply).unwrap();
        let reply = run.records.remove(at);
        let later = run.records.remove(second);
        run.records.splice(first..first, [later, reply]);
        let mut last_ns = 0;
        for record in &mut run.records {
            match record {
                Record::Sent(Sent { intended_ns, .. }) => {
                    last_ns = last_ns.max(*intended_ns);
                    *intended_ns = last_ns;
                }
                Record::Answered(answered) => answered.at_ns = last_ns,
                _ => {}
            }
        }
    });
    assert_found("moved", &findings, Violation::RealTime, "and was executed before it");
    assert_eq!(findings.violations.len(), 1, "{findings:?}");
    // Only its time.
    let findings = planted(|run| {
        let at = nth_answer(run, 700);
        answer_at(run, at).at_ns -= 20;
    });
    assert_found("time", &findings, Violation::ClientLog, "behind what was done at");
    // Before its own request.
    let findings = planted(|run| {
        let at = nth_answer(run, 700);
        let moved = run.records.remove(at);
        run.records.insert(0, moved);
    });
    let sentence = "and does not have that it was sent before";
    assert_found("before its request", &findings, Violation::ClientLog, sentence);
}

#[test]
fn answers_that_are_there_twice_or_missing_are_found() {
    let findings = planted(|run| {
        let at = nth_answer(run, 700);
        let again = run.records[at];
        run.records.insert(at + 1, again);
    });
    assert_found("twice", &findings, Violation::Twice, "has two answers to request");
    let findings = planted(|run| {
        let at = nth_answer(run, 700);
        run.records.remove(at);
    });
    assert_found("dropped", &findings, Violation::ClientLog, "has no answer to request");
    // With the words that an honest client has for it, but both.
    let findings = planted(|run| {
        let at = nth_answer(run, 700);
        let name = answer_at(run, at).name;
        run.records.push(Record::Unanswered(name));
    });
    assert_found("both", &findings, Violation::ClientLog, "and also how it ended");
}

#[test]
fn answers_of_others_are_found() {
    let findings = planted(|run| {
        let (a, b) = (nth_answer(run, 700), nth_answer(run, 760));
        let (one, other) = (*answer_at(run, a), *answer_at(run, b));
        (answer_at(run, a).name, answer_at(run, b).name) = (other.name, one.name);
    });
    assert_found("swapped", &findings, Violation::WrongResult, "was answered as number");
    let findings = planted(|run| {
        let at = nth_answer(run, 700);
        let answered = answer_at(run, at);
        answered.name.session = answered.name.session % 20 + 1;
    });
    let sentence = "and does not have that it was sent before";
    assert_found("attributed", &findings, Violation::ClientLog, sentence);
    let findings = planted(|run| {
        let at = nth_answer(run, 700);
        answer_at(run, at).output_seq -= 1;
    });
    assert_found("lowered", &findings, Violation::WrongResult, "was answered as number");
    // A request and its answer from another run.
    let findings = planted(|run| {
        let at = nth_answer(run, 700);
        let answered = *answer_at(run, at);
        let name = RequestId { client_seq: answered.name.client_seq + 10_000, ..answered.name };
        let (intended_ns, command_hash) = (answered.at_ns, 7);
        run.records.insert(at, Record::Sent(Sent { name, intended_ns, command_hash }));
        run.records.insert(at + 1, Record::Answered(Answered { name, ..answered }));
    });
    assert_found("spliced", &findings, Violation::Lost, "and no journal has it");
    assert_found("spliced", &findings, Violation::ClientLog, "behind request");
}

#[test]
fn a_request_that_is_missing_in_its_clients_log_is_found() {
    let findings = planted(|run| {
        // One that has no answer, so that nothing else names it.
        let name = run.records.iter().rev().find_map(|record| match record {
            Record::Unanswered(name) => Some(*name),
            _ => None,
        });
        let name = name.unwrap();
        run.records.retain(|record| match record {
            Record::Sent(sent) => sent.name != name,
            Record::Unanswered(other) => *other != name,
            _ => true,
        });
        let next = RequestId { client_seq: name.client_seq + 1, ..name };
        let (intended_ns, command_hash) = (3_000, 7);
        run.records.push(Record::Sent(Sent { name: next, intended_ns, command_hash }));
        run.records.push(Record::Unanswered(next));
    });
    assert_found("a gap", &findings, Violation::ClientLog, "of that session");
}

#[test]
fn deliveries_that_are_missing_or_lowered_are_found() {
    let findings = planted(|run| {
        let at = deliveries(run).nth(40).unwrap();
        run.records.remove(at);
    });
    let sentence = "does not have which events session";
    assert_found("one", &findings, Violation::NotDelivered, sentence);
    let findings =
        planted(|run| run.records.retain(|record| !matches!(record, Record::Delivered(_))));
    assert_found("all", &findings, Violation::NotDelivered, sentence);
    let findings = planted(|run| {
        let at = deliveries(run).nth(40).unwrap();
        let Record::Delivered(Delivered { events, .. }) = &mut run.records[at] else { panic!() };
        *events -= 1;
    });
    assert_found("lowered", &findings, Violation::NotDelivered, "received");
    let findings = planted(|run| {
        let at = deliveries(run).nth(40).unwrap();
        let again = run.records[at];
        run.records.push(again);
    });
    assert_found("twice", &findings, Violation::ClientLog, "has twice what session");
}

#[test]
fn an_outcome_that_did_not_expire_is_found() {
    let findings = planted(|run| {
        let at = nth_answer(run, 700);
        let answered = answer_at(run, at);
        (answered.is_expired, answered.events_hash) = (true, 9);
    });
    assert_found("hash", &findings, Violation::WrongResult, "has expired, and has one");
    let findings = planted(|run| {
        let at = nth_answer(run, 700);
        let answered = answer_at(run, at);
        (answered.is_expired, answered.output_seq, answered.events_hash) = (true, 0, 0);
    });
    assert_found("no hash", &findings, Violation::WrongResult, "no journal has a repetition");
}

/// Records that are gone from the file, whose end was left as it was.
#[test]
fn a_log_with_fewer_records_than_its_end_says_is_found() {
    let run = Run::new(Durability::MemoryQuorum);
    run.check();
    let path = run.path().join("client-0.log");
    let bytes = fs::read(&path).unwrap();
    // The last records: one of 26 bytes of a delivery, and the end.
    let end = bytes.len() - 49;
    fs::write(&path, [&bytes[..end - 26], &bytes[end..]].concat()).unwrap();
    let findings = folder(run.path()).unwrap();
    assert_found("fewer", &findings, Violation::ClientLog, "client-0.log should have");
    // Without its end, what is missing is not known.
    fs::write(&path, &bytes[..end]).unwrap();
    let findings = folder(run.path()).unwrap();
    assert_eq!(findings.verdict(), Verdict::Doubtful, "{findings:?}");
    let doubt = "client-0.log does not have that its client had ended";
    assert!(findings.doubts.iter().any(|it| it.contains(doubt)), "{findings:?}");
    // Something behind it.
    fs::write(&path, [&bytes[..], &bytes[end - 26..]].concat()).unwrap();
    let findings = folder(run.path()).unwrap();
    assert_found("more", &findings, Violation::ClientLog, "has records behind its end");
}

/// Other commands in the journals and in what the clients have sent: the rest is left as it was.
fn command_otherwise(run: &mut Run, change: impl Fn(&mut Command)) {
    let mut hashes = vec![];
    for entry in run.entries.iter_mut().flatten().filter(|it| !it.bytes.is_empty()) {
        let (time_ns, frames) = batch::decode(&entry.bytes).unwrap();
        let mut bytes = vec![];
        batch::begin(time_ns, &mut bytes);
        for frame in frames.map(Result::unwrap) {
            if frame.kind() != Kind::Request {
                bytes.extend_from_slice(frame.bytes);
                continue;
            }
            let mut request: Request = frame.read().unwrap();
            change(&mut request.command);
            let Request { instrument, session, client_seq, command, .. } = request;
            hashes.push((RequestId { instrument, session, client_seq }, command_hash(&command)));
            let shape = Shape { is_stamped: frame.is_stamped(), size_bytes: frame.bytes.len() };
            nm_wire::write_shaped(&request, shape, &mut bytes);
        }
        entry.bytes = bytes;
    }
    let hashes: std::collections::BTreeMap<_, _> = hashes.into_iter().collect();
    for record in &mut run.records {
        if let Record::Sent(sent) = record
            && let Some(hash) = hashes.get(&sent.name)
        {
            sent.command_hash = *hash;
        }
    }
}

/// An exchange that treats some orders as if they were others.
#[test]
fn hidden_on_close_and_pegged_orders_that_were_treated_as_others_are_found() {
    let run = Run::with_closing();
    let findings = run.check();
    assert!(findings.is_clean(), "{findings:?}");
    let cuts = folder_cut(run.path(), Cuts { count: 20, seed: 5 }).unwrap();
    assert!(cuts.is_clean(), "{cuts:?}");
    let of_orders = |change: fn(&mut NewOrder)| {
        move |command: &mut Command| {
            if let Command::New(order) = command {
                change(order);
            }
        }
    };
    let shown = of_orders(|order| order.is_hidden = false);
    let at_once = of_orders(|order| {
        if order.time_in_force == TimeInForce::AtClose {
            order.time_in_force = TimeInForce::GoodTillCancelled;
        }
    });
    let other_auction = |command: &mut Command| {
        if *command == Command::BeginClosing {
            *command = Command::BeginAuction;
        }
    };
    let check = |what: &str, change: &dyn Fn(&mut Command)| {
        let mut run = Run::with_closing();
        command_otherwise(&mut run, change);
        let findings = run.check();
        assert_found(what, &findings, Violation::HashDiffers, "hash differs");
        // What trades in another order has other events.
        let has_results = findings.count(Violation::WrongResult) > 0;
        assert!(has_results || what == "shown", "{what}: {findings:?}");
        assert_eq!(findings.count(Violation::NotSent), 0, "{what}: {findings:?}");
    };
    let not_pegged = of_orders(|order| order.peg = Peg::No);
    let followed_otherwise = of_orders(|order| {
        if order.peg == Peg::Mid {
            order.peg = Peg::Primary { offset: 0 };
        }
    });
    check("not pegged", &not_pegged);
    check("following another price", &followed_otherwise);
    check("shown", &shown);
    check("at once", &at_once);
    check("another auction", &other_auction);
}

fn hash_files(run: &Run, cell: usize) -> Vec<PathBuf> {
    let nodes = [Role::Mediator.node(0), Role::Mediator.node(1), Role::Processor.node(cell as u16)];
    nodes.into_iter().map(|node| run.folder_of(node, cell).join("hashes.jsonl")).collect()
}

/// Evidence that is gone is a doubt: nobody knows what it was.
#[test]
fn states_that_no_replica_recorded_are_a_doubt() {
    let run = Run::new(Durability::MemoryQuorum);
    run.check();
    for path in hash_files(&run, 0).into_iter().filter(|path| path.is_file()) {
        fs::write(path, "").unwrap();
    }
    let findings = folder(run.path()).unwrap();
    assert_eq!(findings.verdict(), Verdict::Doubtful, "{findings:?}");
    let doubt = "cell 0: no replica recorded a state, so none confirms its books";
    assert!(findings.doubts.iter().any(|it| it == doubt), "{findings:?}");
    // An early one confirms what came before it only.
    let early = "{\"index\":1,\"hash\":\"0000000000000000\"}\n";
    fs::write(&hash_files(&run, 0)[0], early).unwrap();
    let findings = folder(run.path()).unwrap();
    assert_eq!(findings.violations.keys().collect::<Vec<_>>(), [&Violation::HashDiffers]);
    let doubt = "cell 0: no replica recorded a state after batch";
    assert!(findings.doubts.iter().any(|it| it.starts_with(doubt)), "{findings:?}");
}

#[test]
fn a_journal_that_is_cut_is_found() {
    let run = Run::new(Durability::DiskQuorum);
    run.check();
    // One of three, which is enough for the durability: its own states say that it was longer.
    let entries = &run.entries[0];
    run.journal(Role::Mediator.node(0), 0, &entries[..entries.len() - 10]);
    let findings = run.check_again();
    assert_found("one", &findings, Violation::Gap, "mediator 0 recorded a state after batch");
    // All of them: what clients have answers to is lost.
    let mut run = Run::new(Durability::DiskQuorum);
    let length = run.entries[0].len();
    run.entries[0].truncate(length - 10);
    let findings = run.check();
    assert_found("all", &findings, Violation::Lost, "and no journal has it");
    // An empty file is no journal, and no file is none either.
    let run = Run::new(Durability::MemoryQuorum);
    run.check();
    let path = run.folder_of(Role::Processor.node(0), 0).join("00000000000000000001.journal");
    fs::write(&path, "").unwrap();
    let findings = folder(run.path()).unwrap();
    assert_eq!(findings.verdict(), Verdict::Damaged, "{findings:?}");
    assert!(findings.damage[0].starts_with("processor 0: the journal file "), "{findings:?}");
    fs::remove_dir_all(run.folder_of(Role::Processor.node(0), 0)).unwrap();
    let findings = folder(run.path()).unwrap();
    assert_eq!(findings.verdict(), Verdict::Doubtful, "{findings:?}");
    let doubt = "cell 0: there is no journal of processor 0";
    assert!(findings.doubts.iter().any(|it| it == doubt), "{findings:?}");
}

/// As the checkers of others read it: each line is one operation, and a replay of the order that
/// it names is the history of a counter for each instrument.
#[test]
fn a_history_has_every_request_and_what_came_of_it() {
    let run = Run::new(Durability::MemoryQuorum);
    let findings = run.check();
    let mut bytes = vec![];
    let written = write_history(run.path(), &mut bytes).unwrap();
    assert_eq!(written, findings.sent);
    let lines: Vec<serde_json::Value> = bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert_eq!(lines.len() as u64, written);
    let mut numbers: Vec<Vec<u64>> = vec![vec![]; 8];
    for line in &lines {
        let (call, returned) = (line["call"].as_u64().unwrap(), line["return"].as_u64());
        assert_eq!(returned.is_some(), line["output"].is_object(), "{line}");
        let Some(returned) = returned else { continue };
        assert!(call <= returned, "{line}");
        let instrument = line["input"]["instrument"].as_u64().unwrap() as usize;
        numbers[instrument].push(line["output"]["number"].as_u64().unwrap());
    }
    for numbers in &mut numbers {
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "{numbers:?}");
    }
}
