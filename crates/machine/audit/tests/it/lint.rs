//! Each check is declared completely.

use std::collections::BTreeSet;

use nm_audit::{Check, checks, pair_checks};
use nm_model::finding::{Confidence, FixKind, UndoClass};

fn all() -> impl Iterator<Item = &'static Check> {
    checks::all().chain(pair_checks())
}

#[test]
fn every_check_has_a_reason_a_source_an_undo_class_and_a_fix() {
    let mut ids = BTreeSet::new();
    for check in all() {
        let id = check.id;
        assert!(ids.insert(id), "{id} is there twice");
        assert!(id.contains('.') && !check.title.is_empty() && !check.why.is_empty(), "{id}");
        assert!(!check.sources.is_empty(), "{id} has no source");
        assert!(!check.fix.1.is_empty(), "{id} has no fix");
        assert!(!check.threatens.is_empty(), "{id} threatens nothing");
        // What is done at the hardware or only recorded cannot be undone; all else can.
        let needs_no_undo = matches!(check.fix.0, FixKind::Hardware | FixKind::Record)
            || check.confidence == Confidence::Judgement
            || check.fix.1.starts_with("perf ");
        assert!(check.undo != UndoClass::Nothing || needs_no_undo, "{id} has no undo class");
        for text in [check.title, check.why] {
            assert!(!text.ends_with('.') && !text.contains("  "), "{id}: {text}");
        }
    }
    assert!(ids.len() >= 80, "{} checks", ids.len());
}

#[test]
fn what_only_judgement_supports_is_marked_so() {
    for check in all() {
        let only_judgement = check.sources.iter().all(|source| source.is_judgement());
        let is_documented = check.confidence == Confidence::Documented;
        // Where the effect is a fact of the interface, such as a missing hardware clock.
        let is_fact = matches!(check.id, "nic.tstamp");
        assert!(!(only_judgement && is_documented) || is_fact, "{}", check.id);
        if check.confidence == Confidence::Measured {
            assert!(check.effect.is_some(), "{} is measured, and no effect is given", check.id);
        }
    }
}
