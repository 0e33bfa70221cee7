//! Verification of a run whose instruments move between cells: intact, and with each fault of a
//! move that must be found.

use nm_exchange::batch;
use nm_exchange::moves::{MoveParts, Part};
use nm_exchange::network::Durability;
use nm_load::log::Record;
use nm_replica::journal::RecordKind;
use nm_verify::recording::Recording;
use nm_verify::{Cuts, Verdict, Violation, folder, folder_cut};
use nm_wire::{Block, Kind, Series, Value};

use super::folders::{Entry, Run};

/// The kind of the only frame of a batch, if it is of a move.
fn kind(entry: &Entry) -> Option<Kind> {
    let bytes = entry.bytes.get(batch::HEADER_BYTES..)?;
    let kind = nm_wire::read(bytes).unwrap()?.kind();
    (kind != Kind::Request).then_some(kind)
}

/// Positions of the batches with this kind of frame in the journal of a cell.
fn positions(run: &Run, cell: usize, wanted: Kind) -> Vec<usize> {
    let all = run.entries[cell].iter().enumerate();
    all.filter(|(_, entry)| kind(entry) == Some(wanted)).map(|(at, _)| at).collect()
}

/// Makes a batch one in which nothing is.
fn blank(run: &mut Run, cell: usize, at: usize) {
    run.entries[cell][at].kind = RecordKind::Blank;
}

#[test]
fn a_run_whose_instruments_move_is_clean_with_every_durability() {
    for &durability in Durability::ALL {
        let run = Run::with_moves(durability);
        run.check();
        Recording::open(run.path()).unwrap().seal().unwrap();
        let findings = folder(run.path()).unwrap();
        assert_eq!(findings.verdict(), Verdict::Proven, "{findings:?}");
        assert!(findings.notes.is_empty(), "{findings:?}");
        assert_eq!((findings.moves, findings.moved_states), (30, 30));
        assert!(findings.executed > 2_900 && findings.answered == findings.executed);
    }
}

/// The events that a session received continue in another cell where they ended in the one before.
#[test]
fn events_are_compared_across_the_cells_of_an_instrument() {
    let mut run = Run::with_moves(Durability::None);
    let is_delivery = |record: &&Record| matches!(record, Record::Delivered(_));
    let expected = run.records.iter().filter(is_delivery).count();
    let findings = run.check();
    assert!(findings.is_clean() && expected > 100, "{findings:?}");
    for record in run.records.iter_mut().rev().take(3) {
        let Record::Delivered(one) = record else { panic!("{record:?}") };
        one.events_hash ^= 1;
    }
    assert_eq!(run.check().count(Violation::WrongResult), 3);
}

/// Snapshots are taken while an instrument arrives, is here, or has left.
#[test]
fn replay_from_a_snapshot_leads_to_the_same_state_although_instruments_move() {
    let run = Run::with_moves(Durability::MemoryQuorum);
    run.check();
    let findings = folder_cut(run.path(), Cuts { count: 300, seed: 5 }).unwrap();
    assert!(findings.is_clean(), "{findings:?}");
    assert_eq!(findings.cuts, 600);
}

/// Without its release an instrument has two owners.
#[test]
fn an_instrument_with_two_owners_is_found() {
    let mut run = Run::with_moves(Durability::None);
    let at = positions(&run, 1, Kind::Release)[0];
    blank(&mut run, 1, at);
    let findings = run.check();
    assert_eq!(findings.count(Violation::WrongOwner), 1, "{findings:?}");
    let sentence = "and cell 1 never released it";
    assert!(findings.sentences.iter().any(|it| it.contains(sentence)), "{findings:?}");
}

/// What was released and adopted by none is lost, whatever clients have received.
#[test]
fn a_lost_release_is_found() {
    let mut run = Run::with_moves(Durability::None);
    // The end of a transfer to cell 0, of two frames each.
    let at = positions(&run, 0, Kind::MoveParts)[1];
    blank(&mut run, 0, at);
    let findings = run.check();
    assert_eq!(findings.count(Violation::NoOwner), 1, "{findings:?}");
    assert!(findings.count(Violation::Lost) > 10, "{findings:?}");
    // The last one of a cell, when neither has a record of what came after it.
    let mut run = Run::with_moves(Durability::None);
    let last = *positions(&run, 0, Kind::Release).last().unwrap();
    let until = *positions(&run, 1, Kind::MoveParts).last().unwrap();
    run.entries[0].truncate(last + 1);
    run.entries[1].truncate(until);
    let findings = run.check();
    assert_eq!(findings.count(Violation::NoOwner), 0, "{findings:?}");
    let note = "was on its way from cell 0 to cell 1 when the recording ended";
    assert!(findings.notes.iter().any(|it| it.contains(note)), "{findings:?}");
}

/// An outcome that is kept to be repeated changes neither results nor history.
#[test]
fn a_state_that_changed_in_transit_is_found() {
    let mut run = Run::with_moves(Durability::None);
    let mut changed = 0;
    for at in positions(&run, 1, Kind::MoveParts) {
        let bytes = &mut run.entries[1][at].bytes;
        let frame = nm_wire::read(&bytes[batch::HEADER_BYTES..]).unwrap().unwrap();
        let (message, mut parts): (MoveParts<'_>, _) = (frame.read().unwrap(), vec![]);
        for part in message.parts {
            let part = part.unwrap();
            if let Part::Sessions { saved } = part
                && changed == 0
                && saved.0.len() > 56
            {
                // Four numbers of the first session, then two of its first outcome.
                let mut sessions = saved.0.to_vec();
                sessions[48] ^= 1;
                Part::Sessions { saved: Block(&sessions) }.put(&mut parts);
                changed += 1;
            } else {
                part.put(&mut parts);
            }
        }
        let mut other = vec![];
        nm_wire::write(&MoveParts { parts: Series::of(&parts), ..message }, &mut other);
        bytes.truncate(batch::HEADER_BYTES);
        bytes.extend(other);
    }
    assert_eq!(changed, 1);
    let findings = run.check();
    let sentences: Vec<&String> =
        findings.sentences.iter().filter(|it| it.contains(" in move ")).collect();
    let expected = "hash differs: instrument 2 in move 2: ";
    assert!(sentences[0].starts_with(expected), "{findings:?}");
    assert!(sentences[0].contains("when cell 0 released it"), "{sentences:?}");
}

/// Requests behind the release are executed by nobody, although their client has replies.
#[test]
fn requests_that_were_executed_without_ownership_are_found() {
    let mut run = Run::with_moves(Durability::None);
    let release = positions(&run, 0, Kind::Release)[3];
    let begun = positions(&run, 0, Kind::MoveParts);
    let before = release - 2;
    assert!(kind(&run.entries[0][before]).is_none() && !begun.contains(&before));
    for at in (before..release).rev() {
        let (first, second) = run.entries[0].split_at_mut(at + 1);
        let (a, b) = (&mut first[at], &mut second[0]);
        std::mem::swap(&mut a.bytes, &mut b.bytes);
        std::mem::swap(&mut a.kind, &mut b.kind);
    }
    let findings = run.check();
    assert!(findings.count(Violation::Lost) > 0, "{findings:?}");
    assert!(findings.sentences.iter().any(|it| it.contains(" in move ")), "{findings:?}");
}
