//! Each check is declared completely.

use std::collections::BTreeSet;
use std::path::Path;

use nm_audit::check::Reasons;
use nm_audit::{Check, checks, pair_checks};
use nm_model::finding::{Confidence, FixKind, UndoClass};
use nm_settings::setting::Action;
use nm_settings::{SettingId, catalogue};

fn all() -> impl Iterator<Item = &'static Check> {
    checks::all().chain(checks::of_firmware()).chain(pair_checks())
}

#[test]
fn every_check_has_a_reason_a_source_an_undo_class_and_a_fix() {
    let mut ids = BTreeSet::new();
    for check in all() {
        let id = check.id;
        assert!(ids.insert(id), "{id} is there twice");
        let Reasons { why, sources, fix, undo, .. } = check.reasons(&[]);
        assert!(id.contains('.') && !check.title.is_empty() && !why.is_empty(), "{id}");
        assert!(!sources.is_empty(), "{id} has no source");
        assert!(!fix.text.is_empty(), "{id} has no fix");
        assert!(!check.threatens.is_empty(), "{id} threatens nothing");
        // What is done at the hardware or only recorded cannot be undone; all else can.
        let needs_no_undo = matches!(fix.kind, FixKind::Hardware | FixKind::Record)
            || check.confidence == Confidence::Judgement
            || fix.text.starts_with("perf ");
        assert!(undo != UndoClass::Nothing || needs_no_undo, "{id} has no undo class");
        for text in [check.title, &why] {
            assert!(!text.ends_with('.') && !text.contains("  "), "{id}: {text}");
        }
    }
    assert!(ids.len() >= 80, "{} checks", ids.len());
}

#[test]
fn what_only_judgement_supports_is_marked_so() {
    for check in all() {
        let sources = check.reasons(&[]).sources;
        let only_judgement = sources.iter().all(|source| source.is_judgement());
        let is_documented = check.confidence == Confidence::Documented;
        // Where the effect is a fact of the interface, such as a missing hardware clock.
        let is_fact = matches!(check.id, "nic.tstamp");
        assert!(!(only_judgement && is_documented) || is_fact, "{}", check.id);
        if check.confidence == Confidence::Measured {
            assert!(check.effect.is_some(), "{} is measured, and no effect is given", check.id);
        }
    }
}

/// What a check of settings says of them is the catalogue's, and nothing else can be declared.
#[test]
fn each_setting_is_judged_by_one_check_which_declares_none_of_it() {
    let mut judged: Vec<SettingId> = vec![];
    for check in all().filter(|check| !check.settings.is_empty()) {
        let id = check.id;
        let own = (check.why, check.sources, check.fix.1, check.undo, check.conflict);
        assert_eq!(own, ("", &[][..], "", UndoClass::Nothing, None), "{id} declares its own");
        let reasons = check.reasons(&[]);
        for setting in check.settings {
            let entry = nm_settings::setting(*setting);
            assert!(reasons.why.contains(entry.why), "{id}: {}", reasons.why);
            assert!(reasons.fix.text.contains(&entry.fix().1), "{id}: {}", reasons.fix.text);
            assert!(entry.sources.iter().all(|one| reasons.sources.contains(one)), "{id}");
            assert_eq!(reasons.undo, entry.undo(), "{id}");
            let one = check.reasons(&[*setting]);
            let note = entry.caution().map_or(String::new(), |text| format!("   # {text}"));
            assert_eq!(
                (one.why.as_str(), one.fix.text),
                (entry.why, entry.fix().1 + &note),
                "{id}"
            );
        }
        judged.extend(check.settings);
    }
    judged.sort_unstable();
    let mut known = SettingId::ALL.to_vec();
    known.sort_unstable();
    assert_eq!(judged, known, "each setting that tune knows is judged once");
}

/// A check that names a file of the catalogue could judge it by a value of its own.
#[test]
fn no_check_names_a_file_of_the_catalogue() {
    let files: Vec<String> = catalogue::SETTINGS
        .iter()
        .flat_map(|entry| match &entry.action {
            Action::ApplicationCpus(file, _) | Action::AllCpus(file, _) => vec![file.file().into()],
            Action::LinkFiles(files) => {
                files.iter().map(|(file, _)| format!("\"{}\"", file.file())).collect()
            }
            _ => entry.files().into_iter().map(|(path, _)| path).collect(),
        })
        .collect();
    assert!(files.len() >= 20, "{files:?}");
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for folder in ["audit/src", "audit/src/checks", "tune/src"] {
        for file in std::fs::read_dir(machine.join(folder)).unwrap() {
            let path = file.unwrap().path();
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            let named: Vec<&String> = files.iter().filter(|one| text.contains(*one)).collect();
            assert!(named.is_empty(), "{} names {named:?}", path.display());
        }
    }
}
