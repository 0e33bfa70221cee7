//! Lies planted in the recording of a real run: `exchange verify` finds each, says which it is, and
//! ends with 1. Missing evidence is 3. The manifest, which finds any change, is taken away first.

use std::fs;
use std::path::{Path, PathBuf};

use nm_load::log::{self, Answered, Log, Record};
use serde_json::Value;

use crate::exchange::short;
use crate::support::run;

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

fn copy(from: &Path, to: &Path) {
    for path in files(from) {
        let copied = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(copied.parent().unwrap()).unwrap();
        fs::copy(&path, &copied).unwrap();
    }
}

/// Position of an answer behind the first requests.
fn answer(records: &[Record]) -> usize {
    let middle = records.len() / 2;
    middle + records[middle..].iter().position(|it| matches!(it, Record::Answered(_))).unwrap()
}

fn answered(record: &mut Record) -> &mut Answered {
    let Record::Answered(answered) = record else { panic!("{record:?} is no answer") };
    answered
}

type Lie = (&'static str, fn(&mut Vec<Record>), &'static str);

/// What each lie is, how it is told, and what is said of it.
const LIES: [Lie; 9] = [
    (
        "an answer moved in time past another's request",
        |records| {
            let at = answer(records);
            let reply = records.remove(at);
            let Record::Answered(Answered { name, .. }) = reply else { panic!() };
            let is_own = |it: &Record| matches!(it, Record::Sent(sent) if sent.name == name);
            let own = records.iter().position(is_own).unwrap();
            // Far behind, when requests that were executed earlier are sent.
            records.insert(own.min(at) / 4, reply);
        },
        "client log: ",
    ),
    (
        "an answer twice",
        |records| {
            let at = answer(records);
            records.insert(at, records[at]);
        },
        "twice: client-0.log has two answers to request",
    ),
    (
        "an answer dropped",
        |records| {
            records.remove(answer(records));
        },
        "client log: client-0.log has no answer to request",
    ),
    (
        "a record of deliveries dropped",
        |records| {
            let is_delivery = |it: &Record| matches!(it, Record::Delivered(_));
            records.remove(records.iter().rposition(is_delivery).unwrap());
        },
        "not delivered: client-0.log does not have which events session",
    ),
    (
        "all records of deliveries dropped",
        |records| records.retain(|it| !matches!(it, Record::Delivered(_))),
        "not delivered: client-0.log does not have which events session",
    ),
    (
        "a wrong hash as one that has expired",
        |records| {
            let at = answer(records);
            let answered = answered(&mut records[at]);
            (answered.is_expired, answered.events_hash) = (true, 1);
        },
        "says that its outcome has expired, and has one",
    ),
    (
        "two answers swapped",
        |records| {
            let at = answer(records);
            let is_other = |it: &Record| matches!(it, Record::Answered(_));
            let other = at + 1 + records[at + 1..].iter().position(is_other).unwrap();
            let name = answered(&mut records[other]).name;
            let first = std::mem::replace(&mut answered(&mut records[at]).name, name);
            answered(&mut records[other]).name = first;
        },
        "wrong result: request",
    ),
    (
        "an answer of another session",
        |records| {
            let at = answer(records);
            answered(&mut records[at]).name.session += 1;
        },
        "and does not have that it was sent before",
    ),
    (
        "a position lowered",
        |records| {
            let at = answer(records);
            answered(&mut records[at]).output_seq -= 1;
        },
        "wrong result: request",
    ),
];

#[test]
fn each_lie_planted_in_a_recorded_run_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let recorded = run(&short(&out, &["--record", "--durability", "disk-quorum"]));
    assert_eq!(recorded.code, 3, "{}{}", recorded.stdout, recorded.stderr);
    let round = out.join("round-1");
    let verify = |folder: &Path| run(&["exchange", "verify", folder.to_str().unwrap()]);
    let true_one = verify(&round);
    assert_eq!(true_one.code, 0, "{}{}", true_one.stdout, true_one.stderr);
    let bytes = fs::read(round.join("client-0.log")).unwrap();
    let mut records = log::parse(&bytes).unwrap();
    assert!(matches!(records.pop(), Some(Record::End(_))), "the client says that it has ended");
    let lied = folder.path().join("lied");
    copy(&round, &lied);
    fs::remove_file(lied.join("manifest.json")).unwrap();
    for (what, tell, sentence) in LIES {
        let mut told = records.clone();
        tell(&mut told);
        let mut log = Log::create(&lied.join("client-0.log")).unwrap();
        told.iter().for_each(|record| log.add(record).unwrap());
        log.end().unwrap();
        let found = verify(&lied);
        assert_eq!(found.code, 1, "{what}: {}{}", found.stdout, found.stderr);
        assert!(found.stdout.contains(sentence), "{what}: {}", found.stdout);
    }
    fs::write(lied.join("client-0.log"), &bytes).unwrap();
    let without_manifest = verify(&lied);
    assert_eq!(without_manifest.code, 3, "{}", without_manifest.stdout);
    for path in files(&lied).iter().filter(|path| path.ends_with("hashes.jsonl")) {
        fs::write(path, "").unwrap();
    }
    let found = verify(&lied);
    assert_eq!(found.code, 3, "{}{}", found.stdout, found.stderr);
    let sentence = "cell 0: no replica recorded a state, so none confirms its books";
    assert!(found.stdout.contains(sentence), "{}", found.stdout);
    // The rest of the evidence, file by file.
    fs::write(lied.join("client-0.log"), "").unwrap();
    let found = verify(&lied);
    assert_eq!(found.code, 3, "{}{}", found.stdout, found.stderr);
    assert!(found.stdout.contains("client-0.log is empty"), "{}", found.stdout);
    fs::write(lied.join("client-0.log"), &bytes).unwrap();
    fs::remove_dir_all(lied.join("data")).unwrap();
    let found = verify(&lied);
    assert_eq!(found.code, 3, "{}{}", found.stdout, found.stderr);
    assert!(found.stdout.contains("there is no journal of cell 0"), "{}", found.stdout);
    // The file keeps what Porcupine reads, beside whatever the verdict is.
    let history = folder.path().join("history.jsonl");
    let args = ["exchange", "verify", round.to_str().unwrap(), "--history"];
    let written = run(&[&args[..], &[history.to_str().unwrap()]].concat());
    assert_eq!(written.code, 0, "{}{}", written.stdout, written.stderr);
    let text = fs::read_to_string(&history).unwrap();
    let sent = records.iter().filter(|it| matches!(it, Record::Sent(_))).count();
    assert_eq!(text.lines().count(), sent);
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert!(first["output"]["number"].as_u64() >= Some(1), "{first}");
}
